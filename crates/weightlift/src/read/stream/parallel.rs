//! One large read by several threads.

use std::thread;

use super::handles::{Handles, Short};
use crate::error::{Error, Result};
use crate::sync::{Mutex, lock};

/// Largest part that one thread reads at a time: few enough calls, and at the end of the read
/// nobody waits long for the last.
const LARGEST_CHUNK: usize = 4 << 20;

/// Smallest part: reading it from the page cache takes 0.1 ms or more, several times as long as
/// starting the thread that does.
const SMALLEST_CHUNK: usize = 1 << 20;

/// Fills `buffer` with the bytes at `offset`, by up to `threads` threads, the calling one among
/// them. All bytes before the one that an error is about are in place.
///
/// The threads live as long as this call: those that wait for work cannot be lent memory of the
/// caller's without `unsafe`. [`LARGE`](super::LARGE) is the size from which they are worth it.
pub(super) fn read(
    handles: &Handles,
    threads: usize,
    buffer: &mut [u8],
    offset: u64,
) -> Result<(), Short> {
    // Several for each, so that nobody waits for a thread that began late.
    let size = (buffer.len() / (4 * threads.max(1))).clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
    let size = 1 << size.ilog2();
    let threads = threads.min(buffer.len().div_ceil(size));
    if threads <= 1 {
        return handles.read(buffer, offset);
    }
    let chunks = Mutex::new(Chunks { rest: buffer, offset, size });
    let first_failure: Mutex<Option<(u64, Error)>> = Mutex::new(None);
    let work = || {
        // Chunks are taken in order: when one has failed, all before it were taken by somebody.
        while lock(&first_failure).is_none() {
            let Some((at, chunk)) = lock(&chunks).next() else { break };
            if let Err(Short { done, error }) = handles.read(chunk, at) {
                let at = at + done as u64;
                let mut failure = lock(&first_failure);
                if failure.as_ref().is_none_or(|(other, _)| at < *other) {
                    *failure = Some((at, error));
                }
            }
        }
    };
    thread::scope(|scope| {
        for number in 1..threads {
            let builder = thread::Builder::new().name(format!("weightlift-{number}"));
            // Those that cannot be started are not needed: whoever is there reads the rest.
            if builder.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    match lock(&first_failure).take() {
        Some((at, error)) => Err(Short { done: (at - offset) as usize, error }),
        None => Ok(()),
    }
}

/// What is left of a buffer, in chunks that end where the file's offset is a multiple of `size`:
/// no two threads read of the same page.
struct Chunks<'a> {
    rest: &'a mut [u8],
    offset: u64,
    size: usize,
}

impl<'a> Iterator for Chunks<'a> {
    type Item = (u64, &'a mut [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let past = (self.offset % self.size as u64) as usize;
        let length = (self.size - past).min(self.rest.len());
        let (chunk, rest) = std::mem::take(&mut self.rest).split_at_mut(length);
        let offset = self.offset;
        self.rest = rest;
        self.offset += length as u64;
        Some((offset, chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_end_at_multiples_of_their_size_in_the_file() {
        let mut buffer = [0; 25];
        let chunks = Chunks { rest: &mut buffer, offset: 13, size: 8 };
        let found: Vec<_> = chunks.map(|(offset, chunk)| (offset, chunk.len())).collect();
        assert_eq!(found, [(13, 3), (16, 8), (24, 8), (32, 6)]);
    }
}
