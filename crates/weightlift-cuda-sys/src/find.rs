//! Where a vendor's library is looked for, and what is said when it is not there.

// Opening a library runs its initialisers, so the loader calls it unsafe.
#![allow(unsafe_code)]

use std::path::Path;

use libloading::Library;

/// Why there is no function table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No candidate could be opened.
    #[error("no CUDA driver library could be opened; tried {}", list(.tried))]
    NotFound {
        /// Each name that was tried, with the loader's own words about it.
        tried: Vec<(String, String)>,
    },
    /// The library is there but lacks a function that every supported driver has.
    #[error("{library} has no function {symbol}: it is too old, or not the CUDA driver")]
    MissingSymbol {
        /// The name that the library was opened by.
        library: String,
        /// The function that was asked for.
        symbol: &'static str,
    },
}

fn list(tried: &[(String, String)]) -> String {
    let each: Vec<_> = tried.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    each.join(", ")
}

/// The driver's names on this platform, best first.
///
/// `libcuda.so` alone exists where only the development link is installed. Under WSL the driver
/// lies in a folder of Windows that not every distribution's linker cache lists.
#[cfg(not(windows))]
pub(crate) const DRIVER_NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"];
/// The driver's name on Windows, where it is installed into the system folder.
#[cfg(windows)]
pub(crate) const DRIVER_NAMES: &[&str] = &["nvcuda.dll"];

/// Opens `name`: a bare file name is searched for as the platform does, a path is taken as it is.
pub(crate) fn open(name: &Path) -> Result<Library, String> {
    // SAFETY: the initialisers that run are those of the vendor's driver, or of the library that
    // the caller named as its stand-in.
    let opened = unsafe { open_native(name) };
    opened.map_err(|error| {
        // The loader's own message, where there is one, says more than the wrapper's.
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

#[cfg(not(windows))]
unsafe fn open_native(name: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: as promised by the caller.
    unsafe { Library::new(name) }
}

/// A bare name is looked for in the system folder only, so that a stray `nvcuda.dll` in the
/// current or the program's folder is never run.
#[cfg(windows)]
unsafe fn open_native(name: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::windows;
    if name.components().count() > 1 {
        // SAFETY: as promised by the caller.
        return unsafe { Library::new(name) };
    }
    // SAFETY: as promised by the caller.
    unsafe { windows::Library::load_with_flags(name, windows::LOAD_LIBRARY_SEARCH_SYSTEM32) }
        .map(Library::from)
}
