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

/// Memory at `address`, `length` bytes of it on `device`, that `keep` keeps alive and that may be
/// written after `event`.
pub(crate) fn from_python(
    device: DeviceId,
    (address, length, keep, event): (u64, u64, Py<PyAny>, Option<u64>),
) -> Destination {
    let keep = Arc::new(Keep(Some(keep)));
    // SAFETY: `weightlift.Loader.load` documents it as the promise of whoever passes `provide`, and
    // those in the package keep it: memory of an array or tensor that was made for this, or that the
    // caller gave to be filled, which `keep` is.
    let destination = unsafe { Destination::new(device, address, length, keep) };
    match event {
        // SAFETY: as above; the event lives at least as long as `provide`'s module keeps it, which
        // is until the load returns.
        Some(event) => unsafe { destination.ready_event(event) },
        None => destination,
    }
}
