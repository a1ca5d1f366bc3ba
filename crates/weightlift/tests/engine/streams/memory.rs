//! A stream takes its window, however large the file is.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use testkit::Random;
use weightlift::Stream;

use super::{MIB, settings};
use crate::memory::{alone_in_a_group, peak_resident};

const NAME: &str = "streams::memory::a_read_of_4_gib_in_a_memory_group_of_512_mib_takes_the_window";

/// In a process of its own, whose peak is its own, and in a group of which page cache counts too.
#[test]
fn a_read_of_4_gib_in_a_memory_group_of_512_mib_takes_the_window() {
    const LENGTH: u64 = 4 << 30;
    const WINDOW: usize = 40 * MIB;
    const BUFFER: usize = 16 * MIB;

    if !alone_in_a_group(NAME, 512 << 20) {
        return;
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
    eprintln!("4 GiB read: at most {} MiB resident", peak / MIB);
    assert!(peak < WINDOW + BUFFER + 24 * MIB, "{peak} bytes were resident");
    // Less would mean that the measure is none.
    assert!(peak > WINDOW + BUFFER, "{peak} bytes were resident");
}
