//! What this machine can do, as loads see it: for whoever wants to know before, or why.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::device::DeviceId;
use crate::device::cuda::{DeviceFacts, Platform, find_cufile};
use crate::error::Result;
use crate::options::{Options, Route};
use crate::system::StorageFacts;
use crate::{read, route, system};

/// Facts of this machine and this process, as the system tells them now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MachineFacts {
    /// Processors that this process may use: its affinity and its control group's quota count.
    pub processors: usize,
    /// Bytes that it may still take; see [`available_memory`](crate::available_memory).
    pub available_memory: u64,
    /// The tightest limit of memory among its control groups, if there is one.
    pub memory_limit: Option<MemoryLimit>,
    /// How many entries an io_uring queue gets; why there is none otherwise.
    pub io_uring: Found<u32>,
    /// By what name cuFile (GPUDirect Storage) is found. No route of today uses it.
    pub cufile: Found<String>,
}

/// A limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// Bytes that the group may take in all.
    pub bytes: u64,
    /// The group's folder.
    pub group: PathBuf,
}

/// Something that is there, or why it is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found<T> {
    /// It is there.
    Yes(T),
    /// It is not, and why.
    No(String),
}

impl<T> From<Result<T, String>> for Found<T> {
    fn from(found: Result<T, String>) -> Self {
        found.map_or_else(Self::No, Self::Yes)
    }
}

/// Asks the system. Opens cuFile's library, if it is there, and no driver.
///
/// ```
/// let facts = weightlift::machine_facts();
/// println!("{} processors, {} bytes left", facts.processors, facts.available_memory);
/// ```
pub fn machine_facts() -> MachineFacts {
    let tried = |tried: Vec<(String, String)>| {
        let each: Vec<_> = tried.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        format!("tried {}", each.join(", "))
    };
    let limit = system::memory_limit().map(|(bytes, group)| MemoryLimit { bytes, group });
    MachineFacts {
        processors: system::processors(),
        available_memory: system::available_memory(),
        memory_limit: limit,
        io_uring: read::queue_entries().into(),
        cufile: find_cufile().map(str::to_owned).map_err(tried).into(),
    }
}

/// What the driver tells of the CUDA device of that number. The driver is started for it. `library`
/// names the driver, if it is not to be looked for.
///
/// # Errors
///
/// Those of a load that finds no driver or no such device, in the same words: `NoDriver`,
/// `DriverTooOld`, `NoDevice`, `InvalidDevice`, `Cuda`.
pub fn device_facts(ordinal: u32, library: Option<&Path>) -> Result<DeviceFacts> {
    Platform::find(library, Arc::default())?.facts(ordinal)
}

/// What a load would take, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Choice {
    /// The route.
    pub route: String,
    /// Why that one.
    pub reason: String,
    /// Threads that read.
    pub readers: usize,
    /// Why these are fewer than there could be.
    pub few_readers: Option<String>,
    /// Bytes of memory that would be pinned, if the model has as many.
    pub pinned_bytes: u64,
}

/// What a load with these options would take for tensors on `device`, from files that lie on
/// `storage`, as far as that is known.
///
/// # Errors
///
/// `InvalidRoute` where a route is forced that does not lead there.
///
/// ```
/// use weightlift::{DeviceId, Options, choice};
/// assert_eq!(choice(DeviceId::Host, &Options::default(), None)?.route, "host");
/// # Ok::<(), weightlift::Error>(())
/// ```
pub fn choice(
    device: DeviceId,
    options: &Options,
    storage: Option<&StorageFacts>,
) -> Result<Choice> {
    let (route, reason) = route::choose(device, options.route, options.reading_threads)?;
    let pinned_bytes = if route == Route::Pinned { options.staging_budget() } else { 0 };
    let readers = route::readers(options.reading_threads, system::processors());
    let rotates = storage.is_some_and(|storage| storage.rotational == Some(true));
    let few = route::readers_of_a_rotating_disk(options.reading_threads, readers);
    let few = few.filter(|_| rotates);
    Ok(Choice {
        route: route.name().to_owned(),
        reason: reason.to_owned(),
        readers: few.unwrap_or(readers),
        few_readers: few.map(|_| "the disk rotates".to_owned()),
        pinned_bytes,
    })
}
