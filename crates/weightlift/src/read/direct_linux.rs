//! Reads past the page cache, one at a time, on the thread that asks.

use rustix::fs::{Advice, fadvise};

use super::access::{Access, BUFFER, BUFFER_REGION, DirectAlignment};
use super::positional::Positional;
use super::retry::{Attempts, Next, ended, failed};
use super::spans::{self, Span, To};
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::{Error, Result};
use crate::memory::{Place, Region};
use crate::source::{self, OpenSource, Source};

/// The reader of what the page cache does not hold. Whole aligned parts of a piece are read into
/// its place; what does not fit goes through a buffer of the reader's own. Where a source turns
/// out to have no direct reads, at opening or at any read, that piece and all later ones are read
/// through the cache.
pub(crate) struct Direct<'a> {
    access: &'a Access,
    open: Option<(usize, Opened)>,
    /// Mapped when it is first needed.
    buffer: Option<Region>,
    cached: Positional<'a>,
    done: Option<Completed>,
}

/// A source opened for direct reads.
pub(super) struct Opened {
    pub(super) source: Box<dyn OpenSource>,
    pub(super) alignment: DirectAlignment,
    pub(super) kind: Kind,
}

/// Why a direct read brought nothing.
pub(super) enum Trouble {
    /// The source has no direct reads.
    Refused(String),
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Direct<'a> {
    pub(crate) fn new(access: &'a Access) -> Self {
        let cached = Positional::new(access.sources());
        Self { access, open: None, buffer: None, cached, done: None }
    }

    fn read(&mut self, piece: ReadPiece, place: &mut Place) -> Result<Kind> {
        if !self.access.is_refused(piece.source) {
            match self.read_directly(piece, place) {
                Ok(kind) => return Ok(kind),
                Err(Trouble::Refused(why)) => self.access.refuse(piece.source, &why)?,
                Err(Trouble::Failed(error)) => return Err(error),
            }
        }
        // From its beginning: a piece is counted as one kind of read or the other.
        self.cached.read(piece, place)?;
        self.access.count(piece.source, place.len());
        Ok(Kind::Buffered)
    }

    fn read_directly(&mut self, piece: ReadPiece, place: &mut Place) -> Result<Kind, Trouble> {
        let number = piece.source;
        let source = self.access.source(number);
        let mut attempts = Attempts::default();
        let mut done = 0;
        loop {
            let opened = match self.open.take().filter(|(open, _)| *open == number) {
                Some((_, opened)) => opened,
                None => open(self.access, number)?,
            };
            let (_, opened) = self.open.insert((number, opened));
            let alignment = opened.alignment;
            let Some(span) = spans::next(place, piece.offset, done, BUFFER, alignment) else {
                return Ok(opened.kind);
            };
            let buffer = match &mut self.buffer {
                Some(buffer) => buffer,
                none => none.insert(Region::new(BUFFER_REGION)?),
            };
            let read = match span.to {
                To::Place => {
                    let mut buffers = place.buffers(done, span.length, 1);
                    opened.source.read_at(&mut buffers, span.offset)
                }
                To::Buffer { .. } => {
                    let into = &mut buffer.bytes()[..span.length];
                    opened.source.read_at(&mut [std::io::IoSliceMut::new(into)], span.offset)
                }
            };
            match read {
                Ok(count) => {
                    let missing = place.len() - done;
                    let useful = useful(source, &span, count, missing, alignment)?;
                    if let To::Buffer { skip, .. } = span.to {
                        place.write(done, &buffer.bytes()[skip..skip + useful]);
                    }
                    done += useful;
                    attempts.progressed();
                }
                Err(error) => match (source::no_direct(&error), attempts.after(&error)) {
                    (Some(why), _) => return Err(Trouble::Refused(refused_read(why))),
                    (None, Next::Again) => {}
                    (None, Next::Reopen) => self.open = None,
                    (None, Next::Fail) => return Err(failed(error, source, span.offset).into()),
                },
            }
        }
    }
}

impl Opened {
    /// For reads through the cache, which may begin and end anywhere.
    pub(super) fn cached(source: Box<dyn OpenSource>) -> Self {
        Self { source, alignment: DirectAlignment::NONE, kind: Kind::Buffered }
    }
}

/// Opens a source for direct reads, with its alignment.
pub(super) fn open(access: &Access, source: usize) -> Result<Opened, Trouble> {
    let known = || access.alignment(source).map_err(Trouble::Refused);
    match access.source(source).open_direct()? {
        source::Direct::Open(source) => {
            Ok(Opened { source, alignment: known()?, kind: Kind::Direct })
        }
        source::Direct::InMemory => Ok(Opened::cached(access.source(source).open()?)),
        source::Direct::Unavailable(why) => Err(Trouble::Refused(why)),
    }
}

/// A read ended with an error that says that there are no direct reads here.
pub(super) fn refused_read(why: &str) -> String {
    format!("reading it says {why}")
}

/// The useful bytes of a read of `span` that brought `count`, of `missing` ones.
///
/// Where there are none the source ended early, or the read came short within one aligned unit,
/// from which there is no going on directly.
pub(super) fn useful(
    source: &dyn Source,
    span: &Span,
    count: usize,
    missing: usize,
    alignment: DirectAlignment,
) -> Result<usize, Trouble> {
    match spans::came(span, count, alignment) {
        0 if count == 0 => Err(ended(source, span.offset, missing).into()),
        0 => {
            source.check_unchanged()?;
            Err(Trouble::Refused("a direct read of it came short within an aligned unit".into()))
        }
        useful => Ok(useful),
    }
}

/// Has the kernel read nothing beyond what is asked for: what is read ahead of a range that the
/// cache holds would be read past the cache once more, and push out what others use.
pub(super) fn no_read_ahead(source: &dyn OpenSource) {
    if let Some(descriptor) = source.descriptor() {
        // Advice: a file system that does not take it reads as before.
        let _ = fadvise(descriptor, 0, None, Advice::Random);
    }
}

impl Reader for Direct<'_> {
    fn depth(&self) -> usize {
        1
    }

    fn submit(&mut self, piece: ReadPiece, mut place: Place) {
        debug_assert!(self.done.is_none(), "one read at a time");
        let result = self.read(piece, &mut place);
        self.done = Some(Completed { piece: piece.piece, place, result });
    }

    fn complete(&mut self) -> Option<Completed> {
        self.done.take()
    }
}
