//! A regular file, read at offsets.

use std::fs::{self, File, Metadata};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{Direct, Identity, OpenSource, Source, direct_linux};
use crate::error::{Error, ErrorKind, Result};
use crate::system::{self, StorageFacts};

/// A local file that is part of a model.
#[derive(Debug)]
pub struct LocalFile {
    name: String,
    path: PathBuf,
    identity: Identity,
    touched: Touched,
}

/// The inode's own time, in nanoseconds since 1970, which changes with everything about a file: its
/// bytes, its rights, its names.
type Touched = i128;

impl LocalFile {
    /// Opens the regular file at `path`, which the model calls `name`, and takes its identity.
    /// Links are followed: whoever calls has decided that they may be.
    pub(crate) fn open_new(path: PathBuf, name: &str) -> Result<(Self, File)> {
        let (file, metadata) = open_regular(&path)?;
        let (identity, touched) = (identity(&metadata), touched(&metadata));
        Ok((Self { name: name.to_owned(), path, identity, touched }, file))
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

    fn open_direct(&self) -> Result<Direct> {
        direct_linux::open(&self.path, |metadata| {
            self.identity.compare(&identity(metadata), &self.name)
        })
    }

    fn storage(&self) -> Option<StorageFacts> {
        // What is wrong with the file is told when it is opened.
        system::storage_facts(&self.path).ok()
    }

    fn check_unchanged(&self) -> Result<()> {
        let metadata = fs::metadata(&self.path).map_err(|error| {
            Error::io(error, "find a file again after reading it", self.path.display())
        })?;
        self.identity.compare(&identity(&metadata), &self.name)
    }

    fn is_touched(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|metadata| touched(&metadata) != self.touched)
    }
}

pub(super) struct OpenFile(pub(super) File);

impl OpenSource for OpenFile {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        match buffers {
            [] => Ok(0),
            [buffer] => self.0.read_at(buffer, offset),
            many => Ok(rustix::io::preadv(&self.0, many, offset)?),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// Opens to read, and refuses what is no regular file.
pub(super) fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    let file = open_with(path, OFlags::empty());
    regular(file.map_err(|error| Error::io(error, "open a file", path.display()))?, path)
}

/// Opens to read, without blocking on a pipe that nobody writes to.
pub(super) fn open_with(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | flags).bits() as i32;
    fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The file with its metadata, if it is a regular one.
pub(super) fn regular(file: File, path: &Path) -> Result<(File, Metadata)> {
    let cannot = |error| Error::io(error, "open a file", path.display());
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

fn touched(metadata: &Metadata) -> Touched {
    i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec())
}

/// Reads exactly `buffer.len()` bytes at `offset`; short reads and interruptions are continued.
pub(super) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}
