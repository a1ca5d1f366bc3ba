//! What the figures were measured on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weightlift::{CachedFile, DeviceChoice, Error, storage_facts};

use super::args::ordinal;
use super::part::{Copies, field};
use super::process::{self, Failed};
use super::results::{Cuda, Machine};
use crate::signal::Stop;

/// Facts of this machine, and of what `files` lie on.
pub(super) fn of(files: &[PathBuf], cuda: Option<Cuda>) -> Result<Machine, Error> {
    let nothing = PathBuf::from("/");
    let file = files.first().unwrap_or(&nothing);
    let residency = CachedFile::open(file).map_or("unknown", |file| file.method());
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    Ok(Machine {
        kernel: format!("{} {}", text(system.sysname()), text(system.release())),
        architecture: text(system.machine()),
        processor: processor(),
        processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        memory_bytes: field("/proc/meminfo", "MemTotal:").map_or(0, |kib| kib * 1024),
        storage: storage_facts(file)?,
        residency: residency.to_owned(),
        cuda,
    })
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim());
    // Not every architecture names it.
    name.unwrap_or("unknown").to_owned()
}

/// The CUDA device that `device` means, asked in a process of its own; `Ok(None)` where there is
/// none and that is ordinary.
pub(super) fn cuda(
    program: &[OsString],
    device: DeviceChoice,
    stop: &Stop,
) -> Result<Option<Cuda>, Failed> {
    if device == DeviceChoice::Host {
        return Ok(None);
    }
    let ordinal = ordinal(device);
    let device = format!("--device={ordinal}");
    let words = ["copies", &device, "--bytes=4096", "--json"].map(OsString::from);
    match process::run::<Copies>(program, &words, stop) {
        Ok(answer) => Ok(Some(Cuda {
            ordinal,
            device: answer.value.device,
            cuda: answer.value.cuda,
            driver: module_version(),
        })),
        Err(Failed::Error { kind, .. }) if ["NoDriver", "NoDevice"].contains(&&*kind) => Ok(None),
        // Loads tell themselves what cannot be pinned.
        Err(Failed::Error { kind, .. }) if kind == "PinFailed" => Ok(Some(Cuda {
            ordinal,
            device: "unknown: it cannot pin".to_owned(),
            cuda: "CUDA".to_owned(),
            driver: module_version(),
        })),
        Err(failed) => Err(failed),
    }
}

/// Of NVIDIA's kernel module.
fn module_version() -> Option<String> {
    let text = std::fs::read_to_string(Path::new("/sys/module/nvidia/version")).ok()?;
    Some(text.trim().to_owned())
}
