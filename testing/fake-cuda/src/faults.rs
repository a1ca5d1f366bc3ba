//! Failures that a test asks for.

use std::collections::BTreeMap;

use crate::world::{Status, World};

/// Scripted failures, and how often each function was called.
#[derive(Default)]
pub(crate) struct Faults {
    calls: BTreeMap<&'static str, u64>,
    armed: Vec<Armed>,
    copy: Option<(u64, Status)>,
}

struct Armed {
    function: &'static str,
    /// Calls until it fails; 1 is the next.
    left: u64,
    status: Status,
    mode: Mode,
}

/// How a failure goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// One call fails, later ones work.
    Once = 0,
    /// Every later call of the function fails too.
    Always = 1,
    /// The context is unusable from then on: all but a few queries answer the same.
    Sticky = 2,
}

impl Faults {
    pub fn arm(&mut self, function: &'static str, nth: u64, status: Status, mode: Mode) {
        self.armed.push(Armed { function, left: nth.max(1), status, mode });
    }

    pub fn arm_copy(&mut self, nth: u64, status: Status) {
        self.copy = Some((nth.max(1), status));
    }

    pub fn calls(&self, function: &str) -> u64 {
        self.calls.get(function).copied().unwrap_or(0)
    }

    /// Counts a call and tells whether it is to fail, and whether that spoils the context.
    pub fn count(&mut self, function: &'static str) -> Option<(Status, bool)> {
        *self.calls.entry(function).or_default() += 1;
        let mut answer = None;
        self.armed.retain_mut(|armed| {
            if armed.function != function {
                return true;
            }
            armed.left -= 1;
            if armed.left > 0 {
                return true;
            }
            answer.get_or_insert((armed.status, armed.mode == Mode::Sticky));
            armed.left = 1;
            armed.mode == Mode::Always
        });
        answer
    }
}

impl World {
    /// Counts a copy that runs and tells whether it is to fail.
    pub fn count_copy(&mut self) -> Option<Status> {
        self.counts.executed_copies += 1;
        let (left, status) = self.faults.copy.as_mut()?;
        *left -= 1;
        let status = (*left == 0).then_some(*status)?;
        self.faults.copy = None;
        Some(status)
    }
}
