//! Device memory.
//!
//! Addresses lie far above any that a process can have, are multiples of 512 and never used twice;
//! between allocations there is a gap, so that running over an end is always seen.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::digest::Digest;
use crate::world::{Status, World, status};

/// Alignment of addresses, and granularity of sizes.
const ALIGN: u64 = 512;
/// Device bytes are kept in pieces of this size, from the first write to one.
const CHUNK: usize = 256 << 10;

/// One allocation. Copies hold it too, so that freeing it under them is a violation, not a crash.
pub(crate) struct Allocation {
    pub start: u64,
    pub len: u64,
    pub device: usize,
    contents: Mutex<Contents>,
}

enum Contents {
    Kept { fill: u8, chunks: BTreeMap<u64, Box<[u8]>> },
    Discarded(Digest),
}

/// All allocations by address.
#[derive(Default)]
pub(crate) struct Memory {
    live: BTreeMap<u64, Arc<Allocation>>,
    freed: BTreeMap<u64, u64>,
}

impl World {
    pub fn allocate(&mut self, device: usize, len: u64) -> Result<u64, Status> {
        if len == 0 {
            return Err(status::INVALID_VALUE);
        }
        let memory = self.config.memory;
        let owner = &mut self.devices[device];
        let taken = len
            .checked_next_multiple_of(ALIGN)
            .filter(|&taken| taken <= memory - owner.used)
            .ok_or(status::OUT_OF_MEMORY)?;
        let start = owner.next_address;
        owner.next_address += taken + ALIGN;
        owner.used += taken;
        self.counts.allocated_bytes += taken;
        self.counts.allocated_peak = self.counts.allocated_peak.max(self.counts.allocated_bytes);
        let contents = if self.config.discard != 0 {
            Contents::Discarded(Digest::default())
        } else {
            Contents::Kept { fill: self.config.fill as u8, chunks: BTreeMap::new() }
        };
        let allocation = Allocation { start, len, device, contents: Mutex::new(contents) };
        self.memory.live.insert(start, Arc::new(allocation));
        Ok(start)
    }

    pub fn free(&mut self, start: u64) -> Result<(), Status> {
        if start == 0 {
            return Ok(());
        }
        let Some(gone) = self.memory.live.remove(&start) else {
            let what = if self.memory.freed.contains_key(&start) {
                "was freed before"
            } else {
                "is not the start of an allocation"
            };
            self.violation(format!("{start:#x} {what}"));
            return Err(status::INVALID_VALUE);
        };
        if self.pending(|work| work.allocation() == Some(start)) {
            self.violation(format!("{start:#x}+{} freed under a running copy", gone.len));
        }
        self.memory.freed.insert(start, gone.len);
        let taken = gone.len.next_multiple_of(ALIGN);
        self.devices[gone.device].used -= taken;
        self.counts.allocated_bytes -= taken;
        Ok(())
    }

    /// The allocation that holds a range, and the range's offset in it.
    pub fn find(&self, address: u64, len: u64) -> Option<(Arc<Allocation>, u64)> {
        let (&start, allocation) = self.memory.live.range(..=address).next_back()?;
        let offset = address - start;
        (offset < allocation.len && len <= allocation.len - offset)
            .then(|| (Arc::clone(allocation), offset))
    }

    /// As [`World::find`], for a copy of `device`; telling off who asks for what is not there.
    pub fn range(
        &mut self,
        device: usize,
        address: u64,
        len: u64,
    ) -> Result<(Arc<Allocation>, u64), Status> {
        let Some(found) = self.find(address, len) else {
            let freed = self.memory.freed.range(..=address).next_back();
            let what = match freed {
                Some((start, freed)) if address - start < *freed => "lies in freed memory",
                _ => "does not lie within one allocation",
            };
            self.violation(format!("{address:#x}+{len} {what}"));
            return Err(status::INVALID_VALUE);
        };
        if found.0.device != device {
            self.violation(format!(
                "{address:#x} is memory of device {}, not of device {device}",
                found.0.device
            ));
            return Err(status::INVALID_VALUE);
        }
        Ok(found)
    }

    pub fn allocations_of(&self, device: usize) -> Vec<u64> {
        let of_device = |a: &&Arc<Allocation>| a.device == device;
        let live = self.memory.live.values().filter(of_device);
        live.map(|a| a.start).collect()
    }

    pub fn allocations(&self) -> usize {
        self.memory.live.len()
    }
}

impl Allocation {
    /// Writes `len` bytes at `offset`; `fetch` fills a buffer with those from its second argument
    /// on. On an error the pieces before it are written.
    pub fn write(
        &self,
        offset: u64,
        len: u64,
        mut fetch: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut contents = self.contents();
        for (chunk, within, done, count) in pieces(offset, len) {
            match &mut *contents {
                Contents::Kept { fill, chunks } => {
                    let chunk = chunks
                        .entry(chunk)
                        .or_insert_with(|| vec![*fill; CHUNK].into_boxed_slice());
                    fetch(&mut chunk[within..within + count], done)?;
                }
                Contents::Discarded(digest) => {
                    let mut buffer = vec![0; count];
                    fetch(&mut buffer, done)?;
                    digest.add(offset + done, &buffer);
                }
            }
        }
        Ok(())
    }

    /// Reads `len` bytes at `offset` piece by piece; false if the device does not keep bytes.
    pub fn read(&self, offset: u64, len: u64, mut give: impl FnMut(&[u8], u64)) -> bool {
        let Contents::Kept { fill, chunks } = &*self.contents() else {
            return false;
        };
        for (chunk, within, done, count) in pieces(offset, len) {
            match chunks.get(&chunk) {
                Some(bytes) => give(&bytes[within..within + count], done),
                None => give(&vec![*fill; count], done),
            }
        }
        true
    }

    /// The digest of what was written, if the device does not keep bytes.
    pub fn digest(&self) -> Option<Digest> {
        match &*self.contents() {
            Contents::Kept { .. } => None,
            Contents::Discarded(digest) => Some(*digest),
        }
    }

    /// Damages the byte at `offset`.
    pub fn flip(&self, offset: u64) {
        let mut old = [0];
        if self.read(offset, 1, |byte, _| old.copy_from_slice(byte)) {
            let flip = |into: &mut [u8], _| {
                into[0] = !old[0];
                Ok(())
            };
            self.write(offset, 1, flip).expect("a write from memory does not fail");
        } else if let Contents::Discarded(digest) = &mut *self.contents() {
            digest.disturb(offset);
        }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a range at chunk borders: chunk, offset in the chunk, bytes before, bytes.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, u64, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = (at % CHUNK as u64) as usize;
        let count = (len - done).min((CHUNK - within) as u64);
        let piece = (at / CHUNK as u64, within, done, count as usize);
        done += count;
        Some(piece)
    })
}
