use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Instant;

use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};

use super::*;

const PAGES: u64 = 64;
const NOBODY: u32 = 65_534;

fn page() -> u64 {
    page_size() as u64
}

/// A file of 64 pages that is on the disk and not in the cache.
fn cold_file(path: &Path) -> File {
    fs::write(path, vec![7; (PAGES * page()) as usize]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    drop_from_cache(&file, 0, PAGES * page()).unwrap();
    // What is read from here on is read page by page, with nothing around it.
    rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
    file
}

fn read(file: &File, pages: impl IntoIterator<Item = u64>) {
    for number in pages {
        let mut byte = [0];
        file.read_exact_at(&mut byte, number * page()).unwrap();
        assert_eq!(byte, [7]);
    }
}

fn asked(file: &File) -> (StorageFacts, Residency) {
    let facts = StorageFacts::of(file).unwrap();
    let residency = Residency::of(file, &facts);
    (facts, residency)
}

/// Touches some pages of a cold file and compares every answer with which they are.
fn tells_which_pages_were_touched(file: &File, residency: &Residency) {
    let all = PAGES * page();
    assert_eq!(residency.range(0, all), Resident::None, "{residency:?}");
    let touched = [3, 10, 11, 12, 40];
    read(file, touched);
    assert_eq!(residency.range(0, all), Resident::Part { pages: 5 }, "{residency:?}");
    for number in 0..PAGES {
        let expected = if touched.contains(&number) { Resident::All } else { Resident::None };
        assert_eq!(residency.range(number * page(), page()), expected, "page {number}");
        assert_eq!(residency.range(number * page() + 100, 1), expected, "page {number}");
    }
    // The pages at both ends count whole.
    assert_eq!(residency.range(10 * page() + 4000, 2 * page()), Resident::All);
    assert_eq!(residency.range(3 * page() - 1, 2), Resident::Part { pages: 1 });
    assert_eq!(residency.range(12 * page() + 1, page()), Resident::Part { pages: 1 });
    // Behind the end is nothing, and a range without bytes lacks none.
    read(file, [PAGES - 1]);
    assert_eq!(residency.range(all - 1, page()), Resident::Part { pages: 1 });
    assert_eq!(residency.range(all, 1 << 40), Resident::None);
    assert_eq!(residency.range(u64::MAX - 1, u64::MAX), Resident::None);
    assert_eq!(residency.range(0, 0), Resident::All);
    read(file, 0..PAGES);
    assert_eq!(residency.range(0, all), Resident::All);
}

#[test]
fn here_it_tells_which_pages_were_touched() {
    const TEST: &str = "here_it_tells_which_pages_were_touched";
    let folder = tempfile::tempdir().unwrap();
    let file = cold_file(&folder.path().join("file"));
    let (facts, residency) = asked(&file);
    if matches!(residency.method(), "memory" | "unknown") {
        return testkit::skipped(TEST, &format!("{facts}: {}", residency.method()));
    }
    tells_which_pages_were_touched(&file, &residency);
}

/// Where both are true, both say the same.
#[test]
fn mincore_tells_which_pages_were_touched() {
    const TEST: &str = "mincore_tells_which_pages_were_touched";
    let folder = tempfile::tempdir().unwrap();
    let file = cold_file(&folder.path().join("file"));
    let (facts, _) = asked(&file);
    let Some(map) = Map::new(&file).filter(Map::is_true) else {
        return testkit::skipped(TEST, "mincore does not tell the truth here");
    };
    if facts.kind == StorageKind::Memory {
        return testkit::skipped(TEST, &format!("nothing can be dropped: {facts}"));
    }
    tells_which_pages_were_touched(&file, &Residency(Method::Mincore(map)));
}

#[test]
fn in_memory_everything_is_there() {
    const TEST: &str = "in_memory_everything_is_there";
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        return testkit::skipped(TEST, "there is no /dev/shm");
    };
    let (_, residency) = asked(file.as_file());
    assert_eq!(residency.method(), "memory");
    assert_eq!(residency.range(0, 1 << 30), Resident::All);
}

