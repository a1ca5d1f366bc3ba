//! How much memory a piece of work takes, counted where it is allocated.
//!
//! The operating system's figures do not show what is allocated and never touched, and that is
//! what a length believed too early looks like.
#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a thread has allocated, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// At the end.
    pub kept: i64,
    /// At most at any time.
    pub peak: i64,
    /// In the largest allocation.
    pub largest: i64,
}

// Counted for each thread, since tests run beside each other. Memory that another thread frees is
// never taken off, so kept may then be too large; no parser starts threads.
thread_local! {
    static USAGE: Cell<Usage> = const { Cell::new(Usage { kept: 0, peak: 0, largest: 0 }) };
}

/// Runs `work` and says what memory it took on this thread, beyond what was there before.
pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Usage) {
    let before = USAGE.replace(Usage::default());
    let result = work();
    let during = USAGE.get();
    USAGE.set(Usage {
        kept: before.kept + during.kept,
        peak: before.peak.max(before.kept + during.peak),
        largest: before.largest.max(during.largest),
    });
    (result, during)
}

/// The system's allocator, counting.
struct Counting;

fn count(taken: usize, given_back: usize) {
    // Not there any more while the thread ends: then nobody measures.
    let _ = USAGE.try_with(|usage| {
        let mut now = usage.get();
        now.kept += taken as i64 - given_back as i64;
        now.peak = now.peak.max(now.kept);
        now.largest = now.largest.max(taken as i64);
        usage.set(now);
    });
}

// SAFETY: every call goes to the system's allocator with the arguments that came, and counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the rules of this trait, which are those of the callee.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_counted_touched_or_not() {
        let (kept, usage) = measure(|| {
            drop(Vec::<u8>::with_capacity(1 << 30));
            vec![0u8; 1000]
        });
        assert_eq!(usage, Usage { kept: 1000, peak: 1 << 30, largest: 1 << 30 });
        let ((), outer) = measure(|| {
            let inner = measure(|| vec![0u8; 500]).1;
            assert_eq!(inner, Usage { kept: 500, peak: 500, largest: 500 });
            drop(kept);
        });
        assert_eq!((outer.kept, outer.peak), (-1000, 500));
    }
}
