//! Where tensors go: memory that we allocate, or the caller's.
#![allow(unsafe_code)] // takes the caller's word for addresses, and says what may be written

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use weightlift_index::{Index, StorageId, TensorInfo};

use crate::device::{Device, DeviceId, DeviceMemory, Keep, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{HostMemory, Memory, Place, Quarantine, Writer};
use crate::plan::{Plan, PlannedStorage};
use crate::route::Targets;

use super::layout::{self, Layout};
use super::pinning::Pinning;

/// Tensors start at a multiple of this on a device: what kernels and engines ask for, 256
/// bytes being also the alignment of the driver's own allocations.
const DEVICE_ALIGNMENT: u64 = 256;

/// A storage for which memory is wanted.
#[derive(Debug)]
#[non_exhaustive]
pub struct Wanted<'a> {
    /// Its number in the index.
    pub storage: StorageId,
    /// Its bytes.
    pub length: u64,
    /// The tensors asked for that lie in it; more than one where tensors are tied.
    pub tensors: &'a [&'a TensorInfo],
    /// Where the memory has to be.
    pub device: DeviceId,
}

/// Memory of the caller's for one storage.
pub struct Destination {
    device: DeviceId,
    address: u64,
    length: u64,
    keep_alive: Arc<dyn Any + Send + Sync>,
    ready_event: Option<u64>,
}

impl Destination {
    /// Memory on `device` at `address`, `length` bytes of it. For the host an address is a
    /// pointer, on a CUDA device what the driver gives out. Any alignment will do. It may have
    /// more bytes than its storage: those are left as they are. Nothing else is done to the
    /// memory than to write the storage's bytes: it is neither touched before nor advised nor
    /// pinned.
    ///
    /// # Safety
    ///
    /// The memory is initialised, valid for reads and writes as long as `keep_alive` or a
    /// clone of it lives, and until the load returns nobody else reads or writes it, nor,
    /// while tensors of the load are alive, writes to host memory that they show.
    pub unsafe fn new(
        device: DeviceId,
        address: u64,
        length: u64,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { device, address, length, keep_alive, ready_event: None }
    }

    /// Writing begins after `event`, a live CUDA event (`CUevent`) that is recorded behind
    /// whatever still uses the memory. It has to live until the load returns.
    ///
    /// # Safety
    ///
    /// `event` is the handle of such an event, in a context of the destination's device.
    pub unsafe fn ready_event(mut self, event: u64) -> Self {
        self.ready_event = Some(event);
        self
    }

