//! `weightlift doctor`: what this machine and a path can do, what `auto` will choose, and why.
//!
//! What decides about loads is asked of the library, which decides by the same answers. Beside it
//! stands what only explains: the bus, the driver's module, limits.

mod facts;
mod findings;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use weightlift::{
    Choice, DeviceFacts, DeviceId, Error, ErrorKind, MachineFacts, Model, OpenOptions, Options,
    ReadFacts, StorageFacts, choice, device_facts, machine_facts, read_facts, storage_facts,
};

use crate::bench::files;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::Stop;
use facts::{Link, System};
use findings::Finding;

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A model, a file or a folder: what it lies on, and how it would be read.
    pub(crate) path: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// All that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Examination {
    schema: u32,
    weightlift: &'static str,
    system: System,
    machine: MachineFacts,
    devices: Vec<Device>,
    /// Why there is none.
    no_device: Option<Refusal>,
    path: Option<Place>,
    auto: Auto,
    findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
struct Device {
    #[serde(flatten)]
    facts: DeviceFacts,
    /// The PCI link, where the system tells.
    link: Option<Link>,
}

/// An error of the library's, as data.
#[derive(Debug, Serialize)]
struct Refusal {
    kind: String,
    message: String,
    /// The message with all that is known.
    text: String,
}

/// What the path is.
#[derive(Debug, Serialize)]
struct Place {
    path: String,
    storage: StorageFacts,
    /// The format, where it is a model.
    format: Option<String>,
    /// Why it is none.
    no_model: Option<Refusal>,
    files: Vec<File>,
}

#[derive(Debug, Serialize)]
struct File {
    path: String,
    #[serde(flatten)]
    facts: ReadFacts,
}

/// What a load without options will take.
#[derive(Debug, Serialize)]
struct Auto {
    device: String,
    device_reason: String,
    #[serde(flatten)]
    choice: Choice,
    /// The most that the bus can carry, in bytes a second, where the route has one and the system
    /// tells its link: what is on the wire; copies reach less.
    bus_bytes_per_second: Option<f64>,
}

pub(crate) fn run(options: &Doctor, stop: &Stop) -> Result<(), Failure> {
    // A path that is not there is nothing to examine.
    let path = options.path.as_deref().map(Place::of).transpose()?;
    let examination = examine(path)?;
    let mut output = Output::stdout(stop)?;
    if options.json {
        output.json(&examination)?;
        output.line("")?;
    } else {
        text::print(&mut output, &examination)?;
    }
    output.finish()
}

fn examine(path: Option<Place>) -> Result<Examination, Error> {
    let system = System::ask();
    let machine = machine_facts();
    let (devices, no_device) = devices();
    let (device, device_reason) = match (devices.first(), &no_device) {
        (Some(first), _) => {
            (DeviceId::Cuda(first.facts.ordinal), "the first CUDA device".to_owned())
        }
        (None, Some(refusal)) => (DeviceId::Host, refusal.message.clone()),
        (None, None) => (DeviceId::Host, "there is no CUDA device".to_owned()),
    };
    let storage = path.as_ref().map(|place| &place.storage);
    let choice = choice(device, &Options::default(), storage)?;
    let link = devices.first().and_then(|device| device.link.as_ref());
    let bus_bytes_per_second = link.and_then(Link::bytes_per_second);
    let auto = Auto { device: device.to_string(), device_reason, choice, bus_bytes_per_second };
    let mut examination = Examination {
        schema: 1,
        weightlift: env!("CARGO_PKG_VERSION"),
        system,
        machine,
        devices,
        no_device,
        path,
        auto,
        findings: Vec::new(),
    };
    examination.findings = findings::of(&examination);
    Ok(examination)
}

/// All devices that the driver shows, or why there is none.
fn devices() -> (Vec<Device>, Option<Refusal>) {
    let mut devices = Vec::new();
    let error = loop {
        match device_facts(devices.len() as u32, None) {
            Ok(facts) => {
                let link = Link::of(&facts.pci);
                devices.push(Device { facts, link });
            }
            Err(error) => break error,
        }
    };
    // After the last one there is none.
    let is_end = !devices.is_empty() && error.kind() == ErrorKind::InvalidDevice;
    (devices, (!is_end).then(|| Refusal::of(&error)))
}

impl Refusal {
    fn of(error: &Error) -> Self {
        Self {
            kind: format!("{:?}", error.kind()),
            message: error.message().to_owned(),
            text: error.to_string(),
        }
    }
}

impl Place {
    fn of(path: &Path) -> Result<Self, Error> {
        let storage = storage_facts(path)?;
        let opened = Model::open(path, &OpenOptions::default());
        let found = opened.and_then(|model| Ok((files(&model)?, model)));
        let (paths, format, no_model) = match found {
            Ok((files, model)) => {
                (files, model.index().format.map(|format| format.name().to_owned()), None)
            }
            // Any file can be looked at.
            Err(error) => {
                let alone = path.is_file().then(|| path.to_owned());
                (alone.into_iter().collect(), None, Some(Refusal::of(&error)))
            }
        };
        let file = |path: &PathBuf| {
            Ok(File { path: path.display().to_string(), facts: read_facts(path)? })
        };
        let files = paths.iter().map(file).collect::<Result<Vec<_>, Error>>()?;
        // Of a file more is known than of the folder that it lies in.
        let storage = files.first().map_or(storage, |file| file.facts.storage.clone());
        Ok(Self { path: path.display().to_string(), storage, format, no_model, files })
    }
}
