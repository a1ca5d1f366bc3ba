//! Model weights from storage into GPU or host memory at the speed of the slower of disk and
//! bus, with a small fixed amount of pinned memory, and a report that tells how every byte
//! travelled.
//!
//! ```no_run
//! use weightlift::{DeviceChoice, Request};
//! let loaded = weightlift::load("models/llama", Request::new().device(DeviceChoice::Auto))?;
//! println!("{} tensors by {}", loaded.tensors.len(), loaded.report.route());
//! # Ok::<(), weightlift::Error>(())
//! ```
//!
//! A [`Loader`] owns what outlives one load; a [`Model`] is an opened one; a [`Request`] says
//! what to load and where to; [`Loaded`] holds [`Tensor`]s and the [`Report`].
//!
//! Modules stand in the order in which data flows: sources, plan, verify, read, memory, device, route,
//! load. Imports follow it downwards only (`cargo xtask layers`).

mod error;
mod options;
mod report;
mod sync;
mod system;

mod source;

mod plan;

mod verify;

mod memory;

mod read;

mod device;

mod tensor;

mod route;

mod load;

mod loader;

mod limits;

mod machine;

pub use device::DeviceId;
pub use device::cuda::DeviceFacts;
pub use error::{Error, ErrorKind, Result};
pub use limits::{PinnedCopies, PlainReads, pinned_copies, plain_reads};
pub use load::{CancelToken, Destination, Event, Loaded, Request, Wanted};
pub use loader::{Loader, default_loader, load, select};
pub use machine::{Choice, Found, MachineFacts, MemoryLimit, choice, device_facts, machine_facts};
pub use options::{
    DeviceChoice, DirectIo, LARGEST_BLOCK, Options, ReadingThreads, Route, RouteChoice,
    SMALLEST_BLOCK, format_size, parse_size,
};
pub use plan::{Block, Copy, Geometry, Piece, Plan, PlannedStorage};
pub use read::{ReadFacts, Stream, StreamOptions, read_facts};
pub use report::{Bytes, Decision, Fallback, Quarantined, Report, Seconds, SourceReport};
pub use source::{Direct, Model, OpenOptions, OpenSource, Source};
pub use system::{
    CachedFile, DirectAlignment, Resident, StorageFacts, StorageKind, available_memory,
    storage_facts,
};
pub use tensor::Tensor;
pub use verify::{FileDigests, Manifest, TensorDigests};
/// What is in model files: storages, tensors, element types.
pub use weightlift_index as index;
