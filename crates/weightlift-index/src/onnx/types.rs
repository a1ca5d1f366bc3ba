//! The types of elements, and which field of a tensor has their values.

use std::borrow::Cow;

use crate::Dtype;

/// The fields of a tensor that hold values, by their number.
pub(super) const FLOATS: u64 = 4;
pub(super) const INT32S: u64 = 5;
pub(super) const STRINGS: u64 = 6;
pub(super) const INT64S: u64 = 7;
pub(super) const DOUBLES: u64 = 10;
pub(super) const UINT64S: u64 = 11;

/// The number of the type of strings, which have no fixed size.
pub(super) const STRING: i32 = 8;

/// By their numbers, from 1: our name, and the field that has the values.
#[rustfmt::skip]
const TYPES: [(&str, u64); 28] = [
    ("F32", FLOATS), ("U8", INT32S), ("I8", INT32S), ("U16", INT32S), ("I16", INT32S),
    ("I32", INT32S), ("I64", INT64S), ("STRING", STRINGS), ("BOOL", INT32S), ("F16", INT32S),
    ("F64", DOUBLES), ("U32", UINT64S), ("U64", UINT64S), ("C64", FLOATS), ("C128", DOUBLES),
    ("BF16", INT32S), ("F8_E4M3", INT32S), ("F8_E4M3FNUZ", INT32S), ("F8_E5M2", INT32S),
    ("F8_E5M2FNUZ", INT32S), ("U4", INT32S), ("I4", INT32S), ("F4", INT32S), ("F8_E8M0", INT32S),
    ("U2", INT32S), ("I2", INT32S), ("F6_E2M3", INT32S), ("F6_E3M2", INT32S),
];

fn entry(number: i32) -> Option<&'static (&'static str, u64)> {
    TYPES.get(usize::try_from(number).ok()?.checked_sub(1)?)
}

/// The type of this number; opaque, as `ONNX_29` for example, if there is none yet.
pub(super) fn dtype(number: i32) -> Dtype {
    let name = match entry(number) {
        Some((name, _)) => Cow::Borrowed(*name),
        None => Cow::Owned(format!("ONNX_{number}")),
    };
    Dtype::from_name(&name)
}

/// The field that has the values of this type; `None` if the type is not known.
pub(super) fn values_field(number: i32) -> Option<u64> {
    entry(number).map(|(_, field)| *field)
}

/// The bytes that this many elements take: as many as their bits fill, the last byte padded.
///
/// That is a byte less than whole blocks for three elements or fewer of six bits, where ONNX asks
/// for no more than the bits need. `None` if the type is opaque or the number too large.
pub(super) fn bytes_for(dtype: &Dtype, elements: u64) -> Option<u64> {
    let layout = dtype.layout()?;
    let bytes = u128::from(elements) * u128::from(layout.bytes);
    u64::try_from(bytes.div_ceil(u128::from(layout.elements))).ok()
}

/// The number of elements; `None` if the product of the dimensions that are not zero is too large,
/// in whatever order they stand. A zero makes the tensor empty.
pub(super) fn elements(shape: &[u64]) -> Option<u64> {
    let product = shape
        .iter()
        .filter(|dim| **dim != 0)
        .try_fold(1_u64, |product, dim| product.checked_mul(*dim))?;
    Some(if shape.contains(&0) { 0 } else { product })
}

#[cfg(test)]
mod tests {
    use super::*;

    // ON-06. Half a byte an element was rounded down, or taken for a byte.
    #[test]
    fn sizes_are_those_of_the_bits_rounded_up() {
        let table = [
            ("I4", 5, 3),
            ("I4", 1, 1),
            ("U4", 0, 0),
            ("F4", 2, 1),
            ("U2", 5, 2),
            ("I2", 4, 1),
            ("F6_E2M3", 1, 1),
            ("F6_E2M3", 2, 2),
            ("F6_E3M2", 3, 3),
            ("F6_E3M2", 4, 3),
            ("F6_E3M2", 5, 4),
            ("C128", 3, 48),
            ("BOOL", 7, 7),
        ];
        for (name, elements, bytes) in table {
            let dtype = Dtype::from_name(name);
            assert_eq!(bytes_for(&dtype, elements), Some(bytes), "{elements} x {name}");
        }
        assert_eq!(bytes_for(&Dtype::from_name("F32"), u64::MAX), None);
        assert_eq!(bytes_for(&Dtype::from_name("F4"), u64::MAX), Some(1 << 63));
        assert_eq!(bytes_for(&Dtype::from_name("STRING"), 1), None);
    }

    #[test]
    fn every_number_has_a_type_of_its_own() {
        let mut names: Vec<_> = (1..=28).map(|number| dtype(number).name().to_owned()).collect();
        for (name, number) in names.iter().zip(1..) {
            assert_eq!(dtype(number).is_opaque(), number == STRING, "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 28);
        for number in [0, 29, -1, i32::MIN, i32::MAX] {
            assert_eq!(dtype(number).name(), format!("ONNX_{number}"));
            assert!(dtype(number).is_opaque());
        }
    }

    #[test]
    fn the_order_of_dimensions_does_not_matter() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[2, 0, 3]), Some(0));
        for shape in [[1 << 63, 4, 0], [0, 1 << 63, 4], [4, 0, 1 << 63]] {
            assert_eq!(elements(&shape), None);
        }
    }
}
