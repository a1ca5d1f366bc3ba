//! What streams do when it is its turn.

use std::sync::Arc;

use crate::host;
use crate::memory::Allocation;

/// What an operation does.
pub(crate) enum Work {
    /// Nothing: it marks a point, or waits for some.
    Mark,
    /// Copies to a device.
    ToDevice { to: (Arc<Allocation>, u64), len: u64, from: Source },
    /// Copies to the host.
    ToHost { to: usize, registration: Option<u64>, from: (Arc<Allocation>, u64), len: u64 },
    /// Sets device bytes.
    Fill { to: (Arc<Allocation>, u64), len: u64, value: u8 },
}

/// Where the bytes of a copy to a device come from.
pub(crate) enum Source {
    /// Memory that is read when the copy runs.
    Later { address: usize, registration: u64 },
    /// Bytes that were taken during the call.
    Taken(Vec<u8>),
}

impl Work {
    pub fn registration(&self) -> Option<u64> {
        match self {
            Work::ToDevice { from: Source::Later { registration, .. }, .. } => Some(*registration),
            Work::ToHost { registration, .. } => *registration,
            _ => None,
        }
    }

    pub fn allocation(&self) -> Option<u64> {
        match self {
            Work::ToDevice { to: place, .. }
            | Work::ToHost { from: place, .. }
            | Work::Fill { to: place, .. } => Some(place.0.start),
            Work::Mark => None,
        }
    }

    /// Does it; the error is what was wrong with the caller's memory.
    pub fn run(&self) -> Result<(), String> {
        match self {
            Work::Mark => Ok(()),
            Work::Fill { to, len, value } => {
                to.0.write(to.1, *len, |into, _| {
                    into.fill(*value);
                    Ok(())
                })
                .map_err(|error| error.to_string())
            }
            Work::ToDevice { to, len, from } => {
                to.0.write(to.1, *len, |into, done| match from {
                    Source::Later { address, .. } => host::read(address + done as usize, into),
                    Source::Taken(bytes) => {
                        into.copy_from_slice(&bytes[done as usize..][..into.len()]);
                        Ok(())
                    }
                })
                .map_err(|error| format!("the source was gone when its copy ran ({error})"))
            }
            Work::ToHost { to, from, len, .. } => {
                let mut outcome = Ok(());
                let kept = from.0.read(from.1, *len, |bytes, done| {
                    if outcome.is_ok() {
                        outcome = host::write(to + done as usize, bytes);
                    }
                });
                debug_assert!(kept, "refused when it was enqueued");
                outcome.map_err(|error| format!("the target was gone when its copy ran ({error})"))
            }
        }
    }
}