    /// Refuses memory that does not fit what is wanted.
    fn check(&self, wanted: &PlannedStorage, device: DeviceId) -> Result<()> {
        let refuse = |why: &str| {
            Err(Error::new(ErrorKind::InvalidDestination, why.to_owned())
                .with("storage", wanted.id.0)
                .with("device", self.device)
                .with("length", self.length))
        };
        if self.device != device {
            refuse(&format!("the destination is not on {device}"))
        } else if self.length < wanted.length {
            refuse(&format!(
                "the destination is shorter than the {} bytes of its storage",
                wanted.length
            ))
        } else if self.address == 0 && wanted.length > 0 {
            refuse("the destination's address is 0")
        } else if self.address.checked_add(self.length).is_none() {
            refuse("the destination runs past the end of the address space")
        } else if device == DeviceId::Host && self.ready_event.is_some() {
            refuse("an event orders work of a CUDA device, not of the host")
        } else {
            Ok(())
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {} at {:#x}", self.length, self.device, self.address)
    }
}

/// Provides memory for storages, one after the other in the plan's order.
pub(crate) type Provide<'a> = dyn FnMut(&PlannedStorage) -> Result<Destination> + 'a;

/// Memory that we allocate on a device at once. The first copy need not wait until all of a
/// large model's memory is there: the driver's time grows with the size.
const CHUNK: u64 = 1 << 30;

/// Memory of our own on a device for all storages of `plan`, in the plan's order; an allocation
/// for each of them if they are to lie `apart`.
pub(crate) fn allocate_on(
    device: &Arc<dyn Device>,
    plan: &Plan,
    targets: &Targets,
    apart: bool,
) -> Result<()> {
    let needed = layout::packed(&plan.storages, DEVICE_ALIGNMENT)?.bytes;
    let mut rest = &plan.storages[..];
    while !rest.is_empty() {
        let chunk = rest.split_at(if apart { 1 } else { chunk_of(rest) }).0;
        rest = &rest[chunk.len()..];
        let Layout { offsets, bytes } = layout::packed(chunk, DEVICE_ALIGNMENT)?;
        let memory =
            device.clone().allocate(bytes).map_err(|error| error.with("in_all", needed))?;
        let at = |offset| DeviceMemory { pointer: memory.pointer + offset, ..memory.clone() };
        targets.provide(offsets.into_iter().map(at));
    }
    Ok(())
}

/// How many of the first storages go into one allocation: at least one.
fn chunk_of(storages: &[PlannedStorage]) -> usize {
    let mut bytes = 0_u64;
    let fits = |storage: &&PlannedStorage| {
        bytes = bytes.saturating_add(storage.length).saturating_add(DEVICE_ALIGNMENT);
        bytes <= CHUNK
    };
    storages.iter().take_while(fits).count().max(1)
}

/// The caller's memory on a device. Our copies there begin behind its event, if it has one.
pub(crate) fn provide_on(
    device: &Arc<dyn Device>,
    plan: &Plan,
    targets: &Targets,
    provide: &mut Provide<'_>,
    quarantine: &Arc<Quarantine>,
) -> Result<()> {
    let (mut ready, mut bytes) = (Vec::new(), 0);
    for storage in &plan.storages {
        let destination = provide(storage)?;
        destination.check(storage, device.id())?;
        if let (Some(event), Some(queue)) = (destination.ready_event, targets.queue()) {
            queue.wait_for(event)?;
        }
        let (device, pointer) = (device.clone(), destination.address);
        let (keep_alive, quarantine) = (destination.keep_alive, quarantine.clone());
        let keep = Arc::new(Theirs { keep_alive, length: storage.length, quarantine });
        ready.push(DeviceMemory { device, pointer, keep });
        bytes += storage.length;
        // A block's worth: less than that completes none, so nobody needs it yet.
        if bytes >= plan.block_size {
            targets.provide(ready.drain(..));
            bytes = 0;
        }
    }
    targets.provide(ready);
    Ok(())
}

/// Memory of the caller's: kept alive by us, freed by them.
struct Theirs {
    keep_alive: Arc<dyn Any + Send + Sync>,
    length: u64,
    quarantine: Arc<Quarantine>,
}

impl Keep for Theirs {
    fn quarantine(&self) {
        // Never let go: a copy may still be writing there.
        std::mem::forget(self.keep_alive.clone());
        self.quarantine.add_bytes(self.length);
    }
}

impl fmt::Debug for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the caller's memory")
    }
}

/// Host memory for the storages of a plan, to be written once and then read.
pub(crate) struct HostTargets {
    memories: Vec<Memory>,
    writers: Vec<Writer>,
    /// Whether the memory is ours, and so new.
    fresh: bool,
    /// Memory of ours, where it is one region.
    own: Option<(Arc<HostMemory>, Layout)>,
}

impl HostTargets {
    /// Memory of our own: one region in whole pages, given back when the last tensor is gone.
    ///
    /// An error of kind `OutOfHostMemory` if that is more than the `available` bytes.
    pub(crate) fn allocate(
        index: &Index,
        plan: &Plan,
        quarantine: &Arc<Quarantine>,
        available: u64,
    ) -> Result<Self> {
        let layout = layout::for_host(index, plan)?;
        check_available(layout.bytes, available)?;
        let memory = Arc::new(HostMemory::new(layout.bytes, quarantine.clone())?);
        let mut targets = Self::empty(true);
        for (storage, offset) in plan.storages.iter().zip(&layout.offsets) {
            targets.push(&memory, *offset, storage.length);
        }
        Ok(Self { own: Some((memory, layout)), ..targets })
    }

    /// The same with a region for each storage, given back when its last tensor is gone.
    pub(crate) fn allocate_apart(
        index: &Index,
        plan: &Plan,
        quarantine: &Arc<Quarantine>,
        available: u64,
    ) -> Result<Self> {
        let layouts = plan.storages.iter().map(|storage| layout::alone(index, storage));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        check_available(
            layouts.iter().fold(0, |all, one| all.saturating_add(one.bytes)),
            available,
        )?;
        let mut targets = Self::empty(true);
        for (storage, layout) in plan.storages.iter().zip(layouts) {
            let memory = Arc::new(HostMemory::new(layout.bytes, quarantine.clone())?);
            targets.push(&memory, layout.offsets[0], storage.length);
        }
        Ok(targets)
    }

    fn empty(fresh: bool) -> Self {
        Self { memories: Vec::new(), writers: Vec::new(), fresh, own: None }
    }

