//! Data types as files name them.

use std::fmt;
use std::sync::Arc;

use crate::{Error, ErrorKind};

/// A data type: a name and, if the type is known, how its elements are packed.
///
/// A type whose name is not known is *opaque*: its tensors keep their bytes and their shape, and
/// only what needs the size of an element fails, by [`known`](Self::known). Names are compared
/// as the files write them: `f32` is not `F32`.
///
/// Cloning allocates nothing.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dtype(Repr);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Known(&'static Known),
    Opaque(Arc<str>),
}

/// How many elements make up how many bytes: the smallest unit that begins and ends at a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockLayout {
    /// Elements per block, at least 1.
    pub elements: u32,
    /// Bytes per block, at least 1.
    pub bytes: u32,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Known {
    name: &'static str,
    layout: BlockLayout,
    /// 0: nothing to swap.
    swap: u8,
}

const fn known(name: &'static str, elements: u32, bytes: u32, swap: u8) -> Known {
    Known { name, layout: BlockLayout { elements, bytes }, swap }
}

// The first 22 are the data types of safetensors. C64 and C128 are pairs, so they swap by half.
#[rustfmt::skip]
static KNOWN: [Known; 31] = [
    known("F32", 1, 4, 4),
    known("F16", 1, 2, 2),
    known("BF16", 1, 2, 2),
    known("U8", 1, 1, 0),
    known("I8", 1, 1, 0),
    known("F8_E4M3", 1, 1, 0),
    known("F8_E5M2", 1, 1, 0),
    known("F8_E8M0", 1, 1, 0),
    known("F8_E4M3FNUZ", 1, 1, 0),
    known("F8_E5M2FNUZ", 1, 1, 0),
    known("F6_E2M3", 4, 3, 0),
    known("F6_E3M2", 4, 3, 0),
    known("F4", 2, 1, 0),
    known("BOOL", 1, 1, 0),
    known("I16", 1, 2, 2),
    known("U16", 1, 2, 2),
    known("I32", 1, 4, 4),
    known("U32", 1, 4, 4),
    known("I64", 1, 8, 8),
    known("U64", 1, 8, 8),
    known("F64", 1, 8, 8),
    known("C64", 1, 8, 4),
    // Of other formats.
    known("C128", 1, 16, 8),
    known("U1", 8, 1, 0),
    known("U2", 4, 1, 0),
    known("I2", 4, 1, 0),
    known("U3", 8, 3, 0),
    known("U4", 2, 1, 0),
    known("I4", 2, 1, 0),
    known("U6", 4, 3, 0),
    known("NF4", 2, 1, 0),
];

/// How many of them safetensors has.
const OF_SAFETENSORS: usize = 22;

// The block types of ggml, beside those above that it has too. Elements and bytes of a block are
// those of the structures in ggml-common.h, which are what lies in files; testing/python compares
// them with the table of the package gguf (`GGML_QUANT_SIZES`), which was copied from there.
//
// The two differ for one type. A block of Q8_1 is two halves and 32 bytes, 36; the package says 40,
// what it was while the halves were floats. It holds activations while a model runs, so files with
// it are not known, and the structure is what ggml would read. The package lacks Q2_0, for now.
#[rustfmt::skip]
static GGML: [Known; 27] = [
    known("Q4_0", 32, 18, 0),
    known("Q4_1", 32, 20, 0),
    known("Q5_0", 32, 22, 0),
    known("Q5_1", 32, 24, 0),
    known("Q8_0", 32, 34, 0),
    known("Q8_1", 32, 36, 0),
    known("Q2_K", 256, 84, 0),
    known("Q3_K", 256, 110, 0),
    known("Q4_K", 256, 144, 0),
    known("Q5_K", 256, 176, 0),
    known("Q6_K", 256, 210, 0),
    known("Q8_K", 256, 292, 0),
    known("IQ2_XXS", 256, 66, 0),
    known("IQ2_XS", 256, 74, 0),
    known("IQ3_XXS", 256, 98, 0),
    known("IQ1_S", 256, 50, 0),
    known("IQ4_NL", 32, 18, 0),
    known("IQ3_S", 256, 110, 0),
    known("IQ2_S", 256, 82, 0),
    known("IQ4_XS", 256, 136, 0),
    known("IQ1_M", 256, 56, 0),
    known("TQ1_0", 256, 54, 0),
    known("TQ2_0", 256, 66, 0),
    known("MXFP4", 32, 17, 0),
    known("NVFP4", 64, 36, 0),
    known("Q1_0", 128, 18, 0),
    known("Q2_0", 64, 18, 0),
];

impl Dtype {
    /// The data type of this name in any format, opaque if the name is not known.
    pub fn from_name(name: &str) -> Self {
        Self::find(KNOWN.iter().chain(&GGML), name)
    }

    /// The data type of this name in safetensors: a name that only other formats have is opaque
    /// there, and says nothing about bytes.
    pub(crate) fn of_safetensors(name: &str) -> Self {
        Self::find(&KNOWN[..OF_SAFETENSORS], name)
    }

    /// A data type that is not known, whatever other formats mean by its name.
    pub(crate) fn opaque(name: &str) -> Self {
        Self(Repr::Opaque(name.into()))
    }

    fn find(known: impl IntoIterator<Item = &'static Known>, name: &str) -> Self {
        // The lists are short and their first entries are what almost every tensor has.
        match known.into_iter().find(|known| known.name == name) {
            Some(known) => Self(Repr::Known(known)),
            None => Self(Repr::Opaque(name.into())),
        }
    }

