//! A sample is a process of its own: this program, started again with its hidden command.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde_json::Value;
use weightlift::{Error, ErrorKind};

use crate::signal::{STOPPED, Stop};
use crate::text::OneLine;

/// The command of this program that a sample runs.
pub(crate) const HIDDEN: &str = "bench-part";

/// How long a stop may go unseen while a sample runs.
const POLL: Duration = Duration::from_millis(20);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failed {
    /// The whole run is to stop.
    Stopped,
    /// What went wrong: the error's kind, and the line that tells it.
    Error { kind: String, text: String },
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Cancelled => Self::Stopped,
            kind => Self::Error { kind: kind.name().to_owned(), text: error.to_string() },
        }
    }
}

/// What a process printed, and how long it lived.
pub(super) struct Answer<T> {
    pub(super) value: T,
    pub(super) seconds: f64,
}

/// Starts `program`, which is this one, with the hidden command's words, and waits for it. `{now}`
/// among the words becomes the time of its start.
pub(super) fn run<T: DeserializeOwned>(
    program: &[OsString],
    words: &[OsString],
    stop: &Stop,
) -> Result<Answer<T>, Failed> {
    let broken = |text: String| Failed::Error { kind: "Internal".to_owned(), text };
    if stop.check().is_err() {
        return Err(Failed::Stopped);
    }
    let (first, before) = program.split_first().ok_or_else(|| broken("no program".to_owned()))?;
    let mut command = Command::new(first);
    command.args(before).arg(HIDDEN).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Instant::now();
    if words.first().is_some_and(|word| word == "load") {
        command.arg(format!("--spawned={}", monotonic()));
    }
    let mut child = command.spawn().map_err(|error| broken(format!("cannot start: {error}")))?;
    let (stdout, stderr) = outputs(&mut child, stop);
    let status = child.wait().map_err(|error| broken(format!("cannot wait: {error}")))?;
    let seconds = started.elapsed().as_secs_f64();
    // A terminal's Ctrl-C goes to the sample too, which may have ended by it before we know of it.
    let stopped = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    if stop.check().is_err()
        || status.code() == Some(i32::from(STOPPED))
        || status.signal().is_some_and(|signal| stopped.contains(&signal))
    {
        return Err(Failed::Stopped);
    }
    let value: Option<Value> = serde_json::from_slice(&stdout).ok();
    let told = value.as_ref().and_then(error_of);
    if let Some(failed) = told {
        return Err(failed);
    }
    let said = || {
        let text = String::from_utf8_lossy(&stderr);
        let last = text.lines().last().unwrap_or("it said nothing").to_owned();
        broken(format!("a sample's process ended with {status}: {}", OneLine(&last)))
    };
    if !status.success() {
        return Err(said());
    }
    let value = value.ok_or_else(said)?;
    let value = serde_json::from_value(value).map_err(|error| broken(error.to_string()))?;
    Ok(Answer { value, seconds })
}

/// What the child says on both outputs until it ends; stops it when the run is to stop.
fn outputs(child: &mut Child, stop: &Stop) -> (Vec<u8>, Vec<u8>) {
    let pid = Pid::from_child(child);
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (sender, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        let err = &mut err;
        scope.spawn(move || stderr.as_mut().map(|pipe| pipe.read_to_end(err)));
        let out = &mut out;
        scope.spawn(move || {
            let read = stdout.as_mut().map(|pipe| pipe.read_to_end(out));
            drop(sender);
            read
        });
        let mut told = false;
        // Nothing is ever sent: the sender goes when the child has closed its output.
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(POLL) as Result<(), _> {
            if stop.check().is_err() {
                // Once politely; what does not end by itself then is ended.
                let signal = if told { Signal::KILL } else { Signal::TERM };
                let _ = kill_process(pid, signal);
                if !told {
                    std::thread::sleep(Duration::from_millis(300));
                }
                told = true;
            }
        }
    });
    (out, err)
}

/// The error that a command prints with `--json`.
fn error_of(value: &Value) -> Option<Failed> {
    let error = value.get("error")?;
    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let context: Vec<String> = error
        .get("context")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("{name}: {}", value.as_str().unwrap_or_default()))
        .collect();
    let mut line = text("message");
    if !context.is_empty() {
        line.push_str(&format!(" ({})", context.join(", ")));
    }
    Some(Failed::Error { kind: text("kind"), text: line })
}

/// The kernel's monotonic clock, which is the same in all processes, in nanoseconds.
pub(super) fn monotonic() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Processor time of this process, all threads, in seconds.
pub(super) fn processor_seconds() -> f64 {
    nanoseconds(ClockId::ProcessCPUTime) as f64 / 1e9
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}
