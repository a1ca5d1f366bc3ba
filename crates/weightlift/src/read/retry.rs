//! What readers do about reads that fail, and which errors they make of them.

use std::io;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::source::Source;

/// Linux reads at most 2,147,479,552 bytes a call and other systems less than 2 GiB: no
/// call asks for more than this.
pub(super) const LONGEST_READ: usize = 1 << 30;

/// A source that says "try again" is asked this often, with growing pauses of 1 ms to about
/// 0.5 s, two seconds in all. Files do not say it; some network file systems do.
const MOST_RETRIES: u32 = 12;

/// What to do after a read has failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The same read again.
    Again,
    /// The source was replaced on the server. Opening it again compares what it is now with what
    /// it was: only the same file is read on.
    Reopen,
    /// Give up.
    Fail,
}

/// What was tried for one piece.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    retries: u32,
    reopened: bool,
}

impl Attempts {
    /// Bytes came.
    pub(super) fn progressed(&mut self) {
        self.retries = 0;
    }

    /// What to do about `error`; sleeps before it says to try again where the source wants time.
    pub(super) fn after(&mut self, error: &io::Error) -> Next {
        match error.kind() {
            io::ErrorKind::Interrupted => Next::Again,
            io::ErrorKind::WouldBlock if self.retries < MOST_RETRIES => {
                std::thread::sleep(Duration::from_millis(1 << self.retries.min(9)));
                self.retries += 1;
                Next::Again
            }
            io::ErrorKind::StaleNetworkFileHandle if !self.reopened => {
                self.reopened = true;
                Next::Reopen
            }
            _ => Next::Fail,
        }
    }
}

/// The source ended `missing` bytes early.
pub(super) fn ended(source: &dyn Source, offset: u64, missing: usize) -> Error {
    if let Err(changed) = source.check_unchanged() {
        return changed;
    }
    let kind = ErrorKind::Format(weightlift_index::ErrorKind::Truncated);
    Error::new(kind, "the file ends before it should")
        .with("file", source.name())
        .with("offset", offset)
        .with("missing", missing)
}

/// A read at `offset` failed for good.
pub(super) fn failed(error: io::Error, source: &dyn Source, offset: u64) -> Error {
    Error::io(error, "read a file", source.name()).with("offset", offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruptions_are_for_ever_the_rest_is_bounded() {
        let mut attempts = Attempts::default();
        for _ in 0..1000 {
            assert_eq!(attempts.after(&io::ErrorKind::Interrupted.into()), Next::Again);
        }
        let stale = io::Error::from(io::ErrorKind::StaleNetworkFileHandle);
        assert_eq!(attempts.after(&stale), Next::Reopen);
        attempts.progressed();
        assert_eq!(attempts.after(&stale), Next::Fail, "once a piece, whatever came meanwhile");
        attempts.retries = MOST_RETRIES;
        assert_eq!(attempts.after(&io::ErrorKind::WouldBlock.into()), Next::Fail);
        attempts.progressed();
        assert_eq!(attempts.after(&io::ErrorKind::WouldBlock.into()), Next::Again);
        assert_eq!(attempts.after(&io::Error::from_raw_os_error(5)), Next::Fail);
    }
}
