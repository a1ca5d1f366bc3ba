//! The header of a GGUF file.
//!
//! A file is the word `GGUF`, a version, the number of tensors and of metadata, the metadata, the
//! descriptions of the tensors, and the data. All numbers are little-endian. A text is its length
//! and then its bytes; a metadata value is a key, a type and the value; a description is a name,
//! the dimensions, a type and an offset from the start of the data. The data, and each tensor in
//! them, begin at a multiple of the alignment.
//!
//! What is accepted is one strict table:
//!
//! - versions 2 and 3, which differ in nothing but that 3 may be big-endian. A file of the other
//!   byte order is recognised and not read;
//! - the alignment is the metadata `general.alignment`, a `uint32` that is a power of two of at most
//!   64 KiB, and 32 where that is absent. The specification asks for a multiple of 8 instead, and
//!   llama.cpp and the package gguf for a power of two: what they would all read is accepted, and
//!   so are 1, 2 and 4, which are harmless;
//! - keys of metadata and names of tensors are UTF-8, and none stands twice. A list holds no lists.
//!   Texts are UTF-8 too; in lists, whose texts are often pieces of characters, what is not UTF-8
//!   is replaced. A truth value is false if it is 0;
//! - a tensor has at most four dimensions, the fastest first in the file; they are turned round
//!   here, to be row-major. Rows are whole blocks of the data type;
//! - tensors may be declared in any order. In the order of their offsets they lie one after the
//!   other, each at the first multiple of the alignment after the one before, as writers lay them:
//!   no overlap, and no gap beyond padding. (llama.cpp asks for the same in the order of
//!   declaration; the package gguf asks for nothing.) A tensor with a dimension of zero has no
//!   bytes, and stands where the next one may;
//! - a data type that is not known, or was removed, is [opaque](crate::Dtype::is_opaque), under the
//!   name `GGML_` and its number. Such a tensor reaches to where the next begins, or to the end of
//!   the file, padding included;
//! - the file may end right after its last tensor, without the padding, and may also go on; how much
//!   there is after it is [counted](Header::trailing).
//!
//! Everything is read once and forward; of lists that are not kept and of the data nothing is held.

mod metadata;
mod reader;
mod split;
mod tensors;
mod types;

use std::collections::BTreeMap;

pub use split::{check_set, part_names};

use crate::detect::{other_kind, sniff};
use crate::share::{self, Placed};
use crate::{Bytes, Dtype, Error, ErrorKind, Format, Index, Limits, SourceId, SourceInfo, Value};
use reader::Reader;

/// What a header says, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The version of the format: 2 or 3.
    pub version: u32,
    /// What the offsets of tensors are multiples of, in bytes.
    pub alignment: u64,
    /// The metadata.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors, as they are declared, each with a name of its own.
    pub entries: Vec<Entry>,
    /// Where the file belongs among others; `None` if it is a model of its own.
    pub split: Option<Split>,
    /// How many bytes there are after the last tensor and its padding.
    pub trailing: u64,
}

/// A tensor of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, not further checked: it may be empty or hold any character.
    pub name: Box<str>,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many elements along each dimension, row-major; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes begin, from the start of the file.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
}

/// Which part of a split model a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Its number, counted from 0. Names of files count from 1.
    pub number: u64,
    /// How many parts there are.
    pub count: u64,
    /// How many tensors all parts have together.
    pub tensors: u64,
}

