//! Who has which block of a ring. States only, no memory: small enough to be model-checked.
//!
//! ```text
//!        acquire            submit               land, or the next acquire
//! Free ----------> Filling ---------> InFlight ---------------------------> Free
//!                     |                   | its end cannot be known
//!                     | abandon           v
//!                     +--> Free       Quarantined
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::Completion;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Condvar, Mutex, lock, wait};

/// How long a waiter sleeps before it looks whether its load was stopped meanwhile.
const STOP_POLL: Duration = Duration::from_millis(20);

/// The states of a ring's blocks and the queue of those who want one.
pub(super) struct Slots {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    slots: Vec<Slot>,
    /// Waiters are served in order: nobody starves when several loads share the ring.
    next_ticket: u64,
    queue: std::collections::VecDeque<u64>,
    /// Numbers submissions, so that the oldest one is known.
    submissions: u64,
    busy: usize,
    most_busy: usize,
}

enum Slot {
    Free,
    Filling,
    InFlight {
        submission: u64,
        completion: Arc<dyn Completion>,
    },
    /// Somebody may still read it; why.
    Quarantined(Error),
}

/// A submission to a slot, for [`Slots::land`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Submission {
    slot: usize,
    number: u64,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let slots = std::iter::repeat_with(|| Slot::Free).take(count).collect();
        let state = State {
            slots,
            next_ticket: 0,
            queue: std::collections::VecDeque::new(),
            submissions: 0,
            busy: 0,
            most_busy: 0,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Takes a free slot, waiting for one in turn: for the oldest copy under way, or for
    /// somebody who is filling one. An error if every slot is quarantined, if the copy that it
    /// waited for ended in an error, or of kind `Cancelled` once `stopped` says so.
    pub(super) fn acquire(&self, stopped: &dyn Fn() -> bool) -> Result<usize> {
        let mut state = lock(&self.state);
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(ticket);
        let taken = loop {
            if stopped() {
                break Err(Error::new(ErrorKind::Cancelled, "the load was stopped"));
            }
            if state.queue.front() == Some(&ticket) {
                if let Some(slot) = state.take_free() {
                    break Ok(slot);
                }
                if let Some((submission, completion)) = state.oldest() {
                    drop(state);
                    let ended = completion.wait();
                    state = lock(&self.state);
                    state.end(submission, &ended);
                    match ended {
                        Ok(()) => continue,
                        Err(error) => break Err(error),
                    }
                }
                if let Some(error) = state.nothing_left() {
                    break Err(error);
                }
            }
            state = wait(&self.changed, state, STOP_POLL);
        };
        state.queue.retain(|waiting| *waiting != ticket);
        drop(state);
        self.changed.notify_all();
        taken
    }

    /// Takes a slot that is free, before nobody who waits for one. An error if every slot is
    /// quarantined.
    pub(super) fn try_acquire(&self) -> Result<Option<usize>> {
        let mut state = lock(&self.state);
        if !state.queue.is_empty() {
            return Ok(None);
        }
        match (state.take_free(), state.nothing_left()) {
            (None, Some(error)) => Err(error),
            (slot, _) => Ok(slot),
        }
    }

    /// Gives back a slot that was taken and not submitted.
    pub(super) fn abandon(&self, slot: usize) {
        lock(&self.state).set(slot, Slot::Free);
        self.changed.notify_all();
    }

    /// Gives up a slot whose memory may still be read by somebody.
    pub(super) fn quarantine(&self, slot: usize, why: &Error) {
        lock(&self.state).set(slot, Slot::Quarantined(why.repeat()));
        self.changed.notify_all();
    }

    /// A copy out of the slot is under way until `completion` says that it is over.
    pub(super) fn submit(&self, slot: usize, completion: Arc<dyn Completion>) -> Submission {
        let mut state = lock(&self.state);
        let number = state.submissions;
        state.submissions += 1;
        state.set(slot, Slot::InFlight { submission: number, completion });
        drop(state);
        self.changed.notify_all();
        Submission { slot, number }
    }

    /// Waits until the copy is over and frees its slot. An error quarantines it, and is
    /// returned to everybody who asks for that copy as long as the slot stays as it is.
    pub(super) fn land(&self, submission: Submission) -> Result<()> {
        let completion = {
            let state = lock(&self.state);
            match &state.slots[submission.slot] {
                Slot::InFlight { submission: number, completion }
                    if *number == submission.number =>
                {
                    completion.clone()
                }
                Slot::Quarantined(why) => return Err(why.repeat()),
                // Somebody who needed the slot has waited for this copy already.
                _ => return Ok(()),
            }
        };
        let ended = completion.wait();
        lock(&self.state).end(submission, &ended);
        self.changed.notify_all();
        ended
    }

    /// Waits for all copies under way. Whether every slot is idle now.
    pub(super) fn settle(&self) -> bool {
        let mut state = lock(&self.state);
        while let Some((submission, completion)) = state.oldest() {
            drop(state);
            let ended = completion.wait();
            state = lock(&self.state);
            state.end(submission, &ended);
        }
        state.slots.iter().all(|slot| matches!(slot, Slot::Free))
    }

    /// Slots given up.
    pub(super) fn quarantined(&self) -> usize {
        let state = lock(&self.state);
        state.slots.iter().filter(|slot| matches!(slot, Slot::Quarantined(_))).count()
    }

    /// The most slots that were out of the free state at one time since the last call, which
    /// starts the count anew.
    pub(super) fn take_most_busy(&self) -> usize {
        let mut state = lock(&self.state);
        let busy = state.busy;
        std::mem::replace(&mut state.most_busy, busy)
    }
}

impl State {
    fn take_free(&mut self) -> Option<usize> {
        let slot = self.slots.iter().position(|slot| matches!(slot, Slot::Free))?;
        self.set(slot, Slot::Filling);
        Some(slot)
    }

    fn oldest(&self) -> Option<(Submission, Arc<dyn Completion>)> {
        let in_flight = self.slots.iter().enumerate().filter_map(|(slot, state)| match state {
            Slot::InFlight { submission, completion } => {
                Some((Submission { slot, number: *submission }, completion))
            }
            _ => None,
        });
        let (submission, completion) = in_flight.min_by_key(|(submission, _)| submission.number)?;
        Some((submission, completion.clone()))
    }

    /// Why there will never be a free slot again, if so.
    fn nothing_left(&self) -> Option<Error> {
        let mut reasons = self.slots.iter().map(|slot| match slot {
            Slot::Quarantined(why) => Some(why.repeat()),
            _ => None,
        });
        let first = reasons.next()??;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }

    /// The copy is over, or nobody can know; of those who waited for it the first one acts.
    fn end(&mut self, submission: Submission, ended: &Result<()>) {
        let current = &self.slots[submission.slot];
        if matches!(current, Slot::InFlight { submission: number, .. } if *number == submission.number)
        {
            let next = match ended {
                Ok(()) => Slot::Free,
                Err(why) => Slot::Quarantined(why.repeat()),
            };
            self.set(submission.slot, next);
        }
    }

    fn set(&mut self, slot: usize, next: Slot) {
        let is_busy = |slot: &Slot| matches!(slot, Slot::Filling | Slot::InFlight { .. });
        let before = is_busy(&self.slots[slot]);
        let after = is_busy(&next);
        self.busy = self.busy + usize::from(after) - usize::from(before);
        self.most_busy = self.most_busy.max(self.busy);
        self.slots[slot] = next;
    }
}

#[cfg(test)]
mod tests;
