//! Where tensors are: host memory, or a CUDA device's.

pub(crate) mod cuda;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::memory::{Completion, HostRange, Memory, Registrar, SubmitError};

/// A place where tensors can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DeviceId {
    /// Host memory.
    Host,
    /// The CUDA device of this number, as the driver counts what it shows to this process.
    Cuda(u32),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A device that is not the host: has memory of its own, and copies into it.
pub(crate) trait Device: fmt::Debug + Send + Sync {
    fn id(&self) -> DeviceId;

    /// Memory of the device, uninitialised. An error of kind `OutOfDeviceMemory` says what was
    /// needed and what was free.
    fn allocate(self: Arc<Self>, bytes: u64) -> Result<DeviceMemory>;

    /// A queue of copies into memory of the device.
    fn copy_queue(self: Arc<Self>) -> Result<Box<dyn CopyQueue>>;

    /// Pins host memory for copies to this device and others of its kind.
    fn registrar(self: Arc<Self>) -> Box<dyn Registrar>;

    /// Copies `bytes.len()` bytes at `pointer` of the device into `bytes`.
    fn read_back(&self, pointer: u64, bytes: &mut [u8]) -> Result<()>;
}

/// Memory of a device: an address there, and what keeps it.
#[derive(Debug, Clone)]
pub(crate) struct DeviceMemory {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pointer: u64,
    pub(crate) keep: Arc<dyn Keep>,
}

/// What keeps device memory. When the last one is dropped the memory is free again.
pub(crate) trait Keep: fmt::Debug + Send + Sync + Any {
    /// Somebody may still be writing to it: give it up instead of freeing it.
    fn quarantine(&self);
}

/// One ordered queue of asynchronous copies.
pub(crate) trait CopyQueue: fmt::Debug + Send + Sync {
    /// Copies that are submitted from now on begin after the caller's `event`, a raw handle
    /// of the device's driver.
    fn wait_for(&self, event: u64) -> Result<()>;

    /// Starts copies out of `source`, whose bytes stay as they are until the completion says
    /// that the copies are over.
    fn submit(
        &self,
        source: HostRange,
        copies: &[DeviceCopy],
    ) -> Result<Arc<dyn Completion>, SubmitError>;

    /// Waits until every copy submitted so far is over. An error: that cannot be known.
    fn drain(&self) -> Result<()>;

    /// Calls of the driver that copied so far, single and batched.
    fn calls(&self) -> u64;
}

/// A copy from a staging block to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceCopy {
    /// Offset in the block, in bytes.
    pub(crate) from: usize,
    /// Address on the device.
    pub(crate) to: u64,
    /// Bytes, at least 1.
    pub(crate) length: usize,
}

/// Where the bytes of a tensor or a storage are.
#[derive(Debug, Clone)]
pub(crate) enum Location {
    Host(Memory),
    Device(DeviceMemory),
}

impl Location {
    pub(crate) fn device(&self) -> DeviceId {
        match self {
            Self::Host(_) => DeviceId::Host,
            Self::Device(memory) => memory.device.id(),
        }
    }
}
