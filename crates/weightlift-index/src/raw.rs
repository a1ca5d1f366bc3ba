//! Any file as one tensor: its bytes, of type `U8`, under the file's name.
//!
//! For files whose inside is somebody else's business, such as the blob that OpenVINO keeps of a
//! compiled model and takes back as it is. Nothing of the file is looked at.
//!
//! ```
//! use weightlift_index::raw;
//!
//! let index = raw::index("model.blob", 4096);
//! let blob = index.require("model.blob")?;
//! assert_eq!((blob.dtype.name(), &blob.shape[..], blob.length), ("U8", &[4096][..], 4096));
//! # Ok::<(), weightlift_index::Error>(())
//! ```

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_any_length_and_name_is_one_tensor() {
        for (name, length) in [("a.blob", 1), ("", 0), ("../\0", 5 << 30), ("x", u64::MAX)] {
            let index = index(name, length);
            index.validate().unwrap();
            assert_eq!(index.format, Some(Format::Raw));
            let [tensor] = &index.tensors[..] else { panic!("one tensor") };
            assert_eq!((&*tensor.name, &tensor.shape[..]), (name, &[length][..]));
            assert_eq!(tensor.dtype.bytes_for(length), Some(tensor.length));
            assert_eq!((index.bytes(), index.sources[0].length), (length, length));
            assert_eq!((&*index.sources[0].name, &index.sources[0].decoded), (name, &None));
        }
    }
}
