//! Writes GGUF files, right ones and wrong ones.

#![allow(dead_code, reason = "each test file uses a part")]

use weightlift_index::gguf::{Header, parse};
use weightlift_index::{Error, Limits};

/// A file to be. What is in the fields is written as it is, fitting or not.
#[derive(Debug, Clone)]
pub struct Gguf {
    pub magic: Vec<u8>,
    pub version: u32,
    /// Written instead of the number of tensors and of values.
    pub tensor_count: Option<u64>,
    pub value_count: Option<u64>,
    /// Keys and values, each with its type.
    pub metadata: Vec<(Vec<u8>, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
    /// What the data are really aligned to.
    pub alignment: u64,
}

#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub rank: Option<u32>,
    /// As the file has them: the fastest first.
    pub dims: Vec<u64>,
    pub kind: u32,
    /// Where it is said to begin; otherwise after the one before.
    pub offset: Option<u64>,
    pub data: Vec<u8>,
}

impl Default for Gguf {
    fn default() -> Self {
        Self {
            magic: b"GGUF".to_vec(),
            version: 3,
            tensor_count: None,
            value_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
        }
    }
}

impl Gguf {
    pub fn new(tensors: Vec<Tensor>) -> Self {
        Self { tensors, ..Self::default() }
    }

    pub fn with(mut self, key: &str, value: Vec<u8>) -> Self {
        self.metadata.push((key.into(), value));
        self
    }

    /// With the alignment said and done.
    pub fn aligned(mut self, alignment: u32) -> Self {
        self.alignment = alignment.into();
        self.with("general.alignment", u32_value(alignment))
    }

    pub fn split(self, number: u16, count: u16, tensors: i32) -> Self {
        self.with("split.no", value(2, &number.to_le_bytes()))
            .with("split.count", value(2, &count.to_le_bytes()))
            .with("split.tensors.count", value(5, &tensors.to_le_bytes()))
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut file = self.magic.clone();
        file.extend(self.version.to_le_bytes());
        let count = |given: Option<u64>, real: usize| given.unwrap_or(real as u64).to_le_bytes();
        file.extend(count(self.tensor_count, self.tensors.len()));
        file.extend(count(self.value_count, self.metadata.len()));
        for (key, value) in &self.metadata {
            file.extend(text(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend(tensor.rank.unwrap_or(tensor.dims.len() as u32).to_le_bytes());
            file.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            pad(&mut data, self.alignment);
        }
        if !self.tensors.is_empty() {
            pad(&mut file, self.alignment);
        }
        file.extend(data);
        file
    }

    pub fn parse(&self) -> Result<Header, Error> {
        read(&self.bytes())
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: u64) {
    bytes.resize(bytes.len().next_multiple_of(alignment as usize), 0);
}

/// Parses with the usual limits, without lists.
pub fn read(file: &[u8]) -> Result<Header, Error> {
    let mut bytes = file;
    parse(&mut bytes, false, &Limits::default())
}

/// Parses with these limits, and keeps lists.
pub fn read_lists(file: &[u8], limits: &Limits) -> Result<Header, Error> {
    let mut bytes = file;
    parse(&mut bytes, true, limits)
}

/// A tensor of F32.
pub fn tensor(name: &str, dims: &[u64]) -> Tensor {
    typed(name, 0, dims, 4 * dims.iter().product::<u64>() as usize)
}

/// A tensor of a type and a number of bytes.
pub fn typed(name: &str, kind: u32, dims: &[u64], length: usize) -> Tensor {
    let data = vec![name.bytes().next().unwrap_or(1); length];
    Tensor { name: name.into(), rank: None, dims: dims.into(), kind, offset: None, data }
}

impl Tensor {
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }
}

pub fn text(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A value of a type.
pub fn value(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

pub fn u32_value(number: u32) -> Vec<u8> {
    value(4, &number.to_le_bytes())
}

pub fn text_value(content: &[u8]) -> Vec<u8> {
    value(8, &text(content))
}

/// A list that says so many values and has these bytes.
pub fn list(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    value(9, &[&kind.to_le_bytes()[..], &count.to_le_bytes(), bytes].concat())
}
