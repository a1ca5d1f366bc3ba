//! Memory that is read into again and again, registered with a queue of reads.
#![allow(unsafe_code)] // hands the kernel addresses

use std::io;

use io_uring::IoUring;

use super::access::Access;
use crate::memory::HostRange;

/// The kernel takes at most 1 GiB as one buffer: 2 GiB are EFAULT, for root too (Linux 6.18).
const LONGEST: usize = 1 << 30;

/// What a reader's queue may know beforehand: the ring of staging blocks, and the reader's own
/// buffers. A read into registered memory need not look up its pages.
///
/// That saves nothing where they are huge pages, as they mostly are: 1.6 GB on one thread took
/// 0.016 processor seconds without and with. Where the kernel gives none it is two thirds: 0.062 and
/// 0.017, on two threads 0.069 and 0.023 (medians of 11, reads of 1 MiB past the cache, a virtual
/// disk; `read/tests/measure.rs`).
///
/// Registering looks up every page once, as reading into all of the memory does: so it is done by
/// who has read that much, and then pays within as much again. Until then there are also all the
/// load's queues, which registered memory would leave nothing of a small limit for.
pub(super) struct Fixed {
    /// Addresses and lengths, of at most [`LONGEST`]. The kernel knows them by their numbers.
    ranges: Vec<(usize, usize)>,
    /// Bytes that were read into them so far.
    read: usize,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotYet,
    Registered,
    Refused,
}

impl Fixed {
    pub(super) fn new(access: &Access) -> Self {
        let mut fixed = Self { ranges: Vec::new(), read: 0, state: State::NotYet };
        if let Some((start, length)) = access.staging() {
            fixed.push(start, length);
        }
        fixed
    }

    /// Memory that is the reader's own for as long as it lives.
    pub(super) fn add(&mut self, own: HostRange) {
        if self.state == State::NotYet {
            self.push(own.pointer.as_ptr() as usize, own.length);
        }
    }

    fn push(&mut self, start: usize, length: usize) {
        let chunks = (0..length).step_by(LONGEST);
        self.ranges.extend(chunks.map(|at| (start + at, LONGEST.min(length - at))));
    }

    /// The number by which the kernel knows the memory of the next read, if it does.
    pub(super) fn number(
        &mut self,
        queue: &IoUring,
        access: &Access,
        memory: HostRange,
        length: usize,
    ) -> Option<u16> {
        let first = memory.pointer.as_ptr() as usize;
        let holds =
            |(start, whole): &(usize, usize)| *start <= first && first + length <= start + whole;
        let number = self.ranges.iter().position(holds)?;
        self.read = self.read.saturating_add(length);
        let whole: usize = self.ranges.iter().map(|(_, length)| length).sum();
        if self.state == State::NotYet && self.read > whole {
            self.register(queue, access);
        }
        if self.state == State::Registered { u16::try_from(number).ok() } else { None }
    }

    /// Whoever is refused (ENOMEM by a limit of locked memory, EPERM, EFAULT) reads as before.
    pub(super) fn register(&mut self, queue: &IoUring, access: &Access) {
        let registered = register(queue, &self.ranges);
        self.state = if registered.is_ok() { State::Registered } else { State::Refused };
        access.set_registered(registered);
    }

    /// Registers nothing.
    #[cfg(test)]
    pub(super) fn refuse(&mut self) {
        self.state = State::Refused;
    }

    #[cfg(test)]
    pub(super) fn is_registered(&self) -> bool {
        self.state == State::Registered
    }
}

/// An address and a length as the kernel takes them: an `iovec`.
#[repr(C)]
struct Buffer {
    start: *const u8,
    length: usize,
}

fn register(queue: &IoUring, ranges: &[(usize, usize)]) -> io::Result<()> {
    let buffer = |(start, length): &(usize, usize)| Buffer {
        start: std::ptr::with_exposed_provenance(*start),
        length: *length,
    };
    let buffers: Vec<Buffer> = ranges.iter().map(buffer).collect();
    // SAFETY: the list is laid out as the call takes it and is read while it runs. The memory is
    // mapped: the ring stays as long as the load whose reader this is, the reader's buffers as long
    // as the reader; and the kernel keeps the pages even if they are unmapped. It writes to them
    // only for reads that are asked for, each into a place that is the reader's.
    unsafe {
        let buffers = std::slice::from_raw_parts(buffers.as_ptr().cast(), buffers.len());
        queue.submitter().register_buffers(buffers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// UR-03.
    #[test]
    fn no_buffer_is_longer_than_a_gib() {
        let mut fixed = Fixed { ranges: Vec::new(), read: 0, state: State::NotYet };
        fixed.push(4096, 2 * LONGEST + 8192);
        let expected = [(4096, LONGEST), (4096 + LONGEST, LONGEST), (4096 + 2 * LONGEST, 8192)];
        assert_eq!(fixed.ranges, expected);
    }
}
