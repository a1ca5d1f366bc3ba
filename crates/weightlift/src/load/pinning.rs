//! Pins memory of our own that tensors are read into, part by part, behind the readers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::layout::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{HostMemory, Registrar};
use crate::plan::Plan;

/// Most bytes of one registration, unless one storage has more. Drivers refuse large ones: some
/// 2 GiB, the newest 512 GiB. Small ones cost no more, and the first are made while the rest is
/// still being read.
const LARGEST: u64 = 256 << 20;

/// Pins parts of memory as their bytes arrive: by then the readers have touched their pages,
/// several at a time, which a driver that pins would do alone.
///
/// A part holds whole storages: drivers refuse a copy that runs from one registration into the
/// next, so one that were cut could not be copied at once. A storage of more than 256 MiB is
/// therefore a part of its own, in one registration.
pub(super) struct Pinning {
    memory: Arc<HostMemory>,
    parts: Vec<Part>,
    /// By the storage's number in the plan.
    part_of: Vec<usize>,
    pinned: u64,
    took: Duration,
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    start: u64,
    end: u64,
    /// Bytes of its storages that are not there yet.
    left: u64,
}

impl Pinning {
    pub(super) fn new(memory: Arc<HostMemory>, plan: &Plan, layout: &Layout) -> Self {
        let lengths = plan.storages.iter().map(|storage| storage.length);
        let storages = layout.offsets.iter().copied().zip(lengths);
        let (mut parts, part_of) = divide(storages, LARGEST);
        // Whoever copies the memory in whole pages may.
        if let Some(last) = parts.last_mut() {
            last.end = memory.range().length as u64;
        }
        Self { memory, parts, part_of, pinned: 0, took: Duration::ZERO }
    }

    /// `length` more bytes of a storage are in place. Pins what is complete with them.
    pub(super) fn landed(
        &mut self,
        storage: usize,
        length: u64,
        registrar: &dyn Registrar,
    ) -> Result<()> {
        let part = &mut self.parts[self.part_of[storage]];
        part.left -= length;
        if part.left > 0 {
            return Ok(());
        }
        let began = Instant::now();
        let registered = self.memory.register(registrar, part.start, part.end - part.start);
        self.took += began.elapsed();
        registered.map_err(|error| needed(error).with("pinned_before", self.pinned))?;
        self.pinned += part.end - part.start;
        Ok(())
    }

    /// Bytes that are pinned.
    pub(super) fn pinned(&self) -> u64 {
        self.pinned
    }

    /// Time in the driver.
    pub(super) fn took(&self) -> Duration {
        self.took
    }
}

/// An error that ends a load because its destination was to be pinned.
pub(super) fn needed(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NoDriver | ErrorKind::NoDevice => {
            error.hint("install the NVIDIA driver, or load without --pin-host")
        }
        ErrorKind::PinFailed => error.hint("load fewer tensors, or load without --pin-host"),
        _ => error,
    }
}

/// Parts of at most `largest` bytes that hold whole storages, given as start and length in
/// ascending order; and for each storage the number of its part. A storage without bytes never
/// lands, and opens no part.
fn divide(storages: impl Iterator<Item = (u64, u64)>, largest: u64) -> (Vec<Part>, Vec<usize>) {
    let (mut parts, mut part_of) = (Vec::<Part>::new(), Vec::new());
    for (start, length) in storages {
        let end = start + length;
        match parts.last_mut() {
            _ if length == 0 => {}
            Some(part) if end - part.start <= largest => {
                part.end = end;
                part.left += length;
            }
            _ => parts.push(Part { start, end, left: length }),
        }
        part_of.push(parts.len().saturating_sub(1));
    }
    (parts, part_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_whole_storages() {
        let part = |start, end, left| Part { start, end, left };
        let storages = [(0, 0), (0, 60), (64, 36), (128, 100), (256, 300), (576, 0), (576, 1)];
        let (parts, of) = divide(storages.into_iter(), 100);
        let expected =
            [part(0, 100, 96), part(128, 228, 100), part(256, 556, 300), part(576, 577, 1)];
        assert_eq!(parts, expected);
        // Those without bytes belong nowhere: no byte of them ever lands.
        assert_eq!(of, [0, 0, 0, 1, 2, 2, 3]);
        assert_eq!(divide([(0, 0)].into_iter(), 100), (vec![], vec![0]));
    }
}
