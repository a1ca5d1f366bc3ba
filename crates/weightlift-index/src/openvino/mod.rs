//! The OpenVINO IR: a network in XML, and a file with the bytes of its constants.
//!
//! `<net>` holds `<layers>`, and each `<layer>` whose type is `Const` has a `<data>` that says where
//! its bytes lie in the weights, a file of the same name that ends in `.bin`:
//!
//! ```xml
//! <layer id="1" name="w" type="Const" version="opset1">
//!     <data element_type="f16" shape="64, 3" offset="8" size="384" />
//! </layer>
//! ```
//!
//! What is accepted, the same for every way of reading a file:
//!
//! - well-formed XML in UTF-8 with the root `<net>` of version 10 or 11; no document type, so that
//!   there are no entities but `&amp;` and its like; no attribute stands twice in a tag;
//! - every layer has `id`, `name`, `type` and `version`; constants may stand at any depth, in the
//!   `<body>`, `<then_body>` or `<else_body>` of a layer. Nothing else of the graph is looked at;
//! - a constant has one `<data>` with `element_type`, `shape`, `offset` and `size`. `shape` is a
//!   list of dimensions, empty for a scalar; the others are decimal numbers of 64 bits;
//! - `size` is at least what the shape needs, elements smaller than a byte packed and the last
//!   group of them filled up. It is all that a constant of type `string` or of an unknown type has;
//! - a constant lies inside the weights with all of its `size`. Beyond that offsets are free: in any
//!   order, of any alignment, and several constants may share bytes.
//!
//! Names of layers need not be unique. A layer of the network itself keeps its name; one in a body
//! whose name is taken is called by its outer layer too, `OUTER/NAME`; and what is still taken gets
//! a number, `NAME#2`.
//!
//! ```
//! use weightlift_index::{Limits, openvino};
//!
//! let mut xml: &[u8] = br#"<net name="n" version="11"><layers>
//!     <layer id="0" name="w" type="Const" version="opset1">
//!         <data element_type="u4" shape="3, 3" offset="16" size="5"/>
//!     </layer>
//! </layers></net>"#;
//! let network = openvino::parse(&mut xml, &Limits::default())?;
//! assert!(network.needs_weights());
//! let index = network.into_index(Some(("model.bin", 21)))?;
//! let w = index.require("w")?;
//! assert_eq!((w.dtype.name(), &w.shape[..], w.length), ("U4", &[3, 3][..], 5));
//! # Ok::<(), weightlift_index::Error>(())
//! ```

mod layers;
mod types;
mod xml;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::share::{self, Placed};
use crate::{Bytes, Dtype, Error, ErrorKind, Format, Index, Limits, SourceId, SourceInfo, Value};

/// A file shorter than this is more likely the text that Git LFS leaves in the place of a file.
const LFS_POINTER: u64 = 200;

/// What the XML says, checked as far as that is possible without the length of the weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Network {
    constants: Vec<Constant>,
    metadata: BTreeMap<String, Value>,
}

/// A layer of type `Const`.
#[derive(Debug, Clone, PartialEq)]
struct Constant {
    name: Box<str>,
    /// The name of the layer in whose body it stands, or the beginning of it.
    outer: Option<Arc<str>>,
    dtype: Dtype,
    shape: Vec<u64>,
    offset: u64,
    /// How many bytes it is given in the weights.
    size: u64,
    /// How many of them are its elements.
    length: u64,
}

/// Reads a network, whose whole file `xml` is.
///
/// Time is linear in the file, and memory in its constants and in what it says about itself.
///
/// # Errors
///
/// - [`ErrorKind::UnknownFormat`] if the file is no XML or that of something else, naming `found`;
/// - [`ErrorKind::Unsupported`] for another version, another encoding than UTF-8, or a DOCTYPE;
/// - [`ErrorKind::InvalidHeader`] if the text is not what the format asks for, naming `offset`, and
///   `tensor` and `key` where there are such;
/// - [`ErrorKind::Truncated`] if it ends inside an element;
/// - [`ErrorKind::Overflow`] and [`ErrorKind::SizeMismatch`] for a constant that contradicts itself;
/// - [`ErrorKind::LimitExceeded`] for the [`Limits`];
/// - the error of `xml` if it cannot be read.
pub fn parse(xml: &mut dyn Bytes, limits: &Limits) -> Result<Network, Error> {
    layers::read(xml, limits)
}

