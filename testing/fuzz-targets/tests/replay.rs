//! Every file that the fuzzer begins with, and every one that it once found something with,
//! through the functions that are fuzzed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use fuzz_targets::{TARGETS, run};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(name)
}

/// The files below a folder of targets, each with its target.
fn inputs(name: &str) -> Vec<(String, PathBuf)> {
    let mut inputs = Vec::new();
    for target in fs::read_dir(folder(name)).unwrap() {
        let target = target.unwrap();
        if target.path().is_file() {
            continue;
        }
        for file in fs::read_dir(target.path()).unwrap() {
            inputs.push((target.file_name().into_string().unwrap(), file.unwrap().path()));
        }
    }
    inputs.sort();
    inputs
}

#[test]
fn every_input_keeps_the_promises() {
    let inputs = [inputs("corpus"), inputs("regressions")].concat();
    for (target, path) in &inputs {
        // Shown where the test fails.
        println!("{}", path.display());
        run(target, &fs::read(path).unwrap());
    }
    println!("{} inputs", inputs.len());
}

// Seeds that are not what the code writes would say that nobody knows where they come from.
#[test]
fn the_corpus_is_what_the_code_writes() {
    let there: BTreeSet<PathBuf> = inputs("corpus").into_iter().map(|(_, path)| path).collect();
    let mut written = BTreeSet::new();
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}", target.name);
        for (name, bytes) in seeds {
            let path = folder("corpus").join(target.name).join(&name);
            assert!(bytes.len() < 4096, "{name} has {} bytes", bytes.len());
            assert_eq!(fs::read(&path).ok(), Some(bytes), "{}", path.display());
            assert!(written.insert(path), "two seeds are called {name}");
        }
    }
    assert_eq!(there, written, "`cargo xtask fuzz --seeds` writes it");
}
