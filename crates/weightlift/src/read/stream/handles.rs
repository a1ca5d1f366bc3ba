//! A source, opened once for each thread that reads from it at the same time.

use std::io::IoSliceMut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::super::retry::{Attempts, LONGEST_READ, Next, ended, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{OpenSource, Source};
use crate::sync::{Condvar, Mutex, lock, wait};

/// The kernel keeps the state of its read-ahead per opened file: threads that share one undo each
/// other's. So whoever reads takes an opened source for that long, and gives it back for the next.
pub(super) struct Handles {
    source: Arc<dyn Source>,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Box<dyn OpenSource>>,
    lent: usize,
}

/// A read that did not bring all.
#[derive(Debug)]
pub(super) struct Short {
    /// Bytes that came before it failed: these are good.
    pub(super) done: usize,
    pub(super) error: Error,
}

impl Handles {
    pub(super) fn new(source: Arc<dyn Source>) -> Self {
        Self { source, state: Mutex::new(State::default()), given_back: Condvar::new() }
    }

    pub(super) fn source(&self) -> &dyn Source {
        &*self.source
    }

    /// Fills `buffer` with the bytes at `offset` of the source. A source that panics is an error
    /// of kind `Internal`: whoever waits for its bytes is told.
    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), Short> {
        let mut opened = match self.take() {
            Ok(opened) => Some(opened),
            Err(error) => return Err(Short { done: 0, error }),
        };
        let read = catch_unwind(AssertUnwindSafe(|| self.read_by(&mut opened, buffer, offset)));
        let read = read.unwrap_or_else(|_| Err(Short { done: 0, error: self.panicked(offset) }));
        // After an error it is opened anew, which looks whether it is still the same.
        self.give_back(opened.filter(|_| read.is_ok()));
        read
    }

    fn read_by(
        &self,
        opened: &mut Option<Box<dyn OpenSource>>,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), Short> {
        let source = self.source();
        let mut attempts = Attempts::default();
        let mut done = 0;
        while done < buffer.len() {
            let open = match opened.take().map_or_else(|| source.open(), Ok) {
                Ok(open) => opened.insert(open),
                Err(error) => return Err(Short { done, error }),
            };
            let at = offset + done as u64;
            let rest = &mut buffer[done..];
            let most = rest.len().min(LONGEST_READ);
            match open.read_at(&mut [IoSliceMut::new(&mut rest[..most])], at) {
                Ok(0) => return Err(Short { done, error: ended(source, at, rest.len()) }),
                Ok(count) => {
                    done += count;
                    attempts.progressed();
                }
                Err(error) => match attempts.after(&error) {
                    Next::Again => {}
                    Next::Reopen => *opened = None,
                    Next::Fail => return Err(Short { done, error: failed(error, source, at) }),
                },
            }
        }
        Ok(())
    }

    fn take(&self) -> Result<Box<dyn OpenSource>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(opened) = state.idle.pop() {
                state.lent += 1;
                return Ok(opened);
            }
            drop(state);
            let opened = self.source.open();
            state = lock(&self.state);
            match opened {
                Ok(opened) => {
                    state.lent += 1;
                    return Ok(opened);
                }
                // Too many open files, as a rule: fewer read at once then. One may have come back
                // meanwhile.
                Err(error)
                    if error.kind() == ErrorKind::Io
                        && (state.lent > 0 || !state.idle.is_empty()) =>
                {
                    while state.idle.is_empty() && state.lent > 0 {
                        state = wait(&self.given_back, state, Duration::from_millis(20));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn give_back(&self, opened: Option<Box<dyn OpenSource>>) {
        let mut state = lock(&self.state);
        state.lent -= 1;
        state.idle.extend(opened);
        drop(state);
        self.given_back.notify_all();
    }

    fn panicked(&self, offset: u64) -> Error {
        Error::new(ErrorKind::Internal, "a source panicked while it was read")
            .with("file", self.source.name())
            .with("offset", offset)
    }
}
