//! Locks and atomics, from std or, in model checking, from loom.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

use std::time::Duration;

/// Locks, also after another thread panicked while it held the lock: what the locks here
/// guard is changed in single steps that leave it whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits to be notified, for `at_most` at the longest.
pub(crate) fn wait<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    at_most: Duration,
) -> MutexGuard<'a, T> {
    #[cfg(loom)]
    {
        // Time does not exist in the model: a wait that only a time-out ends is a defect there.
        let _ = at_most;
        condvar.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
    }
    #[cfg(not(loom))]
    {
        let waited = condvar.wait_timeout(guard, at_most);
        waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}
