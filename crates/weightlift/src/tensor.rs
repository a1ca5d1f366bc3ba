//! What callers hold.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use weightlift_index::Dtype;
use xxhash_rust::xxh3::Xxh3;

use crate::device::{DeviceId, Location};
use crate::error::Result;
use crate::memory::Memory;

/// A tensor in its destination. Cheap to clone; its memory, which all tensors of a load share
/// unless the caller provided it, is given back when the last clone of the last one is gone.
#[derive(Clone)]
pub struct Tensor {
    name: Arc<str>,
    dtype: Dtype,
    shape: Arc<[u64]>,
    offset: u64,
    length: u64,
    location: Location,
}

impl Tensor {
    pub(crate) fn new(
        name: &str,
        dtype: Dtype,
        shape: &[u64],
        offset: u64,
        length: u64,
        location: Location,
    ) -> Self {
        Self { name: name.into(), dtype, shape: shape.into(), offset, length, location }
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
    /// side by side.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Its bytes.
    pub fn nbytes(&self) -> u64 {
        self.length
    }

    /// Where it is.
    pub fn device(&self) -> DeviceId {
        self.location.device()
    }

    /// Where its first byte is: a pointer for the host, an address of the driver's for CUDA.
    /// Valid as long as a tensor of this load lives. Tensors in memory that weightlift
    /// allocated start at a multiple of 64 in host memory and of 256 on CUDA devices.
    pub fn address(&self) -> u64 {
        let storage = match &self.location {
            Location::Host(memory) => memory.pointer().as_ptr() as u64,
            Location::Device(memory) => memory.pointer,
        };
        storage + self.offset
    }

    /// Its bytes in host memory; `None` if it is elsewhere.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.location {
            Location::Host(memory) => Some(self.part_of(memory)),
            Location::Device(_) => None,
        }
    }

    /// A copy of its bytes, wherever it is.
    ///
    /// # Errors
    ///
    /// The device's, where the bytes have to come back from one.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.for_each_part(&mut |part| bytes.extend_from_slice(part))?;
        Ok(bytes)
    }

    /// The XXH3-64 of its bytes as they lie in its memory, copied back from there.
    ///
    /// # Errors
    ///
    /// The device's, where the bytes have to come back from one.
    pub fn digest(&self) -> Result<u64> {
        let mut hasher = Xxh3::new();
        self.for_each_part(&mut |part| hasher.update(part))?;
        Ok(hasher.digest())
    }

    /// What keeps its memory alive.
    pub fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(self.location.clone())
    }

    fn for_each_part(&self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
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
