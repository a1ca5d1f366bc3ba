//! The index: sources, storages in them, tensors over those.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::{Dtype, Error, ErrorKind, Format, Value, error::join};

/// What is in a model: which files, which ranges of them, and which tensors lie in those.
///
/// A [`Storage`] is what is read and delivered, once; several tensors may lie in one, tied weights
/// for example. The fields are plain data that any format's parser, or a caller of its own, can
/// fill in; [`validate`](Self::validate) says whether they fit together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Index {
    /// The format of the files; `None` if the index was made by other means.
    pub format: Option<Format>,
    /// The files; a [`SourceId`] is a position in this list.
    pub sources: Vec<SourceInfo>,
    /// The ranges to read; a [`StorageId`] is a position in this list.
    pub storages: Vec<Storage>,
    /// The tensors, each with a name of its own.
    pub tensors: Vec<TensorInfo>,
    /// Metadata that the files carry. Where files disagree about a key, the first file's value.
    pub metadata: BTreeMap<String, Value>,
    /// How many tensors stand in the files and were left out, because the model's index file
    /// does not name them or names another file for them.
    pub skipped_tensors: u64,
}

/// Names a source of an [`Index`]: its position in [`Index::sources`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// Names a storage of an [`Index`]: its position in [`Index::storages`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u32);

/// A file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceInfo {
    /// The name by which the model calls it, relative to the model's folder, with `/` between
    /// folders.
    pub name: Box<str>,
    /// Its length in bytes.
    pub length: u64,
    /// The bytes themselves, where the file has them only in another form, numbers written as
    /// variable-length integers for example. Offsets count in these then, not in the file.
    ///
    /// A list behind the reference, and not the bytes themselves, because those would have to be
    /// copied there: for a moment they would take twice their memory.
    pub decoded: Option<Arc<Vec<u8>>>,
    /// What the model says that the file's SHA-1 is, in hexadecimal, as the text stands there:
    /// ONNX's `checksum` of external data. Nothing that loads compares it. More than one where the
    /// model contradicts itself; of many such the first two.
    pub checksums: Vec<Box<str>>,
}

impl SourceInfo {
    /// A file of this name and length in bytes.
    pub fn file(name: impl Into<Box<str>>, length: u64) -> Self {
        Self { name: name.into(), length, decoded: None, checksums: Vec::new() }
    }

    /// Bytes that the file of this name holds in another form.
    pub fn decoded(name: impl Into<Box<str>>, bytes: Vec<u8>) -> Self {
        let length = bytes.len() as u64;
        Self { decoded: Some(Arc::new(bytes)), ..Self::file(name, length) }
    }
}

/// A range of bytes of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Storage {
    /// The file it lies in.
    pub source: SourceId,
    /// Where it begins, in bytes from the start of the source.
    pub offset: u64,
    /// How many bytes it has; 0 asks for no reading.
    pub length: u64,
    /// How its bytes become those of the tensors.
    pub encoding: Encoding,
}

/// How the bytes of a storage become those of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Encoding {
    /// They are the same.
    #[default]
    Raw,
    /// Every group of so many bytes, 2, 4 or 8, counted from the start of the storage, is reversed:
    /// the file is of the other byte order. The length is a multiple of it.
    Swapped(u8),
}

/// A tensor: a name and an interpretation of bytes of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name, not further checked: it may be empty or hold any character.
    pub name: Box<str>,
    /// The storage it lies in.
    pub storage: StorageId,
    /// Where it begins, in bytes from the start of the storage.
    pub offset: u64,
    /// How many bytes it covers, from its first element to its last; with strides that leave gaps
    /// more than its elements have.
    pub length: u64,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many elements along each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// Elements to step over along each dimension, none below zero; `None` if the tensor is dense
    /// and row-major.
    pub strides: Option<Vec<i64>>,
}

