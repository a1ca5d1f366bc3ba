//! The OpenVINO IR: the description; the weights are zeros.

use std::fmt::Write as _;

use super::{Dtype, Tensor};

/// The description of a network of these tensors, and how long its weights are.
pub fn file(tensors: &[Tensor]) -> (String, u64) {
    let mut text =
        String::from("<?xml version=\"1.0\"?>\n<net name=\"m\" version=\"11\">\n\t<layers>\n");
    let mut at = 0;
    for (id, tensor) in tensors.iter().enumerate() {
        let (kind, precision) = match tensor.dtype {
            Dtype::F32 => ("f32", "FP32"),
            Dtype::F16 => ("f16", "FP16"),
            Dtype::I8 => ("i8", "I8"),
            Dtype::I32 => ("i32", "I32"),
        };
        let (name, size) = (&tensor.name, tensor.bytes());
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let _ = write!(
            text,
            "\t\t<layer id=\"{id}\" name=\"{name}\" type=\"Const\" version=\"opset1\">\n\
             \t\t\t<data element_type=\"{kind}\" shape=\"{shape}\" offset=\"{at}\" size=\"{size}\"/>\n\
             \t\t\t<output><port id=\"0\" precision=\"{precision}\">"
        );
        for dim in &tensor.shape {
            let _ = write!(text, "<dim>{dim}</dim>");
        }
        text.push_str("</port></output>\n\t\t</layer>\n");
        at += size;
    }
    text.push_str("\t</layers>\n\t<edges/>\n</net>\n");
    (text, at)
}
