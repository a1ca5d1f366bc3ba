//! A way to stop a load from another thread or a signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the loads that carry it. Clones stop the same loads.
///
/// A stopped load ends with an error of kind `Cancelled` within 0.2 s where the storage
/// answers: reads that are under way are waited for, and so are copies.
///
/// ```
/// use weightlift::CancelToken;
/// let token = CancelToken::new();
/// let same = token.clone();
/// same.cancel();
/// assert!(token.is_cancelled());
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that stops nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the loads, now and from now on.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether loads are to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
