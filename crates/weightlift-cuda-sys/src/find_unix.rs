//! The driver's names on Linux, and how a library is opened there.
#![allow(unsafe_code)] // opening a library runs its initialisers

use std::path::Path;

use libloading::Library;
use libloading::os::unix;

/// The driver's names, best first. `libcuda.so` alone exists where only the development link is
/// installed; under WSL the driver lies in a folder of Windows that not every distribution's
/// linker cache lists.
pub(crate) const DRIVER_NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];

/// cuFile's names, best first. The runtime's package puts it where the linker looks; the toolkit's
/// own folder need not be there.
pub(crate) const CUFILE_NAMES: &[&str] =
    &["libcufile.so.0", "libcufile.so", "/usr/local/cuda/lib64/libcufile.so.0"];

/// # Safety
///
/// The library's initialisers may run.
pub(crate) unsafe fn open(name: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: as promised by the caller.
    unsafe { Library::new(name) }
}

/// Whether the library of this name is in the process.
pub(crate) fn is_loaded(name: &Path) -> bool {
    /// `RTLD_NOLOAD`: find, but do not load. The value of Linux.
    const NOLOAD: i32 = 4;
    // SAFETY: nothing is loaded, so no initialiser runs; the handle is closed again at once and
    // whoever loaded the library keeps it.
    unsafe { unix::Library::open(Some(name), unix::RTLD_LAZY | NOLOAD).is_ok() }
}
