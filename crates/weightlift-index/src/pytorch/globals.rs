//! The names that a pickle may refer to, and what each is here. There are no others.
//!
//! This is the list of PyTorch's own reader of weights (`torch.load(weights_only=True)`), less the
//! classes of tensors of old, and the scalars of NumPy, which training scripts keep beside weights.
//! A name that is not on the list is an error where it stands, used or not.

/// What an allowed name is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Global {
    /// A function that makes a tensor.
    Rebuild(Rebuild),
    /// The class of a storage, whose elements are of this type.
    Storage(&'static Type),
    /// A data type.
    Dtype(&'static Type),
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `torch.Size`, a tuple.
    Size,
    /// `torch.nn.Parameter`, a tensor here.
    Parameter,
    /// `torch.Tensor`, named as the class of a tensor with attributes.
    Tensor,
    /// What makes values that are no tensors.
    Plain,
}

/// The functions that make tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rebuild {
    /// Storage, offset, shape, strides.
    Tensor,
    /// The same and then a type of the elements, which is not the storage's.
    TensorOfType,
    /// A tensor and what does not matter.
    Parameter,
    /// A function, a class, the function's arguments, and attributes that are passed over.
    FromType,
    /// Tensors that are known and not read.
    Refused(&'static str),
}

/// A type of elements.
#[derive(Debug, PartialEq)]
pub(super) struct Type {
    /// In `torch`; empty for what only a storage can be of.
    pub(super) name: &'static str,
    /// The class of its storages in `torch`; empty if they have none of their own.
    class: &'static str,
    /// The name in the index.
    pub(super) dtype: &'static str,
    /// In bytes.
    pub(super) size: u64,
    /// How many bytes to reverse at a time where the file is of the other byte order.
    pub(super) swap: Option<u8>,
    /// Whether its numbers mean nothing without a scale that stands elsewhere.
    pub(super) quantized: bool,
}

const fn plain(
    name: &'static str,
    class: &'static str,
    dtype: &'static str,
    size: u64,
    swap: u8,
) -> Type {
    let swap = if swap > 1 { Some(swap) } else { None };
    Type { name, class, dtype, size, swap, quantized: false }
}

const fn quantized(name: &'static str, class: &'static str, size: u64) -> Type {
    Type { name, class, dtype: name, size, swap: None, quantized: true }
}

/// Storages of plain bytes, for tensors that say their type themselves.
static UNTYPED: Type = plain("", "", "U8", 1, 1);

// `bits` and `complex32` have no name in other formats: they stay opaque. Two elements of
// `float4_e2m1fn_x2` lie in a byte, which is one element to PyTorch.
#[rustfmt::skip]
static TYPES: [Type; 32] = [
    plain("float32", "FloatStorage", "F32", 4, 4),
    plain("bfloat16", "BFloat16Storage", "BF16", 2, 2),
    plain("float16", "HalfStorage", "F16", 2, 2),
    plain("float64", "DoubleStorage", "F64", 8, 8),
    plain("uint8", "ByteStorage", "U8", 1, 1),
    plain("int8", "CharStorage", "I8", 1, 1),
    plain("int16", "ShortStorage", "I16", 2, 2),
    plain("int32", "IntStorage", "I32", 4, 4),
    plain("int64", "LongStorage", "I64", 8, 8),
    plain("bool", "BoolStorage", "BOOL", 1, 1),
    plain("complex64", "ComplexFloatStorage", "C64", 8, 4),
    plain("complex128", "ComplexDoubleStorage", "C128", 16, 8),
    plain("complex32", "", "C32", 4, 2),
    plain("uint16", "", "U16", 2, 2),
    plain("uint32", "", "U32", 4, 4),
    plain("uint64", "", "U64", 8, 8),
    plain("float8_e4m3fn", "", "F8_E4M3", 1, 1),
    plain("float8_e5m2", "", "F8_E5M2", 1, 1),
    plain("float8_e4m3fnuz", "", "F8_E4M3FNUZ", 1, 1),
    plain("float8_e5m2fnuz", "", "F8_E5M2FNUZ", 1, 1),
    plain("float8_e8m0fnu", "", "F8_E8M0", 1, 1),
    plain(FLOAT4, "", "F4", 1, 1),
    plain("bits8", "", "bits8", 1, 1),
    plain("bits16", "", "bits16", 2, 2),
    plain("bits1x8", "", "bits1x8", 1, 1),
    plain("bits2x4", "", "bits2x4", 1, 1),
    plain("bits4x2", "", "bits4x2", 1, 1),
    quantized("quint8", "QUInt8Storage", 1),
    quantized("qint8", "QInt8Storage", 1),
    quantized("qint32", "QInt32Storage", 4),
    quantized("quint4x2", "QUInt4x2Storage", 1),
    quantized("quint2x4", "QUInt2x4Storage", 1),
];

const FLOAT4: &str = "float4_e2m1fn_x2";

impl Type {
    /// How many elements of the index one of PyTorch's is.
    pub(super) fn packed(&self) -> u64 {
        if self.name == FLOAT4 { 2 } else { 1 }
    }
}

/// What an allowed name is; `None` for any other.
pub(super) fn find(module: &str, name: &str) -> Option<Global> {
    use Global::{Plain, Rebuild as R};
    Some(match (module, name) {
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => R(Rebuild::Tensor),
        ("torch._utils", "_rebuild_tensor_v3") => R(Rebuild::TensorOfType),
        ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
            R(Rebuild::Parameter)
        }
        ("torch._tensor", "_rebuild_from_type_v2") => R(Rebuild::FromType),
        ("torch._utils", name) => R(Rebuild::Refused(refused(name)?)),
        ("torch", "Size") => Global::Size,
        ("torch", "Tensor") => Global::Tensor,
        ("torch.nn.parameter", "Parameter") => Global::Parameter,
        ("torch.storage", "UntypedStorage") => Global::Storage(&UNTYPED),
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("collections", "Counter")
        | ("torch.storage", "TypedStorage")
        | ("torch", "device")
        | ("torch.serialization", "_get_layout")
        | ("_codecs", "encode")
        | ("builtins" | "__builtin__", "set" | "bytearray" | "complex")
        | ("numpy", "dtype")
        | ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Plain,
        ("torch" | "torch.cuda", name) if name.ends_with("Storage") => {
            Global::Storage(TYPES.iter().find(|element| element.class == name)?)
        }
        ("torch", name) => match TYPES.iter().find(|element| element.name == name) {
            Some(element) => Global::Dtype(element),
            None if is_plain(name) => Plain,
            None => return None,
        },
        _ => return None,
    })
}