/// Reads the header of a file and checks it against the file's length.
///
/// `lists` says whether the values of lists in the metadata are kept; otherwise a list becomes
/// [`Value::Omitted`]. Vocabularies are such lists, and a load needs none.
///
/// Time is linear in the header, but for sorting where tensors do not lie in the order in which
/// they are declared. The name of the file is for the caller to add to an error.
///
/// # Errors
///
/// - [`ErrorKind::UnknownFormat`] if the file is no GGUF; `found` says what it is;
/// - [`ErrorKind::Unsupported`] for another version, and for lists of lists;
/// - [`ErrorKind::WrongEndian`] if the file is of the other byte order;
/// - [`ErrorKind::Truncated`] if the file ends inside its header, or in a tensor: counts and lengths
///   that the file has no room for are such, and nothing was allocated for them;
/// - [`ErrorKind::InvalidHeader`] if the header is not what the format asks for;
/// - [`ErrorKind::DuplicateMetadata`], [`ErrorKind::DuplicateTensor`];
/// - [`ErrorKind::Overflow`] and [`ErrorKind::Misaligned`] for a tensor whose shape is no size, or
///   whose rows or offset are not multiples of what they should be;
/// - [`ErrorKind::Overlap`], [`ErrorKind::Hole`] and [`ErrorKind::OutOfRange`] for tensors that do
///   not lie one after the other;
/// - [`ErrorKind::HeaderTooLarge`] and [`ErrorKind::LimitExceeded`] for the [`Limits`];
/// - [`ErrorKind::Io`] if bytes cannot be read.
pub fn parse(bytes: &mut dyn Bytes, lists: bool, limits: &Limits) -> Result<Header, Error> {
    let length = bytes.length();
    refuse_other_formats(bytes)?;
    let mut reader = Reader::new(bytes, limits);
    reader.array::<4>()?;
    let version = version(reader.u32()?)?;
    let (tensors, values) = (reader.u64()?, reader.u64()?);
    reader.expect_room(tensors, tensors::LEAST_BYTES)?;
    reader.expect_room(values, metadata::LEAST_BYTES)?;
    let (metadata, alignment) = metadata::read(&mut reader, values, lists)?;
    let split = split::of(&metadata)?;
    let mut entries = tensors::read(&mut reader, tensors, alignment)?;
    let trailing = tensors::place(&mut entries, reader.position(), length, alignment)?;
    Ok(Header { version, alignment, metadata, entries, split, trailing })
}

impl Header {
    /// The index of the file of this name and length in bytes: each tensor has a storage of its own;
    /// that of a tensor without bytes has length 0.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfRange`] if the file is shorter than the one that was parsed;
    /// - [`ErrorKind::LimitExceeded`] if there are more than 2^32 tensors.
    pub fn into_index(self, name: &str, length: u64) -> Result<Index, Error> {
        let mut index = Index {
            format: Some(Format::Gguf),
            sources: vec![SourceInfo::file(name, length)],
            metadata: self.metadata,
            ..Index::default()
        };
        let place = |entry: Entry| Placed {
            name: entry.name,
            source: SourceId(0),
            offset: entry.offset,
            length: entry.length,
            dtype: entry.dtype,
            shape: entry.shape,
        };
        share::add(&mut index, self.entries.into_iter().map(place).collect())?;
        Ok(index)
    }
}

fn refuse_other_formats(bytes: &mut dyn Bytes) -> Result<(), Error> {
    const MAGIC: &[u8] = b"GGUF";
    let mut first = [0; 64];
    // As many as there are, and so few that the number fits.
    let first = &mut first[..bytes.length().min(64) as usize];
    bytes.read_at(0, first)?;
    // What is shorter than the word may be the beginning of a file: reading on says so.
    if first.starts_with(MAGIC) || MAGIC.starts_with(first) {
        return Ok(());
    }
    Err(other_kind(ErrorKind::UnknownFormat, "this is not a GGUF file", sniff(first)))
}

fn version(version: u32) -> Result<u32, Error> {
    if matches!(version, 2 | 3) {
        return Ok(version);
    }
    // No version is near 65536, so where its low bytes are zero it was written the other way round.
    if version != 0 && version.trailing_zeros() >= 16 {
        return Err(Error::new(ErrorKind::WrongEndian, "the file is big-endian")
            .with("expected", "little-endian")
            .with(
                "actual",
                format_args!("version {} with its bytes reversed", version.swap_bytes()),
            )
            .hint(
                "rewrite it with `gguf-convert-endian FILE little`, of the Python package gguf",
            ));
    }
    let error = Error::new(ErrorKind::Unsupported, "this version of GGUF is not read")
        .with("expected", "2 or 3")
        .with("actual", version);
    Err(if version == 1 {
        error.hint("only the first writers made it: convert the original model again")
    } else {
        error
    })
}
