//! The tensors: their descriptions, each checked alone, and where they lie.

use super::Entry;
use super::reader::Reader;
use super::types::Types;
use crate::check::{elements, repeated};
use crate::limits;
use crate::{Dtype, Error, ErrorKind};

/// The smallest that a description can be: an empty name, no dimension, a type, an offset.
pub(super) const LEAST_BYTES: u64 = 8 + 4 + 4 + 8;

/// Most dimensions of a tensor, in ggml.
const MOST_DIMENSIONS: u32 = 4;

/// Reads so many descriptions. Offsets are still those of the file, from the start of the data, and
/// the lengths of tensors of opaque types are 0.
pub(super) fn read(
    reader: &mut Reader<'_>,
    count: u64,
    alignment: u64,
) -> Result<Vec<Entry>, Error> {
    if count > reader.limits.tensors {
        return Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "the header names more tensors than the limit",
            "tensors",
            reader.limits.tensors,
            count,
        )
        .hint(limits::raise("tensors")));
    }
    let mut types = Types::default();
    let mut entries = Vec::new();
    for _ in 0..count {
        let name = reader.text()?;
        match describe(reader, &mut types, alignment) {
            Ok((dtype, shape, offset, length)) => {
                entries.push(Entry { name: name.into(), dtype, shape, offset, length });
            }
            Err(error) => return Err(error.with("tensor", name)),
        }
    }
    match repeated(&entries, |entry| &*entry.name) {
        None => Ok(entries),
        Some((first, second)) => {
            let show = |entry: &Entry| format!("{} at {}", entry.dtype, entry.offset);
            Err(Error::new(ErrorKind::DuplicateTensor, "a tensor stands twice in the header")
                .with("tensor", &second.name)
                .with("expected", "one entry")
                .with("actual", format_args!("{} and {}", show(first), show(second))))
        }
    }
}

type Fields = (Dtype, Vec<u64>, u64, u64);

fn describe(reader: &mut Reader<'_>, types: &mut Types, alignment: u64) -> Result<Fields, Error> {
    let rank = reader.u32()?;
    if rank > MOST_DIMENSIONS {
        return Err(Error::new(ErrorKind::InvalidHeader, "a tensor has too many dimensions")
            .with("expected", format_args!("at most {MOST_DIMENSIONS}"))
            .with("actual", rank));
    }
    if u64::from(rank) > reader.limits.rank {
        return Err(limits::exceeded(
            ErrorKind::LimitExceeded,
            "a tensor has more dimensions than the limit",
            "rank",
            reader.limits.rank,
            rank,
        )
        .hint(limits::raise("rank")));
    }
    let mut shape = vec![0; rank as usize];
    for dim in shape.iter_mut().rev() {
        *dim = reader.u64()?;
    }
    let dtype = types.get(reader.u32()?);
    let offset = reader.u64()?;
    let length = length(&dtype, &shape)?;
    if !offset.is_multiple_of(alignment) {
        return Err(Error::new(
            ErrorKind::Misaligned,
            "a tensor's offset is not a multiple of the alignment",
        )
        .with("offset", offset)
        .with("expected", format_args!("a multiple of {alignment}")));
    }
    Ok((dtype, shape, offset, length))
}

/// The bytes that a tensor's shape asks for; 0 where the type is not known.
fn length(dtype: &Dtype, shape: &[u64]) -> Result<u64, Error> {
    let about = |kind, message| {
        Error::new(kind, message).with("dtype", dtype).with("shape", format_args!("{shape:?}"))
    };
    let overflow = || about(ErrorKind::Overflow, "a tensor's shape is too large to be a size");
    let elements = elements(shape).ok_or_else(overflow)?;
    let Some(layout) = dtype.layout() else {
        return Ok(0);
    };
    // Not only all elements together: a block never reaches from one row into the next.
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(u64::from(layout.elements)) {
        return Err(about(ErrorKind::Misaligned, "a tensor's rows are not whole blocks")
            .with("expected", format_args!("a multiple of {}", layout.elements))
            .with("actual", row));
    }
    dtype.bytes_for(elements).ok_or_else(overflow)
}

