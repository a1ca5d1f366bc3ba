//! What must hold for the tensors of a file: for each alone, for their names, for their ranges.

use super::Entry;
use crate::check::{elements, repeated};
use crate::{Dtype, Error, ErrorKind};

/// Checks that a tensor's range has the length that its shape asks for.
pub(super) fn tensor(dtype: &Dtype, shape: &[u64], begin: u64, end: u64) -> Result<(), Error> {
    let Some(actual) = end.checked_sub(begin) else {
        return Err(Error::new(ErrorKind::Reversed, "a tensor ends before it begins")
            .with("offset", format_args!("{begin}..{end}")));
    };
    let about = |kind, message| {
        Error::new(kind, message).with("dtype", dtype).with("shape", format_args!("{shape:?}"))
    };
    let overflow = || about(ErrorKind::Overflow, "a tensor's shape is too large to be a size");
    let elements = elements(shape).ok_or_else(overflow)?;
    let Some(layout) = dtype.layout() else {
        return Ok(());
    };
    if !elements.is_multiple_of(u64::from(layout.elements)) {
        return Err(about(ErrorKind::Misaligned, "a tensor does not end at a byte boundary"));
    }
    let expected = dtype.bytes_for(elements).ok_or_else(overflow)?;
    if expected != actual {
        return Err(about(
            ErrorKind::SizeMismatch,
            "a tensor's range is not as long as its shape asks for",
        )
        .with("offset", format_args!("{begin}..{end}"))
        .with("expected", expected)
        .with("actual", actual));
    }
    Ok(())
}

/// Checks that no name stands twice.
pub(super) fn names(entries: &[Entry]) -> Result<(), Error> {
    let Some((first, second)) = repeated(entries, |entry| &*entry.name) else {
        return Ok(());
    };
    let show = |entry: &Entry| format!("{} {}..{}", entry.dtype, entry.begin, entry.end);
    Err(Error::new(ErrorKind::DuplicateTensor, "a tensor stands twice in the header")
        .with("tensor", &second.name)
        .with("expected", "one entry")
        .with("actual", format_args!("{} and {}", show(first), show(second))))
}

/// Checks that the ranges cover the data of the file, each byte once, and makes them absolute.
///
/// `entries` are in the order of their offsets, none of them is reversed, and `data_start` is not
/// after `file_length`.
pub(super) fn layout(
    entries: &mut [Entry],
    data_start: u64,
    file_length: u64,
) -> Result<(), Error> {
    let mut covered = 0;
    let mut before: Option<&Entry> = None;
    for entry in &*entries {
        if entry.begin != covered {
            return Err(misplaced(entry, before, covered));
        }
        covered = entry.end;
        before = Some(entry);
    }
    let data_length = file_length.saturating_sub(data_start);
    if covered < data_length {
        let error = Error::new(ErrorKind::TrailingBytes, "the file goes on after its last tensor")
            .with("bytes", data_length - covered)
            .with("expected", data_start + covered)
            .with("actual", file_length);
        return Err(match before {
            Some(last) => error.with("tensor", &last.name),
            None => error,
        });
    }
    if covered > data_length {
        // Entries are contiguous here, so their ends are in order too.
        let cut = entries.partition_point(|entry| entry.end <= data_length);
        let error = Error::new(ErrorKind::Truncated, "the file ends before its last tensor")
            .with("expected", u128::from(data_start) + u128::from(covered))
            .with("actual", file_length)
            .hint("the file is cut short: fetch it again");
        return Err(match entries.get(cut) {
            Some(entry) => error.with("tensor", &entry.name).with("offset", range(entry)),
            None => error,
        });
    }
    for entry in entries {
        // Neither sum can overflow: an end is at most the length of the data.
        entry.begin += data_start;
        entry.end += data_start;
    }
    Ok(())
}

/// The error for a tensor that does not begin where the one before it ends.
fn misplaced(entry: &Entry, before: Option<&Entry>, covered: u64) -> Error {
    let (kind, message) = if entry.begin > covered {
        (ErrorKind::Hole, "bytes before a tensor belong to none")
    } else {
        (ErrorKind::Overlap, "two tensors overlap")
    };
    let error = Error::new(kind, message)
        .with("tensor", &entry.name)
        .with("offset", range(entry))
        .with("expected", covered)
        .with("actual", entry.begin);
    match before {
        Some(before) => error.with("other", &before.name).with("other_offset", range(before)),
        None => error,
    }
}

fn range(entry: &Entry) -> String {
    format!("{}..{}", entry.begin, entry.end)
}
