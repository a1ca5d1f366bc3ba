//! Where a piece is read to.
#![allow(unsafe_code)] // turns owned ranges of memory into slices

use std::any::Any;
use std::io::IoSliceMut;
use std::ptr::NonNull;
use std::sync::Arc;

use super::HostRange;
use crate::system::PAGE;

/// Keeps the memory behind a place mapped.
pub(crate) type Keep = Arc<dyn Any + Send + Sync>;

/// One or more ranges of memory that one reader may write and nobody else may touch: the
/// bytes of a piece go there in order.
pub(crate) struct Place {
    segments: Vec<Segment>,
    length: usize,
    fresh: bool,
    _keep: Keep,
}

#[derive(Clone, Copy)]
struct Segment {
    pointer: NonNull<u8>,
    length: usize,
}

// SAFETY: a segment is a range of memory that its place alone may touch (the constructors'
// contract), from whatever thread the place is on.
unsafe impl Send for Segment {}
// SAFETY: a shared place gives no access to its memory.
unsafe impl Sync for Segment {}

impl Place {
    /// No memory yet, in memory that `keep` keeps.
    pub(crate) fn empty(keep: Keep) -> Self {
        Self { segments: Vec::new(), length: 0, fresh: false, _keep: keep }
    }

    /// The same, in memory that may not have been touched since it was mapped.
    pub(crate) fn fresh(keep: Keep) -> Self {
        Self { fresh: true, ..Self::empty(keep) }
    }

    /// Has the kernel give fresh memory its pages. A page that a program touches is given under
    /// a lock of its part of the address space; one that a read system call touches first is
    /// given under the lock of all of it, one after the other for all threads. On a machine with
    /// 16 cores a host load, which touches, beats plain reads, which do not, by 20 %
    /// (docs/benchmarks.md).
    pub(crate) fn touch(&mut self) {
        for segment in self.segments.iter().filter(|_| self.fresh) {
            let mut at = 0;
            while at < segment.length {
                // SAFETY: within the segment, which this place alone may write, and whose
                // bytes are still to be read: their value does not matter.
                unsafe { segment.pointer.add(at).write_volatile(0) };
                at += PAGE;
            }
        }
    }

    /// Bytes of all ranges.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The ranges as buffers: what follows the first `skip` bytes, at most `most_bytes` in at
    /// most `most_buffers` buffers.
    pub(crate) fn buffers(
        &mut self,
        mut skip: usize,
        mut most_bytes: usize,
        most_buffers: usize,
    ) -> Vec<IoSliceMut<'_>> {
        let mut buffers = Vec::with_capacity(self.segments.len().min(most_buffers));
        for segment in &self.segments {
            let skipped = skip.min(segment.length);
            skip -= skipped;
            let length = (segment.length - skipped).min(most_bytes);
            if length > 0 && buffers.len() < most_buffers {
                // SAFETY: the segment is valid for writes, initialised (the contract of
                // `Writer::new`) and this place's alone; `&mut self` makes this the only
                // slice of it, and the segments of a place do not overlap.
                let slice = unsafe {
                    let start = segment.pointer.add(skipped);
                    std::slice::from_raw_parts_mut(start.as_ptr(), length)
                };
                buffers.push(IoSliceMut::new(slice));
                most_bytes -= length;
            }
        }
        buffers
    }

    /// The addresses and lengths of the ranges, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        self.segments.iter().map(|segment| (segment.pointer.as_ptr() as usize, segment.length))
    }

    /// What follows the first `skip` bytes of the place up to the end of their range, for a read
    /// that is under way for longer than a borrow. Empty behind the end.
    pub(crate) fn range_at(&mut self, mut skip: usize) -> HostRange {
        for segment in &self.segments {
            if skip < segment.length {
                // SAFETY: within the segment.
                let pointer = unsafe { segment.pointer.add(skip) };
                return HostRange { pointer, length: segment.length - skip };
            }
            skip -= segment.length;
        }
        HostRange { pointer: NonNull::dangling(), length: 0 }
    }

    /// Copies `bytes` to behind the first `skip` bytes; how many fit.
    pub(crate) fn write(&mut self, skip: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        for mut buffer in self.buffers(skip, bytes.len(), usize::MAX) {
            let end = done + buffer.len();
            buffer.copy_from_slice(&bytes[done..end]);
            done = end;
        }
        done
    }

    fn push(&mut self, segment: Segment) {
        self.length += segment.length;
        match self.segments.last_mut() {
            // What lies side by side is one buffer: fewer, longer reads.
            Some(last) if last.end() == segment.pointer => last.length += segment.length,
            _ => self.segments.push(segment),
        }
    }
}

impl Segment {
    fn end(&self) -> NonNull<u8> {
        // SAFETY: one past the end of the segment's range.
        unsafe { self.pointer.add(self.length) }
    }
}

/// Hands out a range of memory from front to back, each byte once.
pub(crate) struct Writer {
    rest: Segment,
}

impl Writer {
    /// # Safety
    ///
    /// The `length` bytes at `pointer` are initialised and valid for writes for as long as any
    /// place that is made from this writer lives, and until then nobody but those places
    /// touches them.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize) -> Self {
        Self { rest: Segment { pointer, length } }
    }

    /// Bytes not handed out yet.
    pub(crate) fn rest(&self) -> usize {
        self.rest.length
    }

    /// Passes over the next `length` bytes, or all that are left.
    pub(crate) fn skip(&mut self, length: usize) {
        self.take(length);
    }

    /// Adds the next `length` bytes, or all that are left, to `place`; how many.
    pub(crate) fn give(&mut self, length: usize, place: &mut Place) -> usize {
        let segment = self.take(length);
        if segment.length > 0 {
            place.push(segment);
        }
        segment.length
    }

    fn take(&mut self, length: usize) -> Segment {
        let length = length.min(self.rest.length);
        let taken = Segment { pointer: self.rest.pointer, length };
        // SAFETY: `length` is at most what is left, so this is within the range or its end.
        self.rest.pointer = unsafe { self.rest.pointer.add(length) };
        self.rest.length -= length;
        taken
    }
}

/// Host memory that holds what was loaded.
#[derive(Clone)]
pub(crate) struct Memory {
    pointer: NonNull<u8>,
    length: usize,
    keep: Keep,
}

// SAFETY: the range is only read through `&self` and kept alive by `keep`, on any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// # Safety
    ///
    /// The `length` bytes at `pointer` are initialised and valid for reads as long as `keep`
    /// or a clone of it lives, and nobody writes them while [`bytes`](Self::bytes) is out.
    pub(crate) unsafe fn new(pointer: NonNull<u8>, length: usize, keep: Keep) -> Self {
        Self { pointer, length, keep }
    }

    pub(crate) fn keep(&self) -> Keep {
        self.keep.clone()
    }

    pub(crate) fn pointer(&self) -> NonNull<u8> {
        self.pointer
    }

    /// What the memory holds.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the contract of `new`; `keep` lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr(), self.length) }
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({:p} +{})", self.pointer, self.length)
    }
}
