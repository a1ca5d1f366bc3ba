//! What holds the bytes: opens, checks, identifies, tells the length.
//!
//! Plans name sources by number. A source is a local file, or made of one or of bytes of its header;
//! an object in a store can be one later, so nothing above this room knows paths.

use std::fmt;
use std::io::{self, IoSliceMut};
#[cfg(unix)]
use std::os::fd::BorrowedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::system::StorageFacts;

mod derived;
#[cfg(target_os = "linux")]
mod direct_linux;
#[cfg(target_os = "linux")]
mod file_linux;
mod folder;
mod formats;
mod model;
mod open;

#[cfg(target_os = "linux")]
pub(crate) use direct_linux::no_direct;
#[cfg(target_os = "linux")]
pub use file_linux::LocalFile;
pub use model::{Model, OpenOptions};

/// Something that holds bytes and stays the same while it is read.
pub trait Source: fmt::Debug + Send + Sync {
    /// The source as its model names it, for errors and reports.
    fn name(&self) -> &str;

    /// Bytes that it holds.
    fn length(&self) -> u64;

    /// Opens it for one reader. An error of kind `Changed` if it is not what it was when the
    /// model was opened, `NotRegular` if it cannot be read at an offset.
    fn open(&self) -> Result<Box<dyn OpenSource>>;

    /// Opens it for reads past the page cache, with the same errors as [`open`](Self::open).
    /// That it cannot be read so is no error but an answer.
    fn open_direct(&self) -> Result<Direct> {
        Ok(Direct::Unavailable("its bytes are not those of a file".to_owned()))
    }

    /// What it lies on, if it is a local file or made of one and that can be asked. It is not
    /// opened for that.
    fn storage(&self) -> Option<StorageFacts> {
        None
    }

    /// Compares what the source is now with what it was when the model was opened; an error of
    /// kind `Changed` says in what it differs.
    fn check_unchanged(&self) -> Result<()>;

    /// Whether something about the source is not what it was, but none of its bytes: its owner,
    /// its rights, how many names it has. Noted in reports, nothing more.
    fn is_touched(&self) -> bool {
        false
    }
}

/// What came of opening a source for reads past the page cache.
pub enum Direct {
    /// Offsets, lengths and addresses of its reads must be multiples of what the file system
    /// asks for.
    Open(Box<dyn OpenSource>),
    /// Its bytes are in memory: there is nothing to read past.
    InMemory,
    /// Why there is no such thing here.
    Unavailable(String),
}

/// A source opened for one reader.
pub trait OpenSource: Send {
    /// Reads at `offset` into the buffers, in order; how many bytes came, 0 at the end. May
    /// come short and may be interrupted: whoever calls deals with both.
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;

    /// The descriptor of a local file whose bytes are the source's own, at the same offsets.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What makes a file the same file: compared before, while and after it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) length: u64,
    /// Nanoseconds since 1970.
    pub(crate) modified: i128,
}

impl Identity {
    /// An error that names the first difference. A change of the inode's own time alone, as by
    /// chmod or a new link, changes no byte and is none.
    pub(crate) fn compare(&self, now: &Self, name: &str) -> Result<()> {
        let (what, then, now) = if (self.device, self.inode) != (now.device, now.inode) {
            ("the file was replaced by another", self.inode.to_string(), now.inode.to_string())
        } else if self.length != now.length {
            ("the file's length changed", self.length.to_string(), now.length.to_string())
        } else if self.modified != now.modified {
            ("the file was written to", self.modified.to_string(), now.modified.to_string())
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Changed, format!("{what} while it was being read"))
            .with("file", name)
            .with("expected", then)
            .with("actual", now)
            .hint("read it again when nothing writes to it"))
    }
}
