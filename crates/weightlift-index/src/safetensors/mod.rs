//! The header of a safetensors file.
//!
//! A file is eight bytes with the length of its header (little-endian), the header in JSON, and the
//! data. The header maps the name of each tensor to its data type, its shape and the range of its
//! bytes, counted from the start of the data; `__metadata__` maps strings to strings.
//!
//! What is accepted is one strict table, the same for every way of reading a file:
//!
//! - the header is UTF-8, begins with `{`, ends with `}` and then only spaces, and is at most 127
//!   values deep; no name stands twice, neither of a tensor, nor in its entry, nor in the metadata;
//! - ranges in the order of their offsets cover the data from the first byte to the last, without
//!   gap or overlap; a tensor without bytes may stand wherever another begins or ends;
//! - each dimension is at most `i64::MAX`, and so that the order of dimensions does not matter, the
//!   product of those that are not zero must fit 64 bits. A zero makes the tensor empty;
//! - a shape and a range must agree, for every data type that is known. A type that is not known
//!   is kept as [opaque](crate::Dtype::is_opaque) bytes;
//! - fields of an entry that the format does not define are ignored;
//! - offsets need no alignment.

mod check;
mod header;

use std::collections::BTreeMap;
use std::ops::Range;

use crate::detect::{Kind, other_kind, sniff};
use crate::limits::{self, Limits};
use crate::{
    Dtype, Encoding, Error, ErrorKind, Format, Index, SourceId, SourceInfo, Storage, TensorInfo,
    Value, model::id,
};

/// Bytes before the header.
const PREFIX: u64 = 8;

/// What a header says, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// The tensors, by where they begin and then by where they end, each with a name of its own.
    pub entries: Vec<Entry>,
    /// The metadata; empty if the header has none.
    pub metadata: BTreeMap<String, String>,
}

/// A tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, not further checked: it may be empty or hold any character.
    pub name: Box<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many elements along each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes begin, from the start of the file.
    pub begin: u64,
    /// Where its bytes end, from the start of the file.
    pub end: u64,
}

impl Header {
    /// The index of the file of this name and length in bytes: each tensor has a storage of its
    /// own; that of a tensor without bytes has length 0.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::LimitExceeded`] if there are more than 2^32 tensors.
    pub fn into_index(self, name: &str, length: u64) -> Result<Index, Error> {
        let mut index = Index {
            format: Some(Format::Safetensors),
            sources: vec![SourceInfo::file(name, length)],
            storages: Vec::with_capacity(self.entries.len()),
            tensors: Vec::with_capacity(self.entries.len()),
            metadata: self.metadata.into_iter().map(|(k, v)| (k, Value::from(v))).collect(),
            skipped_tensors: 0,
        };
        for entry in self.entries {
            let length = entry.end.saturating_sub(entry.begin);
            let storage = id(index.storages.len())?;
            let (source, encoding) = (SourceId(0), Encoding::Raw);
            index.storages.push(Storage { source, offset: entry.begin, length, encoding });
            index.tensors.push(TensorInfo {
                name: entry.name,
                storage,
                offset: 0,
                length,
                dtype: entry.dtype,
                shape: entry.shape,
                strides: None,
            });
        }
        Ok(index)
    }
}

