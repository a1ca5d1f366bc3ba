//! All of a range, whatever a source does: reads that come short are continued, those that are
//! interrupted are asked again.

use std::io;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::source::{OpenSource, Source};

/// Linux reads at most 2,147,479,552 bytes a call and other systems less than 2 GiB: no
/// call asks for more than this.
pub(super) const LONGEST_READ: usize = 1 << 30;

/// A source that says "try again" is asked this often, with growing pauses of 1 ms to about
/// 0.5 s, two seconds in all. Files do not say it; some network file systems do.
const MOST_RETRIES: u32 = 12;

/// A read that did not bring all.
#[derive(Debug)]
pub(super) struct Short {
    /// Bytes that came before it failed: these are good.
    pub(super) done: usize,
    pub(super) error: Error,
}

/// Reads `length` bytes of `source` at `offset`: `read` is given the opened source, the bytes that
/// came so far and the offset that follows them, and says how many more came.
///
/// `opened` is the source opened before, if it was; afterwards it is what the next read may use.
pub(super) fn read_whole(
    source: &dyn Source,
    opened: &mut Option<Box<dyn OpenSource>>,
    offset: u64,
    length: usize,
    mut read: impl FnMut(&dyn OpenSource, usize, u64) -> io::Result<usize>,
) -> Result<(), Short> {
    let mut reopened = false;
    let mut retries = 0;
    let mut done = 0;
    while done < length {
        let open = match opened.take().map_or_else(|| source.open(), Ok) {
            Ok(open) => opened.insert(open),
            Err(error) => return Err(Short { done, error }),
        };
        let at = offset + done as u64;
        match read(&**open, done, at) {
            Ok(0) => return Err(Short { done, error: ended(source, at, length - done) }),
            Ok(count) => {
                done += count;
                retries = 0;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && retries < MOST_RETRIES => {
                std::thread::sleep(Duration::from_millis(1 << retries.min(9)));
                retries += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::StaleNetworkFileHandle && !reopened => {
                // The file was replaced on the server. Opening it again compares what it is
                // now with what it was: only the same file is read on.
                *opened = None;
                reopened = true;
            }
            Err(error) => {
                let error = Error::io(error, "read a file", source.name()).with("offset", at);
                return Err(Short { done, error });
            }
        }
    }
    Ok(())
}

fn ended(source: &dyn Source, offset: u64, missing: usize) -> Error {
    if let Err(changed) = source.check_unchanged() {
        return changed;
    }
    let kind = ErrorKind::Format(weightlift_index::ErrorKind::Truncated);
    Error::new(kind, "the file ends before the bytes that should be in it")
        .with("file", source.name())
        .with("offset", offset)
        .with("missing", missing)
}
