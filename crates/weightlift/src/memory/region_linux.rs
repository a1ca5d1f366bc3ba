//! Page-aligned anonymous memory.
#![allow(unsafe_code)] // mmap, munmap and madvise work on addresses

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

use super::HostRange;
use crate::error::{Error, ErrorKind, Result};
use crate::system::{self, PAGE};

/// Huge pages of x86-64 and of 4 KiB-page arm64. A region that starts at a multiple can be
/// made of them wholly: 2 MiB pages are zeroed and looked up 512 times less often. One thread
/// touches 1 GiB of new memory in 0.06 to 0.12 s instead of 0.57 to 0.84 s (four runs of
/// `examples/ceilings.rs --touch`, a virtual machine of 2 processors that were busy otherwise). A shorter region has no room for one.
const HUGE_PAGE: usize = 2 << 20;

/// How much of `length` bytes is to be of huge pages where `free` bytes are in pieces of that size,
/// as far as the system tells: for more the kernel would move others' pages together first, and whoever
/// touches waits. On a machine whose memory is full of cached files loads take three quarters of the
/// time since nothing is asked for that is not there (docs/benchmarks.md).
fn huge_part(length: usize, free: Option<u64>) -> usize {
    let free = free.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    if length <= free { length } else { free / HUGE_PAGE * HUGE_PAGE }
}

/// Zeroed memory of our own, in whole pages, given back when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: the region owns its mapping; nothing about a mapping is bound to a thread.
unsafe impl Send for Region {}
// SAFETY: shared access hands out addresses only.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes, rounded up to whole pages. Costs no memory until it is touched.
    pub(crate) fn new(length: u64) -> Result<Self> {
        let refused = |reason: &dyn std::fmt::Display| {
            Error::new(ErrorKind::OutOfHostMemory, "cannot map memory")
                .with("bytes", length)
                .with("reason", reason)
        };
        let length = usize::try_from(length.max(1))
            .ok()
            .and_then(|length| length.checked_next_multiple_of(PAGE))
            .ok_or_else(|| refused(&"the size does not fit the address space"))?;
        // Room to begin at a multiple of the huge page; what is over goes back at once.
        let slack = if length >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let mapped = length.checked_add(slack).ok_or_else(|| refused(&"the size overflows"))?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing.
        let start = unsafe {
            mm::mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags)
        }
        .map_err(|error| refused(&error))?;
        let head = if slack == 0 { 0 } else { start.cast::<u8>().align_offset(HUGE_PAGE) };
        let unmap = |from: *mut c_void, length: usize| {
            if length > 0 {
                // SAFETY: a part of the mapping made above that nobody has seen yet. Should it
                // fail, the part stays mapped, unused and untouched.
                let _ = unsafe { mm::munmap(from, length) };
            }
        };
        let begin = start.wrapping_byte_add(head);
        unmap(start, head);
        unmap(begin.wrapping_byte_add(length), slack - head);
        let huge =
            if length >= HUGE_PAGE { huge_part(length, system::free_huge_pages()) } else { 0 };
        if huge > 0 {
            // SAFETY: advice on our own mapping; a kernel without huge pages refuses it, and
            // then small ones serve as well, slower.
            let _ = unsafe { mm::madvise(begin, huge, Advice::LinuxHugepage) };
        }
        let pointer =
            NonNull::new(begin.cast()).ok_or_else(|| refused(&"the kernel gave address 0"))?;
        Ok(Self { pointer, length })
    }

    pub(crate) fn range(&self) -> HostRange {
        HostRange { pointer: self.pointer, length: self.length }
    }

    /// The memory itself, for an owner who has given no part of it to a place or a device.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, initialised (anonymous pages are zeroed) and borrowed exclusively.
        // Whoever gave away a part of the region shares it with those who have the part, so that
        // it cannot be borrowed so.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and, the region being dropped, nobody's any more; whoever
        // registered it or copies from it holds the region alive (ring.rs, host_memory.rs).
        let unmapped = unsafe { mm::munmap(self.pointer.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own could not be unmapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_page_aligned_and_large_ones_start_at_a_huge_page() {
        for length in [1, 4096, 4097, (2 << 20) - 1, 2 << 20, (5 << 20) + 1] {
            let region = Region::new(length).unwrap();
            let range = region.range();
            assert_eq!(range.length as u64, length.next_multiple_of(PAGE as u64));
            let align = if range.length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
            assert_eq!(range.pointer.as_ptr() as usize % align, 0);
        }
    }

    #[test]
    fn huge_pages_are_asked_for_where_there_are_some() {
        const MIB: usize = 1 << 20;
        assert_eq!(huge_part(5 * MIB, None), 5 * MIB);
        assert_eq!(huge_part(5 * MIB, Some(5 * MIB as u64)), 5 * MIB);
        assert_eq!(huge_part(5 * MIB, Some(5 * MIB as u64 - 1)), 4 * MIB);
        assert_eq!(huge_part(5 * MIB, Some(0)), 0);
        // And the region is whole in any case.
        let mut region = Region::new(64 << 20).unwrap();
        region.bytes().fill(1);
        assert!(region.bytes().iter().step_by(4096).all(|byte| *byte == 1));
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        for length in [u64::MAX, u64::MAX - 4096, 1 << 62] {
            assert_eq!(Region::new(length).unwrap_err().kind(), ErrorKind::OutOfHostMemory);
        }
    }
}
