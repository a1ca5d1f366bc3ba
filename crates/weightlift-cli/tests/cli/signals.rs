//! Ctrl-C and SIGTERM while a load or the demo is under way.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Ran, sparse, text, weightlift};

/// A hole is read at the speed at which the kernel makes pages: this takes seconds.
const LENGTH: u64 = 8 << 30;
/// The promise is 0.2 s on a machine of one's own; test machines are shared.
const BOUND: Duration = Duration::from_secs(2);

#[test]
fn signals_stop_a_load_in_time_with_130() {
    let (_folder, path) = sparse(LENGTH);
    for signal in [Signal::INT, Signal::TERM] {
        let args = ["load", text(&path), "--device=host", "--json", "--reading-threads=1"];
        let mut command = weightlift(args.into_iter().chain(["--piece-size=64KiB"]));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        // Bytes land in memory: the load is in full swing.
        wait_until(&child, || resident_bytes(&child) > 256 << 20);
        let (ran, took) = stop(child, signal);
        assert_eq!(ran.status, Some(130), "{ran:?}");
        assert_eq!(ran.stderr, "error: the load was cancelled\n");
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        assert_eq!(json["error"]["kind"], "Cancelled");
        assert!(took < BOUND, "{took:?}");
        println!("{signal:?}: stopped {took:?} after the signal");
    }
}

#[test]
fn a_stopped_demo_leaves_no_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = weightlift(["demo", "--size=256MiB", "--keep"]);
    command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("it starts");
    let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
    wait_until(&child, || files() > 0);
    let (ran, took) = stop(child, Signal::INT);
    assert_eq!((ran.status, &*ran.stdout), (Some(130), ""), "{ran:?}");
    assert_eq!(files(), 0);
    println!("stopped {took:?} after the signal");
}

fn stop(child: Child, signal: Signal) -> (Ran, Duration) {
    let sent = Instant::now();
    kill_process(Pid::from_child(&child), signal).expect("a signal");
    let ran = Ran::new(child.wait_with_output().expect("an end"));
    (ran, sent.elapsed())
}

fn wait_until(child: &Child, mut reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !reached() {
        assert!(Instant::now() < deadline, "process {} did not get going", child.id());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn resident_bytes(child: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