/// Checks that the tensors lie one after the other in the data, makes their offsets absolute, gives
/// those of opaque types what is there for them, and says how many bytes come after the last.
pub(super) fn place(
    entries: &mut [Entry],
    header_end: u64,
    file_length: u64,
    alignment: u64,
) -> Result<u64, Error> {
    let padded = |end: u64| end.checked_next_multiple_of(alignment).ok_or_else(too_far);
    let data_start = padded(header_end)?;
    for entry in &mut *entries {
        let begin = data_start.checked_add(entry.offset);
        entry.offset = begin
            .ok_or_else(|| too_far().with("tensor", &entry.name).with("offset", entry.offset))?;
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    // Linear where they are declared in this order, as almost always. What is empty comes first, so
    // that it stands before the tensor whose offset it shares.
    order.sort_by_key(|number| (entries[*number].offset, !is_empty(&entries[*number])));

    // Where the next tensor begins, if all is well, and the last one that has bytes.
    let mut expected = data_start;
    let mut before: Option<usize> = None;
    for (position, &number) in order.iter().enumerate() {
        let next = order.get(position + 1).map(|next| entries[*next].offset);
        let entry = &mut entries[number];
        if entry.dtype.is_opaque() && !is_empty(entry) {
            // At least a byte: where there is no room, that is an overlap, or past the end.
            let room = next.unwrap_or(file_length).saturating_sub(entry.offset);
            entry.length = room.max(1);
        }
        let entry = &entries[number];
        let end = entry
            .offset
            .checked_add(entry.length)
            .ok_or_else(|| too_far().with("tensor", &entry.name).with("offset", entry.offset))?;
        if entry.offset != expected {
            let before = before.map(|before| &entries[before]);
            return Err(misplaced(entry, end, before, expected, file_length));
        }
        if end > file_length {
            return Err(Error::new(ErrorKind::Truncated, "the file ends before its last tensor")
                .with("tensor", &entry.name)
                .with("offset", range(entry))
                .with("expected", end)
                .with("actual", file_length)
                .hint("the file is cut short: fetch it again"));
        }
        if entry.length > 0 {
            expected = padded(end)?;
            before = Some(number);
        }
    }
    Ok(file_length.saturating_sub(expected))
}

fn is_empty(entry: &Entry) -> bool {
    entry.shape.contains(&0)
}

fn too_far() -> Error {
    Error::new(ErrorKind::Overflow, "where a tensor lies does not fit 64 bits")
}

/// The error for a tensor that does not begin where it should.
fn misplaced(
    entry: &Entry,
    end: u64,
    before: Option<&Entry>,
    expected: u64,
    file_length: u64,
) -> Error {
    if entry.offset > expected && end > file_length {
        return Error::new(ErrorKind::OutOfRange, "a tensor lies outside its file")
            .with("tensor", &entry.name)
            .with("offset", range(entry))
            .with("expected", end)
            .with("actual", file_length);
    }
    let error = if entry.offset < expected {
        Error::new(ErrorKind::Overlap, "two tensors overlap")
    } else {
        Error::new(ErrorKind::Hole, "bytes before a tensor belong to none")
    };
    let error = error
        .with("tensor", &entry.name)
        .with("offset", range(entry))
        .with("expected", expected)
        .with("actual", entry.offset);
    match before {
        Some(before) => error.with("other", &before.name).with("other_offset", range(before)),
        None => error,
    }
}

/// Where a tensor lies; its end is at most that of the file or was checked to fit.
fn range(entry: &Entry) -> String {
    format!("{}..{}", entry.offset, u128::from(entry.offset) + u128::from(entry.length))
}
