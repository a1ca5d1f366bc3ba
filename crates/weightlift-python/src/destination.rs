//! Memory that Python gives: an address, and what keeps it alive.
#![allow(unsafe_code)] // takes the word of Python code for addresses

use std::sync::Arc;

use pyo3::prelude::*;
use weightlift::{Destination, DeviceId};

/// A Python object that may be let go of on any thread, whether or not it holds the GIL.
struct Keep(Option<Py<PyAny>>);

impl Drop for Keep {
    fn drop(&mut self) {
        let object = self.0.take();
        // Where there is no interpreter any more the object is nobody's to free.
        let kept = std::mem::ManuallyDrop::new(object);
        let _ = Python::try_attach(|_| drop(std::mem::ManuallyDrop::into_inner(kept)));
    }
}

/// What Python gives: address, bytes, what keeps them alive, and an event.
pub(crate) type Given = (u64, u64, Py<PyAny>, Option<u64>);

/// Memory that Python gave: an address, its length in bytes, what keeps it alive, and the handle of
/// the event after which it may be written.
#[derive(Clone)]
pub(crate) struct Place {
    address: u64,
    length: u64,
    keep: Arc<Keep>,
    event: Option<u64>,
}

impl Place {
    pub(crate) fn new((address, length, keep, event): Given) -> Self {
        Self { address, length, keep: Arc::new(Keep(Some(keep))), event }
    }

    /// The memory, which is on `device`.
    pub(crate) fn on(&self, device: DeviceId) -> Destination {
        // SAFETY: `weightlift.Loader.load` documents it as the promise of whoever passes `provide`,
        // and those in the package keep it: memory of an array or tensor that was made for this, or
        // that the caller gave to be filled, which `keep` is.
        let destination =
            unsafe { Destination::new(device, self.address, self.length, self.keep.clone()) };
        match self.event {
            // SAFETY: as above; the event lives at least as long as `provide`'s module keeps it,
            // which is until the load is over.
            Some(event) => unsafe { destination.ready_event(event) },
            None => destination,
        }
    }
}
