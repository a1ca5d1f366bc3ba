//! Safetensors.

use std::fmt::Write as _;

use super::{Sparse, Tensor};

/// A file of these tensors.
pub fn file(tensors: &[Tensor]) -> Sparse {
    let (mut header, mut at) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), 0);
    for tensor in tensors {
        let (name, dtype, end) = (&tensor.name, tensor.dtype.name(), at + tensor.bytes());
        let _ = write!(header, ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[");
        for (number, dim) in tensor.shape.iter().enumerate() {
            let _ = write!(header, "{}{dim}", if number == 0 { "" } else { "," });
        }
        let _ = write!(header, "],\"data_offsets\":[{at},{end}]}}");
        at = end;
    }
    header.push('}');
    let mut file = Sparse::default();
    file.write(&(header.len() as u64).to_le_bytes());
    file.write(header.as_bytes());
    file.skip(at);
    file
}
