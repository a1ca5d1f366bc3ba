//! Files of every format, written by code: seeds for the fuzzer, and models too large for a disk.

pub mod gguf;
pub mod onnx;
pub mod openvino;
pub mod pytorch;
pub mod safetensors;

use weightlift_index::{Bytes, Error, ErrorKind};

/// A tensor to write, all zeros.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, without characters that any format would escape.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many along each dimension.
    pub shape: Vec<u64>,
}

impl Tensor {
    /// A tensor of this name, type and shape.
    pub fn new(name: &str, dtype: Dtype, shape: &[u64]) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.elements() * self.dtype.bytes()
    }
}

/// A type of elements that every format has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// 8-bit integers.
    I8,
    /// 32-bit integers.
    I32,
}

impl Dtype {
    fn bytes(self) -> u64 {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::I8 => "I8",
            Self::I32 => "I32",
        }
    }
}

/// A file of which only what is written takes memory; the rest is zeros, made when they are read.
#[derive(Debug, Clone, Default)]
pub struct Sparse {
    /// What was written, one piece after the other.
    written: Vec<u8>,
    /// Of each piece, where it begins in the file and in what was written.
    pieces: Vec<(u64, usize)>,
    length: u64,
}

impl Sparse {
    /// Writes at the end.
    pub fn write(&mut self, bytes: &[u8]) {
        let continues = self.pieces.last().is_some_and(|(offset, start)| {
            offset + (self.written.len() - start) as u64 == self.length
        });
        if !continues {
            self.pieces.push((self.length, self.written.len()));
        }
        self.written.extend_from_slice(bytes);
        self.length += bytes.len() as u64;
    }

    /// Adds zeros.
    pub fn skip(&mut self, bytes: u64) {
        self.length += bytes;
    }

    /// Adds zeros up to the next multiple.
    pub fn align(&mut self, multiple: u64) {
        self.length = self.length.next_multiple_of(multiple);
    }

    /// How many bytes were written.
    pub fn written(&self) -> u64 {
        self.written.len() as u64
    }

    /// All of it, for a small one.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        self.clone().read_at(0, &mut bytes).expect("all of it is there");
        bytes
    }
}

impl Bytes for Sparse {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.length);
        let end = end.ok_or_else(|| Error::new(ErrorKind::Io, "after the end"))?;
        buffer.fill(0);
        let first = self.pieces.partition_point(|(at, _)| *at <= offset).saturating_sub(1);
        for (number, (at, start)) in self.pieces.iter().enumerate().skip(first) {
            if *at >= end {
                break;
            }
            let stop = self.pieces.get(number + 1).map_or(self.written.len(), |(_, stop)| *stop);
            let piece = &self.written[*start..stop];
            let from = offset.max(*at);
            let until = end.min(at + piece.len() as u64);
            if from < until {
                buffer[(from - offset) as usize..(until - offset) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(until - at) as usize]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_file_reads_as_it_was_written() {
        let mut file = Sparse::default();
        file.write(b"ab");
        file.write(b"c");
        file.skip(3);
        file.write(b"d");
        file.align(4);
        file.write(b"e");
        let all = b"abc\0\0\0d\0e";
        assert_eq!((file.to_vec(), file.written()), (all.to_vec(), 5));
        for start in 0..=all.len() {
            for end in start..=all.len() {
                let mut part = vec![9; end - start];
                file.read_at(start as u64, &mut part).unwrap();
                assert_eq!(part, all[start..end], "{start}..{end}");
            }
        }
        assert!(file.read_at(8, &mut [0; 2]).is_err());
    }
}
