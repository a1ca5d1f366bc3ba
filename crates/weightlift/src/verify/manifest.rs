//! The manifest: what every tensor of a model should be, and every file.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weightlift_index::{Index, TensorInfo};

use crate::error::{Error, ErrorKind, Result};

/// The digests of a model's tensors and files, as `weightlift verify --write` keeps them. The
/// format stands in docs/verify.md.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Manifest {
    /// The version of this structure: 1.
    pub schema: u32,
    /// What this is, so that no other JSON is taken for it: `weightlift-manifest`.
    pub kind: String,
    /// The tensors, in the order of the model's index.
    pub tensors: Vec<TensorDigests>,
    /// What others say of the model's files.
    #[serde(default)]
    pub files: Vec<FileDigests>,
}

/// What a tensor should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDigests {
    /// Its name.
    pub name: String,
    /// The name of its element type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Bytes that it covers.
    pub length: u64,
    /// The XXH3-64 of its elements, as [`Tensor::digest`](crate::Tensor::digest) has it.
    #[serde(with = "hexadecimal")]
    pub xxh3: u64,
    /// The XXH3-64 of the digests of its bytes' parts of 64 KiB, each a number of eight bytes, the
    /// lowest first: a digest that readers make together, in whatever order they read.
    #[serde(with = "hexadecimal")]
    pub tree: u64,
}

/// What a file of the model should be, as somebody else than weightlift says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigests {
    /// The file, as the model names it.
    pub name: String,
    /// Its bytes.
    pub length: u64,
    /// `sha256`, `sha1` or `git-sha1`.
    pub algorithm: String,
    /// The digest in hexadecimal, lower case.
    pub digest: String,
    /// Who says so: `hub` (the name of a blob in a cache of the Hugging Face Hub), `onnx` (the
    /// model's `checksum`).
    pub said_by: String,
}

const KIND: &str = "weightlift-manifest";

impl Manifest {
    /// A manifest of these tensors and files.
    pub fn new(tensors: Vec<TensorDigests>, files: Vec<FileDigests>) -> Self {
        Self { schema: 1, kind: KIND.to_owned(), tensors, files }
    }

    /// Reads the manifest at `path`.
    ///
    /// # Errors
    ///
    /// Those of reading a file; `InvalidManifest` if it is no manifest, one of a later version, or
    /// names a tensor twice.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path)
            .map_err(|error| Error::io(error, "read a manifest", path.display()))?;
        Self::parse(&bytes).map_err(|error| error.with("path", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let refuse = |why: &str| Error::new(ErrorKind::InvalidManifest, why);
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| {
            refuse("this is no manifest").with("reason", &error).hint(WRITE_ONE).because(error)
        })?;
        if manifest.kind != KIND {
            return Err(refuse("this is no manifest").with("actual", &manifest.kind));
        }
        if manifest.schema != 1 {
            let error = refuse("the manifest is of another version").with("expected", 1);
            return Err(error.with("actual", manifest.schema).hint(WRITE_ONE));
        }
        if manifest.by_name().len() != manifest.tensors.len() {
            return Err(refuse("the manifest names a tensor twice"));
        }
        Ok(manifest)
    }

    /// Compares names, types, shapes and lengths with those of the tensors number `wanted` of
    /// `index`; with `all`, of which the manifest may not name more than there are.
    ///
    /// # Errors
    ///
    /// `Mismatch`, naming `tensor`, `expected` and `actual`.
    pub fn check_tensors(&self, index: &Index, wanted: &[usize], all: bool) -> Result<()> {
        let by_name = self.by_name();
        for tensor in wanted.iter().map(|number| &index.tensors[*number]) {
            expected(&by_name, tensor)?;
        }
        if all && self.tensors.len() > wanted.len() {
            let there = index.by_name();
            let missing = self.tensors.iter().find(|tensor| !there.contains_key(&*tensor.name));
            if let Some(missing) = missing {
                return Err(mismatch("the model lacks a tensor of the manifest", &missing.name)
                    .with("expected", describe(missing))
                    .with("actual", "none"));
            }
        }
        Ok(())
    }

    /// A table from names to tensors.
    pub fn by_name(&self) -> HashMap<&str, &TensorDigests> {
        self.tensors.iter().map(|tensor| (&*tensor.name, tensor)).collect()
    }
}

const WRITE_ONE: &str = "`weightlift verify MODEL --write` writes one";

/// What the manifest says of this tensor, if type, shape and length are the same.
pub(super) fn expected<'m>(
    by_name: &HashMap<&str, &'m TensorDigests>,
    tensor: &TensorInfo,
) -> Result<&'m TensorDigests> {
    let actual = describe_as(tensor.dtype.name(), &tensor.shape, tensor.length);
    let Some(expected) = by_name.get(&*tensor.name) else {
        return Err(mismatch("the manifest lacks a tensor of the model", &tensor.name)
            .with("expected", "none")
            .with("actual", actual)
            .hint(WRITE_ONE));
    };
    let same = expected.dtype == tensor.dtype.name()
        && expected.shape == tensor.shape
        && expected.length == tensor.length;
    if !same {
        return Err(mismatch("a tensor is not of the manifest's type and shape", &tensor.name)
            .with("expected", describe(expected))
            .with("actual", actual));
    }
    Ok(expected)
}

fn describe(tensor: &TensorDigests) -> String {
    describe_as(&tensor.dtype, &tensor.shape, tensor.length)
}

fn describe_as(dtype: &str, shape: &[u64], length: u64) -> String {
    format!("{dtype} {shape:?}, {length} bytes")
}

/// An error about a tensor that is not what it should be.
pub(super) fn mismatch(what: &str, tensor: &str) -> Error {
    Error::new(ErrorKind::Mismatch, what).with("tensor", tensor)
}

/// Digests as text: JSON's numbers end at 2^53 in many readers.
mod hexadecimal {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(digest: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{digest:016x}"))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<u64, D::Error> {
        let text = <std::borrow::Cow<'d, str>>::deserialize(from)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(&text, 16) {
            Ok(digest) if digits && text.len() == 16 => Ok(digest),
            _ => Err(D::Error::custom("a digest is 16 hexadecimal digits")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str) -> TensorDigests {
        let (name, dtype) = (name.to_owned(), "F32".to_owned());
        TensorDigests { name, dtype, shape: vec![2], length: 8, xxh3: 1, tree: u64::MAX }
    }

    #[test]
    fn a_manifest_comes_back_as_it_was_written() {
        let manifest = Manifest::new(vec![tensor("a"), tensor("b\n")], Vec::new());
        let text = serde_json::to_string(&manifest).unwrap();
        assert!(text.contains(r#""xxh3":"0000000000000001","tree":"ffffffffffffffff""#), "{text}");
        assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let right = serde_json::to_string(&Manifest::new(vec![tensor("a")], Vec::new())).unwrap();
        let twice = Manifest::new(vec![tensor("a"), tensor("a")], Vec::new());
        let wrong = [
            String::new(),
            "{}".to_owned(),
            "[".repeat(100_000),
            right.replace("\"schema\":1", "\"schema\":2"),
            right.replace(KIND, "another"),
            right.replace("0000000000000001", "+000000000000001"),
            right.replace("0000000000000001", "1"),
            right.replace("\"length\":8", "\"length\":-8"),
            serde_json::to_string(&twice).unwrap(),
        ];
        for text in wrong {
            let error = Manifest::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidManifest, "{text:.80}");
        }
    }
}
