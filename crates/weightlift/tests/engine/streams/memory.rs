//! A stream takes its window, however large the file is.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use testkit::{Random, skipped};
use weightlift::Stream;

use super::{MIB, settings};
use crate::memory::{CHILD, alone_with, peak_resident};

const NAME: &str = "streams::memory::a_read_of_4_gib_in_a_memory_group_of_512_mib_takes_the_window";

/// For the child: there is no group.
const NO_GROUP: &str = "none";

/// In a process of its own, whose peak is its own, and in a group of which page cache counts too.
#[test]
fn a_read_of_4_gib_in_a_memory_group_of_512_mib_takes_the_window() {
    const LENGTH: u64 = 4 << 30;
    const WINDOW: usize = 40 * MIB;
    const BUFFER: usize = 16 * MIB;

    let group = match std::env::var_os(CHILD) {
        Some(_) => None,
        None => Group::new(512 << 20).map_err(|why| skipped(NAME, &why)).ok(),
    };
    let name = group.as_ref().map_or(NO_GROUP.into(), |group| group.0.display().to_string());
    if !alone_with(NAME, &name) {
        return;
    }
    let group = std::env::var(CHILD).unwrap();
    if group != NO_GROUP {
        fs::write(Path::new(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(LENGTH).unwrap();
    let last = Random::new(1).bytes(9000);
    file.write_all_at(&last, LENGTH - 9000).unwrap();

    let mut stream = Stream::open(&path, &settings(4, WINDOW)).unwrap();
    let mut buffer = vec![1; BUFFER];
    // Straight, and through the window, which is full after the first GiB.
    for (until, size) in [(2 << 30, BUFFER), (3 << 30, 4096), (LENGTH, MIB)] {
        while stream.stream_position().unwrap() < until {
            stream.read_exact(&mut buffer[..size]).unwrap();
        }
    }
    assert!(buffer[MIB - 9000..MIB] == last);
    stream.seek(SeekFrom::Start(1)).unwrap();
    stream.read_exact(&mut buffer).unwrap();
    let peak = peak_resident() as usize;
    eprintln!("4 GiB read, group {group}: at most {} MiB resident", peak / MIB);
    assert!(peak < WINDOW + BUFFER + 24 * MIB, "{peak} bytes were resident");
    // Less would mean that the measure is none.
    assert!(peak > WINDOW + BUFFER, "{peak} bytes were resident");
}

/// A memory group, removed when dropped. Who may make one: root, where there are groups.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Result<Self, String> {
        // Version 1 has a tree for memory, version 2 one for all.
        let trees =
            [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        let mut why = "no memory groups here".to_owned();
        for (tree, file) in trees {
            if !Path::new(tree).join("cgroup.procs").exists() {
                continue;
            }
            let path = Path::new(tree).join(format!("weightlift-test-{}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let group = Self(path);
                    match fs::write(group.0.join(file), limit.to_string()) {
                        Ok(()) => return Ok(group),
                        Err(error) => why = format!("cannot limit a memory group: {error}"),
                    }
                }
                Err(error) => why = format!("cannot make a memory group: {error}"),
            }
        }
        Err(why)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may not be gone yet; an empty group that stays is small.
        let _ = fs::remove_dir(&self.0);
    }
}
