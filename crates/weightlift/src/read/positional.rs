//! Reads at an offset, one at a time, on the thread that asks.

use std::io::{ErrorKind, IoSliceMut};
use std::num::NonZeroU64;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};

use super::retry::{Attempts, LONGEST_READ, Next, ended, failed};
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::Result;
use crate::memory::Place;
use crate::source::{OpenSource, Source};
use crate::system::drop_from_cache;

/// Linux takes at most 1024 buffers a call (UIO_MAXIOV).
const MOST_BUFFERS: usize = 1024;

/// The reader of everything that can be read at an offset.
pub(crate) struct Positional<'a> {
    sources: &'a [Arc<dyn Source>],
    /// The source that was read last, opened: pieces come in file order, so one is enough,
    /// and each reader has its own, since the kernel keeps its read-ahead state per opened
    /// file.
    open: Option<(usize, Box<dyn OpenSource>)>,
    /// What is done to a source when it is opened.
    prepare: fn(&dyn OpenSource),
    done: Option<Completed>,
}

impl<'a> Positional<'a> {
    pub(crate) fn new(sources: &'a [Arc<dyn Source>]) -> Self {
        Self { sources, open: None, prepare: |_| {}, done: None }
    }

    /// The same, with something to be done to each source that is opened.
    pub(super) fn prepared(sources: &'a [Arc<dyn Source>], prepare: fn(&dyn OpenSource)) -> Self {
        Self { prepare, ..Self::new(sources) }
    }

    /// Reads `piece` into `place`, wholly.
    pub(super) fn read(&mut self, piece: ReadPiece, place: &mut Place) -> Result<()> {
        let source = &*self.sources[piece.source];
        let mut attempts = Attempts::default();
        let mut done = 0;
        while done < place.len() {
            let offset = piece.offset + done as u64;
            let mut buffers = place.buffers(done, LONGEST_READ, MOST_BUFFERS);
            match self.open(piece.source)?.read_at(&mut buffers, offset) {
                Ok(0) => return Err(ended(source, offset, place.len() - done)),
                Ok(count) => {
                    done += count;
                    attempts.progressed();
                }
                Err(error) => match attempts.after(&error) {
                    Next::Again => {}
                    Next::Reopen => self.open = None,
                    Next::Fail => return Err(failed(error, source, offset)),
                },
            }
        }
        Ok(())
    }

    /// Has the page cache hold a range. Errors are left to whoever reads it for good.
    pub(super) fn read_into_cache(&mut self, source: usize, offset: u64, length: u64) {
        let Ok(open) = self.open(source) else { return };
        // All of it at once: a read alone asks the disk for a little at a time.
        if let Some(descriptor) = open.descriptor() {
            let _ = fadvise(descriptor, offset, NonZeroU64::new(length), Advice::WillNeed);
        }
        // What is read is looked at by nobody: small enough for a processor's own cache.
        let mut buffer = vec![0; length.min(256 << 10) as usize];
        let mut done = 0;
        while done < length {
            let some = (length - done).min(buffer.len() as u64) as usize;
            match open.read_at(&mut [IoSliceMut::new(&mut buffer[..some])], offset + done) {
                Ok(count) if count > 0 => done += count as u64,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }

    /// Drops a range from the page cache, in whole pages, as far as that is possible.
    pub(super) fn drop_from_cache(&mut self, source: usize, offset: u64, length: u64) {
        if let Some(descriptor) = self.open(source).ok().and_then(|open| open.descriptor()) {
            let _ = drop_from_cache(descriptor, offset, length);
        }
    }

    fn open(&mut self, source: usize) -> Result<&dyn OpenSource> {
        let current = self.open.take().filter(|(number, _)| *number == source);
        let opened = match current {
            Some((_, opened)) => opened,
            None => {
                let opened = self.sources[source].open()?;
                (self.prepare)(&*opened);
                opened
            }
        };
        let (_, opened) = self.open.insert((source, opened));
        Ok(&**opened)
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
