//! Bytes into host memory: pieces of a plan, and streams.

mod access;
mod ahead;
mod auto;
#[cfg(target_os = "linux")]
mod direct_linux;
#[cfg(target_os = "linux")]
mod facts_linux;
#[cfg(target_os = "linux")]
mod fixed_linux;
#[cfg(target_os = "linux")]
mod mapped_linux;
mod positional;
mod retry;
mod spans;
mod stream;
#[cfg(test)]
mod tests;
#[cfg(target_os = "linux")]
mod uring_linux;

use crate::error::Result;
use crate::memory::Place;
#[cfg(target_os = "linux")]
pub(crate) use uring_linux::queue_entries;

pub(crate) use access::Access;
pub(crate) use ahead::Claim;
pub(crate) use auto::Auto;
#[cfg(target_os = "linux")]
pub(crate) use facts_linux::FileFacts;
#[cfg(target_os = "linux")]
pub use facts_linux::{ReadFacts, read_facts};
pub use stream::{Stream, StreamOptions};

/// Reads pieces into places. One reader thread owns one reader.
///
/// A reader may have several reads under way: each begins with [`submit`](Self::submit) and
/// ends with [`complete`](Self::complete), which gives its place back. A reader that is
/// dropped waits for what is under way, because its places belong to somebody.
pub(crate) trait Reader {
    /// How many reads may be under way at once, at least 1.
    fn depth(&self) -> usize;

    /// Begins to read `piece` into `place`, which is exactly as long.
    fn submit(&mut self, piece: ReadPiece, place: Place);

    /// The next read that ended, in any order; `None` where none is under way.
    fn complete(&mut self) -> Option<Completed>;
}

/// What to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadPiece {
    /// The piece's number in the plan.
    pub(crate) piece: usize,
    /// The source's number.
    pub(crate) source: usize,
    /// Offset in the source, in bytes.
    pub(crate) offset: u64,
}

/// A read that ended.
pub(crate) struct Completed {
    pub(crate) piece: usize,
    pub(crate) place: Place,
    /// The kind of read that brought the bytes, or why they did not come.
    pub(crate) result: Result<Kind>,
}

/// Which way bytes came out of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Through the page cache, by reads at an offset.
    Buffered,
    /// Past the page cache, by whatever call.
    Direct,
    /// Copied out of a mapping of the file, and so through the page cache.
    Mapped,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Buffered => "buffered",
            Self::Direct => "direct",
            Self::Mapped => "mapped",
        }
    }
}
