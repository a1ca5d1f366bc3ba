//! The driver's name on Windows, and how a library is opened there.
#![allow(unsafe_code)] // opening a library runs its initialisers

use std::path::Path;

use libloading::Library;
use libloading::os::windows;

/// The driver is installed into the system folder.
pub(crate) const DRIVER_NAMES: &[&str] = &["nvcuda.dll"];

/// Windows has no cuFile.
pub(crate) const CUFILE_NAMES: &[&str] = &[];

/// A bare name is looked for in the system folder only, so that a stray `nvcuda.dll` in the
/// current or the program's folder is never run.
///
/// # Safety
///
/// The library's initialisers may run.
pub(crate) unsafe fn open(name: &Path) -> Result<Library, libloading::Error> {
    if name.components().count() > 1 {
        // SAFETY: as promised by the caller.
        return unsafe { Library::new(name) };
    }
    // SAFETY: as promised by the caller.
    unsafe { windows::Library::load_with_flags(name, windows::LOAD_LIBRARY_SEARCH_SYSTEM32) }
        .map(Library::from)
}

/// Whether the library of this name is in the process.
pub(crate) fn is_loaded(name: &Path) -> bool {
    windows::Library::open_already_loaded(name).is_ok()
}
