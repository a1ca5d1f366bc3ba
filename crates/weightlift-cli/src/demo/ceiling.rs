//! What the host route can reach at best: the same files read by nothing but `pread`, by as
//! many threads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use weightlift::{Error, ErrorKind};

use super::model::failed;
use crate::signal::Stop;

/// Where bytes are read to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Memory that nobody has touched yet, as much as the files hold: as a load has to.
    New,
    /// The same small buffer again and again: what the kernel can hand out.
    Reused,
}

/// Bytes of a read: those of a piece by default.
const PIECE: usize = 1 << 20;

/// Reads all of `files` once and returns the seconds that it took.
pub(super) fn read(
    files: &[PathBuf],
    threads: usize,
    memory: Memory,
    stop: &Stop,
) -> Result<f64, Error> {
    let cannot = |path: &PathBuf| {
        let path = path.clone();
        move |error| failed("cannot read a file", &path, error)
    };
    let mut opened = Vec::new();
    for path in files {
        let file = File::open(path).map_err(cannot(path))?;
        let length = file.metadata().map_err(cannot(path))?.len() as usize;
        opened.push((path, file, length));
    }
    let started = Instant::now();
    // Zeroed memory comes from the kernel untouched: no page is there before it is read into.
    let total = match memory {
        Memory::New => opened.iter().map(|(_, _, length)| length).sum(),
        Memory::Reused => 0,
    };
    // An allocation that is asked for first can fail without ending the process.
    Vec::<u8>::new().try_reserve_exact(total).map_err(|_| out_of_memory(total))?;
    let mut new = vec![0; total];
    let mut rest = new.as_mut_slice();
    let mut pieces = Vec::new();
    for (path, file, length) in &opened {
        for offset in (0..*length).step_by(PIECE) {
            let size = PIECE.min(length - offset);
            let (place, others) = rest.split_at_mut(if total > 0 { size } else { 0 });
            rest = others;
            pieces.push((*path, file, offset as u64, size, place));
        }
    }
    // From the first file to the last, as a load goes.
    let pieces = Mutex::new(pieces.into_iter());
    let work = || {
        let mut buffer = vec![0; if total > 0 { 0 } else { PIECE }];
        loop {
            stop.check()?;
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((path, file, offset, size, place)) = next else { return Ok(()) };
            let place = if total > 0 { place } else { &mut buffer[..size] };
            file.read_exact_at(place, offset).map_err(cannot(path))?;
        }
    };
    std::thread::scope(|scope| {
        // One thread is this one, so that something reads even where no thread can be had.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(spawn).collect();
        let mut result: Result<(), Error> = work();
        for thread in others {
            let ended = thread.join();
            result =
                result.and(ended.unwrap_or_else(|_| {
                    Err(Error::new(ErrorKind::Internal, "a reading thread died"))
                }));
        }
        result
    })?;
    Ok(started.elapsed().as_secs_f64())
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::OutOfHostMemory, "there is not enough memory to read into")
        .with("bytes", bytes)
        .hint("take a smaller --size")
}
