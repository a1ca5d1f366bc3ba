//! Threads that are started before there is work for them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// What a thread does once.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Threads that wait for work. Whoever is free takes what was given first. They end when there is
/// no more after [`close`](Self::close), or when this is dropped, which waits for them.
///
/// Starting a dozen takes a millisecond, in which a model can be opened: so the first of them
/// starts the others.
#[derive(Default)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    first: Option<JoinHandle<()>>,
    /// As many were asked for.
    asked: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    closed: bool,
    /// Threads that are there.
    count: usize,
    /// Whether there will be no more of them.
    all: bool,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Sees to it that there will be `count` threads, or as many as the system gives. It does not
    /// wait for them, unless fewer were asked for before.
    ///
    /// An error if not even one can be started.
    pub(crate) fn start(&mut self, count: usize) -> io::Result<()> {
        if count <= self.asked {
            return Ok(());
        }
        let shared = self.shared.clone();
        if self.first.is_some() {
            shared.start(self.count()..count);
            self.asked = count;
            return Ok(());
        }
        let start_others = move || {
            shared.start(1..count);
            shared.lock().all = true;
            shared.changed.notify_all();
            shared.serve();
        };
        self.shared.lock().count = 1;
        let first = start(0, start_others);
        if first.is_err() {
            self.shared.lock().count = 0;
        }
        self.first = Some(first?);
        self.asked = count;
        Ok(())
    }

    /// How many there are, once all are started.
    pub(crate) fn count(&self) -> usize {
        let mut state = self.shared.lock();
        while self.first.is_some() && !state.all {
            state = self.shared.wait(state);
        }
        state.count
    }

    /// Gives work to whoever is free first. Where there are no threads it is dropped.
    pub(crate) fn give(&self, work: Work) {
        if self.first.is_some() {
            self.shared.lock().work.push_back(work);
            self.shared.changed.notify_one();
        }
    }

    /// There will be no more work.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

fn start(number: usize, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("weightlift-{number}")).spawn(body)
}

impl Shared {
    /// Starts threads of these numbers, until the system gives no more.
    fn start(self: &Arc<Self>, numbers: Range<usize>) {
        for number in numbers {
            let shared = self.clone();
            let Ok(handle) = start(number, move || shared.serve()) else { return };
            let mut state = self.lock();
            state.handles.push(handle);
            state.count += 1;
        }
    }

    /// Does what there is to do, until there will be no more.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                // The panic has told itself; the thread is there for the next.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.close();
        if let Some(first) = self.first.take() {
            let _ = first.join();
        }
        let handles = std::mem::take(&mut self.shared.lock().handles);
        for handle in handles {
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn all_that_is_given_is_done_before_they_end() {
        let mut threads = Threads::default();
        threads.start(3).unwrap();
        assert_eq!(threads.count(), 3);
        let (sender, done) = mpsc::channel();
        for number in 0..20 {
            let sender = sender.clone();
            threads.give(Box::new(move || sender.send(number).unwrap()));
        }
        drop(sender);
        threads.close();
        let mut all: Vec<_> = done.iter().collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn each_of_them_takes_work_also_those_that_came_later() {
        let mut threads = Threads::default();
        threads.start(1).unwrap();
        threads.start(4).unwrap();
        threads.start(2).unwrap();
        assert_eq!(threads.count(), 4);
        // Nobody passes the barrier before all four are in it.
        let barrier = Arc::new(std::sync::Barrier::new(4));
        for _ in 0..4 {
            let barrier = barrier.clone();
            threads.give(Box::new(move || {
                barrier.wait();
            }));
        }
        drop(threads);
        assert_eq!(Arc::strong_count(&barrier), 1);
    }

    #[test]
    fn without_threads_work_is_dropped() {
        let threads = Threads::default();
        assert_eq!(threads.count(), 0);
        let (sender, done) = mpsc::channel::<()>();
        threads.give(Box::new(move || sender.send(()).unwrap()));
        assert!(done.recv().is_err());
    }

    #[test]
    fn work_that_panics_ends_no_thread() {
        let mut threads = Threads::default();
        threads.start(1).unwrap();
        threads.give(Box::new(|| panic!("on purpose")));
        let (sender, done) = mpsc::channel();
        threads.give(Box::new(move || sender.send(()).unwrap()));
        assert!(done.recv().is_ok());
    }
}
