//! stdout that is closed, or full.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{Ran, Spec, sharded, text, weightlift, write_safetensors};

#[test]
fn a_reader_that_has_seen_enough_ends_the_command_quietly() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    // More than a pipe and the command's own buffer hold.
    let tensors: Vec<Spec> = (0..20_000).map(|n| Spec::u8(&format!("t{n}"), vec![1])).collect();
    write_safetensors(&path, &tensors);
    for args in [
        &["inspect", text(&path)][..],
        &["inspect", text(&path), "--json"],
        &["plan", text(&path)],
        &["plan", text(&path), "--json"],
        &["load", text(&path), "--device=host", "--json"],
        &["load", text(&path), "--device=host", "--digest"],
    ] {
        let mut command = weightlift(args);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut reader = BufReader::with_capacity(64, child.stdout.take().expect("a pipe"));
        // What is there first, which for JSON in one line is less than the line.
        reader.fill_buf().expect("a beginning");
        drop(reader);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn a_closed_pipe_ends_it_from_the_start() {
    let model = sharded();
    for args in [
        &["inspect", text(model.folder.path())][..],
        &["--help"],
        &["completions", "bash"],
        &["load", "/nowhere", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = weightlift(args);
        let output = command.stdout(writer).output().expect("it runs");
        let expected = if args.contains(&"/nowhere") { 1 } else { 0 };
        assert_eq!(output.status.code(), Some(expected), "{args:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let model = sharded();
    let path = text(model.folder.path());
    for args in [
        &["inspect", path][..],
        &["inspect", path, "--json"],
        &["plan", path],
        &["load", path, "--device=host"],
        &["load", path, "--device=host", "--json"],
        &["completions", "bash"],
        &["--help"],
        &["--version"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full");
        let ran = Ran::new(weightlift(args).stdout(full).output().expect("it runs"));
        assert_eq!(ran.status, Some(1), "{args:?}");
        assert!(ran.stderr.starts_with("error: cannot write to stdout"), "{args:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}");
    }
}
