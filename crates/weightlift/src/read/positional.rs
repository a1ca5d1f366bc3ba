//! Reads at an offset, one at a time, on the thread that asks.

use std::sync::Arc;

use super::retry::{Attempts, LONGEST_READ, Next, ended, failed};
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::Result;
use crate::memory::Place;
use crate::source::{OpenSource, Source};

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
