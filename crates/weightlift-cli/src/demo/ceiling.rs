//! What the host route can reach at best: the same files read by nothing but `pread`, by as
//! many threads, to as much memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use weightlift::{Error, ErrorKind};

use super::model::failed;
use crate::signal::Stop;

/// Seconds that it took to read all files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ceiling {
    /// Into memory that nobody has touched, whose pages the kernel has to make first: what a
    /// load into new memory has to do too, though it may ask for larger pages.
    pub(super) new_memory: f64,
    /// Into the same memory again: nothing but copying.
    pub(super) touched_memory: f64,
}

/// Bytes of a read: those of a piece of a load into host memory.
const PIECE: usize = 4 << 20;

/// A file, its length, and the path that errors name.
type Opened<'a> = (&'a Path, File, usize);

/// Reads all of `files` twice.
pub(super) fn measure(files: &[PathBuf], threads: usize, stop: &Stop) -> Result<Ceiling, Error> {
    let mut opened: Vec<Opened<'_>> = Vec::new();
    for path in files {
        let file = File::open(path).map_err(|error| cannot_read(path, error))?;
        let length = file.metadata().map_err(|error| cannot_read(path, error))?.len();
        opened.push((path, file, length as usize));
    }
    let total = opened.iter().map(|(_, _, length)| length).sum();
    let started = Instant::now();
    // An allocation that is asked for first can fail without ending the process.
    Vec::<u8>::new().try_reserve_exact(total).map_err(|_| out_of_memory(total))?;
    // Zeroed memory of this size comes from the kernel untouched.
    let mut memory = vec![0; total];
    read_all(&opened, &mut memory, threads, stop)?;
    let new_memory = started.elapsed().as_secs_f64();
    let started = Instant::now();
    read_all(&opened, &mut memory, threads, stop)?;
    Ok(Ceiling { new_memory, touched_memory: started.elapsed().as_secs_f64() })
}

fn read_all(
    files: &[Opened<'_>],
    mut memory: &mut [u8],
    threads: usize,
    stop: &Stop,
) -> Result<(), Error> {
    let mut pieces = Vec::new();
    for (path, file, length) in files {
        for offset in (0..*length).step_by(PIECE) {
            let (place, rest) = memory.split_at_mut(PIECE.min(length - offset));
            memory = rest;
            pieces.push((*path, file, offset as u64, place));
        }
    }
    // From the first file to the last, as a load goes.
    let pieces = Mutex::new(pieces.into_iter());
    let work = || {
        loop {
            stop.check()?;
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((path, file, offset, place)) = next else { return Ok(()) };
            file.read_exact_at(place, offset).map_err(|error| cannot_read(path, error))?;
        }
    };
    std::thread::scope(|scope| {
        // This thread reads too, so that something reads even where no thread can be had.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(spawn).collect();
        let mut result: Result<(), Error> = work();
        for thread in others {
            let died = |_| Err(Error::new(ErrorKind::Internal, "a reading thread died"));
            result = result.and(thread.join().unwrap_or_else(died));
        }
        result
    })
}

fn cannot_read(path: &Path, error: std::io::Error) -> Error {
    failed("cannot read a file", path, error)
}

fn out_of_memory(bytes: usize) -> Error {
    Error::new(ErrorKind::OutOfHostMemory, "there is not enough memory to read into")
        .with("bytes", bytes)
        .hint("take a smaller --size")
}
