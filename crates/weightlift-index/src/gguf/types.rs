//! The data types of ggml by their numbers.

use crate::Dtype;

/// The name of each number. Those left out had a type that was removed from the format, and what
/// comes after the last is not known.
#[rustfmt::skip]
const NAMES: [(u32, &str); 35] = [
    (0, "F32"), (1, "F16"), (2, "Q4_0"), (3, "Q4_1"), (6, "Q5_0"), (7, "Q5_1"), (8, "Q8_0"),
    (9, "Q8_1"), (10, "Q2_K"), (11, "Q3_K"), (12, "Q4_K"), (13, "Q5_K"), (14, "Q6_K"),
    (15, "Q8_K"), (16, "IQ2_XXS"), (17, "IQ2_XS"), (18, "IQ3_XXS"), (19, "IQ1_S"), (20, "IQ4_NL"),
    (21, "IQ3_S"), (22, "IQ2_S"), (23, "IQ4_XS"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"),
    (28, "F64"), (29, "IQ1_M"), (30, "BF16"), (34, "TQ1_0"), (35, "TQ2_0"), (39, "MXFP4"),
    (40, "NVFP4"), (41, "Q1_0"), (42, "Q2_0"),
];

/// Data types by number. A file has few, and many tensors of each: the last is remembered, so that
/// tensors of one opaque type share its name.
#[derive(Default)]
pub(super) struct Types {
    last: Option<(u32, Dtype)>,
}

impl Types {
    pub(super) fn get(&mut self, number: u32) -> Dtype {
        if let Some((last, dtype)) = &self.last
            && *last == number
        {
            return dtype.clone();
        }
        let dtype = match NAMES.iter().find(|(known, _)| *known == number) {
            Some((_, name)) => Dtype::from_name(name),
            None => Dtype::from_name(&format!("GGML_{number}")),
        };
        self.last = Some((number, dtype.clone()));
        dtype
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Elements and bytes of a block, written down a second time, from the structures of ggml.
    #[test]
    fn every_type_has_its_block() {
        #[rustfmt::skip]
        let table = [
            (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 2 + 16), (3, "Q4_1", 32, 4 + 16),
            (6, "Q5_0", 32, 2 + 4 + 16), (7, "Q5_1", 32, 4 + 4 + 16), (8, "Q8_0", 32, 2 + 32),
            (9, "Q8_1", 32, 4 + 32), (10, "Q2_K", 256, 4 + 16 + 64),
            (11, "Q3_K", 256, 2 + 64 + 32 + 12), (12, "Q4_K", 256, 4 + 12 + 128),
            (13, "Q5_K", 256, 4 + 12 + 32 + 128), (14, "Q6_K", 256, 2 + 128 + 64 + 16),
            (15, "Q8_K", 256, 4 + 256 + 32), (16, "IQ2_XXS", 256, 2 + 64),
            (17, "IQ2_XS", 256, 2 + 64 + 8), (18, "IQ3_XXS", 256, 2 + 96), (19, "IQ1_S", 256, 2 + 48),
            (20, "IQ4_NL", 32, 2 + 16), (21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4),
            (22, "IQ2_S", 256, 2 + 64 + 8 + 8), (23, "IQ4_XS", 256, 2 + 2 + 4 + 128),
            (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8),
            (28, "F64", 1, 8), (29, "IQ1_M", 256, 32 + 16 + 8), (30, "BF16", 1, 2),
            (34, "TQ1_0", 256, 48 + 4 + 2), (35, "TQ2_0", 256, 64 + 2), (39, "MXFP4", 32, 1 + 16),
            (40, "NVFP4", 64, 4 + 32), (41, "Q1_0", 128, 2 + 16), (42, "Q2_0", 64, 2 + 16),
        ];
        assert_eq!(table.len(), NAMES.len());
        for (number, name, elements, bytes) in table {
            let dtype = Types::default().get(number);
            let layout = dtype.layout().unwrap();
            assert_eq!((dtype.name(), layout.elements, layout.bytes), (name, elements, bytes));
        }
    }

    #[test]
    fn other_numbers_are_opaque_under_a_name_of_their_own() {
        let mut types = Types::default();
        for number in [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, u32::MAX, u32::MAX] {
            let dtype = types.get(number);
            assert!(dtype.is_opaque());
            assert_eq!(dtype.name(), format!("GGML_{number}"));
        }
    }
}
