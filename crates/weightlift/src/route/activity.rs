//! When somebody reads and when nobody does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts reads under way. Two locks a piece: 16,000 for 8 GiB, a few milliseconds of all
/// readers together.
#[derive(Debug, Default)]
pub(super) struct Activity(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    under_way: u32,
    /// When `under_way` changed last; `None` before the first read.
    since: Option<Instant>,
    /// Time of reads, added up over those under way at once.
    reading: Duration,
    /// Time in which none was under way, after the first.
    idle: Duration,
}

impl Activity {
    /// Nobody is going to read for now: the time counts as idle from here.
    pub(super) fn nobody_yet(&self) {
        self.lock().since.get_or_insert_with(Instant::now);
    }

    /// A read begins.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.advance();
        state.under_way += 1;
    }

    /// A read is over.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.advance();
        state.under_way = state.under_way.saturating_sub(1);
    }

    /// For how long nobody has been reading, from the first read on.
    pub(super) fn idle(&self) -> Duration {
        let mut state = self.lock();
        if state.since.is_some() {
            state.advance();
        }
        state.idle
    }

    /// Time of all reads, added up.
    pub(super) fn reading(&self) -> Duration {
        self.lock().reading
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn advance(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.since.unwrap_or(now));
        if self.under_way == 0 {
            self.idle += passed;
        } else {
            self.reading += passed * self.under_way;
        }
        self.since = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_reading_or_idle() {
        let pause = || std::thread::sleep(Duration::from_millis(10));
        let activity = Activity::default();
        pause();
        assert_eq!(activity.idle(), Duration::ZERO, "nothing counts before the first read");
        activity.begin();
        activity.begin();
        pause();
        activity.end();
        activity.end();
        let idle = activity.idle();
        pause();
        assert!(activity.reading() >= Duration::from_millis(20), "two readers count twice");
        assert!(activity.idle() - idle >= Duration::from_millis(10));
    }
}
