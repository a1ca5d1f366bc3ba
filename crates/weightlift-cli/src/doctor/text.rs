//! An examination for people.

use weightlift::Found;

use super::{Examination, Place};
use crate::error::Failure;
use crate::output::Output;
use crate::text::{OneLine, bytes, rate};

pub(super) fn print(output: &mut Output, found: &Examination) -> Result<(), Failure> {
    let mut row =
        |name: &str, value: String| output.line(format_args!("{name:<18}{}", OneLine(&value)));
    let (system, machine) = (&found.system, &found.machine);
    row("weightlift", format!("{} on {}", found.weightlift, system.kernel))?;
    row("processors", machine.processors.to_string())?;
    let limit = machine.memory_limit.as_ref().map_or(String::new(), |limit| {
        format!("; {} has a limit of {}", limit.group.display(), bytes(limit.bytes))
    });
    row("memory", format!("{} left{limit}", bytes(machine.available_memory)))?;
    row("huge pages", system.huge_pages.clone().unwrap_or_else(|| "not told".to_owned()))?;
    let locked = system.locked_memory.map_or("no limit".to_owned(), bytes);
    row("locked memory", format!("{locked} (io_uring's; pinning for a GPU does not count)"))?;
    row(
        "io_uring",
        match &machine.io_uring {
            Found::Yes(entries) => format!("yes, queues of {entries} entries"),
            Found::No(why) => format!("no: {why}"),
        },
    )?;
    for device in &found.devices {
        let facts = &device.facts;
        let memory = match (facts.memory_free, facts.memory_total) {
            (Some(free), Some(total)) => format!(", {} of {} free", bytes(free), bytes(total)),
            _ => String::new(),
        };
        let name = format!("cuda:{}", facts.ordinal);
        row(&name, format!("{}{memory}, {} ({})", facts.name, facts.cuda, facts.library))?;
        row(
            "  bus",
            match &device.link {
                Some(link) => format!(
                    "{} GT/s x{} now, {} GT/s x{} at most: {} on the wire",
                    link.speed,
                    link.width,
                    link.most_speed,
                    link.most_width,
                    rate(link.bytes_per_second().unwrap_or(0.0))
                ),
                None => format!("{}: the system does not tell its link", facts.pci),
            },
        )?;
        let batched = if facts.batched_copies { "yes" } else { "no" };
        row("  batched copies", batched.to_owned())?;
    }
    match &found.no_device {
        Some(refusal) if found.devices.is_empty() => {
            row("GPU", format!("none: {}", refusal.message))?
        }
        Some(refusal) => row("GPU", refusal.text.clone())?,
        None => {}
    }
    if let Some(version) = &system.nvidia_module {
        row("NVIDIA module", version.clone())?;
    }
    let cufile = match &machine.cufile {
        Found::Yes(name) => format!("cuFile as {name}"),
        Found::No(_) => "no cuFile".to_owned(),
    };
    let module = if system.nvidia_fs { "nvidia-fs is loaded" } else { "no nvidia-fs" };
    row("GPUDirect Storage", format!("{cufile}, {module}; no route of this version uses it"))?;
    if let Some(place) = &found.path {
        print_place(&mut row, place)?;
    }
    print_auto(&mut row, found)?;
    output.line("")?;
    if found.findings.is_empty() {
        return output.line("Nothing stands in the way.");
    }
    for finding in &found.findings {
        output.line(format_args!("- {}", OneLine(&finding.what)))?;
        output.line(format_args!("  that means: {}", finding.means))?;
        output.line(format_args!("  to do: {}", OneLine(&finding.todo)))?;
    }
    Ok(())
}

type Row<'a> = dyn FnMut(&str, String) -> Result<(), Failure> + 'a;

fn print_place(row: &mut Row<'_>, place: &Place) -> Result<(), Failure> {
    let what = match &place.format {
        Some(format) => format!("a model ({format})"),
        None => "no model".to_owned(),
    };
    let all: u64 = place.files.iter().map(|file| file.facts.bytes).sum();
    let files = match place.files.len() {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    row("path", format!("{}: {what}, {} in {files}", place.path, bytes(all)))?;
    row("  lies on", place.storage.to_string())?;
    for file in &place.files {
        let facts = &file.facts;
        let cached = match facts.cached_bytes {
            Some(cached) => {
                format!("{} of {} cached ({})", bytes(cached), bytes(facts.bytes), facts.residency)
            }
            None => "nobody tells what is cached".to_owned(),
        };
        let how = match &facts.buffered {
            Some(why) => format!("read through the page cache: {why}"),
            None => "what is not cached is read past the page cache".to_owned(),
        };
        row("  file", format!("{}: {cached}; {how}", file.path))?;
    }
    Ok(())
}

fn print_auto(row: &mut Row<'_>, found: &Examination) -> Result<(), Failure> {
    let auto = &found.auto;
    row("auto: device", format!("{} ({})", auto.device, auto.device_reason))?;
    row("auto: route", format!("{} ({})", auto.choice.route, auto.choice.reason))?;
    row(
        "auto: readers",
        match &auto.choice.few_readers {
            Some(why) => format!("{} ({why})", auto.choice.readers),
            None => auto.choice.readers.to_string(),
        },
    )?;
    if auto.choice.pinned_bytes > 0 {
        row("auto: pinned", format!("{} at most", bytes(auto.choice.pinned_bytes)))?;
    }
    let ceiling = match auto.bus_bytes_per_second {
        // One H200 on PCIe 5 x16: 55.3 of 63.0 GB/s (docs/benchmarks.md).
        Some(wire) => {
            format!("the bus, at about {} (0.88 of what is on the wire)", rate(wire * 0.88))
        }
        None if auto.device == "host" => {
            "the disk; for what is cached, copying in memory".to_owned()
        }
        None => "the disk; for what is cached, the bus".to_owned(),
    };
    row("auto: limit", format!("{ceiling}; `weightlift bench` measures it"))
}