impl Index {
    /// The tensor of this name.
    ///
    /// This looks at one tensor after the other; for many names see [`by_name`](Self::by_name).
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| &*tensor.name == name)
    }

    /// The tensor of this name, or an error that helps to find the right one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], naming `tensor` and, as `near`, up to five names that are similar.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.tensor(name).ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound, "the model has no tensor of this name")
                .with("tensor", name);
            match self.near_names(name, 5) {
                near if near.is_empty() => error,
                near => error.with("near", join(near)),
            }
        })
    }

    /// A table from names to tensors, for many look-ups.
    pub fn by_name(&self) -> HashMap<&str, &TensorInfo> {
        self.tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect()
    }

    /// Names of tensors that are similar to this one, the most similar first, at most `most`.
    ///
    /// Two names are similar if a common beginning and a common end, upper and lower case alike,
    /// make up more than half of them. That finds a slip of the pen and a missing or an additional
    /// prefix, which is how names differ in practice, in time linear in the index.
    pub fn near_names(&self, name: &str, most: usize) -> Vec<&str> {
        let mut near: Vec<(u64, &str)> = self
            .tensors
            .iter()
            .map(|tensor| (similarity(name, &tensor.name), &*tensor.name))
            .filter(|(similarity, _)| *similarity > 500)
            .collect();
        near.sort_by_key(|(similarity, _)| std::cmp::Reverse(*similarity));
        near.truncate(most);
        near.into_iter().map(|(_, name)| name).collect()
    }

    /// The bytes of all storages together, which is what a full load reads.
    ///
    /// The sum stops at the largest `u64`; an index that is [valid](Self::validate) can come near
    /// it only if storages overlap.
    pub fn bytes(&self) -> u64 {
        self.storages.iter().fold(0, |sum, storage| sum.saturating_add(storage.length))
    }

    /// Checks that every storage lies inside its source and every tensor inside its storage.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidIndex`] if a source or a storage is named that is not there, a storage
    ///   cannot be swapped as it says, or a tensor has strides that do not fit its shape, lead out
    ///   of its range or below zero;
    /// - [`ErrorKind::Truncated`] if a storage ends after its source;
    /// - [`ErrorKind::SizeMismatch`] if a tensor ends after its storage;
    /// - [`ErrorKind::Overflow`] if where one of them ends does not fit 64 bits.
    pub fn validate(&self) -> Result<(), Error> {
        for (number, storage) in self.storages.iter().enumerate() {
            self.check_storage(storage).map_err(|error| error.with("storage", number))?;
        }
        for tensor in &self.tensors {
            self.check_tensor(tensor).map_err(|error| error.with("tensor", &tensor.name))?;
        }
        Ok(())
    }

    fn check_storage(&self, storage: &Storage) -> Result<(), Error> {
        let Some(source) = self.sources.get(storage.source.0 as usize) else {
            return Err(dangling("source", storage.source.0, self.sources.len()));
        };
        let end = end_of(storage.offset, storage.length)?;
        if let Encoding::Swapped(width) = storage.encoding
            && !(matches!(width, 2 | 4 | 8) && storage.length.is_multiple_of(u64::from(width)))
        {
            return Err(Error::new(
                ErrorKind::InvalidIndex,
                "a storage cannot be swapped by this number of bytes",
            )
            .with("bytes", storage.length)
            .with("actual", width));
        }
        if end > source.length {
            return Err(Error::new(ErrorKind::Truncated, "a storage ends after its file")
                .with("file", &source.name)
                .with("offset", storage.offset)
                .with("expected", end)
                .with("actual", source.length));
        }
        Ok(())
    }

    fn check_tensor(&self, tensor: &TensorInfo) -> Result<(), Error> {
        let Some(storage) = self.storages.get(tensor.storage.0 as usize) else {
            return Err(dangling("storage", tensor.storage.0, self.storages.len()));
        };
        let end = end_of(tensor.offset, tensor.length)?;
        if end > storage.length {
            return Err(Error::new(ErrorKind::SizeMismatch, "a tensor ends after its storage")
                .with("offset", tensor.offset)
                .with("expected", end)
                .with("actual", storage.length));
        }
        match &tensor.strides {
            Some(strides) if strides.len() != tensor.shape.len() => Err(Error::new(
                ErrorKind::InvalidIndex,
                "a tensor has not one stride for each dimension",
            )
            .with("expected", tensor.shape.len())
            .with("actual", strides.len())),
            Some(strides) => check_strides(tensor, strides),
            None => Ok(()),
        }
    }
}

/// The number of the storage at this position.
pub(crate) fn id(position: usize) -> Result<StorageId, Error> {
    let number = u32::try_from(position).map_err(|_| {
        Error::new(ErrorKind::LimitExceeded, "the model has more parts than can be numbered")
            .with("limit", u32::MAX)
            .with("actual", position)
    })?;
    Ok(StorageId(number))
}

fn dangling(what: &str, id: u32, count: usize) -> Error {
    Error::new(ErrorKind::InvalidIndex, format!("the index names a {what} that it does not have"))
        .with("actual", id)
        .with("count", count)
}

/// Checks that elements that lie apart stay within the tensor's range.
fn check_strides(tensor: &TensorInfo, strides: &[i64]) -> Result<(), Error> {
    let wrong = |message: &str| {
        Error::new(ErrorKind::InvalidIndex, message)
            .with("shape", format_args!("{:?}", tensor.shape))
            .with("strides", format_args!("{strides:?}"))
    };
    let Some(size) = tensor.dtype.layout().filter(|layout| layout.elements == 1) else {
        return Err(wrong("a tensor with strides needs elements of whole bytes"));
    };
    if tensor.shape.contains(&0) {
        return Ok(());
    }
    let mut last: u64 = 0;
    for (dim, stride) in tensor.shape.iter().zip(strides) {
        let stride =
            u64::try_from(*stride).map_err(|_| wrong("a tensor has a stride below zero"))?;
        let reach = (dim - 1).checked_mul(stride).and_then(|reach| last.checked_add(reach));
        last = reach.ok_or_else(|| wrong("a tensor's strides lead too far"))?;
    }
    let bytes = last.checked_add(1).and_then(|count| count.checked_mul(u64::from(size.bytes)));
    if bytes.is_none_or(|bytes| bytes > tensor.length) {
        return Err(wrong("a tensor's strides lead out of its range"));
    }
    Ok(())
}