    /// The name, the same in all formats that have the type; of an opaque one what the file calls it,
    /// or what is made of the file's number for it, as `GGML_31`.
    pub fn name(&self) -> &str {
        match &self.0 {
            Repr::Known(known) => known.name,
            Repr::Opaque(name) => name,
        }
    }

    /// How elements are packed; `None` if the type is opaque.
    pub fn layout(&self) -> Option<BlockLayout> {
        match &self.0 {
            Repr::Known(known) => Some(known.layout),
            Repr::Opaque(_) => None,
        }
    }

    /// Whether only the name is known.
    pub fn is_opaque(&self) -> bool {
        self.layout().is_none()
    }

    /// The bytes that this many elements take; `None` if the type is opaque, if the elements do
    /// not fill whole blocks, or if the number does not fit 64 bits.
    pub fn bytes_for(&self, elements: u64) -> Option<u64> {
        let layout = self.layout()?;
        let per_block = u64::from(layout.elements);
        if !elements.is_multiple_of(per_block) {
            return None;
        }
        (elements / per_block).checked_mul(u64::from(layout.bytes))
    }

    /// The bytes that this many elements take where the last block may be filled up with padding,
    /// as ONNX and OpenVINO do it; `None` if the type is opaque or the number does not fit 64 bits.
    pub fn padded_bytes_for(&self, elements: u64) -> Option<u64> {
        let layout = self.layout()?;
        elements.div_ceil(u64::from(layout.elements)).checked_mul(u64::from(layout.bytes))
    }

    /// The layout, for a caller that cannot do without it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::UnknownDtype`] if the type is opaque, naming `tensor` and `dtype`.
    pub fn known(&self, tensor: &str) -> Result<BlockLayout, Error> {
        self.layout().ok_or_else(|| {
            Error::new(ErrorKind::UnknownDtype, "the tensor's data type is not known")
                .with("tensor", tensor)
                .with("dtype", self.name())
                .hint("its bytes can still be had as they are, without a type")
        })
    }

    /// How many bytes to reverse at a time on a big-endian host: 2, 4 or 8. `None` where there is
    /// nothing to reverse, in types of one byte or less, and where it is not known, in opaque ones.
    pub fn swap_width(&self) -> Option<u8> {
        match &self.0 {
            Repr::Known(Known { swap: 0, .. }) | Repr::Opaque(_) => None,
            Repr::Known(known) => Some(known.swap),
        }
    }
}

impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dtype({:?})", self.name())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // ST-13, ST-14, ST-19: bits per element and swap width, written down a second time.
    #[test]
    fn every_known_type_has_its_size_and_swap_width() {
        #[rustfmt::skip]
        let table = [
            ("BOOL", 8, None), ("F4", 4, None), ("F6_E2M3", 6, None), ("F6_E3M2", 6, None),
            ("U8", 8, None), ("I8", 8, None), ("F8_E5M2", 8, None), ("F8_E4M3", 8, None),
            ("F8_E8M0", 8, None), ("F8_E4M3FNUZ", 8, None), ("F8_E5M2FNUZ", 8, None),
            ("I16", 16, Some(2)), ("U16", 16, Some(2)), ("F16", 16, Some(2)), ("BF16", 16, Some(2)),
            ("I32", 32, Some(4)), ("U32", 32, Some(4)), ("F32", 32, Some(4)), ("C64", 64, Some(4)),
            ("F64", 64, Some(8)), ("I64", 64, Some(8)), ("U64", 64, Some(8)),
            ("C128", 128, Some(8)), ("U1", 1, None), ("U2", 2, None), ("I2", 2, None),
            ("U3", 3, None), ("U4", 4, None), ("I4", 4, None), ("U6", 6, None), ("NF4", 4, None),
        ];
        assert_eq!(table.len(), KNOWN.len());
        for (name, bits, swap) in table {
            let dtype = Dtype::from_name(name);
            assert_eq!(dtype.name(), name);
            let layout = dtype.known("t").unwrap();
            assert_eq!(layout.bytes * 8, layout.elements * bits, "{name}");
            assert_eq!(dtype.bytes_for(24), Some(u64::from(3 * bits)), "{name}");
            assert_eq!(dtype.swap_width(), swap, "{name}");
        }
    }

    #[test]
    fn whole_blocks_only_and_no_wrapping() {
        let table = [
            ("F4", 3, None),
            ("F4", 2, Some(1)),
            ("F6_E2M3", 2, None),
            ("F6_E3M2", 4, Some(3)),
            ("F32", u64::MAX / 4, Some(u64::MAX - 3)),
            ("F32", u64::MAX / 4 + 1, None),
            ("F4", u64::MAX - 1, Some(u64::MAX / 2)),
            ("F64", 0, Some(0)),
            ("Q9", 1, None),
        ];
        for (name, elements, bytes) in table {
            assert_eq!(Dtype::from_name(name).bytes_for(elements), bytes, "{name} x {elements}");
        }
    }

    #[test]
    fn an_unknown_name_stays_opaque_until_its_size_is_needed() {
        for name in ["I4", "C128", "Q4_0", "f32", ""] {
            let dtype = Dtype::of_safetensors(name);
            assert!(dtype.is_opaque());
            assert_eq!(dtype.swap_width(), None);
            let error = dtype.known("w").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownDtype);
            assert_eq!((error.get("tensor"), error.get("dtype")), (Some("w"), Some(name)));
        }
    }

    #[test]
    fn stays_small() {
        assert_eq!(size_of::<Dtype>(), 2 * size_of::<usize>());
    }
}
