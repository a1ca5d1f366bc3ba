//! What callers hold.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use weightlift_index::{Dtype, TensorInfo};
use xxhash_rust::xxh3::Xxh3;

use crate::device::{DeviceId, Location};
use crate::error::Result;
use crate::memory::Memory;
use crate::verify::{TensorDigests, Tree};

/// A tensor in its destination. Cheap to clone; its memory, which all tensors of a load share
/// unless the caller provided it or asked for tensors that lie [apart](crate::Request::apart), is
/// given back when the last clone of the last one is gone.
#[derive(Clone)]
pub struct Tensor {
    name: Arc<str>,
    dtype: Dtype,
    shape: Arc<[u64]>,
    strides: Option<Arc<[u64]>>,
    offset: u64,
    length: u64,
    location: Location,
}

impl Tensor {
    /// The tensor that `info` describes, in a storage that is at `location`.
    pub(crate) fn new(info: &TensorInfo, location: Location) -> Self {
        Self {
            name: (&*info.name).into(),
            dtype: info.dtype.clone(),
            shape: info.shape.as_slice().into(),
            // The index's are not below zero (`Index::validate`).
            strides: info.strides.as_ref().map(|s| s.iter().map(|s| s.unsigned_abs()).collect()),
            offset: info.offset,
            length: info.length,
            location,
        }
    }

    /// Its name in the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its element type.
    pub fn dtype(&self) -> &Dtype {
        &self.dtype
    }

    /// Its shape, in elements; empty for a scalar. Elements lie densely, the last dimension's
    /// side by side, unless there are [`strides`](Self::strides).
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Elements to step over along each dimension; `None` if the tensor is dense and row-major.
    /// Only tensors of PyTorch checkpoints have any: views of others.
    pub fn strides(&self) -> Option<&[u64]> {
        self.strides.as_deref()
    }

    /// The bytes of memory that it covers, from its first element to its last: with strides that
    /// leave gaps more than its elements have.
    pub fn nbytes(&self) -> u64 {
        self.length
    }

    /// Where it is.
    pub fn device(&self) -> DeviceId {
        self.location.device()
    }

    /// Where its first byte is: a pointer for the host, an address of the driver's for CUDA.
    /// Valid as long as the tensor lives. In memory that weightlift allocated, storages
    /// start at a multiple of 64 in host memory and of 256 on CUDA devices. So do tensors, but for
    /// views and those that share bytes with others: they start wherever they do in their storage.
    pub fn address(&self) -> u64 {
        let storage = match &self.location {
            Location::Host(memory) => memory.pointer().as_ptr() as u64,
            Location::Device(memory) => memory.pointer,
        };
        storage + self.offset
    }

    /// Its bytes in host memory, gaps between elements included; `None` if it is elsewhere.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.location {
            Location::Host(memory) => Some(self.part_of(memory)),
            Location::Device(_) => None,
        }
    }

    /// A copy of its elements, dense and row-major, wherever it is.
    ///
    /// # Errors
    ///
    /// The device's, where the bytes have to come back from one.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.for_each_part(&mut |part| bytes.extend_from_slice(part))?;
        Ok(bytes)
    }

    /// The XXH3-64 of its elements as they lie in its memory, copied back from there; with strides
    /// in row-major order, so that it is that of the dense tensor.
    ///
    /// # Errors
    ///
    /// The device's, where the bytes have to come back from one.
    pub fn digest(&self) -> Result<u64> {
        let mut hasher = Xxh3::new();
        self.for_each_part(&mut |part| hasher.update(part))?;
        Ok(hasher.digest())
    }

    /// What a [`Manifest`](crate::Manifest) holds of it, of its bytes as they lie in its memory,
    /// copied back from there.
    ///
    /// # Errors
    ///
    /// The device's, where the bytes have to come back from one.
    pub fn digests(&self) -> Result<TensorDigests> {
        let (mut xxh3, mut tree) = (Xxh3::new(), Tree::default());
        if self.strides.is_some() {
            self.for_each_range(&mut |part| tree.update(part))?;
            self.for_each_part(&mut |part| xxh3.update(part))?;
        } else {
            // Both of a part while it is in the processor's cache.
            self.for_each_range(&mut |bytes| {
                bytes.chunks(1 << 16).for_each(|part| {
                    tree.update(part);
                    xxh3.update(part);
                });
            })?;
        }
        Ok(TensorDigests {
            name: self.name.to_string(),
            dtype: self.dtype.name().to_owned(),
            shape: self.shape.to_vec(),
            length: self.length,
            xxh3: xxh3.digest(),
            tree: tree.digest(),
        })
    }

    /// What keeps its memory alive.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(self.location.clone())
    }

    /// Its elements in row-major order, in parts.
    fn for_each_part(&self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Some(strides) = &self.strides else { return self.for_each_range(take) };
        let mut bytes = Vec::new();
        self.for_each_range(&mut |part| bytes.extend_from_slice(part))?;
        let size = self.dtype.layout().map_or(1, |layout| layout.bytes as usize);
        gather(&self.shape, strides, &mut |element| {
            // Elements lie within the tensor's range (`Index::validate`).
            let start = element as usize * size;
            take(bytes.get(start..start + size).unwrap_or(&[]));
        });
        Ok(())
    }

    /// The bytes that it covers, in parts.
    fn for_each_range(&self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        /// Enough for the bus, little beside a model.
        const PART: u64 = 8 << 20;
        match &self.location {
            Location::Host(memory) => take(self.part_of(memory)),
            Location::Device(memory) => {
                let mut buffer = vec![0; self.length.min(PART) as usize];
                let mut done = 0;
                while done < self.length {
                    let part = &mut buffer[..(self.length - done).min(PART) as usize];
                    memory.device.read_back(memory.pointer + self.offset + done, part)?;
                    take(part);
                    done += part.len() as u64;
                }
            }
        }
        Ok(())
    }

    fn part_of<'a>(&self, memory: &'a Memory) -> &'a [u8] {
        // The index's tensors lie within their storages (`Index::validate`).
        let start = self.offset as usize;
        memory.bytes().get(start..start + self.length as usize).unwrap_or(&[])
    }
}

/// Calls `take` with the position of every element, in row-major order.
fn gather(shape: &[u64], strides: &[u64], take: &mut dyn FnMut(u64)) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    let mut position = 0;
    loop {
        take(position);
        // Counts up, the last dimension fastest.
        let mut dimension = shape.len();
        loop {
            let Some(next) = dimension.checked_sub(1) else { return };
            dimension = next;
            index[dimension] += 1;
            position += strides[dimension];
            if index[dimension] < shape[dimension] {
                break;
            }
            position -= strides[dimension] * shape[dimension];
            index[dimension] = 0;
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({:?}, {}, {:?}, {})",
            self.name,
            self.dtype.name(),
            self.shape,
            self.device()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_gathered_in_row_major_order() {
        let table: [(&[u64], &[u64], &[u64]); 6] = [
            (&[], &[], &[0]),
            (&[3], &[2], &[0, 2, 4]),
            (&[2, 3], &[1, 2], &[0, 2, 4, 1, 3, 5]),
            (&[2, 2, 2], &[4, 0, 1], &[0, 1, 0, 1, 4, 5, 4, 5]),
            (&[2, 0], &[1, 1], &[]),
            (&[1, 2], &[100, 3], &[0, 3]),
        ];
        for (shape, strides, wanted) in table {
            let mut found = Vec::new();
            gather(shape, strides, &mut |position| found.push(position));
            assert_eq!(found, wanted, "{shape:?} {strides:?}");
        }
    }
}