fn end_of(offset: u64, length: u64) -> Result<u64, Error> {
    offset.checked_add(length).ok_or_else(|| {
        Error::new(ErrorKind::Overflow, "where a range ends does not fit 64 bits")
            .with("offset", offset)
            .with("bytes", length)
    })
}

/// How much of two names is a common beginning or a common end, in thousandths.
fn similarity(a: &str, b: &str) -> u64 {
    let same = |(x, y): &(&u8, &u8)| x.eq_ignore_ascii_case(y);
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let prefix = a.iter().zip(b).take_while(same).count();
    let (rest_a, rest_b) = (&a[prefix..], &b[prefix..]);
    let suffix = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(same).count();
    let both = (a.len() + b.len()) as u64;
    // Two empty names are the same.
    ((prefix + suffix) as u64 * 2000).checked_div(both).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(names: &[&str]) -> Index {
        let tensor = |(i, name): (usize, &&str)| TensorInfo {
            name: (*name).into(),
            storage: StorageId(0),
            offset: i as u64 * 4,
            length: 4,
            dtype: Dtype::from_name("F32"),
            shape: vec![1],
            strides: None,
        };
        let length = names.len() as u64 * 4;
        Index {
            sources: vec![SourceInfo::file("a", length + 8)],
            storages: vec![Storage {
                source: SourceId(0),
                offset: 8,
                length,
                encoding: Encoding::Raw,
            }],
            tensors: names.iter().enumerate().map(tensor).collect(),
            ..Index::default()
        }
    }

    #[test]
    fn finds_names_with_slips_and_other_prefixes() {
        let index = index(&[
            "model.embed_tokens.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.1.self_attn.q_proj.weight",
            "model.norm.weight",
        ]);
        let table = [
            ("model.layers.0.self_attn.q_prj.weight", "model.layers.0.self_attn.q_proj.weight"),
            ("embed_tokens.weight", "model.embed_tokens.weight"),
            ("transformer.model.norm.weight", "model.norm.weight"),
            ("MODEL.NORM.WEIGHT", "model.norm.weight"),
        ];
        for (wanted, nearest) in table {
            assert_eq!(index.near_names(wanted, 1), [nearest], "{wanted}");
        }
        let layers = index.near_names("model.layers.2.self_attn.q_proj.weight", 2);
        assert_eq!(
            layers,
            ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"]
        );
        assert!(index.near_names("zzz", 5).is_empty());
    }

    #[test]
    fn validate_catches_what_lies_outside() {
        let good = index(&["a", "b"]);
        good.validate().unwrap();
        assert_eq!(good.bytes(), 8);
        type Spoil = fn(&mut Index);
        let table: [(Spoil, ErrorKind, &str, &str); 7] = [
            (|i| i.sources[0].length = 15, ErrorKind::Truncated, "actual", "15"),
            (|i| i.storages[0].offset = u64::MAX, ErrorKind::Overflow, "storage", "0"),
            (|i| i.storages[0].source = SourceId(1), ErrorKind::InvalidIndex, "actual", "1"),
            (|i| i.tensors[1].storage = StorageId(9), ErrorKind::InvalidIndex, "tensor", "b"),
            (|i| i.tensors[1].offset = 5, ErrorKind::SizeMismatch, "expected", "9"),
            (|i| i.tensors[0].offset = u64::MAX, ErrorKind::Overflow, "tensor", "a"),
            (|i| i.tensors[0].strides = Some(vec![]), ErrorKind::InvalidIndex, "actual", "0"),
        ];
        for (spoil, kind, key, value) in table {
            let mut bad = good.clone();
            spoil(&mut bad);
            let error = bad.validate().unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.get(key), Some(value), "{error}");
        }
    }

    // ST-20: tied weights are often absent from the file; the loader must say so and not invent.
    #[test]
    fn an_absent_tensor_is_an_error_that_lists_near_names() {
        let index = index(&["model.lm_head.weight", "model.norm.weight"]);
        let error = index.require("lm_head.weight").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.get("tensor"), Some("lm_head.weight"));
        assert_eq!(error.get("near"), Some("model.lm_head.weight"));
        assert_eq!(index.require("zzz").unwrap_err().get("near"), None);
        assert_eq!(index.require("model.norm.weight").unwrap().offset, 4);
        assert_eq!(index.by_name()["model.norm.weight"].offset, 4);
    }
}