/// Says which bytes of a file are the JSON header, given the file's first bytes and its length.
///
/// `first` should hold the first 4096 bytes, or all of a shorter file; 64 are enough. The range
/// that comes back lies inside the file and its length within [`Limits::header_bytes`], so that a
/// buffer of its size can be allocated; its end is where the data begin.
///
/// # Errors
///
/// - [`ErrorKind::NotSafetensors`] if the bytes are of another format, which `found` names;
/// - [`ErrorKind::Truncated`] if there are fewer than eight bytes;
/// - [`ErrorKind::HeaderTooLarge`], naming `actual`, `limit` and `option`;
/// - [`ErrorKind::HeaderPastEof`] if the file ends before the header;
/// - [`ErrorKind::InvalidHeader`] if the header is empty.
pub fn header_span(first: &[u8], file_length: u64, limits: &Limits) -> Result<Range<u64>, Error> {
    match sniff(first) {
        Kind::Safetensors | Kind::Unknown => {}
        kind => {
            let message = "this is not a safetensors file";
            return Err(other_kind(ErrorKind::NotSafetensors, message, kind));
        }
    }
    let there = file_length.min(first.len() as u64);
    let Some(prefix) = first.first_chunk().filter(|_| there >= PREFIX) else {
        return Err(Error::new(ErrorKind::Truncated, "the file is too short to hold a header")
            .with("expected", PREFIX)
            .with("actual", there)
            .hint("the file is cut short: fetch it again"));
    };
    let length = u64::from_le_bytes(*prefix);
    let end = length.checked_add(PREFIX).filter(|end| *end <= file_length);
    if length > limits.header_bytes {
        let error = too_large(length, limits);
        // Raising the limit helps only where the rest of the header is really there.
        return Err(match end {
            Some(_) => error.hint(limits::raise("header_bytes")),
            None => error.hint("the file is damaged, or not a safetensors file"),
        });
    }
    let Some(end) = end else {
        return Err(Error::new(ErrorKind::HeaderPastEof, "the file ends inside its header")
            .with("expected", u128::from(length) + u128::from(PREFIX))
            .with("actual", file_length)
            .hint("the file is cut short: fetch it again"));
    };
    if length == 0 {
        // As a file is whose length was set before its bytes came.
        return Err(Error::new(ErrorKind::InvalidHeader, "the header is empty")
            .hint("the file is damaged, or was never filled: fetch it again"));
    }
    Ok(PREFIX..end)
}

/// Parses a header and checks it against the length of its file.
///
/// `json` is the range of the file that [`header_span`] named and `data_start` the end of that
/// range. Time and memory are linear in the header, but for sorting where its entries are not in
/// the order of their offsets.
///
/// In errors, `offset` counts from the start of the data, as in the header, and `expected` and
/// `actual` from the start of the file where they are lengths of files. The name of the file is
/// for the caller to add.
///
/// # Errors
///
/// - [`ErrorKind::InvalidHeader`] if the text is not what the format asks for, naming the place;
/// - [`ErrorKind::DuplicateTensor`], [`ErrorKind::DuplicateMetadata`];
/// - [`ErrorKind::Overflow`], [`ErrorKind::Misaligned`], [`ErrorKind::SizeMismatch`] and
///   [`ErrorKind::Reversed`] for a tensor that contradicts itself;
/// - [`ErrorKind::Hole`], [`ErrorKind::Overlap`], [`ErrorKind::TrailingBytes`] and
///   [`ErrorKind::Truncated`] for tensors that do not cover the data;
/// - [`ErrorKind::HeaderTooLarge`], [`ErrorKind::LimitExceeded`] for the [`Limits`];
/// - [`ErrorKind::HeaderPastEof`] if `data_start` lies after the end of the file.
pub fn parse_header(
    json: &[u8],
    data_start: u64,
    file_length: u64,
    limits: &Limits,
) -> Result<Header, Error> {
    if json.len() as u64 > limits.header_bytes {
        return Err(too_large(json.len() as u64, limits).hint(limits::raise("header_bytes")));
    }
    if data_start > file_length {
        return Err(Error::new(ErrorKind::HeaderPastEof, "the file ends inside its header")
            .with("expected", data_start)
            .with("actual", file_length));
    }
    let mut header = header::read(json, limits)?;
    check::layout(&mut header.entries, data_start, file_length)?;
    Ok(header)
}

fn too_large(length: u64, limits: &Limits) -> Error {
    limits::exceeded(
        ErrorKind::HeaderTooLarge,
        "the header is larger than the limit",
        "header_bytes",
        limits.header_bytes,
        length,
    )
}
