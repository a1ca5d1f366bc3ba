//! Reads at an offset, one at a time, on the thread that asks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Place;
use crate::source::{OpenSource, Source};

/// Linux reads at most 2,147,479,552 bytes a call and other systems less than 2 GiB: no
/// call asks for more than this.
const LONGEST_READ: usize = 1 << 30;

/// Linux takes at most 1024 buffers a call (UIO_MAXIOV).
const MOST_BUFFERS: usize = 1024;

/// A source that says "try again" is asked this often, with growing pauses of 1 ms to about
/// 0.5 s, two seconds in all. Files do not say it; some network file systems do.
const MOST_RETRIES: u32 = 12;

/// The reader of everything that can be read at an offset.
pub(crate) struct Positional<'a> {
    sources: &'a [Arc<dyn Source>],
    /// The source that was read last, opened: pieces come in file order, so one is enough,
    /// and each reader has its own, since the kernel keeps its read-ahead state per opened
    /// file.
    open: Option<(usize, Box<dyn OpenSource>)>,
    done: Option<Completed>,
}

impl<'a> Positional<'a> {
    pub(crate) fn new(sources: &'a [Arc<dyn Source>]) -> Self {
        Self { sources, open: None, done: None }
    }

    fn read(&mut self, piece: ReadPiece, place: &mut Place) -> Result<()> {
        let mut reopened = false;
        let mut retries = 0;
        let mut done = 0;
        while done < place.len() {
            let offset = piece.offset + done as u64;
            let mut buffers = place.buffers(done, LONGEST_READ, MOST_BUFFERS);
            match self.open(piece.source)?.read_at(&mut buffers, offset) {
                Ok(0) => return Err(self.ended(piece.source, offset, place.len() - done)),
                Ok(count) => {
                    done += count;
                    retries = 0;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock && retries < MOST_RETRIES =>
                {
                    std::thread::sleep(Duration::from_millis(1 << retries.min(9)));
                    retries += 1;
                }
                Err(error)
                    if error.kind() == io::ErrorKind::StaleNetworkFileHandle && !reopened =>
                {
                    // The file was replaced on the server. Opening it again compares what it
                    // is now with what it was: only the same file is read on.
                    self.open = None;
                    reopened = true;
                }
                Err(error) => return Err(self.failed(error, piece.source, offset)),
            }
        }
        Ok(())
    }

    fn open(&mut self, source: usize) -> Result<&dyn OpenSource> {
        let current = self.open.take().filter(|(number, _)| *number == source);
        let opened = match current {
            Some((_, opened)) => opened,
            None => self.sources[source].open()?,
        };
        let (_, opened) = self.open.insert((source, opened));
        Ok(&**opened)
    }

    fn ended(&self, source: usize, offset: u64, missing: usize) -> Error {
        let source = &self.sources[source];
        if let Err(changed) = source.check_unchanged() {
            return changed;
        }
        let kind = ErrorKind::Format(weightlift_index::ErrorKind::Truncated);
        Error::new(kind, "the file ends before its tensors do")
            .with("file", source.name())
            .with("offset", offset)
            .with("missing", missing)
    }

    fn failed(&self, error: io::Error, source: usize, offset: u64) -> Error {
        Error::io(error, "read a file", self.sources[source].name()).with("offset", offset)
    }
}

impl Reader for Positional<'_> {
    fn depth(&self) -> usize {
        1
    }

    fn submit(&mut self, piece: ReadPiece, mut place: Place) {
        debug_assert!(self.done.is_none(), "one read at a time");
        let result = self.read(piece, &mut place).map(|()| Kind::Buffered);
        self.done = Some(Completed { piece: piece.piece, place, result });
    }

    fn complete(&mut self) -> Option<Completed> {
        self.done.take()
    }
}
