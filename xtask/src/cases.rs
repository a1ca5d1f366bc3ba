//! docs/cases.md says which tests prove what: they are there, and each case has one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo;

/// All files below a folder of the clone that end so.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![cargo::root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(path),
                _ if path.to_string_lossy().ends_with(ending) => found.push(path),
                _ => {}
            }
        }
    }
    assert!(!found.is_empty(), "there is no {ending} in {folder}");
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names of tests in Rust and in Python: functions behind the attribute, or named for pytest.
fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let name = |line: &str, before: &str| {
        let rest = line.trim_start().strip_prefix(before)?;
        Some(rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?.to_owned())
    };
    for path in ["crates", "testing", "xtask"].iter().flat_map(|folder| files(folder, ".rs")) {
        let text = read(&path);
        let mut is_test = false;
        for line in text.lines() {
            is_test |= line.trim() == "#[test]";
            if let Some(name) = name(line, "fn ") {
                names.extend(is_test.then_some(name));
                is_test = false;
            }
        }
    }
    for path in files("testing/python", ".py") {
        names.extend(read(&path).lines().filter_map(|line| name(line, "def ")));
    }
    names
}

#[test]
fn every_case_has_tests_that_are_there() {
    let tests = tests();
    let table = read(&cargo::root().join("docs/cases.md"));
    let mut cases = BTreeSet::new();
    let kinds = ["| FS-", "| UR-", "| MM-", "| GP-", "| LT-"];
    let is_case = |line: &&str| kinds.iter().any(|id| line.starts_with(id));
    for row in table.lines().filter(is_case) {
        let [_, case, _, named, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("not three cells: {row}");
        };
        assert!(cases.insert(case.trim().to_owned()), "{case} stands twice");
        let named: Vec<&str> = named.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "no test for {case}");
        for name in named {
            assert!(tests.contains(name), "{case}: there is no test `{name}`");
        }
    }
    // A row that is gone would be missed by nobody else.
    assert!(cases.len() >= 48, "{cases:?}");
}

/// FS-04. `RWF_NOWAIT` found the end of files that go on (Linux 5.9 and 5.10), and to ask what is in
/// the cache by it changes what is there.
#[test]
fn no_read_is_told_not_to_wait() {
    for path in files("crates", ".rs") {
        // What they measure is among others this.
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        for line in read(&path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            let told = ["preadv2", "ReadWriteFlags", "RWF_"].iter().any(|word| line.contains(word));
            assert!(!told, "{}: {line}", path.display());
        }
    }
}

/// GP-02, GP-03. Ranks are no numbers of devices, and which devices a process sees is the driver's to
/// know: the variable may hold numbers, UUIDs, or parts of a device.
#[test]
fn no_code_reads_which_devices_there_are_from_the_environment() {
    let sources = files("crates", ".rs").into_iter().chain(files("crates", ".py"));
    for path in sources {
        let text = read(&path);
        for asked in ["var", "var_os", "environ.get", "getenv", "environ"] {
            for name in ["CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "SLURM_LOCALID"] {
                for open in ["(\"", "[\""] {
                    let told = format!("{asked}{open}{name}\"");
                    assert!(!text.contains(&told), "{}: {told}", path.display());
                }
            }
        }
    }
}
