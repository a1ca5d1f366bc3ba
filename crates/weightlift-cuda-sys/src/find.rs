//! Where a vendor's library is looked for, and what is said when it is not there.

// Opening a library runs its initialisers, so the loader calls it unsafe.
#![allow(unsafe_code)]

use std::path::Path;

use libloading::Library;

use crate::platform;

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

/// The name by which cuFile's library (GPUDirect Storage) can be opened, or what was tried and the
/// loader's own words about it. The library stays open for the life of the process.
pub fn find_cufile() -> Result<&'static str, Vec<(String, String)>> {
    let mut tried = Vec::new();
    for name in platform::CUFILE_NAMES {
        match open(Path::new(name)) {
            Ok(library) => {
                // A library that has run its initialisers is safest left alone.
                std::mem::forget(library);
                return Ok(name);
            }
            Err(why) => tried.push(((*name).to_owned(), why)),
        }
    }
    Err(tried)
}

fn list(tried: &[(String, String)]) -> String {
    let each: Vec<_> = tried.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    each.join(", ")
}

/// Opens `name`: a bare file name is searched for as the platform does, a path is taken as it is.
pub(crate) fn open(name: &Path) -> Result<Library, String> {
    // SAFETY: the initialisers that run are those of the vendor's driver, or of the library that
    // the caller named as its stand-in.
    let opened = unsafe { platform::open(name) };
    opened.map_err(|error| {
        // The loader's own message, where there is one, says more than the wrapper's.
        let message = std::error::Error::source(&error);
        let message = message.map_or_else(|| error.to_string(), ToString::to_string);
        // It begins with the name, which stands beside it anyway.
        let prefix = format!("{}: ", name.display());
        message.strip_prefix(&prefix).unwrap_or(&message).to_owned()
    })
}
