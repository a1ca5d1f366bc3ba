//! ONNX, as protobuf messages.

use super::{Dtype, Sparse, Tensor};

/// A model whose graph has these tensors as initializers, with their bytes in the file.
pub fn file(tensors: &[Tensor]) -> Sparse {
    let heads: Vec<Vec<u8>> = tensors.iter().map(raw_head).collect();
    let sizes: Vec<u64> =
        heads.iter().zip(tensors).map(|(head, t)| head.len() as u64 + t.bytes()).collect();
    let name = message(2, b"g");
    let entries: u64 = sizes.iter().map(|size| key(5, *size).len() as u64 + size).sum();
    let mut file = Sparse::default();
    file.write(&start());
    file.write(&key(7, entries + name.len() as u64));
    file.write(&name);
    for ((head, size), tensor) in heads.iter().zip(&sizes).zip(tensors) {
        file.write(&key(5, *size));
        file.write(head);
        file.skip(tensor.bytes());
    }
    file
}

/// A model whose tensors lie one after the other in the file `location`.
pub fn external(tensors: &[Tensor], location: &str) -> Vec<u8> {
    let (mut graph, mut at) = (message(2, b"g"), 0);
    for tensor in tensors {
        let mut body = describe(tensor);
        let (offset, length) = (at.to_string(), tensor.bytes().to_string());
        for (name, value) in [("location", location), ("offset", &offset), ("length", &length)] {
            let entry = [message(1, name.as_bytes()), message(2, value.as_bytes())].concat();
            body.extend(message(13, &entry));
        }
        body.extend(number(14, 1));
        graph.extend(message(5, &body));
        at += tensor.bytes();
    }
    [start(), message(7, &graph)].concat()
}

/// A tensor as a message, without its bytes: name, type, shape.
pub fn describe(tensor: &Tensor) -> Vec<u8> {
    let kind = match tensor.dtype {
        Dtype::F32 => 1,
        Dtype::F16 => 10,
        Dtype::I8 => 3,
        Dtype::I32 => 6,
    };
    let mut body = Vec::new();
    tensor.shape.iter().for_each(|dim| body.extend(number(1, *dim)));
    body.extend(number(2, kind));
    body.extend(message(8, tensor.name.as_bytes()));
    body
}

fn raw_head(tensor: &Tensor) -> Vec<u8> {
    let mut head = describe(tensor);
    head.extend(key(9, tensor.bytes()));
    head
}

/// What a model begins with: the version of the format, who wrote it, and an operator set.
pub fn start() -> Vec<u8> {
    [number(1, 8), message(2, b"w"), message(8, &number(2, 17))].concat()
}

/// A field with a message, text or bytes.
pub fn message(field: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = key(field, body.len() as u64);
    bytes.extend_from_slice(body);
    bytes
}

/// A field with a number.
pub fn number(field: u64, value: u64) -> Vec<u8> {
    let mut bytes = varint(field << 3);
    bytes.extend(varint(value));
    bytes
}

fn key(field: u64, length: u64) -> Vec<u8> {
    let mut bytes = varint(field << 3 | 2);
    bytes.extend(varint(length));
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 127 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
