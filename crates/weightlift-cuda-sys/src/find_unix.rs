//! The driver's names on Linux, and how a library is opened there.
#![allow(unsafe_code)] // opening a library runs its initialisers

use std::path::Path;

use libloading::Library;

/// The driver's names, best first. `libcuda.so` alone exists where only the development link is
/// installed; under WSL the driver lies in a folder of Windows that not every distribution's
/// linker cache lists.
pub(crate) const DRIVER_NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// # Safety
///
/// The library's initialisers may run.
pub(crate) unsafe fn open(name: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: as promised by the caller.
    unsafe { Library::new(name) }
}