/// Runs `body` with mounts of its own; a skip where that may not be.
fn with_own_mounts(test: &str, body: impl FnOnce(&Path) -> Result<(), String> + Send) {
    let folder = tempfile::tempdir().unwrap();
    thread::scope(|scope| {
        let run = || {
            if have_own_mounts() { body(folder.path()) } else { Err("no right to mount".into()) }
        };
        if let Err(why) = scope.spawn(run).join().unwrap() {
            testkit::skipped(test, &why);
        }
    });
}

/// The command inherits the thread's mounts.
fn run(command: &str, folder: &Path) -> Result<(), String> {
    let output = Command::new("sh").args(["-c", command]).current_dir(folder).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr).replace('\n', " ");
    if output.status.success() { Ok(()) } else { Err(format!("{command}: {text}")) }
}

#[test]
fn on_an_ext4_of_its_own_it_tells_which_pages_were_touched() {
    with_own_mounts("on_an_ext4_of_its_own_it_tells_which_pages_were_touched", |folder| {
        run("truncate -s 32M image && mkfs.ext4 -q -F image && mkdir disk", folder)?;
        run("mount -o loop image disk", folder)?;
        let file = cold_file(&folder.join("disk/file"));
        let (facts, residency) = asked(&file);
        assert_eq!((facts.file_system.as_str(), facts.kind), ("ext4", StorageKind::Disk));
        tells_which_pages_were_touched(&file, &residency);
        Ok(())
    });
}

/// `cachestat` looks at a cache there that is always empty: everything would be read from the
/// disk again.
#[test]
fn on_overlay_the_file_below_is_asked() {
    with_own_mounts("on_overlay_the_file_below_is_asked", |folder| {
        run("mkdir lower upper work merged", folder)?;
        let below = cold_file(&folder.join("lower/file"));
        if asked(&below).0.kind != StorageKind::Disk {
            return Err("the folder for temporary files lies on no disk".into());
        }
        run(
            "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged",
            folder,
        )?;
        let file = File::open(folder.join("merged/file")).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
        let (facts, residency) = asked(&file);
        assert_eq!((facts.file_system.as_str(), facts.kind), ("overlay", StorageKind::Overlay));
        assert_eq!(residency.method(), "mincore");
        tells_which_pages_were_touched(&file, &residency);
        drop_from_cache(&file, 0, PAGES * page()).unwrap();
        assert_eq!(residency.range(0, PAGES * page()), Resident::None);
        Ok(())
    });
}

