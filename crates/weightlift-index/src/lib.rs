//! What is in model files: from formats to an [`Index`] of storages and tensors.
//!
//! The crate reads nothing itself. The caller hands it the bytes of a header or of an index file,
//! together with the length of the file they came from, and gets back where each tensor lies. It
//! does no I/O, starts no thread and has no `unsafe`.
//!
//! Two promises hold for every function here, whatever the input:
//!
//! - it does not panic;
//! - it allocates nothing whose size was read from the input and not yet checked against the
//!   bytes that are really there.
//!
//! The usual way through, for a folder of safetensors files:
//!
//! 1. [`shards::choose`] says which files of the folder are the model;
//! 2. [`shards::parse_index`] and [`shards::check_present`], where there is an index file;
//! 3. for each file [`safetensors::header_span`], then [`safetensors::parse_header`];
//! 4. [`shards::assemble`] joins the headers to one [`Index`].

#![forbid(unsafe_code)]

mod dtype;
mod error;
mod json;
mod limits;
mod model;

pub mod detect;
pub mod safetensors;
pub mod shards;

pub use dtype::{BlockLayout, Dtype};
pub use error::{Error, ErrorKind};
pub use limits::Limits;
pub use model::{Encoding, Index, SourceId, SourceInfo, Storage, StorageId, TensorInfo};
