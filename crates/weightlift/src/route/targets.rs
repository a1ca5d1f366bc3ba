//! Where copies go: the destinations on a device, as they become known.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::device::{CopyQueue, DeviceCopy, DeviceMemory, Keep};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Copy;
use crate::sync::{Condvar, Mutex, lock, wait};

/// How long a reader sleeps before it looks whether the load was stopped.
const STOP_POLL: Duration = Duration::from_millis(20);

/// One place per planned storage, provided in the plan's order while readers already run, and
/// the queue that copies there.
pub(crate) struct Targets {
    queue: OnceLock<Box<dyn CopyQueue>>,
    places: Vec<OnceLock<DeviceMemory>>,
    /// How many storages have a place, from the first on.
    provided: Mutex<usize>,
    more: Condvar,
}

impl Targets {
    pub(crate) fn new(storages: usize) -> Self {
        let places = std::iter::repeat_with(OnceLock::new).take(storages).collect();
        Self { queue: OnceLock::new(), places, provided: Mutex::new(0), more: Condvar::new() }
    }

    /// Sets the queue, once, before the first place is provided.
    pub(crate) fn set_queue(&self, queue: Box<dyn CopyQueue>) {
        let set = self.queue.set(queue);
        debug_assert!(set.is_ok(), "a load has one queue");
    }

    /// The queue; `None` until it is set: then no copy can have been submitted.
    pub(crate) fn queue(&self) -> Option<&dyn CopyQueue> {
        self.queue.get().map(|queue| &**queue)
    }

    /// Gives the next storages, in the plan's order, their places. From now on blocks of
    /// storages that have one are copied: staging memory that is to be pinned is pinned by now.
    ///
    /// Many at once: every call wakes all readers that wait.
    pub(crate) fn provide(&self, memories: impl IntoIterator<Item = DeviceMemory>) {
        let mut provided = lock(&self.provided);
        for (place, memory) in self.places[*provided..].iter().zip(memories) {
            let _ = place.set(memory);
            *provided += 1;
        }
        drop(provided);
        self.more.notify_all();
    }

    /// The places, once all are provided.
    pub(crate) fn places(&self) -> Vec<DeviceMemory> {
        self.places.iter().filter_map(OnceLock::get).cloned().collect()
    }

    /// Somebody may still be writing to the places.
    pub(crate) fn quarantine(&self) {
        for memory in self.places.iter().filter_map(OnceLock::get) {
            memory.keep.quarantine();
        }
    }

    /// The copies of a block with their addresses; waits until its storages have places. What
    /// lies side by side in the block and in one allocation becomes one copy.
    pub(super) fn copies(
        &self,
        planned: &[Copy],
        stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<DeviceCopy>> {
        let needed = planned.iter().map(|copy| copy.storage + 1).max().unwrap_or(0);
        let mut provided = lock(&self.provided);
        while *provided < needed {
            if stopped() {
                return Err(Error::new(ErrorKind::Cancelled, "the load was stopped"));
            }
            provided = wait(&self.more, provided, STOP_POLL);
        }
        drop(provided);
        let mut copies: Vec<DeviceCopy> = Vec::with_capacity(planned.len());
        let mut last_keep: Option<&Arc<dyn Keep>> = None;
        for copy in planned {
            let Some(memory) = self.places[copy.storage].get() else {
                return Err(Error::new(ErrorKind::Internal, "a storage has no place"));
            };
            let next = DeviceCopy {
                from: copy.block_offset as usize,
                to: memory.pointer + copy.storage_offset,
                length: copy.length as usize,
            };
            let same = last_keep.is_some_and(|keep| Arc::ptr_eq(keep, &memory.keep));
            match copies.last_mut() {
                Some(last)
                    if same
                        && last.from + last.length == next.from
                        && last.to + last.length as u64 == next.to =>
                {
                    last.length += next.length;
                }
                _ => copies.push(next),
            }
            last_keep = Some(&memory.keep);
        }
        Ok(copies)
    }
}