    /// The next storage's range of `memory`, which no other storage has.
    fn push(&mut self, memory: &Arc<HostMemory>, offset: u64, length: u64) {
        // Both fit: the region holds all bytes, and offset + length is at most that.
        let (offset, length) = (offset as usize, length as usize);
        debug_assert!(offset + length <= memory.range().length);
        // SAFETY: within the region, see above.
        let pointer = unsafe { memory.range().pointer.add(offset) };
        // SAFETY: anonymous pages are initialised with zeros, mapped as long as `memory`,
        // and this range of them is handed to this writer alone.
        self.writers.push(unsafe { Writer::new(pointer, length) });
        // SAFETY: as above; tensors show the bytes only when the writers' places are gone.
        self.memories.push(unsafe { Memory::new(pointer, length, memory.clone()) });
    }

    /// What pins the memory as it fills; nothing where it is not ours.
    pub(crate) fn pinning(&self, plan: &Plan) -> Option<Pinning> {
        let (memory, layout) = self.own.as_ref()?;
        Some(Pinning::new(memory.clone(), plan, layout))
    }

    /// The caller's memory.
    pub(crate) fn provide(plan: &Plan, provide: &mut Provide<'_>) -> Result<Self> {
        let mut targets = Self::empty(false);
        for storage in &plan.storages {
            let destination = provide(storage)?;
            destination.check(storage, DeviceId::Host)?;
            let length = storage.length as usize;
            let pointer =
                NonNull::new(destination.address as *mut u8).unwrap_or(NonNull::dangling());
            // SAFETY: the contract of `Destination::new`; checked to be long enough.
            targets.writers.push(unsafe { Writer::new(pointer, length) });
            // SAFETY: the same contract.
            let memory = unsafe { Memory::new(pointer, length, destination.keep_alive) };
            targets.memories.push(memory);
        }
        Ok(targets)
    }

    /// The places of all pieces, block by block. Every byte is given out once: a storage's
    /// bytes stand in the plan from front to back.
    pub(crate) fn places(&mut self, plan: &Plan) -> Result<Vec<VecDeque<Place>>> {
        let keep: Arc<dyn Any + Send + Sync> =
            Arc::new(self.memories.iter().map(Memory::keep).collect::<Vec<_>>());
        let misfit =
            || Error::new(ErrorKind::Internal, "the plan's pieces and copies do not match");
        let mut all = Vec::with_capacity(plan.blocks.len());
        for block in 0..plan.blocks.len() {
            let mut copies = plan.copies_of(block).iter().map(|copy| (copy.storage, copy.length));
            let mut current = (0, 0);
            let mut places = VecDeque::new();
            for piece in plan.pieces_of(block) {
                let mut place = match self.fresh {
                    true => Place::fresh(keep.clone()),
                    false => Place::empty(keep.clone()),
                };
                let mut wanted = piece.length;
                while wanted > 0 {
                    if current.1 == 0 {
                        current = copies.next().ok_or_else(misfit)?;
                    }
                    let step = current.1.min(wanted);
                    let given = self.writers[current.0].give(step as usize, &mut place);
                    if given as u64 != step {
                        return Err(misfit());
                    }
                    current.1 -= step;
                    wanted -= step;
                }
                places.push_back(place);
            }
            all.push(places);
        }
        Ok(all)
    }

    /// The memory, to be shown once it is written.
    pub(crate) fn into_locations(self) -> Vec<Location> {
        self.memories.into_iter().map(Location::Host).collect()
    }
}

/// The kernel maps more than it has, and kills whoever then touches it.
fn check_available(needed: u64, available: u64) -> Result<()> {
    if available >= needed {
        return Ok(());
    }
    let message = "the host has not enough memory left for the tensors";
    Err(Error::new(ErrorKind::OutOfHostMemory, message)
        .with("needed", needed)
        .with("available", available)
        .hint("end other programs, or load fewer tensors with --tensors"))
}

#[cfg(test)]
mod tests {
    use weightlift_index::{Index, SourceId, SourceInfo, Storage};

    use super::*;

    /// MM-07: what is available is compared before anything is mapped, to the byte.
    #[test]
    fn memory_that_is_not_there_is_an_error_and_not_a_kill() {
        let length = 1 << 44;
        let storage =
            Storage { source: SourceId(0), offset: 0, length, encoding: Default::default() };
        let index = Index {
            sources: vec![SourceInfo::file("f", length)],
            storages: vec![storage],
            ..Index::default()
        };
        let plan = crate::plan::build(&index, &[StorageId(0)], 1 << 30, 1 << 30);
        let allocate =
            |available| HostTargets::allocate(&index, &plan, &Arc::default(), available).err();
        let error = allocate(length - 1).expect("one byte too many");
        assert_eq!(error.kind(), ErrorKind::OutOfHostMemory);
        let values = (error.value("needed"), error.value("available"));
        assert_eq!(values, (Some("17592186044416"), Some("17592186044415")));
        // The kernel maps 16 TiB, as it would at any machine: that is why somebody has to ask.
        assert!(allocate(length).is_none());
    }
}
