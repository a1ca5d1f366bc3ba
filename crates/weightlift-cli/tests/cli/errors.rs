//! Exit status, the `error:` line and the JSON object of every class of errors.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::Value;

use crate::common::{Ran, Spec, pattern, run, sharded, text, weightlift, write_safetensors};

/// One line that says `error:`, at most one more with the usage, nothing on stdout.
fn assert_refused(ran: &Ran, status: i32) {
    assert_eq!((ran.status, &*ran.stdout), (Some(status), ""), "{ran:?}");
    let mut lines = ran.stderr.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("error: ")), "{ran:?}");
    assert!(lines.all(|line| status == 2 && line.starts_with("usage: ")), "{ran:?}");
}

#[test]
fn wrong_command_lines_end_with_2() {
    let model = sharded();
    let path = text(model.folder.path());
    let table: &[&[&str]] = &[
        &[],
        &["lod"],
        &["load"],
        &["load", path, "other"],
        &["load", path, "--colour"],
        &["load", path, "--device"],
        &["load", path, "--a\nb"],
        &["load", path, "--device=host", "--device=host"],
        &["completions", "cmd"],
        &["demo", "--size=0"],
        &["demo", "--size=huge"],
    ];
    for args in table {
        assert_refused(&run(*args), 2);
    }
}

#[test]
fn refused_values_are_errors_of_the_library_and_end_with_2() {
    let model = sharded();
    let path = text(model.folder.path());
    let table = [
        ("--device", "device", &["gpu", "", "cuda:x", "cuda:-1"][..]),
        ("--route", "route", &["fast", "PINNED", ""]),
        ("--reading-threads", "reading_threads", &["65", "-1", "four", "1e3", ""]),
        ("--block-size", "block_size", &["1000", "0", "-4096", "2GiB", "16MIBB", ""]),
        ("--piece-size", "piece_size", &["4095", "x"]),
        ("--staging-budget", "staging_budget", &["4KiB", "20000000TiB"]),
        ("--header-limit", "header_limit", &["much", "-1", ""]),
    ];
    for (flag, option, values) in table {
        for value in values {
            let ran = run(["load", path, flag, value]);
            assert_refused(&ran, 2);
            let named = format!("(option: {option}, value: ");
            assert!(ran.stderr.contains(&named), "{flag} {value}: {}", ran.stderr);
            assert!(ran.stderr.contains("wanted: "), "{}", ran.stderr);
        }
    }
    assert_refused(&run(["load", path, "--device=host", "--route=pinned"]), 2);
    assert_refused(&run(["load", path, "--device=host", "--tensors=[a"]), 2);
}

#[test]
fn work_that_fails_ends_with_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| text(folder.path()).to_owned() + "/" + name;
    std::fs::write(at("text.safetensors"), "version https://git-lfs.github.com/spec/v1\n")
        .expect("written");
    std::fs::write(at("short.safetensors"), [200, 0, 0, 0, 0, 0, 0, 0, b'{']).expect("written");
    write_safetensors(at("good.safetensors").as_ref(), &[Spec::u8("t", pattern(10, 1))]);
    let good = at("good.safetensors");
    let table: &[&[&str]] = &[
        &["load", &at("none")],
        &["load", &at("text.safetensors")],
        &["inspect", &at("short.safetensors")],
        &["plan", &at("none")],
        &["load", "/dev/null", "--device=host"],
        &["load", &good, "--device=host", "--tensors=nothing*"],
        &["plan", &good, "--tensors=nothing*"],
        &["load", &good, "--device=host", "--header-limit=10"],
    ];
    for args in table {
        assert_refused(&run(*args), 1);
    }
    let limit = run(["inspect", &*good, "--header-limit", "10"]);
    assert!(limit.stderr.contains("--header-limit"), "{}", limit.stderr);
    let lfs = run(["inspect", &at("text.safetensors")]);
    assert!(lfs.stderr.contains("; fetch the file itself"), "the hint: {}", lfs.stderr);
}

#[test]
fn json_errors_are_objects_with_kind_message_and_context() {
    let model = sharded();
    let path = text(model.folder.path());
    let table: &[(&[&str], i32, &str)] = &[
        (&["load", "/nowhere", "--json"], 1, "FileNotFound"),
        (&["inspect", "/nowhere", "--json"], 1, "FileNotFound"),
        (&["plan", path, "--json", "--tensors=none*"], 1, "NotFound"),
        (&["load", path, "--json", "--block-size=1"], 2, "InvalidOption"),
        (&["load", path, "--json", "--device=host", "--route=pinned"], 2, "InvalidRoute"),
        (&["load", path, "--json", "--header-limit=x"], 2, "InvalidOption"),
        (&["load", path, "--json", "--colour"], 2, "InvalidArgument"),
        (&["load", "--json"], 2, "InvalidArgument"),
        (&["--json"], 2, "InvalidArgument"),
    ];
    for (args, status, kind) in table {
        let ran = run(*args);
        assert_eq!(ran.status, Some(*status), "{args:?}");
        assert!(ran.stderr.starts_with("error: "), "{args:?}");
        let json: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(json["error"]["kind"], *kind, "{args:?}");
        assert!(json["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert!(json["error"]["context"].is_object());
    }
    let json: Value = serde_json::from_str(&run(["load", path, "--json", "--block-size=1"]).stdout)
        .expect("JSON");
    assert_eq!(json["error"]["context"]["option"], "block_size");
    assert_eq!(json["error"]["context"]["value"], "1");
}

#[test]
fn errors_stay_one_line_whatever_paths_and_patterns_hold() {
    let path = OsString::from_vec(b"/no\xffwhere\n\x1b[31m".to_vec());
    let ran = run(["load".into(), path]);
    assert_refused(&ran, 1);
    assert!(ran.stderr.contains("no\u{fffd}where\\n\\u{1b}[31m"), "{}", ran.stderr);
    let model = sharded();
    let args = ["load", text(model.folder.path()), "--device=host", "--tensors", "a\nerror: b\r*"];
    assert_refused(&run(args), 1);
    // No value of an option is other than UTF-8.
    let value = OsString::from_vec(b"--device=\xff".to_vec());
    assert_refused(&run(["load".into(), "x".into(), value]), 2);
}

#[test]
fn a_driver_is_looked_for_only_where_it_is_needed() {
    let model = sharded();
    let path = text(model.folder.path());
    // Without a driver `auto` is the host and says so; with one this is a load like others.
    let mut command = weightlift(["load", path, "--json"]);
    let ran = Ran::new(command.output().expect("it runs"));
    if ran.status == Some(0) {
        let json = ran.json();
        let decisions = json["decisions"].as_array().expect("a list");
        assert!(decisions.iter().any(|decision| decision["what"] == "device"));
    } else {
        assert_eq!(ran.status, Some(1));
    }
}
