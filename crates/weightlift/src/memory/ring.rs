//! The ring of staging blocks: one region, registered once, shared by all loads of a loader.
#![allow(unsafe_code)] // hands out parts of the region as places

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::slots::{Slots, Submission};
use super::{Completion, HostRange, Place, Quarantine, Region, Registrar, Registration, Writer};
use crate::error::{Error, ErrorKind, Result};
use crate::system::PAGE;

/// A row of blocks of staging memory, pinned or not.
pub(crate) struct Ring {
    slots: Slots,
    staging: Staging,
    touching: Touching,
    block_size: usize,
    blocks: usize,
}

/// How much one caller touches at a time: a huge page.
const TOUCH: usize = 2 << 20;

/// Which of the ring's chunks are somebody's, and how many are touched.
#[derive(Default)]
struct Touching {
    next: AtomicUsize,
    done: AtomicUsize,
}

/// The memory. Its registration ends before it is unmapped; where that cannot be done, or
/// where a copy out of it may still run, it stays mapped for good and is counted.
struct Staging {
    registration: OnceLock<Box<dyn Registration>>,
    region: ManuallyDrop<Region>,
    may_be_read: AtomicBool,
    quarantine: Arc<Quarantine>,
}

impl Ring {
    /// A ring of `blocks` blocks of `block_size` bytes. Not pinned; costs no memory until it
    /// is touched. An error of kind `OutOfHostMemory`.
    pub(crate) fn new(blocks: u64, block_size: u64, quarantine: Arc<Quarantine>) -> Result<Self> {
        let bytes = blocks.saturating_mul(block_size);
        let region = Region::new(bytes)?;
        // The region was mapped: its size, and so the two factors, fit an address.
        let (blocks, block_size) = (blocks as usize, block_size as usize);
        let staging = Staging {
            registration: OnceLock::new(),
            region: ManuallyDrop::new(region),
            may_be_read: AtomicBool::new(false),
            quarantine,
        };
        let touching = Touching::default();
        Ok(Self { slots: Slots::new(blocks), staging, touching, block_size, blocks })
    }

    /// Pins the whole ring, once. Blocks may be filled meanwhile; copies out of them begin
    /// afterwards.
    pub(crate) fn pin(&self, registrar: &dyn Registrar) -> Result<()> {
        if !self.is_pinned() {
            let registration = registrar.register(self.staging.region.range())?;
            // Whoever may pin is alone (load/staging.rs): nobody has set it meanwhile.
            let set = self.staging.registration.set(registration);
            debug_assert!(set.is_ok(), "a ring was pinned twice");
        }
        Ok(())
    }

    /// All of its memory.
    pub(crate) fn memory(&self) -> HostRange {
        self.staging.region.range()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        self.staging.registration.get().is_some()
    }

    pub(crate) fn block_size(&self) -> u64 {
        self.block_size as u64
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.block_size() * self.blocks()
    }

    /// Whether every block of it can be used.
    pub(crate) fn is_whole(&self) -> bool {
        self.slots.quarantined() == 0
    }

    /// Most bytes that held data at one time since the last call.
    pub(crate) fn take_peak(&self) -> u64 {
        (self.slots.take_most_busy() * self.block_size) as u64
    }

    /// Has the kernel give the ring's pages, together with all others who call this; returns
    /// when all are there. See [`Place::touch`] for why a read should not be the first to touch.
    pub(crate) fn touch(&self) {
        let whole = self.staging.region.range();
        let chunks = whole.length.div_ceil(TOUCH);
        while self.touching.done.load(Ordering::Acquire) < chunks {
            let chunk = self.touching.next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                std::thread::yield_now();
                continue;
            }
            let start = chunk * TOUCH;
            for at in (start..whole.length.min(start + TOUCH)).step_by(PAGE) {
                // SAFETY: within the region. Nobody else touches it yet: blocks are given out
                // only when all chunks are done, and each chunk is one caller's.
                unsafe { whole.pointer.add(at).write_volatile(0) };
            }
            self.touching.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes a block, waiting for one in turn; see [`Slots::acquire`].
    pub(crate) fn acquire(self: &Arc<Self>, stopped: &dyn Fn() -> bool) -> Result<OpenBlock> {
        self.touch();
        self.slots.acquire(stopped).map(|slot| self.open(slot))
    }

    /// Takes a block if one is free and nobody waits for it; an error where there will be none
    /// any more.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Result<Option<OpenBlock>> {
        self.touch();
        Ok(self.slots.try_acquire()?.map(|slot| self.open(slot)))
    }

