//! Memory to read into, for tests of readers.
#![allow(unsafe_code)] // hands out parts of a region as places

use std::sync::Arc;

use super::{HostRange, Place, Region, Writer};

/// Zeros, to be handed out as places and looked at when the places are gone.
pub(crate) struct Scratch {
    region: Arc<Region>,
    writer: Writer,
    length: usize,
}

impl Scratch {
    /// `length` bytes that begin at a page.
    pub(crate) fn new(length: usize) -> Self {
        let region = Arc::new(Region::new(length as u64).unwrap());
        let range = region.range();
        assert!(length <= range.length);
        // SAFETY: zeroed pages, mapped as long as the region, which every place keeps; they are
        // handed out by this writer alone.
        let writer = unsafe { Writer::new(range.pointer, length) };
        Self { region, writer, length }
    }

    /// The next ranges as one place: each is so many bytes behind the one before, and so long.
    pub(crate) fn place(&mut self, ranges: &[(usize, usize)]) -> Place {
        let mut place = Place::empty(self.region.clone());
        for (skip, length) in ranges {
            assert!(skip + length <= self.writer.rest(), "no room left");
            self.writer.skip(*skip);
            self.writer.give(*length, &mut place);
        }
        place
    }

    /// All of the memory.
    pub(crate) fn range(&self) -> HostRange {
        self.region.range()
    }

    /// How many places are out.
    pub(crate) fn out(&self) -> usize {
        Arc::strong_count(&self.region) - 1
    }

    /// What the memory holds. Panics while a place is out.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let Self { region, length, .. } = self;
        let mut region = Arc::try_unwrap(region).expect("no place is out");
        region.bytes()[..length].to_vec()
    }
}
