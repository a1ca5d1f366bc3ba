//! ONNX: a model in Protocol Buffers, with its weights in it or in files beside it.
//!
//! The file is walked through once; the bytes of weights are passed over, not read. What is
//! accepted:
//!
//! - Tensors are the initializers of the graph and of every subgraph (of `If`, `Loop`, `Scan` and
//!   whatever else has one), tensors in attributes of nodes, of functions and of functions' default
//!   values, the graphs of `training_info`, and the values and indices of sparse tensors in any of
//!   these places.
//! - A tensor's bytes are its `raw_data`, one of its typed fields, or a range of another file. More
//!   than one of these is refused, and so is a typed field of another type. Floats that stand in
//!   one run are used where they are; other typed values are [decoded](crate::SourceInfo::decoded).
//!   Strings become a `u32` with their count, that many offsets and one more, each `u32`, and the
//!   characters, all little-endian; their type is the opaque `STRING`.
//! - Shape and bytes agree; the last byte of elements smaller than a byte may be filled up. A type
//!   that is not known is opaque, and needs a length that the file gives.
//! - Data in other files: `location` is a [safe name](crate::shards::check_name), perhaps after
//!   `./`; `offset` and `length` are decimal numbers. A length that is missing or 0 is that of the
//!   shape. None of the three may stand twice; other keys are passed over.
//! - Ranges may overlap, and tensors that share bytes share a storage.
//! - Fields that are not known are passed over, groups are not. Of a field that stands several
//!   times though it may stand once, the last counts, and messages are taken together, as Protocol
//!   Buffers say.
//!
//! # Names
//!
//! Initializers of the main graph keep their names; two of one name are refused. Any other tensor
//! has its own name if it has one that is not taken yet, in the order of the file; without a name,
//! the value of a `Constant` has that of its output, and the indices of a sparse tensor that of its
//! values and `.indices`. What is left is named by its path, such as
//! `If_3::then_branch::Constant_1::value`: the names of the functions, nodes and attributes it is
//! in, a node without a name by its first output, or by its operator and number. A path that is
//! taken gets `#2` or a higher number.

mod decode;
mod external;
mod graph;
mod names;
mod recognise;
mod tensor;
mod types;
mod wire;

use std::collections::BTreeMap;

use crate::detect::{Kind, other_kind, sniff};
use crate::share::{self, Placed};
use crate::{Bytes, Error, ErrorKind, Format, Index, Limits, SourceId, SourceInfo, Value};

use tensor::Place;

pub use recognise::recognises;

/// A model whose tensors are found and checked, but for what lies in other files.
#[derive(Debug)]
pub struct Model {
    tensors: Vec<(Box<str>, tensor::Tensor)>,
    locations: Vec<Box<str>>,
    /// What the model says that the SHA-1 of each of these is.
    checksums: Vec<Vec<Box<str>>>,
    decoded: Vec<u8>,
    metadata: BTreeMap<String, Value>,
}

/// Reads a model.
///
/// Time is linear in the number of messages and in the bytes of values that have to be decoded;
/// memory is bounded by what is kept of each tensor and by eight times the bytes of those values, or
/// eight and a half where they are many tensors.
///
/// # Errors
///
/// With `tensor` where it is about one, and `offset` where something is malformed:
///
/// - [`ErrorKind::UnknownFormat`] for what is another file and no message, naming what was `found`;
/// - [`ErrorKind::InvalidHeader`] for what is not a message, or contradicts the rules of the
///   [module](self);
/// - [`ErrorKind::Truncated`] if the file ends inside a message;
/// - [`ErrorKind::Overflow`], [`ErrorKind::SizeMismatch`] for shapes;
/// - [`ErrorKind::UnknownDtype`] for a type that is not known, where the file gives no length;
/// - [`ErrorKind::Unsupported`] for a tensor in segments;
/// - [`ErrorKind::UnsafePath`], [`ErrorKind::OutOfRange`], [`ErrorKind::DuplicateMetadata`] for
///   where external data lie;
/// - [`ErrorKind::DuplicateTensor`], [`ErrorKind::DuplicateMetadata`] for what stands twice;
/// - [`ErrorKind::LimitExceeded`] for the [`Limits`]: `tensors`, `rank`, `depth`, `text_bytes` and
///   `list_values`;
/// - what reading `bytes` fails with.
pub fn parse(bytes: &mut dyn Bytes, limits: &Limits) -> Result<Model, Error> {
    let mut walk = graph::Walk::new(wire::Reader::new(bytes, limits));
    if let Err(error) = walk.model() {
        return Err(other_file(bytes, error));
    }
    let names = names::assign(walk.naming, &walk.scopes)?;
    let (locations, checksums) = walk.locations.into_parts();
    Ok(Model {
        tensors: names.into_iter().zip(walk.tensors).collect(),
        locations,
        checksums,
        decoded: walk.decoded,
        metadata: walk.metadata,
    })
}

