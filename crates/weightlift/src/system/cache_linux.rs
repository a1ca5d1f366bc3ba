//! What the page cache holds of a file, for whoever measures.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::residency::Resident;
use super::residency_linux::{Residency, drop_from_cache};
use super::storage::StorageFacts;
use crate::error::{Error, ErrorKind, Result};

/// A file whose pages in the page cache can be counted and dropped: what a benchmark needs to
/// know that it reads from the disk.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// # std::fs::write(&path, vec![0; 8192]).unwrap();
/// use weightlift::{CachedFile, Resident};
/// let file = CachedFile::open(&path)?;
/// file.drop_pages(0, file.length())?;
/// match file.resident(0, file.length()) {
///     Resident::None => println!("cold"),
///     other => println!("in the cache: {other}, by {}", file.method()),
/// }
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug)]
pub struct CachedFile {
    path: PathBuf,
    file: File,
    length: u64,
    residency: Residency,
}

impl CachedFile {
    /// Opens the regular file at `path`; links are followed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FileNotFound`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Io`], and
    /// [`ErrorKind::NotRegular`] for what is no file, each with the path.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let cannot = |error| Error::io(error, "open a file", path.display());
        // Or the opening of a pipe would wait for somebody who writes.
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let file =
            OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(cannot)?;
        let metadata = file.metadata().map_err(cannot)?;
        if !metadata.is_file() {
            let error = Error::new(ErrorKind::NotRegular, "this is no regular file");
            return Err(error.with("path", path.display()));
        }
        let facts = StorageFacts::of(&file).map_err(|error| cannot(error.into()))?;
        let residency = Residency::of(&file, &facts);
        Ok(Self { path: path.to_owned(), file, length: metadata.len(), residency })
    }

    /// The file's length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How [`resident`](Self::resident) learns what it tells: `memory` (the file system has no
    /// disk), `cachestat`, `mincore`, or `unknown`.
    pub fn method(&self) -> &'static str {
        self.residency.method()
    }

    /// How much of a range of bytes is in the page cache, now. It takes the longer the longer the
    /// range is: up to 30 us a MiB.
    pub fn resident(&self, offset: u64, length: u64) -> Resident {
        self.residency.range(offset, length)
    }

    /// Drops what the page cache holds of a range of bytes, in whole pages: a page that lies only
    /// partly in it stays. So does what is not on the disk yet, which is then on its way there,
    /// and what somebody has mapped: ask [`resident`](Self::resident) what is left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] with the path, where the file system refuses.
    pub fn drop_pages(&self, offset: u64, length: u64) -> Result<()> {
        drop_from_cache(&self.file, offset, length).map_err(|error| {
            Error::io(error, "drop a file from the page cache", self.path.display())
        })
    }
}
