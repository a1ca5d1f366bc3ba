//! How fast the bus is: copies of one pinned region, one after the other on one stream.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::cuda::{CudaDevice, Platform};
use crate::device::{CopyQueue, Device, DeviceCopy, DeviceMemory};
use crate::error::Result;
use crate::memory::{HostRange, Region};
use crate::system::PAGE;

/// Bytes of a copy: copies of 64 MiB reach 55.3 GB/s where those of 16 MiB, which loads make, reach
/// 55.0 (an H200 on PCIe 5). A device that copies slower for want of larger ones is not known.
const COPY: usize = 64 << 20;

/// Most bytes of device memory that are copied to: what lies in the device's caches must not count.
const MOST: u64 = 1 << 30;

/// What [`pinned_copies`] found.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PinnedCopies {
    /// The device's name, as its driver gives it.
    pub device: String,
    /// The newest CUDA that the driver knows: `CUDA 13.0`.
    pub cuda: String,
    /// Bytes copied: those asked for, in whole copies of 64 MiB, or of all of them if less.
    pub bytes: u64,
    /// The time from the first copy's submission to the last one's end.
    pub took: Duration,
}

/// Copies `bytes` from 64 MiB of pinned host memory to the CUDA device of that number, and tells how
/// long it took. Starting the driver, pinning, and a first copy are not in the time. `library` names
/// the driver, if it is not to be looked for.
///
/// # Errors
///
/// `NoDriver`, `DriverTooOld`, `NoDevice`, `InvalidDevice`, `PinFailed`, `OutOfDeviceMemory`,
/// `OutOfHostMemory`, `Cuda`, as those of a load by the pinned route.
pub fn pinned_copies(device: u32, bytes: u64, library: Option<&Path>) -> Result<PinnedCopies> {
    let platform = Platform::find(library, Arc::default())?;
    let device = platform.device(device)?;
    // In whole pages, as memory is.
    let copy = bytes.next_multiple_of(PAGE as u64).clamp(PAGE as u64, COPY as u64);
    let copies = (bytes / copy).max(1);
    let took = measure(&device, copy as usize, copies)?;
    Ok(PinnedCopies {
        device: device.name().to_owned(),
        cuda: device.cuda_version(),
        bytes: copies * copy,
        took,
    })
}

fn measure(device: &Arc<CudaDevice>, copy: usize, copies: u64) -> Result<Duration> {
    let mut source = Region::new(copy as u64)?;
    // Pages that nobody touched would all be one.
    source.bytes().fill(1);
    let range = source.range();
    let slots = copies.min(MOST / copy as u64).max(1);
    let memory = device.clone().allocate(slots * copy as u64)?;
    let queue = device.clone().copy_queue()?;
    let mut pinned = device.clone().registrar().register(range)?;
    let took = run(&*queue, range, &memory, copies, slots);
    // Copies may be under way, also after an error: nothing of theirs goes before they are over.
    if let Err(error) = queue.drain() {
        pinned.abandon();
        memory.keep.quarantine();
        std::mem::forget(source);
        return Err(error);
    }
    if !pinned.unregister() {
        std::mem::forget(source);
    }
    took
}

fn run(
    queue: &dyn CopyQueue,
    source: HostRange,
    memory: &DeviceMemory,
    copies: u64,
    slots: u64,
) -> Result<Duration> {
    let length = source.length;
    let submit = |slot: u64| {
        let to = memory.pointer + slot * length as u64;
        let copy = DeviceCopy { from: 0, to, length };
        queue.submit(source, &[copy]).map(|_| ()).map_err(|refused| refused.error)
    };
    submit(0)?;
    queue.drain()?;
    let started = Instant::now();
    (0..copies).try_for_each(|number| submit(number % slots))?;
    queue.drain()?;
    Ok(started.elapsed())
}
