//! The driver: found, initialised once, asked for devices.
#![allow(unsafe_code)] // calls the driver

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Serialize;
use weightlift_cuda_sys::{CuContext, CuDevice, CuStatus, Driver, LoadError};

use super::{CudaDevice, copy};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Quarantine;

/// The oldest driver that weightlift works with: CUDA 11.4, whose driver has every function
/// that is required. Newer functions are used where they are.
const OLDEST_DRIVER: c_int = 11040;

/// The CUDA driver of this process, and the devices that a loader uses.
#[derive(Debug)]
pub(crate) struct Platform {
    driver: &'static Driver,
    quarantine: Arc<Quarantine>,
    version: OnceLock<c_int>,
    devices: Mutex<Vec<Arc<CudaDevice>>>,
}

impl Platform {
    /// Finds the driver library; does not initialise it. `library` names it, if it is not to
    /// be looked for.
    ///
    /// An error of kind `NoDriver`, or `DriverTooOld` where the library lacks functions.
    pub(crate) fn find(library: Option<&Path>, quarantine: Arc<Quarantine>) -> Result<Self> {
        let driver = Driver::load(library).map_err(|error| not_loaded(error, library))?;
        let (version, devices) = (OnceLock::new(), Mutex::new(Vec::new()));
        Ok(Self { driver, quarantine, version, devices })
    }

    /// Whether the driver library is in this process already, whoever loaded it.
    pub(crate) fn is_loaded(library: Option<&Path>) -> bool {
        Driver::is_loaded(library)
    }

    /// The device `ordinal` if it is up already, or why it cannot be used any more.
    pub(crate) fn retained(&self, ordinal: u32) -> Option<Result<Arc<CudaDevice>>> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let device = devices.iter().find(|device| device.ordinal() == ordinal)?;
        Some(check_fork().and_then(|()| device.check_usable()).map(|()| device.clone()))
    }

    /// The number of the calling thread's current device; 0 where it has none.
    ///
    /// Asked before the driver is initialised too: then no thread has a current device.
    pub(crate) fn current_ordinal(&self) -> Result<u32> {
        check_fork()?;
        let mut context = CuContext::NULL;
        // SAFETY: the pointer is valid for the call.
        let status = unsafe { (self.driver.cuCtxGetCurrent)(&mut context) };
        if status == CuStatus::NOT_INITIALIZED || (status.is_success() && context.is_null()) {
            return Ok(0);
        }
        self.check(status, "cuCtxGetCurrent")?;
        let mut current = CuDevice(0);
        // SAFETY: as above; the thread has a current context.
        let status = unsafe { (self.driver.cuCtxGetDevice)(&mut current) };
        self.check(status, "cuCtxGetDevice")?;
        for ordinal in 0..self.count()? {
            if self.handle(ordinal)? == current {
                return Ok(ordinal);
            }
        }
        Err(Error::new(
            ErrorKind::InvalidDevice,
            "the current CUDA device is not among those shown",
        ))
    }

    /// The device `ordinal`, its primary context retained. The first call initialises the
    /// driver, which takes 0.3 s for one GPU and seconds for many.
    pub(crate) fn device(&self, ordinal: u32) -> Result<Arc<CudaDevice>> {
        self.initialise()?;
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.iter().find(|device| device.ordinal() == ordinal) {
            device.check_usable()?;
            return Ok(device.clone());
        }
        let count = self.count()?;
        if ordinal >= count {
            let mut visible = Vec::new();
            for ordinal in 0..count {
                visible.push(format!("cuda:{ordinal} ({})", self.name(self.handle(ordinal)?)?));
            }
            return Err(Error::new(ErrorKind::InvalidDevice, "there is no such CUDA device")
                .with("device", format!("cuda:{ordinal}"))
                .with("visible", visible.join(", "))
                .hint("devices are counted from 0 among those that CUDA_VISIBLE_DEVICES leaves"));
        }
        let handle = self.handle(ordinal)?;
        let name = self.name(handle)?;
        let device = CudaDevice::retain(
            self.driver,
            self.version(),
            ordinal,
            handle,
            name,
            self.quarantine.clone(),
        )?;
        let device = Arc::new(device);
        devices.push(device.clone());
        Ok(device)
    }

    /// Gives back the contexts that nothing needs any more.
    pub(crate) fn release(&self) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn version(&self) -> c_int {
        self.version.get().copied().unwrap_or(0)
    }

    fn initialise(&self) -> Result<()> {
        check_fork()?;
        if self.version.get().is_some() {
            return Ok(());
        }
        let mut version = 0;
        // SAFETY: cuDriverGetVersion may be called before cuInit; the pointer is valid.
        let status = unsafe { (self.driver.cuDriverGetVersion)(&mut version) };
        self.check(status, "cuDriverGetVersion")?;
        let too_old = |version: c_int| {
            Error::new(ErrorKind::DriverTooOld, "the CUDA driver is too old")
                .with("actual", display_version(version))
                .with("expected", display_version(OLDEST_DRIVER))
                .with("library", self.driver.path().display())
                .hint("install a newer NVIDIA driver")
        };
        if version < OLDEST_DRIVER {
            return Err(too_old(version));
        }
        // SAFETY: takes a number; may be called more than once and from any thread.
        let status = unsafe { (self.driver.cuInit)(0) };
        if status == CuStatus::INSUFFICIENT_DRIVER {
            return Err(too_old(version));
        }
        self.check(status, "cuInit")?;
        let _ = FIRST_USER.set(std::process::id());
        if self.count()? == 0 {
            return Err(no_device());
        }
        let _ = self.version.set(version);
        Ok(())
    }

    fn count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the pointer is valid for the call.
        let status = unsafe { (self.driver.cuDeviceGetCount)(&mut count) };
        self.check(status, "cuDeviceGetCount")?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn handle(&self, ordinal: u32) -> Result<CuDevice> {
        let mut device = CuDevice(0);
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is valid for the call; a number out of range is an error status.
        let status = unsafe { (self.driver.cuDeviceGet)(&mut device, number) };
        self.check(status, "cuDeviceGet")?;
        Ok(device)
    }

    fn name(&self, device: CuDevice) -> Result<String> {
        let mut name = [0; 256];
        // SAFETY: the buffer is valid for the length given, and the driver ends it with a NUL.
        let status = unsafe { (self.driver.cuDeviceGetName)(name.as_mut_ptr(), 255, device) };
        self.check(status, "cuDeviceGetName")?;
        // SAFETY: the buffer is ours and its last byte is a NUL in any case.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// What the driver tells of the device `ordinal`, which is started for it.
    pub(crate) fn facts(&self, ordinal: u32) -> Result<DeviceFacts> {
        let device = self.device(ordinal)?;
        let mut address = [0; 32];
        let handle = self.handle(ordinal)?;
        // SAFETY: the buffer is valid for the length given, and the driver ends it with a NUL.
        let status = unsafe { (self.driver.cuDeviceGetPCIBusId)(address.as_mut_ptr(), 31, handle) };
        self.check(status, "cuDeviceGetPCIBusId")?;
        // SAFETY: the buffer is ours and its last byte is a NUL in any case.
        let address = unsafe { CStr::from_ptr(address.as_ptr()) };
        let current = device.enter()?;
        let memory = device.memory_info();
        drop(current);
        Ok(DeviceFacts {
            ordinal,
            name: device.name().to_owned(),
            cuda: device.cuda_version(),
            library: self.driver.path().display().to_string(),
            pci: address.to_string_lossy().to_lowercase(),
            memory_free: memory.map(|(free, _)| free),
            memory_total: memory.map(|(_, total)| total),
            batched_copies: copy::batch(self.driver, self.version()).is_some(),
        })
    }

    fn check(&self, status: CuStatus, function: &'static str) -> Result<()> {
        if status.is_success() { Ok(()) } else { Err(failed(self.driver, status, function)) }
    }
}