impl Network {
    /// Whether there are constants, so that the weights must be there. OpenVINO wants the file for
    /// constants without bytes too.
    pub fn needs_weights(&self) -> bool {
        !self.constants.is_empty()
    }

    /// The index, given the name and the length in bytes of the file with the weights, if there is
    /// one. Its tensors are in the order of the XML.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::MissingWeights`] if there is none and it is [needed](Self::needs_weights);
    /// - [`ErrorKind::OutOfRange`] for a constant outside of it, naming `tensor`, `file`, `offset`,
    ///   `expected` and `actual`;
    /// - [`ErrorKind::LimitExceeded`] if there are more than 2^32 constants.
    pub fn into_index(self, weights: Option<(&str, u64)>) -> Result<Index, Error> {
        let mut renamed = renamed(&self.constants);
        let mut index =
            Index { format: Some(Format::OpenVino), metadata: self.metadata, ..Index::default() };
        let Some((file, available)) = weights else {
            return match self.constants.first() {
                None => Ok(index),
                Some(first) => Err(Error::new(
                    ErrorKind::MissingWeights,
                    "the file with the model's weights is not there",
                )
                .with("tensor", &first.name)
                .with("count", self.constants.len())
                .hint("put the .bin file beside the .xml file, under the same name")),
            };
        };
        index.sources.push(SourceInfo::file(file, available));
        let mut placed = Vec::with_capacity(self.constants.len());
        for (position, mut constant) in self.constants.into_iter().enumerate() {
            if let Some(name) = renamed.remove(&position) {
                constant.name = name;
            }
            check_range(&constant, file, available)?;
            let Constant { name, dtype, shape, offset, length, .. } = constant;
            placed.push(Placed { name, source: SourceId(0), offset, length, dtype, shape });
        }
        share::add(&mut index, placed)?;
        Ok(index)
    }
}

/// Checks all of the bytes that a constant is given, as OpenVINO does; `share` sees those of its
/// elements.
fn check_range(constant: &Constant, file: &str, available: u64) -> Result<(), Error> {
    let Constant { offset, size, .. } = *constant;
    if offset <= available && size <= available - offset {
        return Ok(());
    }
    Err(Error::new(ErrorKind::OutOfRange, "a constant lies outside the file with the weights")
        .with("tensor", &constant.name)
        .with("file", file)
        .with("offset", offset)
        .with("expected", u128::from(offset) + u128::from(size))
        .with("actual", available)
        .hint(if available < LFS_POINTER {
            "the file may be a Git LFS pointer: fetch it with `git lfs pull`"
        } else {
            "the file is cut short, or belongs to another model: fetch it again"
        }))
}

/// The constants that cannot keep their names, by position, with names of their own by the rule of
/// the [module](self).
fn renamed(constants: &[Constant]) -> HashMap<usize, Box<str>> {
    let mut kept: HashSet<&str> = HashSet::with_capacity(constants.len());
    let mut others = Vec::new();
    // The network's own first, so that what stands in a body does not rename them.
    for in_body in [false, true] {
        for (position, constant) in constants.iter().enumerate() {
            if constant.outer.is_some() == in_body && !kept.insert(&constant.name) {
                others.push((position, constant));
            }
        }
    }
    let mut made: HashSet<Box<str>> = HashSet::new();
    // Where to go on counting: equal names would count from the start each otherwise.
    let mut last: HashMap<Box<str>, u64> = HashMap::new();
    let mut names = HashMap::with_capacity(others.len());
    for (position, Constant { name, outer, .. }) in others {
        let wanted: Box<str> = match outer {
            Some(outer) => format!("{outer}/{name}").into(),
            None => name.clone(),
        };
        let mut new = wanted.clone();
        while kept.contains(&*new) || !made.insert(new.clone()) {
            let number = last.entry(wanted.clone()).or_insert(1);
            *number += 1;
            new = format!("{wanted}#{number}").into();
        }
        names.insert(position, new);
    }
    names
}
