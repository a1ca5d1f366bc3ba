//! What holds for everything that a parser gives back.

use std::collections::HashSet;

use weightlift_index::{Error, Index, TensorInfo};

use crate::memory::measure;

/// Runs `work` on an input of so many bytes and checks that memory is bounded by them.
///
/// The factors are generous: a tensor takes some 200 bytes of memory and can take as few as ten of
/// a file, and lists are doubled as they grow. What they find is memory taken by a number.
pub(crate) fn bounded<T>(bytes: u64, work: impl FnOnce() -> T) -> T {
    let (result, usage) = measure(work);
    let bytes = bytes as i64;
    // A reader's own window has up to 1 MiB.
    assert!(
        usage.largest <= 128 * bytes + (2 << 20) && usage.peak <= 512 * bytes + (4 << 20),
        "{usage:?} for {bytes} bytes"
    );
    result
}

/// Checks an index, or the error in its place.
pub(crate) fn index(result: Result<Index, Error>) {
    let index = match result {
        Ok(index) => index,
        Err(error) => return self::error(&error),
    };
    index.validate().expect("the index is valid");
    let mut names = HashSet::new();
    for tensor in &index.tensors {
        assert!(names.insert(&*tensor.name), "the name {:?} stands twice", tensor.name);
        check_tensor(&index, tensor);
    }
    for source in &index.sources {
        if let Some(decoded) = &source.decoded {
            assert_eq!(decoded.len() as u64, source.length, "{}", source.name);
        }
    }
}

fn check_tensor(index: &Index, tensor: &TensorInfo) {
    // As `validate` does it, in other words: ranges are added in a larger type.
    let storage = index.storages[tensor.storage.0 as usize];
    let source = &index.sources[storage.source.0 as usize];
    let end = u128::from(storage.offset) + u128::from(tensor.offset) + u128::from(tensor.length);
    assert!(end <= u128::from(source.length), "{tensor:?} ends after its source");
    let elements = tensor.shape.iter().try_fold(1u64, |all, dim| all.checked_mul(*dim));
    let elements = match elements {
        Some(elements) => elements,
        None if tensor.shape.contains(&0) => 0,
        None => panic!("{tensor:?} has more elements than a number holds"),
    };
    if !tensor.dtype.is_opaque() && tensor.strides.is_none() {
        // ONNX fills the last byte up, where others fill up a block: three bytes of four elements
        // of six bits.
        let layout = tensor.dtype.layout().expect("known types have one");
        let bytes = u128::from(elements) * u128::from(layout.bytes);
        let least = bytes.div_ceil(u128::from(layout.elements));
        let most = tensor.dtype.padded_bytes_for(elements).expect("it is in the file");
        let length = tensor.length;
        assert!(
            u128::from(length) >= least && length <= most,
            "{tensor:?}: shape and bytes disagree, {least} to {most}"
        );
    }
}

/// Checks an error.
pub(crate) fn error(error: &Error) {
    let line = error.to_string();
    assert!(!line.contains(char::is_control), "an error of several lines: {line:?}");
    assert!(!error.message().is_empty() && !error.message().ends_with('.'), "{line}");
    if error.get("option").is_some() {
        assert!(error.get("limit").is_some() && error.get("actual").is_some(), "{line}");
    }
}

/// Checks the error, if it is one.
pub(crate) fn checked<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(self::error).ok()
}
