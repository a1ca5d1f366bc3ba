//! Writes ONNX models field by field, right ones and wrong ones.

#![allow(dead_code, reason = "each test file uses a part")]

use weightlift_index::{Error, Index, Limits, onnx};

/// Fields of a message, in whatever order they are added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(pub Vec<u8>);

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    fn tag(&mut self, number: u64, kind: u64) {
        self.0.extend(varint(number << 3 | kind));
    }

    pub fn number(mut self, number: u64, value: u64) -> Self {
        self.tag(number, 0);
        self.0.extend(varint(value));
        self
    }

    pub fn bytes(mut self, number: u64, value: impl AsRef<[u8]>) -> Self {
        self.tag(number, 2);
        self.0.extend(varint(value.as_ref().len() as u64));
        self.0.extend_from_slice(value.as_ref());
        self
    }

    pub fn message(self, number: u64, value: &Self) -> Self {
        self.bytes(number, &value.0)
    }

    pub fn fixed32(mut self, number: u64, value: u32) -> Self {
        self.tag(number, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn fixed64(mut self, number: u64, value: u64) -> Self {
        self.tag(number, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Numbers of variable length, packed.
    pub fn packed(self, number: u64, values: &[u64]) -> Self {
        let run: Vec<u8> = values.iter().flat_map(|value| varint(*value)).collect();
        self.bytes(number, run)
    }

    /// Bytes that need not be fields.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A tensor without data.
pub fn tensor(name: &str, data_type: u64, dims: &[u64]) -> Message {
    let dims = dims.iter().fold(Message::new(), |message, dim| message.number(1, *dim));
    dims.number(2, data_type).bytes(8, name)
}

/// A tensor of bytes, of type `U8`.
pub fn small(name: &str, data: &[u8]) -> Message {
    tensor(name, 2, &[data.len() as u64]).bytes(9, data)
}

/// A tensor with external data.
pub fn external(name: &str, data_type: u64, dims: &[u64], entries: &[(&str, &str)]) -> Message {
    let tensor = entries.iter().fold(tensor(name, data_type, dims), |message, (key, value)| {
        message.message(13, &Message::new().bytes(1, key).bytes(2, value))
    });
    tensor.number(14, 1)
}

/// A graph with these initializers.
pub fn graph(initializers: &[Message]) -> Message {
    initializers.iter().fold(Message::new(), |graph, tensor| graph.message(5, tensor))
}

/// A node: output, name, operator, attributes.
pub fn node(output: &str, name: &str, operator: &str, attributes: &[Message]) -> Message {
    let node = Message::new().bytes(2, output).bytes(3, name).bytes(4, operator);
    attributes.iter().fold(node, |node, attribute| node.message(5, attribute))
}

/// An attribute with a value in this field.
pub fn attribute(name: &str, field: u64, value: &Message) -> Message {
    Message::new().bytes(1, name).message(field, value)
}

/// A model with this graph.
pub fn model(graph: &Message) -> Message {
    let set = Message::new().bytes(1, "").number(2, 18);
    Message::new().number(1, 8).bytes(2, "test").message(7, graph).message(8, &set)
}

/// A model with one initializer.
pub fn one(tensor: Message) -> Vec<u8> {
    model(&graph(&[tensor])).0
}

/// Parses a model and makes its index, with these lengths of its data files.
pub fn index_with(file: &[u8], lengths: &[u64], limits: &Limits) -> Result<Index, Error> {
    let mut bytes = file;
    let model = onnx::parse(&mut bytes, limits)?;
    let index = model.into_index("model.onnx", file.len() as u64, lengths)?;
    index.validate()?;
    Ok(index)
}

pub fn index(file: &[u8]) -> Result<Index, Error> {
    index_with(file, &[], &Limits::default())
}

/// The bytes of a tensor that lies in the file or was decoded of it.
pub fn bytes_of(index: &Index, file: &[u8], name: &str) -> Vec<u8> {
    let tensor = index.require(name).unwrap();
    let storage = &index.storages[tensor.storage.0 as usize];
    let source = &index.sources[storage.source.0 as usize];
    let bytes = source.decoded.as_ref().map_or(file, |decoded| decoded);
    let start = (storage.offset + tensor.offset) as usize;
    bytes[start..start + tensor.length as usize].to_vec()
}

pub fn names(index: &Index) -> Vec<&str> {
    index.tensors.iter().map(|tensor| &*tensor.name).collect()
}
