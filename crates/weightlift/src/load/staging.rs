//! The rings that a loader keeps, and what it remembers of pinning.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    limit: Option<(u64, String)>,
}

/// What a load needs staging memory for.
pub(crate) struct Need<'a> {
    pub(crate) options: &'a Options,
    pub(crate) bytes: u64,
    pub(crate) readers: usize,
    pub(crate) quarantine: &'a Arc<Quarantine>,
}

/// Pinned staging memory, or why there is none.
pub(crate) enum Pinning {
    /// A ring, and why it is smaller than the budget allows, if it is.
    Pinned(Arc<Ring>, Option<String>),
    /// Nothing could be pinned, now or at an earlier load.
    Failed(Error),
}

impl Need<'_> {
    fn geometry(&self, budget: u64) -> Result<Geometry> {
        Geometry::new(self.options, budget, self.bytes, self.readers)
    }

    /// A new ring, not pinned.
    pub(crate) fn ring(&self, geometry: &Geometry) -> Result<Ring> {
        Ring::new(geometry.blocks, geometry.block_size, self.quarantine.clone())
    }
}

impl Staging {
    /// Whether a load that needs pinned memory would have to make it.
    pub(crate) fn lacks_pinned(&self) -> bool {
        let kept = lock(&self.pinned);
        kept.ring.is_none() && kept.limit.is_none()
    }

    /// Pinned staging memory. `ready` is a ring of the full budget, made beforehand. Where the
    /// full budget cannot be pinned half of it is tried, and so on; the outcome is remembered
    /// until [`release`](Self::release). With `again`, an earlier failure is tried again.
    pub(crate) fn pinned(
        &self,
        need: &Need<'_>,
        registrar: &dyn Registrar,
        mut ready: Option<Ring>,
        again: bool,
    ) -> Result<Pinning> {
        let mut kept = lock(&self.pinned);
        if again && kept.limit.as_ref().is_some_and(|(bytes, _)| *bytes == 0) {
            kept.limit = None;
        }
        let (mut budget, mut why) = match kept.limit.clone() {
            Some((0, reason)) => {
                return Ok(Pinning::Failed(pin_failed(&reason, "an earlier load")));
            }
            Some((bytes, reason)) => (bytes.min(need.options.staging_budget()), Some(reason)),
            None => (need.options.staging_budget(), None),
        };
        if let Some(ring) = kept.reuse(&need.geometry(budget)?) {
            return Ok(Pinning::Pinned(ring, why));
        }
        loop {
            let mut ring = match ready.take() {
                Some(ring) => ring,
                None => need.ring(&need.geometry(budget)?)?,
            };
            match ring.pin(registrar) {
                Ok(()) => {
                    if let Some(reason) = &why {
                        kept.limit = Some((budget, reason.clone()));
                    }
                    return Ok(Pinning::Pinned(kept.keep(ring), why));
                }
                Err(error) if error.kind() == ErrorKind::PinFailed => {
                    // Not the budget but what was tried counts: a small model takes less.
                    let tried = ring.bytes().min(budget);
                    why = Some(error.to_string());
                    budget = tried / 2;
                    if budget < 2 * SMALLEST_BLOCK {
                        kept.limit = Some((0, error.to_string()));
                        return Ok(Pinning::Failed(error));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Staging memory that is not pinned.
    pub(crate) fn pageable(&self, need: &Need<'_>, ready: Option<Ring>) -> Result<Arc<Ring>> {
        let mut kept = lock(&self.pageable);
        let geometry = need.geometry(need.options.staging_budget())?;
        if let Some(ring) = kept.reuse(&geometry) {
            return Ok(ring);
        }
        let ring = match ready {
            Some(ring) => ring,
            None => need.ring(&geometry)?,
        };
        Ok(kept.keep(ring))
    }

    /// Gives back what no load is using, and forgets failures.
    pub(crate) fn release(&self) {
        *lock(&self.pinned) = Kept::default();
        *lock(&self.pageable) = Kept::default();
    }
}

impl Kept {
    /// The kept ring, if it serves. One in use by another load serves as it is: two would
    /// exceed the budget. An idle one that does not fit, and one that has lost blocks, goes.
    fn reuse(&mut self, wanted: &Geometry) -> Option<Arc<Ring>> {
        let ring = self.ring.take()?;
        let fits = ring.block_size() == wanted.block_size && ring.blocks() >= wanted.blocks;
        let in_use = Arc::strong_count(&ring) > 1;
        if ring.is_whole() && (fits || in_use) {
            self.ring = Some(ring.clone());
            return Some(ring);
        }
        None
    }

    fn keep(&mut self, ring: Ring) -> Arc<Ring> {
        self.ring.insert(Arc::new(ring)).clone()
    }
}

fn pin_failed(reason: &str, when: &str) -> Error {
    Error::new(ErrorKind::PinFailed, format!("host memory could not be pinned in {when}"))
        .with("reason", reason)
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