    fn open(self: &Arc<Self>, slot: usize) -> OpenBlock {
        let hold = Hold { ring: self.clone(), slot, armed: true };
        let range = self.range(slot);
        // SAFETY: the region's memory is initialised (anonymous pages are zeroed) and mapped
        // as long as the ring, which every place keeps through the hold. The slot is in the
        // state `Filling`: it is given to nobody else until the hold is gone.
        let writer = unsafe { Writer::new(range.pointer, range.length) };
        OpenBlock { hold: Arc::new(hold), writer, given: 0 }
    }

    fn range(&self, slot: usize) -> HostRange {
        let whole = self.staging.region.range();
        let offset = slot * self.block_size;
        debug_assert!(offset + self.block_size <= whole.length);
        // SAFETY: `slot` is below `blocks`, so the block lies within the region.
        let pointer = unsafe { whole.pointer.add(offset) };
        HostRange { pointer, length: self.block_size }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Nobody holds a block any more, but copies may still be under way.
        if !self.slots.settle() {
            self.staging.may_be_read.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let may_be_read = *self.may_be_read.get_mut();
        let free = match self.registration.get_mut() {
            Some(registration) if may_be_read => {
                registration.abandon();
                false
            }
            Some(registration) => registration.unregister(),
            None => !may_be_read,
        };
        if free {
            // SAFETY: the region is not used after this: the drop of its owner is under way.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        } else {
            self.quarantine.add_bytes(self.region.range().length as u64);
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned = if self.is_pinned() { "pinned" } else { "pageable" };
        write!(f, "Ring({} x {} bytes, {pinned})", self.blocks, self.block_size)
    }
}

/// Whoever has this has the block. It is free again when the last place is gone.
struct Hold {
    ring: Arc<Ring>,
    slot: usize,
    armed: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.armed {
            self.ring.slots.abandon(self.slot);
        }
    }
}

/// A block that is being filled.
pub(crate) struct OpenBlock {
    hold: Arc<Hold>,
    writer: Writer,
    given: usize,
}

impl OpenBlock {
    /// The `length` bytes at `offset` of the block, for one reader. Places are asked for by
    /// ascending offset and do not overlap.
    pub(crate) fn place(&mut self, offset: u64, length: u64) -> Result<Place> {
        let outside = || {
            Error::new(ErrorKind::Internal, "a piece does not fit its block")
                .with("offset", offset)
                .with("length", length)
                .with("block", self.hold.ring.block_size)
        };
        let skip = usize::try_from(offset).ok().and_then(|offset| offset.checked_sub(self.given));
        let (Some(skip), Ok(length)) = (skip, usize::try_from(length)) else {
            return Err(outside());
        };
        if skip.checked_add(length).is_none_or(|need| need > self.writer.rest()) {
            return Err(outside());
        }
        let mut place = Place::empty(self.hold.clone());
        self.writer.skip(skip);
        self.writer.give(length, &mut place);
        self.given += skip + length;
        Ok(place)
    }

    /// The block, once every place of it is gone and nothing more can be written to it.
    pub(crate) fn seal(self) -> Result<FilledBlock> {
        match Arc::try_unwrap(self.hold) {
            Ok(hold) => Ok(FilledBlock { hold }),
            Err(_) => {
                Err(Error::new(ErrorKind::Internal, "a block was sealed while it was being filled"))
            }
        }
    }
}

/// A block that nobody writes to.
pub(crate) struct FilledBlock {
    hold: Hold,
}

/// Copies could not be submitted.
pub(crate) struct SubmitError {
    /// Why.
    pub(crate) error: Error,
    /// Whether it is certain that no copy out of the block is under way.
    pub(crate) idle: bool,
}

impl FilledBlock {
    /// Lets `copy` start copies out of the block. From then on the block is the ring's, until
    /// the copies are over, whatever happens to the caller.
    pub(crate) fn submit(
        mut self,
        copy: impl FnOnce(HostRange) -> Result<Arc<dyn Completion>, SubmitError>,
    ) -> Result<InFlight> {
        let (ring, slot) = (self.hold.ring.clone(), self.hold.slot);
        match copy(ring.range(slot)) {
            Ok(completion) => {
                self.hold.armed = false;
                let submission = ring.slots.submit(slot, completion);
                Ok(InFlight { ring, submission })
            }
            Err(failed) => {
                if !failed.idle {
                    self.hold.armed = false;
                    ring.slots.quarantine(slot, &failed.error);
                }
                Err(failed.error)
            }
        }
    }
}

/// Copies out of a block that are under way.
pub(crate) struct InFlight {
    ring: Arc<Ring>,
    submission: Submission,
}

impl InFlight {
    /// Waits until they are over. An error means that nobody can know; the block is
    /// quarantined then.
    pub(crate) fn land(self) -> Result<()> {
        self.ring.slots.land(self.submission)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
