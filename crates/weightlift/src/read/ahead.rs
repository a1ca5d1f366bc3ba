//! What is read before there is a place for it: into the page cache, while a device starts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The ranges of a load that the page cache was made to hold. One for all its readers.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Bytes that may still be read ahead, once somebody has asked how many there may be.
    room: OnceLock<AtomicU64>,
    bytes: AtomicU64,
    /// Whether `cold` has anything in it.
    any: AtomicBool,
    /// Lengths of ranges of which the cache held nothing before, by source and offset: it is to
    /// hold nothing of them afterwards.
    cold: Mutex<BTreeMap<(usize, u64), u64>>,
}

/// Whether a range is read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is the caller's to read.
    Read,
    /// The cache has it, or cannot have it.
    Not,
    /// Neither this one nor any other.
    NoneAnyMore,
}

impl Ahead {
    /// Counts `length` bytes, if there is room for them.
    pub(super) fn claim(&self, length: u64, room: impl FnOnce() -> u64) -> Claim {
        let room = self.room.get_or_init(|| AtomicU64::new(room()));
        let take = |left: u64| left.checked_sub(length);
        if room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return Claim::NoneAnyMore;
        }
        self.bytes.fetch_add(length, Ordering::Relaxed);
        Claim::Read
    }

    /// Of this range the cache held nothing.
    pub(super) fn was_cold(&self, source: usize, offset: u64, length: u64) {
        self.cold().insert((source, offset), length);
        self.any.store(true, Ordering::Release);
    }

    /// Whether a range that was cold begins there and was read ahead.
    pub(super) fn holds(&self, source: usize, offset: u64) -> bool {
        self.any.load(Ordering::Acquire) && self.cold().contains_key(&(source, offset))
    }

    /// Bytes read ahead.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The ranges that were cold, in order, those that touch made one: source, offset, length.
    pub(super) fn take_cold(&self) -> Vec<(usize, u64, u64)> {
        let mut ranges: Vec<(usize, u64, u64)> = Vec::new();
        for ((source, offset), length) in std::mem::take(&mut *self.cold()) {
            match ranges.last_mut() {
                Some(last) if last.0 == source && last.1 + last.2 == offset => last.2 += length,
                _ => ranges.push((source, offset, length)),
            }
        }
        ranges
    }

    fn cold(&self) -> MutexGuard<'_, BTreeMap<(usize, u64), u64>> {
        self.cold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_asked_for_once_and_never_exceeded() {
        let ahead = Ahead::default();
        assert_eq!(ahead.claim(60, || 100), Claim::Read);
        assert_eq!(ahead.claim(41, || 1000), Claim::NoneAnyMore);
        assert_eq!(ahead.claim(40, || 0), Claim::Read);
        assert_eq!((ahead.claim(1, || 9), ahead.bytes()), (Claim::NoneAnyMore, 100));
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let ahead = Ahead::default();
        assert!(!ahead.holds(0, 0));
        for (source, offset) in [(1, 30), (0, 10), (0, 0), (1, 10), (0, 30)] {
            ahead.was_cold(source, offset, 10);
        }
        assert!(ahead.holds(0, 10) && !ahead.holds(0, 20));
        let ranges = [(0, 0, 20), (0, 30, 10), (1, 10, 10), (1, 30, 10)];
        assert_eq!((ahead.take_cold(), ahead.take_cold()), (ranges.to_vec(), vec![]));
    }
}
