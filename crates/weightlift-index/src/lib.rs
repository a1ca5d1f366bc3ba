//! What is in model files: from formats to an [`Index`] of storages and tensors.
//!
//! The crate reads nothing itself. The caller hands it the bytes of a header or of an index file,
//! together with the length of the file they came from, or lets a parser ask for the bytes that it
//! needs ([`Bytes`]), and gets back where each tensor lies. It does no I/O, starts no thread and has no
//! `unsafe`.
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
//!
//! ```
//! use weightlift_index::safetensors::{header_span, parse_header};
//! use weightlift_index::{Limits, shards};
//!
//! let text = r#"{"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
//! let file = [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &[0; 12]].concat();
//!
//! let (length, limits) = (file.len() as u64, Limits::default());
//! let span = header_span(&file[..64], length, &limits)?;
//! let json = &file[span.start as usize..span.end as usize];
//! let header = parse_header(json, span.end, length, &limits)?;
//!
//! let index = shards::assemble(vec![header.into_index("model.safetensors", length)?], None)?;
//! let w = index.require("w")?;
//! assert_eq!((w.length, &w.shape[..]), (12, &[2, 3][..]));
//! # Ok::<(), weightlift_index::Error>(())
//! ```

#![forbid(unsafe_code)]

mod bytes;
mod check;
mod dtype;
mod error;
mod format;
mod json;
mod limits;
mod metadata;
mod model;
mod share;

pub mod detect;
pub mod gguf;
pub mod onnx;
pub mod openvino;
pub mod pytorch;
pub mod raw;
pub mod safetensors;
pub mod shards;

pub use bytes::Bytes;
pub use dtype::{BlockLayout, Dtype};
pub use error::{Error, ErrorKind};
pub use format::Format;
pub use limits::Limits;
pub use metadata::Value;
pub use model::{Encoding, Index, SourceId, SourceInfo, Storage, StorageId, TensorInfo};
