//! The rings that a loader keeps, and what it remembers of pinning.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Quarantine, Registrar, Ring};
use crate::options::{Options, SMALLEST_BLOCK};
use crate::plan::Geometry;

/// Staging memory, kept for later loads: pinned and not.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    pinned: Mutex<Kept>,
    pageable: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    ring: Option<Arc<Ring>>,
    /// The most bytes that could be pinned when more could not, and why.
    limit: Option<Limit>,
}

#[derive(Debug)]
struct Limit {
    bytes: u64,
    reason: String,
}

/// What a load needs staging memory for.
pub(super) struct Need<'a> {
    pub(super) options: &'a Options,
    pub(super) bytes: u64,
    pub(super) readers: usize,
    pub(super) quarantine: &'a Arc<Quarantine>,
    pub(super) cancelled: &'a dyn Fn() -> bool,
}

/// A ring for one load. A ring that is to be pinned and is not yet is nobody else's until it
/// is: other loads wait for the outcome.
pub(super) struct Claim<'a> {
    pub(super) ring: Arc<Ring>,
    /// Why the ring is smaller than the budget allows, if it is.
    pub(super) smaller: Option<String>,
    kept: Option<MutexGuard<'a, Kept>>,
}

impl Staging {
    /// Staging memory for a load, pinned as soon as [`Claim::pin`] has been called. What could
    /// not be pinned at an earlier load is not tried again until [`release`](Self::release),
    /// unless nothing could be pinned and this load is to have it or fail (`forced`).
    ///
    /// An error of kind `PinFailed` if nothing could be pinned.
    pub(super) fn to_be_pinned(&self, need: &Need<'_>, forced: bool) -> Result<Claim<'_>> {
        if let Ok(mut pageable) = self.pageable.try_lock() {
            pageable.ring.take_if(|ring| !Kept::in_use(ring));
        }
        let mut kept = lock_unless(&self.pinned, need.cancelled)?;
        let mut budget = need.options.staging_budget();
        let mut smaller = None;
        match &kept.limit {
            Some(limit) if limit.bytes > 0 => {
                budget = budget.min(limit.bytes);
                smaller = Some(limit.reason.clone());
            }
            Some(limit) if !forced => {
                return Err(Error::new(ErrorKind::PinFailed, "host memory could not be pinned")
                    .with("reason", &limit.reason));
            }
            Some(_) | None => kept.limit = None,
        }
        let geometry = Geometry::new(need.options, budget, need.bytes, need.readers)?;
        let (ring, mine) = match kept.reuse(&geometry) {
            Some(ring) => (ring, None),
            None => (Arc::new(need.ring(&geometry)?), Some(kept)),
        };
        Ok(Claim { ring, smaller, kept: mine })
    }

    /// Staging memory that is not pinned.
    pub(super) fn pageable(&self, need: &Need<'_>) -> Result<Claim<'_>> {
        // Both kinds together stay within the budget, as far as nobody uses the other one.
        if let Ok(mut pinned) = self.pinned.try_lock() {
            pinned.ring.take_if(|ring| !Kept::in_use(ring));
        }
        let mut kept = lock_unless(&self.pageable, need.cancelled)?;
        let budget = need.options.staging_budget();
        let geometry = Geometry::new(need.options, budget, need.bytes, need.readers)?;
        let ring = match kept.reuse(&geometry) {
            Some(ring) => ring,
            None => kept.ring.insert(Arc::new(need.ring(&geometry)?)).clone(),
        };
        Ok(Claim { ring, smaller: None, kept: None })
    }

    /// Gives back what no load is using, and forgets failures.
    pub(crate) fn release(&self) {
        lock(&self.pinned).let_go();
        lock(&self.pageable).let_go();
    }
}

impl Claim<'_> {
    /// Pins the ring, if that is to be done, and lets others have it too. Where the driver
    /// refuses, half of it is remembered to be tried next, and nothing once that is below two
    /// blocks; the error is of kind `PinFailed` then.
    pub(super) fn pin(&mut self, registrar: &dyn Registrar) -> Result<()> {
        let Some(mut kept) = self.kept.take() else { return Ok(()) };
        // Together with the readers: the driver would touch its pages alone.
        self.ring.touch();
        let pinned = self.ring.pin(registrar);
        match &pinned {
            Ok(()) => kept.ring = Some(self.ring.clone()),
            Err(error) if error.kind() == ErrorKind::PinFailed => {
                let half = self.ring.bytes() / 2;
                let bytes = if half < 2 * SMALLEST_BLOCK { 0 } else { half };
                kept.limit = Some(Limit { bytes, reason: error.to_string() });
            }
            Err(_) => {}
        }
        pinned
    }
}

impl Need<'_> {
    fn ring(&self, geometry: &Geometry) -> Result<Ring> {
        Ring::new(geometry.blocks, geometry.block_size, self.quarantine.clone())
    }
}

impl Kept {
    /// The kept ring, if it serves. One in use by another load serves as it is, even with lost
    /// blocks: two would exceed the budget. An idle one that does not fit or is not whole goes.
    fn reuse(&mut self, wanted: &Geometry) -> Option<Arc<Ring>> {
        let ring = self.ring.take()?;
        let fits = ring.block_size() == wanted.block_size && ring.blocks() >= wanted.blocks;
        if Self::in_use(&ring) || (fits && ring.is_whole()) {
            self.ring = Some(ring.clone());
            return Some(ring);
        }
        None
    }

    /// Lets go of the ring, unless a load uses it: the next one is to share it then.
    fn let_go(&mut self) {
        self.limit = None;
        self.ring.take_if(|ring| !Self::in_use(ring));
    }

    fn in_use(ring: &Arc<Ring>) -> bool {
        Arc::strong_count(ring) > 1
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Another load may hold the lock while the driver starts, which takes up to 20 s on machines
/// with many devices: a cancelled load does not wait for that.
fn lock_unless<'a>(
    kept: &'a Mutex<Kept>,
    cancelled: &dyn Fn() -> bool,
) -> Result<MutexGuard<'a, Kept>> {
    loop {
        match kept.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if cancelled() => {
                return Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
