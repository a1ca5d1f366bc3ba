//! Any file as one tensor: its bytes, of type `U8`, under the file's name.

use crate::{Dtype, Encoding, Format, Index, SourceId, SourceInfo, Storage, StorageId, TensorInfo};

/// The index of a file of this name and length in bytes.
pub fn index(name: &str, length: u64) -> Index {
    let tensor = TensorInfo {
        name: name.into(),
        storage: StorageId(0),
        offset: 0,
        length,
        dtype: Dtype::from_name("U8"),
        shape: vec![length],
        strides: None,
    };
    Index {
        format: Some(Format::Raw),
        sources: vec![SourceInfo::file(name, length)],
        storages: vec![Storage { source: SourceId(0), offset: 0, length, encoding: Encoding::Raw }],
        tensors: vec![tensor],
        ..Index::default()
    }
}
