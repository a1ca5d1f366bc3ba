//! Reads at an offset, one at a time, on the thread that asks.

use std::sync::Arc;

use super::whole::{LONGEST_READ, read_whole};
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
    done: Option<Completed>,
}

impl<'a> Positional<'a> {
    pub(crate) fn new(sources: &'a [Arc<dyn Source>]) -> Self {
        Self { sources, open: None, done: None }
    }

    fn read(&mut self, piece: ReadPiece, place: &mut Place) -> Result<()> {
        let before = self.open.take().filter(|(number, _)| *number == piece.source);
        let mut opened = before.map(|(_, opened)| opened);
        let source = &*self.sources[piece.source];
        let length = place.len();
        let result = read_whole(source, &mut opened, piece.offset, length, |open, done, offset| {
            open.read_at(&mut place.buffers(done, LONGEST_READ, MOST_BUFFERS), offset)
        });
        self.open = opened.map(|opened| (piece.source, opened));
        result.map_err(|short| short.error)
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
