//! Element types, shapes and numbers as attributes write them.

use super::xml::start_of;
use crate::limits::{self, Limits};
use crate::{Dtype, Error, ErrorKind};

/// OpenVINO's element types and what they are called here. OpenVINO compares without regard to
/// upper and lower case.
const TYPES: [(&str, &str); 24] = [
    ("f32", "F32"),
    ("f16", "F16"),
    ("bf16", "BF16"),
    ("i64", "I64"),
    ("i32", "I32"),
    ("u8", "U8"),
    ("i8", "I8"),
    ("boolean", "BOOL"),
    ("u4", "U4"),
    ("i4", "I4"),
    ("nf4", "NF4"),
    ("f4e2m1", "F4"),
    ("f8e4m3", "F8_E4M3"),
    ("f8e5m2", "F8_E5M2"),
    ("f8e8m0", "F8_E8M0"),
    ("f64", "F64"),
    ("i16", "I16"),
    ("u16", "U16"),
    ("u32", "U32"),
    ("u64", "U64"),
    // Eight bits of one byte, four pairs, and groups that fill three bytes.
    ("u1", "U1"),
    ("u2", "U2"),
    ("u3", "U3"),
    ("u6", "U6"),
];

/// The data type of this name. `string` has no size of an element: its tensors are offsets and text
/// in one block. `dynamic`, and what OpenVINO does not know either, is kept as it is called.
pub(super) fn dtype(name: &str) -> Dtype {
    match TYPES.iter().find(|(theirs, _)| theirs.eq_ignore_ascii_case(name)) {
        Some((_, ours)) => Dtype::from_name(ours),
        None if name.eq_ignore_ascii_case("string") => Dtype::opaque("STRING"),
        None => Dtype::opaque(name),
    }
}

/// A number, of digits and nothing else.
pub(super) fn number(text: &str) -> Option<u64> {
    let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_decimal)
}

/// Dimensions with commas between them; none for a scalar.
pub(super) fn shape(text: &str, limits: &Limits) -> Result<Vec<u64>, Error> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let rank = text.bytes().filter(|byte| *byte == b',').count() as u64 + 1;
    if rank > limits.rank {
        let error = limits::exceeded(
            ErrorKind::LimitExceeded,
            "a constant has more dimensions than the limit",
            "rank",
            limits.rank,
            rank,
        );
        return Err(error.hint(limits::raise("rank")));
    }
    let dims: Option<Vec<u64>> = text.split(',').map(|dim| number(dim.trim_ascii())).collect();
    dims.ok_or_else(|| {
        Error::new(ErrorKind::InvalidHeader, "a constant's shape is not a list of whole numbers")
            .with("shape", start_of(text))
    })
}

/// The bytes of a constant to which the file gives `size`, which may be more than it needs: of the
/// elements of its shape where their type is known, all otherwise.
pub(super) fn length(dtype: &Dtype, shape: &[u64], size: u64) -> Result<u64, Error> {
    let about = |kind, message| {
        Error::new(kind, message).with("dtype", dtype).with("shape", format_args!("{shape:?}"))
    };
    let overflow = || about(ErrorKind::Overflow, "a constant's shape is too large to be a size");
    let elements = elements(shape).ok_or_else(overflow)?;
    if dtype.is_opaque() {
        return Ok(size);
    }
    let expected = dtype.padded_bytes_for(elements).ok_or_else(overflow)?;
    if expected > size {
        let error =
            about(ErrorKind::SizeMismatch, "a constant has fewer bytes than its shape needs");
        return Err(error.with("expected", expected).with("actual", size));
    }
    Ok(expected)
}

/// The number of elements. The order of the dimensions does not matter: those that are not zero
/// have to fit 64 bits together, and each alone 63, as OpenVINO reads them.
fn elements(shape: &[u64]) -> Option<u64> {
    let mut product = 1_u64;
    for dim in shape.iter().filter(|dim| **dim != 0) {
        product = product.checked_mul(*dim).filter(|_| *dim <= i64::MAX as u64)?;
    }
    Some(if shape.contains(&0) { 0 } else { product })
}

#[cfg(test)]
mod tests {
    use super::*;

    // Sizes as OpenVINO 2026.4.1 writes them: five elements, nine, eleven. u3 and u6 are packed by
    // groups, so that nine of u3 take two groups of three bytes, not 27 bits.
    #[test]
    fn every_type_has_the_size_that_openvino_writes() {
        #[rustfmt::skip]
        let table = [
            ("boolean", 5, 9, 11), ("bf16", 10, 18, 22), ("f16", 10, 18, 22), ("f32", 20, 36, 44),
            ("f64", 40, 72, 88), ("i4", 3, 5, 6), ("i8", 5, 9, 11), ("i16", 10, 18, 22),
            ("i32", 20, 36, 44), ("i64", 40, 72, 88), ("u1", 1, 2, 2), ("u2", 2, 3, 3),
            ("u3", 3, 6, 6), ("u4", 3, 5, 6), ("u6", 6, 9, 9), ("u8", 5, 9, 11),
            ("u16", 10, 18, 22), ("u32", 20, 36, 44), ("u64", 40, 72, 88), ("nf4", 3, 5, 6),
            ("f4e2m1", 3, 5, 6), ("f8e4m3", 5, 9, 11), ("f8e5m2", 5, 9, 11), ("f8e8m0", 5, 9, 11),
        ];
        assert_eq!(table.len(), TYPES.len());
        for (name, of_5, of_9, of_11) in table {
            for (elements, bytes) in [(5, of_5), (9, of_9), (11, of_11), (0, 0)] {
                let dtype = dtype(name);
                assert!(!dtype.is_opaque(), "{name}");
                assert_eq!(length(&dtype, &[elements], 1000).unwrap(), bytes, "{name} {elements}");
                assert_eq!(length(&dtype, &[elements], bytes).unwrap(), bytes, "{name}");
                if bytes > 0 {
                    let error = length(&dtype, &[elements], bytes - 1).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::SizeMismatch, "{name} {elements}");
                }
            }
        }
    }

    #[test]
    fn names_are_those_of_openvino_in_any_case_and_of_no_other_format() {
        assert_eq!(dtype("BF16").name(), "BF16");
        assert_eq!(dtype("NF4").layout(), Dtype::from_name("NF4").layout());
        assert_eq!((dtype("string").name(), dtype("string").is_opaque()), ("STRING", true));
        for name in ["dynamic", "C64", "Q4_0", "FP32", "i2", "", "F8_E4M3"] {
            assert_eq!((dtype(name).name(), dtype(name).is_opaque()), (name, true));
        }
    }

    #[test]
    fn numbers_are_digits() {
        for (text, value) in [("0", 0), ("007", 7), ("18446744073709551615", u64::MAX)] {
            assert_eq!(number(text), Some(value));
        }
        for text in ["", "-4", "+4", " 4", "4 ", "0x0", "4.0", "1e3", "18446744073709551616", "٤"]
        {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
