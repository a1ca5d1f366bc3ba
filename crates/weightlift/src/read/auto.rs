//! The reader that chooses for each piece: through the page cache or past it.

use std::collections::VecDeque;

use super::access::Access;
use super::direct_linux::{Direct, no_read_ahead};
use super::mapped_linux::Mapped;
use super::positional::Positional;
use super::uring_linux::Uring;
use super::{Completed, Kind, ReadPiece, Reader};
use crate::memory::Place;

/// Reads what the page cache holds from there, and the rest past it, as the load's [`Access`]
/// says; where mappings were asked for it copies out of these.
pub(crate) struct Auto<'a> {
    access: &'a Access,
    /// For what the cache holds: without read-ahead.
    cached: Positional<'a>,
    /// For sources of which everything is read through the cache.
    plain: Positional<'a>,
    mapped: Mapped<'a>,
    /// Makes the reader with a queue; why there is none otherwise.
    queue: Queue<'a>,
    /// Made for the first piece that is read past the cache.
    direct: Option<Box<dyn Reader + 'a>>,
    /// What was read through the cache while `direct` has reads under way.
    done: VecDeque<Completed>,
}

type Queue<'a> = fn(&'a Access, Kind) -> Result<(Uring<'a>, u32), String>;

impl<'a> Auto<'a> {
    pub(crate) fn new(access: &'a Access) -> Self {
        Self::with_queue(access, Uring::new)
    }

    pub(super) fn with_queue(access: &'a Access, queue: Queue<'a>) -> Self {
        let cached = Positional::prepared(access.sources(), no_read_ahead);
        let plain = Positional::new(access.sources());
        let mapped = Mapped::new(access);
        Self { access, cached, plain, mapped, queue, direct: None, done: VecDeque::new() }
    }

    /// Has the page cache hold a range that was claimed for that ([`Access::claim_ahead`]).
    pub(crate) fn read_ahead(&mut self, source: usize, offset: u64, length: u64) {
        self.cached.read_into_cache(source, offset, length);
    }

    fn direct(&mut self) -> &mut (dyn Reader + 'a) {
        &mut **self.direct.get_or_insert_with(|| match (self.queue)(self.access, Kind::Direct) {
            Ok((reader, entries)) => {
                self.access.set_engine("io_uring", format!("a queue of {entries} entries"));
                Box::new(reader)
            }
            Err(why) => {
                self.access.set_engine("one at a time", why);
                Box::new(Direct::new(self.access))
            }
        })
    }
}

impl Reader for Auto<'_> {
    fn depth(&self) -> usize {
        self.direct.as_ref().map_or(1, |direct| direct.depth())
    }

    fn submit(&mut self, piece: ReadPiece, place: Place) {
        if self.access.wished() == Kind::Mapped {
            self.mapped.submit(piece, place);
            return self.done.extend(self.mapped.complete());
        }
        let length = place.len();
        if self.access.wants_direct(piece.source, piece.offset, length) {
            return self.direct().submit(piece, place);
        }
        let reader = match self.access.reads_ahead(piece.source) {
            true => &mut self.plain,
            false => &mut self.cached,
        };
        reader.submit(piece, place);
        let completed = reader.complete();
        if completed.as_ref().is_some_and(|completed| completed.result.is_ok()) {
            self.access.count(piece.source, length);
            if self.access.is_ahead(piece.source, piece.offset) {
                // Now, beside other reads: at the end of the load it would take its own time.
                self.cached.drop_from_cache(piece.source, piece.offset, length as u64);
            }
        }
        self.done.extend(completed);
    }

    fn complete(&mut self) -> Option<Completed> {
        self.done.pop_front().or_else(|| self.direct.as_mut()?.complete())
    }
}
