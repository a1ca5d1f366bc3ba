//! Memory of our own for tensors, parts of which may be pinned.
#![allow(unsafe_code)] // hands the region's parts to a registrar, and ends the region

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use super::{HostRange, Quarantine, Region, Registrar, Registration};
use crate::error::{Error, ErrorKind, Result};

/// A region that tensors lie in, kept by each of them. When the last is gone its registrations
/// end, and then it is unmapped; where one cannot be ended the memory stays mapped for good and
/// is counted.
pub(crate) struct HostMemory {
    registrations: Mutex<Vec<Box<dyn Registration>>>,
    region: ManuallyDrop<Region>,
    quarantine: Arc<Quarantine>,
}

impl HostMemory {
    /// `bytes` bytes, in whole pages. Costs no memory until it is touched. An error of kind
    /// `OutOfHostMemory`.
    pub(crate) fn new(bytes: u64, quarantine: Arc<Quarantine>) -> Result<Self> {
        let region = ManuallyDrop::new(Region::new(bytes)?);
        Ok(Self { registrations: Mutex::default(), region, quarantine })
    }

    /// All of it.
    pub(crate) fn range(&self) -> HostRange {
        self.region.range()
    }

    /// Pins `length` bytes from `start`, as one registration, until the memory goes.
    pub(crate) fn register(
        &self,
        registrar: &dyn Registrar,
        start: u64,
        length: u64,
    ) -> Result<()> {
        let whole = self.range();
        let fits = start.checked_add(length).is_some_and(|end| end <= whole.length as u64);
        if !fits {
            return Err(Error::new(ErrorKind::Internal, "a range outside of its memory"));
        }
        let (start, length) = (start as usize, length as usize);
        // SAFETY: within the region, as checked above.
        let pointer = unsafe { whole.pointer.add(start) };
        let registration = registrar.register(HostRange { pointer, length })?;
        let mut registrations = self.registrations.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.push(registration);
        Ok(())
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let mut ended = true;
        // All of them, whatever becomes of one.
        for each in self.registrations.get_mut().unwrap_or_else(PoisonError::into_inner) {
            ended &= each.unregister();
        }
        if ended {
            // SAFETY: the region is not used after this: the drop of its owner is under way.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        } else {
            self.quarantine.add_bytes(self.region.range().length as u64);
        }
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.range().length)
    }
}
