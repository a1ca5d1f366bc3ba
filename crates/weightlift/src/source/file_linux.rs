//! A regular file, read at offsets.

use std::fs::{self, File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Identity, OpenSource, Source};
use crate::error::{Error, ErrorKind, Result};

/// A local file that is part of a model.
#[derive(Debug)]
pub struct LocalFile {
    name: String,
    path: PathBuf,
    identity: Identity,
}

impl LocalFile {
    /// Opens the regular file at `path`, which the model calls `name`, and takes its identity.
    /// Links are followed: whoever calls has decided that they may be.
    pub(crate) fn open_new(path: PathBuf, name: &str) -> Result<(Self, File)> {
        let (file, metadata) = open_regular(&path)?;
        let identity = identity(&metadata);
        Ok((Self { name: name.to_owned(), path, identity }, file))
    }
}

impl Source for LocalFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn length(&self) -> u64 {
        self.identity.length
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        let (file, metadata) = open_regular(&self.path)?;
        self.identity.compare(&identity(&metadata), &self.name)?;
        Ok(Box::new(OpenFile(file)))
    }

    fn check_unchanged(&self) -> Result<()> {
        let metadata = fs::metadata(&self.path).map_err(|error| {
            Error::io(error, "find a file again after reading it", self.path.display())
        })?;
        self.identity.compare(&identity(&metadata), &self.name)
    }
}

struct OpenFile(File);

impl OpenSource for OpenFile {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        match buffers {
            [] => Ok(0),
            [buffer] => self.0.read_at(buffer, offset),
            many => Ok(rustix::io::preadv(&self.0, many, offset)?),
        }
    }
}

/// Opens without blocking on a pipe that nobody writes to, and refuses what is no regular file.
pub(super) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    let cannot = |error| Error::io(error, "open a file", path.display());
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file =
        fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if metadata.is_file() {
        return Ok((file, metadata));
    }
    Err(Error::new(ErrorKind::NotRegular, "this is no regular file")
        .with("path", path.display())
        .hint("weightlift reads files; a folder can be given as the model itself"))
}

fn identity(metadata: &Metadata) -> Identity {
    Identity {
        device: metadata.dev(),
        inode: metadata.ino(),
        length: metadata.len(),
        modified: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
    }
}

/// Reads exactly `buffer.len()` bytes at `offset`; short reads and interruptions are continued.
pub(super) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}