/// What a function of `torch._utils` makes, of those that are known and not read.
fn refused(name: &str) -> Option<&'static str> {
    Some(match name {
        "_rebuild_qtensor" => "quantized",
        "_rebuild_sparse_tensor" => "sparse",
        "_rebuild_nested_tensor" => "nested",
        "_rebuild_meta_tensor_no_storage" => "without data (device meta)",
        "_rebuild_wrapper_subclass" => "of a class of its own",
        "_rebuild_device_tensor_from_numpy" | "_rebuild_xla_tensor" => "kept as a NumPy array",
        "_rebuild_device_tensor_from_cpu_tensor" => "of a device that has no storages",
        _ => return None,
    })
}

/// Data types that no tensor in a file has, and ways of quantizing.
fn is_plain(name: &str) -> bool {
    let small = name.strip_prefix("uint").or_else(|| name.strip_prefix("int"));
    matches!(small.map(str::as_bytes), Some([b'1'..=b'7']))
        || matches!(
            name,
            "per_tensor_affine"
                | "per_tensor_symmetric"
                | "per_channel_affine"
                | "per_channel_symmetric"
                | "per_channel_affine_float_qparams"
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn sizes_are_those_of_the_index() {
        for element in TYPES.iter().filter(|element| !element.quantized) {
            let dtype = Dtype::from_name(element.dtype);
            if !dtype.is_opaque() {
                assert_eq!(dtype.bytes_for(element.packed()), Some(element.size), "{element:?}");
                assert_eq!(dtype.swap_width(), element.swap, "{element:?}");
            }
        }
    }

    #[test]
    fn nothing_that_acts_is_on_the_list() {
        for (module, name) in [
            ("builtins", "eval"),
            ("builtins", "exec"),
            ("builtins", "getattr"),
            ("builtins", "__import__"),
            ("builtins", "print"),
            ("__builtin__", "apply"),
            ("os", "system"),
            ("posix", "system"),
            ("subprocess", "Popen"),
            ("torch", "load"),
            ("torch", "Storage"),
            ("torch", ""),
            ("torch", "int8.__class__"),
            ("torch.storage", "_load_from_bytes"),
            ("torch._utils", "_import_dotted_name"),
            ("torch.hub", "load"),
            ("collections", "defaultdict"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("_codecs", "lookup"),
            ("", "eval"),
        ] {
            assert_eq!(find(module, name), None, "{module}.{name}");
        }
    }
}