/// Runs `body` in a thread that has no more rights than `nobody`; `false` where that may not be.
fn as_nobody(body: impl FnOnce() + Send) -> bool {
    // These are the thread's alone, unlike those that the C library gives up for all.
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let give_up_rights = || {
        set_thread_res_gid(group, group, group).is_ok()
            && set_thread_res_uid(user, user, user).is_ok()
    };
    let run = || give_up_rights() && (body(), true).1;
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// For such files `mincore` says that all is there; a cold file would be read through the cache,
/// and a cold sample of a benchmark would be none.
#[test]
fn of_a_file_of_anothers_nothing_is_claimed_that_is_not_there() {
    const TEST: &str = "of_a_file_of_anothers_nothing_is_claimed_that_is_not_there";
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("file");
    let cold = cold_file(&path);
    let (facts, as_owner) = asked(&cold);
    if as_owner.range(0, PAGES * page()) != Resident::None {
        return testkit::skipped(TEST, &format!("cannot be made cold here: {facts}"));
    }
    let all = PAGES * page();
    let map = Map::new(&cold).unwrap();
    let ran = as_nobody(|| {
        let (_, residency) = asked(&File::open(&path).unwrap());
        match residency.method() {
            "unknown" => assert_eq!(residency.range(0, all), Resident::Unknown),
            // Kernels of before the rule tell everybody.
            _ => assert_eq!(residency.range(0, all), Resident::None, "{residency:?}"),
        }
        // Whoever had the right and gave it up is told nothing true any more either.
        assert!(matches!(map.resident(0, PAGES), None | Some(0)));
    });
    if !ran {
        return testkit::skipped(TEST, "cannot become nobody");
    }
    // Who may write may know, and so may the owner.
    for (owner, mode) in [(0, 0o666), (NOBODY, 0o444)] {
        if chown(&path, Some(owner), None).is_err() {
            return testkit::skipped(TEST, "cannot give a file away");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        as_nobody(|| {
            let file = File::open(&path).unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            drop_from_cache(&file, 0, all).unwrap();
            let (_, residency) = asked(&file);
            assert_eq!(residency.method(), as_owner.method());
            tells_which_pages_were_touched(&file, &residency);
        });
    }
}

#[test]
fn only_whole_pages_are_dropped() {
    const TEST: &str = "only_whole_pages_are_dropped";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    drop(cold_file(&path));
    // Ends within page 63.
    let length = 63 * page() + 100;
    File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    drop_from_cache(&file, 0, length).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
    let (facts, residency) = asked(&file);
    if residency.range(0, length) != Resident::None {
        return testkit::skipped(TEST, &format!("cannot be made cold here: {facts}"));
    }
    let gone = |offset, length_to_drop| {
        read(&file, 0..PAGES);
        drop_from_cache(&file, offset, length_to_drop).unwrap();
        let missing = |number: &u64| residency.range(number * page(), 1) == Resident::None;
        (0..PAGES).filter(missing).collect::<Vec<_>>()
    };
    assert_eq!(gone(100, 3 * page()), [1, 2]);
    assert_eq!(gone(page(), page()), [1]);
    for (offset, length) in [(0, 0), (5, 0), (1, page()), (page() - 1, page()), (100, 200)] {
        assert_eq!(gone(offset, length), [0; 0], "{offset} {length}");
    }
    // All that there is of the last page, and not all.
    assert_eq!(gone(62 * page(), page() + 100), [62, 63]);
    assert_eq!(gone(62 * page(), page() + 99), [62]);
    assert_eq!(gone(63 * page(), u64::MAX), [63]);
    assert_eq!(gone(u64::MAX - 5, 3), [0; 0]);
    assert_eq!(gone(0, length).len(), 64);
}

#[test]
fn files_that_have_no_cache_of_their_own_say_are_unknown() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut facts = StorageFacts::of(&file).unwrap();
    (facts.kind, facts.file_system) = (StorageKind::Disk, "zfs".into());
    let residency = Residency::of(file.as_file(), &facts);
    assert_eq!((residency.method(), residency.range(0, 1)), ("unknown", Resident::Unknown));
}

#[test]
fn an_empty_file_has_nothing_there() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (_, residency) = asked(file.as_file());
    assert!(!matches!(residency.range(0, 0), Resident::Part { .. } | Resident::None));
    if residency.method() != "memory" {
        assert!(matches!(residency.range(0, 1), Resident::None | Resident::Unknown));
    }
    let map = Map::new(file.as_file()).unwrap();
    assert!(matches!(map.resident(0, 1), None | Some(0)));
    assert!(matches!(map.resident(1 << 50, 1 << 50), None | Some(0)));
}

/// A dozen readers ask about each MiB before they read it. Prints what that costs.
#[test]
fn a_dozen_threads_may_ask_at_once() {
    const MIB: u64 = 1 << 20;
    const FILE: u64 = 64;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), vec![7; (FILE * MIB) as usize]).unwrap();
    let (facts, chosen) = asked(file.as_file());
    let mincore = Map::new(file.as_file()).filter(Map::is_true).map(Method::Mincore);
    for residency in [Some(chosen), mincore.map(Residency)].into_iter().flatten() {
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    for mib in 0..FILE {
                        let told = residency.range(mib * MIB, MIB);
                        assert!(matches!(told, Resident::All | Resident::Unknown), "{told:?}");
                    }
                });
            }
        });
        let each = begin.elapsed().as_secs_f64() * 1e6 / (12 * FILE) as f64;
        println!("{}: {each:.1} us of the machine's time a MiB, {facts}", residency.method());
    }
}
