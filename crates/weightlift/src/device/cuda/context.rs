//! A device and its primary context.
#![allow(unsafe_code)] // calls the driver

use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weightlift_cuda_sys::{CuContext, CuDevice, CuStatus, CuStream, Driver};

use super::copy::{Stream, create_ready, destroy};
use super::driver::{check_fork, display_version, failed, forked};
use super::memory::{Allocation, Pinner};
use crate::device::{CopyQueue, Device, DeviceId, DeviceMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Quarantine, Registrar};

/// A CUDA device with its primary context, the one that torch and the CUDA runtime use too:
/// memory that we allocate is theirs to use. The context is never reset.
pub(crate) struct CudaDevice {
    pub(super) driver: &'static Driver,
    quarantine: Arc<Quarantine>,
    /// Something of the context was given up: releasing it would free that under whoever
    /// still uses it.
    gave_up: AtomicBool,
    /// CUDA's version as the driver gives it: 12080 is 12.8.
    pub(super) version: c_int,
    ordinal: u32,
    handle: CuDevice,
    context: CuContext,
    name: String,
    poisoned: OnceLock<String>,
    /// Copy streams that no load uses.
    streams: Mutex<Vec<CuStream>>,
}

impl CudaDevice {
    pub(super) fn retain(
        driver: &'static Driver,
        version: c_int,
        ordinal: u32,
        handle: CuDevice,
        name: String,
        quarantine: Arc<Quarantine>,
    ) -> Result<Self> {
        let mut context = CuContext::NULL;
        // SAFETY: the pointer is valid for the call, the handle is the driver's own.
        let status = unsafe { (driver.cuDevicePrimaryCtxRetain)(&mut context, handle) };
        if !status.is_success() {
            return Err(failed(driver, status, "cuDevicePrimaryCtxRetain")
                .with("device", format!("cuda:{ordinal}")));
        }
        let (poisoned, streams) = (OnceLock::new(), Mutex::default());
        let gave_up = AtomicBool::new(false);
        let device = Self {
            driver,
            quarantine,
            gave_up,
            version,
            ordinal,
            handle,
            context,
            name,
            poisoned,
            streams,
        };
        device.keep_stream(create_ready(&device)?);
        Ok(device)
    }

    pub(super) fn take_stream(&self) -> Option<CuStream> {
        self.streams().pop()
    }

    pub(super) fn keep_stream(&self, stream: CuStream) {
        self.streams().push(stream);
    }

    fn streams(&self) -> MutexGuard<'_, Vec<CuStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The name that the driver gives it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The newest CUDA that the driver knows, `CUDA 12.8`.
    pub(crate) fn cuda_version(&self) -> String {
        display_version(self.version)
    }

    /// An error of kind `Poisoned` if an earlier error made the context unusable.
    pub(super) fn check_usable(&self) -> Result<()> {
        match self.poisoned.get() {
            None => Ok(()),
            Some(earlier) => Err(Error::new(
                ErrorKind::Poisoned,
                "an earlier error of the device has made the CUDA context unusable",
            )
            .with("device", self.id())
            .with("earlier", earlier)
            .hint("start a new process")),
        }
    }

    /// Makes the context the calling thread's until the guard is dropped.
    pub(super) fn enter(&self) -> Result<Current<'_>> {
        check_fork()?;
        self.check_usable()?;
        let mut previous = CuContext::NULL;
        // SAFETY: the pointer is valid for the call.
        let status = unsafe { (self.driver.cuCtxGetCurrent)(&mut previous) };
        self.check(status, "cuCtxGetCurrent")?;
        // SAFETY: the context is retained as long as `self`.
        let status = unsafe { (self.driver.cuCtxSetCurrent)(self.context) };
        self.check(status, "cuCtxSetCurrent")?;
        Ok(Current { device: self, previous })
    }

    /// The error of a driver function that answered `status`; remembers a status that makes
    /// the context unusable.
    pub(super) fn check(&self, status: CuStatus, function: &'static str) -> Result<()> {
        if status.is_success() {
            return Ok(());
        }
        let error = failed(self.driver, status, function).with("device", self.id());
        if status.is_sticky() {
            let _ = self.poisoned.set(format!("{function}: {}", status.name(Some(self.driver))));
        }
        Err(error)
    }

    /// Counts memory of the context that is given up, and keeps the context for it.
    pub(super) fn give_up_bytes(&self, bytes: u64) {
        self.gave_up.store(true, Ordering::Relaxed);
        self.quarantine.add_bytes(bytes);
    }

    /// Counts a handle of the context that is given up, and keeps the context for it.
    pub(super) fn give_up_handle(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
        self.quarantine.add_handle();
    }

    /// Keeps the context for good: pinned memory of it stays pinned.
    pub(super) fn keep_context(&self) {
        self.gave_up.store(true, Ordering::Relaxed);
    }

    /// Free and total bytes of the device, if the driver tells.
    pub(super) fn memory_info(&self) -> Option<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are valid for the call; the context is current at the caller's.
        let status = unsafe { (self.driver.cuMemGetInfo_v2)(&mut free, &mut total) };
        status.is_success().then_some((free as u64, total as u64))
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        DeviceId::Cuda(self.ordinal)
    }

    fn allocate(self: Arc<Self>, bytes: u64) -> Result<DeviceMemory> {
        let allocation = Arc::new(Allocation::new(self.clone(), bytes)?);
        Ok(DeviceMemory { device: self, pointer: allocation.pointer(), keep: allocation })
    }

    fn copy_queue(self: Arc<Self>) -> Result<Box<dyn CopyQueue>> {
        Ok(Box::new(Stream::new(self)?))
    }

    fn registrar(self: Arc<Self>) -> Box<dyn Registrar> {
        Box::new(Pinner(self))
    }

    fn read_back(&self, pointer: u64, bytes: &mut [u8]) -> Result<()> {
        super::copy::read_back(self, pointer, bytes)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        for stream in std::mem::take(&mut *self.streams()) {
            destroy(self, stream);
        }
        if *self.gave_up.get_mut() {
            self.quarantine.add_handle();
            return;
        }
        // SAFETY: retained once by `retain`; memory and streams of ours hold the device, so
        // none is left.
        let status = unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.handle) };
        if !status.is_success() && status != CuStatus::DEINITIALIZED {
            self.quarantine.add_handle();
        }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.id(), self.name)
    }
}

/// The device's context is current on this thread; the caller's comes back when this goes.
pub(super) struct Current<'a> {
    device: &'a CudaDevice,
    previous: CuContext,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let set = self.device.driver.cuCtxSetCurrent;
        // SAFETY: the context was this thread's current one a moment ago. Twice, since there
        // is nobody to whom a failure could be told and a wrong context harms the caller.
        let restored =
            unsafe { set(self.previous).is_success() || set(self.previous).is_success() };
        if !restored {
            self.device.give_up_handle();
        }
    }
}
