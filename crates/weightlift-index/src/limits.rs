//! Bounds on what a file may ask for.

use std::fmt::Display;

use crate::{Error, ErrorKind};

/// How much a model's headers may ask for before they are refused.
///
/// The defaults admit every model that other loaders read. The error of a limit names the field
/// (`option`), its value (`limit`) and what the file asks for (`actual`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest header that is held in memory whole, in bytes: the JSON of a safetensors file, the
    /// pickle of a PyTorch checkpoint, the directory of its archive; of a GGUF file, whose header is
    /// not held, all names and texts that are kept of it. The default, 100 000 000, is
    /// that of safetensors' reference implementation. Writers do not enforce it, so a file with
    /// more than about a million tensors can need a larger one.
    pub header_bytes: u64,
    /// Longest index file, in bytes. The default, 100 000 000, is chosen to match
    /// [`header_bytes`](Self::header_bytes): an index names the tensors that the headers name.
    pub index_bytes: u64,
    /// Most tensors in one header or index file. An entry takes about 200 bytes of memory, so the
    /// default, 10 000 000, bounds that at 2 GB. With the default [`header_bytes`](Self::header_bytes)
    /// a header has room for about 2 000 000, so this one acts where that one was raised.
    pub tensors: u64,
    /// Longest name or value of metadata, in bytes. The default, 64 000 000, is above the largest
    /// tokenizers that GGUF files carry.
    pub text_bytes: u64,
    /// Most values in a file's metadata: each that is not a list, and, where lists are kept, each in
    /// them; and most containers of a pickle, or values that it keeps at hand. The default,
    /// 10 000 000, bounds their memory at about 1 GB.
    pub list_values: u64,
    /// Deepest nesting: of subgraphs in ONNX, of elements in XML, of containers in a pickle. The
    /// default, 64, is above what any writer makes, and so far below what a stack holds.
    pub depth: u64,
    /// Most dimensions of one tensor. The default, 64, is the most that NumPy and PyTorch take.
    pub rank: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 100_000_000,
            index_bytes: 100_000_000,
            tensors: 10_000_000,
            text_bytes: 64_000_000,
            list_values: 10_000_000,
            depth: 64,
            rank: 64,
        }
    }
}

impl Limits {
    /// Sets [`header_bytes`](Self::header_bytes).
    #[must_use]
    pub fn with_header_bytes(mut self, bytes: u64) -> Self {
        self.header_bytes = bytes;
        self
    }

    /// Sets [`index_bytes`](Self::index_bytes).
    #[must_use]
    pub fn with_index_bytes(mut self, bytes: u64) -> Self {
        self.index_bytes = bytes;
        self
    }

    /// Sets [`tensors`](Self::tensors).
    #[must_use]
    pub fn with_tensors(mut self, count: u64) -> Self {
        self.tensors = count;
        self
    }

    /// Sets [`text_bytes`](Self::text_bytes).
    #[must_use]
    pub fn with_text_bytes(mut self, bytes: u64) -> Self {
        self.text_bytes = bytes;
        self
    }

    /// Sets [`list_values`](Self::list_values).
    #[must_use]
    pub fn with_list_values(mut self, count: u64) -> Self {
        self.list_values = count;
        self
    }

    /// Sets [`depth`](Self::depth).
    #[must_use]
    pub fn with_depth(mut self, levels: u64) -> Self {
        self.depth = levels;
        self
    }

    /// Sets [`rank`](Self::rank).
    #[must_use]
    pub fn with_rank(mut self, dimensions: u64) -> Self {
        self.rank = dimensions;
        self
    }
}

/// The error of a limit, without a hint.
pub(crate) fn exceeded(
    kind: ErrorKind,
    message: &str,
    option: &'static str,
    limit: u64,
    actual: impl Display,
) -> Error {
    Error::new(kind, message).with("actual", actual).with("limit", limit).with("option", option)
}

/// What to do about an exceeded limit.
pub(crate) fn raise(option: &str) -> String {
    format!("raise the limit `{option}` if you trust where the file comes from")
}
