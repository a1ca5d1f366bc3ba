//! GGUF, version 3, little-endian.

use super::{Dtype, Sparse, Tensor};

/// A value of metadata.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// 32 bits.
    U32(u32),
    /// Text.
    Text(&'a str),
    /// A list of texts.
    Texts(&'a [&'a str]),
    /// Any other: the number of its type, and its bytes.
    Other(u32, &'a [u8]),
}

/// A file of these tensors, with this metadata.
pub fn file(tensors: &[Tensor], metadata: &[(&str, Value<'_>)]) -> Sparse {
    let mut file = Sparse::default();
    file.write(b"GGUF\x03\0\0\0");
    file.write(&(tensors.len() as u64).to_le_bytes());
    file.write(&(metadata.len() as u64).to_le_bytes());
    let mut alignment = 32;
    for (key, value) in metadata {
        text(&mut file, key);
        match value {
            Value::U32(number) => {
                file.write(&4u32.to_le_bytes());
                file.write(&number.to_le_bytes());
                if *key == "general.alignment" {
                    alignment = u64::from(*number);
                }
            }
            Value::Text(value) => {
                file.write(&8u32.to_le_bytes());
                text(&mut file, value);
            }
            Value::Texts(values) => {
                file.write(&9u32.to_le_bytes());
                file.write(&8u32.to_le_bytes());
                file.write(&(values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| text(&mut file, value));
            }
            Value::Other(kind, bytes) => {
                file.write(&kind.to_le_bytes());
                file.write(bytes);
            }
        }
    }
    let mut at = 0u64;
    for tensor in tensors {
        text(&mut file, &tensor.name);
        file.write(&(tensor.shape.len() as u32).to_le_bytes());
        for dim in tensor.shape.iter().rev() {
            file.write(&dim.to_le_bytes());
        }
        let kind: u32 = match tensor.dtype {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            Dtype::I8 => 24,
            Dtype::I32 => 26,
        };
        file.write(&kind.to_le_bytes());
        file.write(&at.to_le_bytes());
        at = (at + tensor.bytes()).next_multiple_of(alignment);
    }
    file.align(alignment);
    file.skip(at);
    file
}

fn text(file: &mut Sparse, text: &str) {
    file.write(&(text.len() as u64).to_le_bytes());
    file.write(text.as_bytes());
}
