//! What could be better, why, and what to do about it.

use serde::Serialize;
use weightlift::{DirectAlignment, Found, StorageKind};

use super::Examination;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// What is not as it could be.
    pub(super) what: String,
    /// What that means for loads.
    pub(super) means: String,
    /// What to do.
    pub(super) todo: String,
}

/// Less memory than this left, and reading ahead and large models have none.
const LITTLE_MEMORY: u64 = 1 << 30;

pub(super) fn of(examination: &Examination) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |what: String, means: &str, todo: &str| {
        findings.push(Finding { what, means: means.to_owned(), todo: todo.to_owned() });
    };
    let (system, machine) = (&examination.system, &examination.machine);
    if let Some(refusal) = &examination.no_device {
        let (means, todo) = match refusal.kind.as_str() {
            "NoDriver" => (
                "tensors go to host memory",
                "install the NVIDIA driver if there is a GPU; in a container pass it through",
            ),
            "NoDevice" => {
                ("tensors go to host memory", "look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
            }
            "DriverTooOld" => ("tensors go to host memory", "install a newer NVIDIA driver"),
            _ => ("this device, or all of them, cannot be used", "look at nvidia-smi"),
        };
        add(refusal.text.clone(), means, todo);
    }
    for device in &examination.devices {
        let name = format!("cuda:{}", device.facts.ordinal);
        if !device.facts.batched_copies {
            add(
                format!("the driver of {name} has no batched copies ({})", device.facts.cuda),
                "many small tensors cost a call of the driver each",
                "install a driver for CUDA 12.8 or newer",
            );
        }
        match &device.link {
            Some(link) if link.width < link.most_width || link.speed < link.most_speed => add(
                format!(
                    "the link of {name} is {} GT/s x{}, and could be {} GT/s x{}",
                    link.speed, link.width, link.most_speed, link.most_width
                ),
                "copies are slower than they could be",
                "a link at rest may be slow to save power: look again during a load; else look at the slot and the firmware",
            ),
            _ => {}
        }
    }
    if let Found::No(why) = &machine.io_uring {
        add(
            format!("there is no io_uring: {why}"),
            "each thread has one direct read under way instead of four",
            "allow io_uring in the container's seccomp profile and in kernel.io_uring_disabled, or take more --reading-threads for files that are not cached",
        );
    }
    if system.huge_pages.as_deref() == Some("never") {
        add(
            "transparent huge pages are off".to_owned(),
            "new host memory comes in pages of 4 KiB, which takes several times as long",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    if machine.available_memory < LITTLE_MEMORY {
        let limit = machine.memory_limit.as_ref();
        let limit = limit.map_or(String::new(), |limit| {
            format!(", under a limit of {} bytes in {}", limit.bytes, limit.group.display())
        });
        add(
            format!("{} bytes of memory are left{limit}", machine.available_memory),
            "little is read ahead while a driver starts, and a model in host memory must fit",
            "raise the container's limit, or end what takes the memory",
        );
    }
    if let Some(place) = &examination.path {
        of_place(place, &mut add);
    }
    findings
}

fn of_place(place: &super::Place, add: &mut dyn FnMut(String, &str, &str)) {
    if let Some(refusal) = &place.no_model {
        add(
            format!("{} is no model: {}", place.path, refusal.text),
            "weightlift load refuses it",
            "name a model file, a shard index or a folder that holds one; any file can be loaded with --format raw",
        );
    }
    let storage = &place.storage;
    if storage.rotational == Some(true) {
        add(
            format!("the disk of {} rotates", place.path),
            "two threads read, through the page cache",
            "keep models on a solid-state disk",
        );
    }
    match (storage.kind, storage.direct) {
        (StorageKind::Memory, _) => {}
        (StorageKind::Network | StorageKind::Fuse | StorageKind::Unknown, _) => add(
            format!("{} lies on {} ({})", place.path, storage.file_system, storage.kind),
            "everything is read through the page cache, at the speed of what is behind it",
            "copy models to a local disk; --direct-io on tries to read past the cache",
        ),
        (_, DirectAlignment::Refused) => add(
            format!("{} on {} has no direct reads", place.path, storage.file_system),
            "files that are not cached are read through the page cache, with more processor time",
            "keep models on ext4 or xfs",
        ),
        _ => {}
    }
    let unknown = |file: &&super::File| file.facts.residency == "unknown";
    if let Some(file) = place.files.iter().find(unknown) {
        add(
            format!("nobody tells what of {} is in the page cache", file.path),
            "it is read through the cache; a benchmark cannot have it cold",
            "load as the file's owner, or as somebody who may write to it",
        );
    }
}
