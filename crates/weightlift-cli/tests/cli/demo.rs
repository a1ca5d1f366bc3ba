//! `demo`: every route verified, and nothing left behind.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Ran, run, text, weightlift};

fn demo(folder: &Path, args: &[&str]) -> Ran {
    let mut command = weightlift([&["demo"], args].concat());
    Ran::new(command.env("TMPDIR", folder).output().expect("it runs"))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    found.sort();
    found
}

#[test]
fn every_route_is_verified_or_told_why_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = demo(folder.path(), &["--size=8MiB"]);
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.starts_with("26 tensors, 8.39 MB, in 4 files"), "{}", ran.stdout);
    for route in ["host", "pageable", "pinned"] {
        let row = ran.stdout.lines().find(|line| line.starts_with(route)).expect("a row");
        let missing = ran
            .stdout
            .lines()
            .any(|line| line.contains(route) && line.contains("not available here: "));
        assert!(row.ends_with("26/26") || missing, "{row}");
    }
    assert!(ran.stdout.lines().any(|line| line.starts_with("host") && line.ends_with("26/26")));
    assert_eq!(ran.stdout.lines().filter(|line| line.starts_with("plain pread, ")).count(), 2);
    assert_eq!(entries(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_kept_model_is_a_model_and_the_same_each_time() {
    let folder = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let ran = demo(folder.path(), &["--size=64KiB", "--keep"]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        assert!(ran.stdout.lines().any(|line| line.starts_with("kept in ")), "{}", ran.stdout);
    }
    let models = entries(folder.path());
    let [one, other] = &models[..] else { panic!("two models: {models:?}") };
    let json = run(["inspect", text(one), "--json"]).json();
    let tensors = json["tensors"].as_array().expect("a list");
    let dtypes = ["BF16", "F32", "I8"];
    assert!(dtypes.iter().all(|dtype| tensors.iter().any(|tensor| tensor["dtype"] == *dtype)));
    assert!(tensors.iter().any(|tensor| tensor["length"] == 0));
    let files = entries(one);
    assert_eq!(files.len(), 5);
    for file in files {
        let same = other.join(file.file_name().expect("a name"));
        assert!(fs::read(&file).expect("bytes") == fs::read(same).expect("bytes"), "{file:?}");
    }
}

#[test]
fn a_disk_without_room_is_an_error_that_names_path_needed_and_free() {
    let folder = tempfile::tempdir().expect("a folder");
    let ran = demo(folder.path(), &["--size=1000000TiB"]);
    assert_eq!((ran.status, &*ran.stdout), (Some(1), ""), "{ran:?}");
    let path = format!("(path: {}, needed: ", text(folder.path()));
    assert!(ran.stderr.contains(&path) && ran.stderr.contains(", free: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
    let ran = demo(&folder.path().join("none"), &[]);
    assert_eq!((ran.status, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
}
