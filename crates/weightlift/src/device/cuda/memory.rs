//! Device memory, and pinned host memory.
#![allow(unsafe_code)] // calls the driver

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weightlift_cuda_sys::{CU_MEMHOSTREGISTER_PORTABLE, CuDevicePtr, CuStatus};

use super::CudaDevice;
use super::driver::forked;
use crate::device::{Device, Keep};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{HostRange, Registrar, Registration};

/// Device memory of our own. Freed by plain `cuMemFree`, which waits for whatever still uses
/// it, and never reused by a pool.
pub(super) struct Allocation {
    device: Arc<CudaDevice>,
    pointer: CuDevicePtr,
    bytes: u64,
    quarantined: AtomicBool,
}

impl Allocation {
    pub(super) fn new(device: Arc<CudaDevice>, bytes: u64) -> Result<Self> {
        let needs = |error: Error, free: Option<(u64, u64)>| {
            let error = error.with("needed", bytes);
            match free {
                Some((free, total)) => error.with("free", free).with("total", total),
                None => error,
            }
        };
        let current = device.enter()?;
        let mut pointer: CuDevicePtr = 0;
        let status = match usize::try_from(bytes.max(1)) {
            // SAFETY: the pointer is valid for the call; the context is current.
            Ok(bytes) => unsafe { (device.driver.cuMemAlloc_v2)(&mut pointer, bytes) },
            Err(_) => CuStatus::OUT_OF_MEMORY,
        };
        if status == CuStatus::OUT_OF_MEMORY {
            let error =
                Error::new(ErrorKind::OutOfDeviceMemory, "the device has not enough free memory")
                    .with("device", device.id())
                    .hint("free memory of the device, or load fewer tensors with --tensors");
            return Err(needs(error, device.memory_info()));
        }
        device.check(status, "cuMemAlloc").map_err(|error| needs(error, None))?;
        drop(current);
        Ok(Self { device, pointer, bytes, quarantined: AtomicBool::new(false) })
    }

    pub(super) fn pointer(&self) -> u64 {
        self.pointer
    }
}

impl Keep for Allocation {
    fn quarantine(&self) {
        self.quarantined.store(true, Ordering::Relaxed);
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let freed = !*self.quarantined.get_mut()
            && self.device.enter().is_ok_and(|_current| {
                // SAFETY: allocated by `new` in this context and not freed before. No copy of
                // ours can be under way: whoever started one drained it or quarantined this.
                let status = unsafe { (self.device.driver.cuMemFree_v2)(self.pointer) };
                status.is_success() || status == CuStatus::DEINITIALIZED
            });
        if !freed {
            self.device.give_up_bytes(self.bytes);
        }
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {} at {:#x}", self.bytes, self.device.id(), self.pointer)
    }
}

/// Pins host memory for all CUDA devices of the process.
pub(super) struct Pinner(pub(super) Arc<CudaDevice>);

impl Registrar for Pinner {
    fn register(&self, range: HostRange) -> Result<Box<dyn Registration>> {
        let _current = self.0.enter()?;
        let pointer = range.pointer.as_ptr().cast();
        // SAFETY: anonymous memory of our own; the registration returned here is ended before
        // the memory is unmapped (memory/ring.rs, memory/host_memory.rs).
        let status = unsafe {
            (self.0.driver.cuMemHostRegister_v2)(pointer, range.length, CU_MEMHOSTREGISTER_PORTABLE)
        };
        if status.is_success() {
            return Ok(Box::new(Pinned { device: self.0.clone(), range }));
        }
        let cause = self.0.check(status, "cuMemHostRegister");
        let error = Error::new(ErrorKind::PinFailed, "host memory could not be pinned")
            .with("bytes", range.length)
            .with("status", status.0)
            .with("name", status.name(Some(self.0.driver)))
            .hint("lower --staging-budget, or take --route pageable");
        // A poisoned context is no matter of pinning: nothing else would work either.
        self.0.check_usable()?;
        Err(match cause {
            Err(cause) => error.because(cause),
            Ok(()) => error,
        })
    }
}

struct Pinned {
    device: Arc<CudaDevice>,
    range: HostRange,
}

// SAFETY: the range is an address that is told to the driver, never used as memory here.
unsafe impl Sync for Pinned {}

impl Registration for Pinned {
    fn unregister(&mut self) -> bool {
        // A forked child has the memory but not the registration: it may unmap its copy.
        if forked() {
            return true;
        }
        let unregistered = self.device.enter().is_ok_and(|_current| {
            // SAFETY: registered by `register` and not unregistered before.
            let status = unsafe {
                (self.device.driver.cuMemHostUnregister)(self.range.pointer.as_ptr().cast())
            };
            status.is_success() || status == CuStatus::DEINITIALIZED
        });
        if !unregistered {
            self.device.keep_context();
        }
        unregistered
    }

    fn abandon(&mut self) {
        self.device.keep_context();
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pinned bytes", self.range.length)
    }
}