/// What a CUDA device is, as its driver tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// Its number among those that the driver shows to this process.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// The newest CUDA that the driver knows: `CUDA 13.0`.
    pub cuda: String,
    /// The driver's library.
    pub library: String,
    /// Where it is on the PCI bus, as `/sys/bus/pci/devices` spells it.
    pub pci: String,
    /// Bytes of its memory that are free; `None` where the driver does not tell.
    pub memory_free: Option<u64>,
    /// Bytes of its memory.
    pub memory_total: Option<u64>,
    /// Whether many small copies can be one call (CUDA 12.8 or newer).
    pub batched_copies: bool,
}

/// The error of a driver function that answered `status`.
pub(super) fn failed(driver: &Driver, status: CuStatus, function: &'static str) -> Error {
    let base = |kind, message: &str| {
        Error::new(kind, message)
            .with("function", function)
            .with("status", status.0)
            .with("name", status.name(Some(driver)))
    };
    match status {
        CuStatus::NO_DEVICE => no_device().with("function", function),
        CuStatus::NOT_INITIALIZED if function == "cuInit" || FIRST_USER.get().is_some() => {
            forked_error()
        }
        CuStatus::OUT_OF_MEMORY => {
            base(ErrorKind::OutOfDeviceMemory, "the CUDA driver is out of memory")
        }
        _ if status.is_sticky() => {
            base(ErrorKind::Poisoned, "an error of the device has made the CUDA context unusable")
                .hint("start a new process")
        }
        _ => base(ErrorKind::Cuda, "the CUDA driver answered with an error"),
    }
}

fn not_loaded(error: LoadError, library: Option<&Path>) -> Error {
    let path = library.map(PathBuf::from);
    let base = match &error {
        LoadError::MissingSymbol { .. } => {
            Error::new(ErrorKind::DriverTooOld, "the CUDA driver library lacks a function")
                .hint("install a newer NVIDIA driver")
        }
        _ => Error::new(ErrorKind::NoDriver, "no CUDA driver was found")
            .hint("install the NVIDIA driver, or load into host memory with --device host"),
    };
    let base = match path {
        Some(path) => base.with("library", path.display()),
        None => base,
    };
    base.with("reason", &error).because(error)
}

fn no_device() -> Error {
    Error::new(ErrorKind::NoDevice, "the CUDA driver shows no device")
        .hint("look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
}

pub(super) fn display_version(version: c_int) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

/// The process that initialised the driver first. CUDA does not survive a fork: in the child
/// nothing of it may be used, not even to free.
static FIRST_USER: OnceLock<u32> = OnceLock::new();

/// Whether this process is a fork of one that used CUDA.
pub(crate) fn forked() -> bool {
    FIRST_USER.get().is_some_and(|first| *first != std::process::id())
}

pub(super) fn check_fork() -> Result<()> {
    if forked() { Err(forked_error()) } else { Ok(()) }
}

fn forked_error() -> Error {
    Error::new(ErrorKind::Forked, "CUDA was used before this process was forked")
        .with("process", std::process::id())
        .hint("start processes with spawn instead of fork, or load before CUDA is first used")
}
