//! What a sample's process does. It prints a line of JSON.

use serde::{Deserialize, Serialize};
use weightlift::{Loader, PlainReads, Report, Request, pinned_copies, plain_reads};

use super::args::{LoadPart, Part};
use super::process::{monotonic, processor_seconds};
use super::state;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::{Grace, Stop};

/// A load in a process of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Load {
    /// The library's report, without its list of files.
    pub(super) report: Report,
    /// Seconds from the process's start to the call of the library: loading the program, linking it,
    /// reading the command line.
    pub(super) start_seconds: f64,
    /// Seconds that all digests took, after the load.
    pub(super) verify_seconds: f64,
    /// Processor seconds of the process up to the load's end.
    pub(super) processor_seconds: f64,
    /// The most memory that the process had up to the load's end, in bytes.
    pub(super) peak_memory_bytes: u64,
    /// Bytes that the process made disks read, whichever way; `None` where the kernel does not tell.
    pub(super) disk_bytes: Option<u64>,
    /// The XXH3-64 of every tensor as it lies in its memory, in the index's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) digests: Vec<String>,
}

/// Plain reads of a process of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reads {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

/// Copies of a process of its own.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Copies {
    pub(super) device: String,
    pub(super) cuda: String,
    pub(super) bytes: u64,
    pub(super) seconds: f64,
}

pub(crate) fn run(part: &Part, stop: &Stop) -> Result<(), Failure> {
    stop.allow(Grace::Short);
    match part {
        Part::Load(part) => print(stop, &load(part, stop)?),
        Part::Reads { direct, new_memory, threads, size, most, files, .. } => {
            let how = PlainReads {
                direct: *direct,
                threads: *threads,
                size: *size,
                new_memory: *new_memory,
                most: *most,
            };
            let took = plain_reads(files, &how, &|| stop.check())?;
            let lengths = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len()));
            let bytes = how.bytes(lengths);
            print(stop, &Reads { bytes, seconds: took.as_secs_f64() })
        }
        Part::Copies { device, bytes, .. } => {
            let found = pinned_copies(*device, *bytes, None)?;
            let seconds = found.took.as_secs_f64();
            let (device, cuda) = (found.device, found.cuda);
            print(stop, &Copies { device, cuda, bytes: found.bytes, seconds })
        }
        Part::Cache { state, files, .. } => {
            let held = match state.as_deref().map(str::parse).transpose()? {
                Some(state) => state::bring(files, state, stop)?,
                None => state::held(files, None)?,
            };
            print(stop, &held)
        }
    }
}

fn load(part: &LoadPart, stop: &Stop) -> Result<Load, Failure> {
    let loader = Loader::new(part.settings.options(part.route.as_deref())?);
    let open = part.model.open_options()?;
    let request = Request::new().open_options(open).cancel(stop.token());
    let called = monotonic();
    let mut loaded = loader.load(&part.model.path, request)?;
    // Before the digests, which are no part of what is measured.
    let processor_seconds = processor_seconds();
    let (peak_memory_bytes, disk_bytes) = (peak_memory_bytes(), disk_bytes());
    let verifying = monotonic();
    let mut digests = Vec::with_capacity(loaded.tensors.len());
    for tensor in &loaded.tensors {
        stop.check()?;
        digests.push(format!("{:016x}", tensor.digest()?));
    }
    loaded.report.sources.clear();
    let spawned = if part.spawned == 0 { called } else { part.spawned };
    Ok(Load {
        start_seconds: called.saturating_sub(spawned) as f64 / 1e9,
        verify_seconds: monotonic().saturating_sub(verifying) as f64 / 1e9,
        report: loaded.report,
        processor_seconds,
        peak_memory_bytes,
        disk_bytes,
        digests,
    })
}

fn print(stop: &Stop, value: &impl Serialize) -> Result<(), Failure> {
    let mut output = Output::stdout(stop)?;
    output.json(value)?;
    output.line("")?;
    output.finish()
}

/// The kernel's high-water mark of this process's resident memory. `getrusage` would count what the
/// process was before it became this program.
fn peak_memory_bytes() -> u64 {
    field("/proc/self/status", "VmHWM:").map_or(0, |kib| kib * 1024)
}

fn disk_bytes() -> Option<u64> {
    field("/proc/self/io", "read_bytes:")
}

/// The number behind a name in a file of the kernel's.
pub(super) fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
