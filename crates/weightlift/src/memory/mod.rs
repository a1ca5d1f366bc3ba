//! Host memory: regions of pages, memory for tensors, places to read into, and the ring of
//! staging blocks.
//!
//! Everything above this room handles memory through owned values: a [`Place`] is one reader's
//! alone, a [`FilledBlock`] is nobody's to write. That is what keeps `unsafe` in here.

mod host_memory;
mod place;
#[cfg(target_os = "linux")]
mod region_linux;
mod ring;
#[cfg(test)]
mod scratch;
mod slots;

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;

pub(crate) use host_memory::HostMemory;
pub(crate) use place::{Memory, Place, Writer};
#[cfg(target_os = "linux")]
pub(crate) use region_linux::Region;
pub(crate) use ring::{InFlight, OpenBlock, Ring, SubmitError};
#[cfg(test)]
pub(crate) use scratch::Scratch;

/// A range of host memory that is read by a copy. Valid for as long as whoever handed it out
/// says; it carries no lifetime, since the driver knows none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostRange {
    pub(crate) pointer: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: a HostRange is an address and a length; whoever turns it into memory accesses says
// why that is sound.
#[allow(unsafe_code)]
unsafe impl Send for HostRange {}

/// An asynchronous copy's end.
pub(crate) trait Completion: fmt::Debug + Send + Sync {
    /// Returns when the copy is over. An error means that this cannot be known: the memory
    /// must not be touched again.
    fn wait(&self) -> Result<()>;
}

/// Pins host memory for a device's copies.
pub(crate) trait Registrar {
    /// Pins `range`; the registration ends when it is told to.
    fn register(&self, range: HostRange) -> Result<Box<dyn Registration>>;
}

/// Pinned memory.
pub(crate) trait Registration: fmt::Debug + Send + Sync {
    /// Ends it. `false`: it may still be pinned, so the memory must stay mapped.
    #[must_use]
    fn unregister(&mut self) -> bool;

    /// Leaves it pinned for good: somebody may still copy from it.
    fn abandon(&mut self);
}

/// Counts what was given up because it could not be proved idle or could not be destroyed.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    bytes: AtomicU64,
    handles: AtomicU64,
}

impl Quarantine {
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn handles(&self) -> u64 {
        self.handles.load(Ordering::Relaxed)
    }
}
