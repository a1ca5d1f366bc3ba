//! What the host route can reach at best: the same files read by nothing but `pread`, by as
//! many threads.

use std::path::PathBuf;

use weightlift::{Error, PlainReads, plain_reads};

use crate::signal::Stop;

/// Seconds that it took to read all files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ceiling {
    /// Into memory that nobody has touched, whose pages the kernel has to make first: what a
    /// load into new memory has to do too.
    pub(super) new_memory: f64,
    /// Into the same few MiB again and again: nothing but copying.
    pub(super) same_memory: f64,
}

/// Bytes of a read: those of a piece of a load into host memory.
const PIECE: usize = 4 << 20;

/// Reads all of `files` twice.
pub(super) fn measure(files: &[PathBuf], threads: usize, stop: &Stop) -> Result<Ceiling, Error> {
    let seconds = |new_memory| -> Result<f64, Error> {
        let how = PlainReads { threads, size: PIECE, new_memory, ..PlainReads::default() };
        Ok(plain_reads(files, &how, &|| stop.check())?.as_secs_f64())
    };
    Ok(Ceiling { new_memory: seconds(true)?, same_memory: seconds(false)? })
}