/// Says what a file is that is no model, where its first bytes tell. It is looked at only now: as
/// there is no mark that a model begins with, one may begin as something else does.
fn other_file(bytes: &mut dyn Bytes, error: Error) -> Error {
    let about_form = matches!(error.kind(), ErrorKind::InvalidHeader | ErrorKind::Truncated);
    let mut first = vec![0; bytes.length().min(4096) as usize];
    if !about_form || error.get("tensor").is_some() || bytes.read_at(0, &mut first).is_err() {
        return error;
    }
    match sniff(&first) {
        Kind::Onnx | Kind::Unknown => error,
        kind => {
            other_kind(ErrorKind::UnknownFormat, "this is not an ONNX model", kind).because(error)
        }
    }
}

/// A file that is shorter may be the pointer that Git LFS leaves in the place of a file.
const LONGEST_POINTER: u64 = 200;

impl Model {
    /// The files that hold external data, each once: names relative to the model's folder, each
    /// safe to open by its text. Whether links may be followed is for whoever opens them.
    pub fn locations(&self) -> &[Box<str>] {
        &self.locations
    }

    /// The index of the model in a file of this name and length, given the length of each of
    /// [`locations`](Self::locations).
    ///
    /// The sources are the model's file, those of the locations and, if values were decoded, the
    /// decoded bytes, under the name of the model's file.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OutOfRange`] for a tensor outside its file, naming `tensor`, `file`,
    ///   `offset`, `expected` and `actual`;
    /// - [`ErrorKind::LimitExceeded`] if there are more storages than can be numbered;
    /// - [`ErrorKind::InvalidIndex`] if there are not as many lengths as locations.
    pub fn into_index(self, name: &str, length: u64, data_lengths: &[u64]) -> Result<Index, Error> {
        if data_lengths.len() != self.locations.len() {
            return Err(Error::new(
                ErrorKind::InvalidIndex,
                "there must be one length for each file with external data",
            )
            .with("expected", self.locations.len())
            .with("actual", data_lengths.len()));
        }
        let mut index = Index {
            format: Some(Format::Onnx),
            sources: vec![SourceInfo::file(name, length)],
            metadata: self.metadata,
            ..Index::default()
        };
        let files = self.locations.into_iter().zip(data_lengths).zip(self.checksums);
        index.sources.extend(files.map(|((name, length), checksums)| SourceInfo {
            checksums,
            ..SourceInfo::file(name, *length)
        }));
        let decoded_source = SourceId(u32::try_from(index.sources.len()).unwrap_or(u32::MAX));
        if !self.decoded.is_empty() {
            let mut decoded = self.decoded;
            decoded.shrink_to_fit();
            index.sources.push(SourceInfo::decoded(name, decoded));
        }
        let place = |(name, tensor): (Box<str>, tensor::Tensor)| {
            let (source, offset, length) = match tensor.place {
                Place::File { offset, length } => (SourceId(0), offset, length),
                Place::Decoded { offset, length } => (decoded_source, offset, length),
                Place::External { location, offset, length } => {
                    (SourceId(location.saturating_add(1)), offset, length)
                }
            };
            Placed { name, source, offset, length, dtype: tensor.dtype, shape: tensor.shape }
        };
        share::add(&mut index, self.tensors.into_iter().map(place).collect()).map_err(|error| {
            let is_short = |source: &SourceInfo| {
                source.length < LONGEST_POINTER && error.get("file") == Some(&*source.name)
            };
            if error.kind() == ErrorKind::OutOfRange && index.sources.iter().any(is_short) {
                error.hint(
                    "the file may be a Git LFS pointer in the place of the data: fetch it with \
                     `git lfs pull`",
                )
            } else {
                error
            }
        })?;
        Ok(index)
    }
}
