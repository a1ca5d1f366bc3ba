//! How a piece is cut into reads that a file's alignment allows.

use crate::memory::Place;

use super::access::DirectAlignment;
use super::retry::LONGEST_READ;

/// Less than this goes through the buffer together with what lies beside it: a copy of 64 KiB
/// takes some microseconds, a read of its own tens to hundreds.
const SMALLEST_IN_PLACE: usize = 64 << 10;

/// The next read of a piece: `length` bytes at `offset` of the source, both aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) to: To,
}

/// Where a span's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    /// Into the place, which is aligned there.
    Place,
    /// Into the reader's buffer, since the place or the piece's ends are not aligned; what is
    /// wanted of them are `wanted` bytes behind the first `skip`.
    Buffer { skip: usize, wanted: usize },
}

/// The read that follows the first `done` bytes of a piece at `start`; `buffer` is the length of
/// the reader's buffer, at least one aligned unit. `None` where nothing is left.
///
/// What is read in place lies within the place, and so within the file. What goes through the
/// buffer is rounded out: at the end of the file the read goes beyond it and comes short, which
/// direct reads may.
pub(super) fn next(
    place: &Place,
    start: u64,
    done: usize,
    buffer: usize,
    alignment: DirectAlignment,
) -> Option<Span> {
    if done >= place.len() {
        return None;
    }
    let unit = u64::from(alignment.offset);
    let now = start + done as u64;
    let (to_place, length) = in_place(place, start, done, alignment);
    if to_place == done {
        let length = length.min(LONGEST_READ / unit as usize * unit as usize);
        return Some(Span { offset: now, length, to: To::Place });
    }
    let offset = now / unit * unit;
    let end = (start + to_place as u64).next_multiple_of(unit);
    let length = (end - offset).min((buffer as u64) / unit * unit) as usize;
    let skip = (now - offset) as usize;
    let wanted = (length - skip).min(to_place - done);
    Some(Span { offset, length, to: To::Buffer { skip, wanted } })
}

/// Where in the piece, from `done` on, the place can next be read into as it is, and how far; the
/// piece's end and nothing where it cannot.
fn in_place(place: &Place, start: u64, done: usize, alignment: DirectAlignment) -> (usize, usize) {
    let (unit, memory) = (u64::from(alignment.offset), alignment.memory as usize);
    let mut begin = 0;
    for (address, length) in place.ranges() {
        let end = begin + length;
        if end > done {
            let from = begin.max(done);
            let at = start + from as u64;
            // Both are powers of two: who fits the larger one first fits the smaller one now or
            // never.
            let padding = if memory as u64 > unit {
                let address = address + from - begin;
                (address.next_multiple_of(memory) - address) as u64
            } else {
                at.next_multiple_of(unit) - at
            };
            let first = from + padding as usize;
            let agrees = (address + first - begin).is_multiple_of(memory)
                && (at + padding).is_multiple_of(unit);
            let whole = end.saturating_sub(first) / unit as usize * unit as usize;
            if agrees && whole >= SMALLEST_IN_PLACE {
                return (first, whole);
            }
        }
        begin = end;
    }
    (place.len(), 0)
}

/// How many more bytes of the piece a read of `span` that brought `count` bytes has brought, in
/// whole units where they lie in the place already; 0 if it was of no use.
pub(super) fn came(span: &Span, count: usize, alignment: DirectAlignment) -> usize {
    let count = count.min(span.length);
    match span.to {
        To::Place => count / alignment.offset as usize * alignment.offset as usize,
        To::Buffer { skip, wanted } => count.saturating_sub(skip).min(wanted),
    }
}
