//! What the page cache holds of files, for benchmarks that have to know.
//!
//! ```text
//! cargo run --release --example residency -- [--evict] [--keep EVERY:OF:BYTES] FILE...
//! ```
//!
//! `--evict` drops the files from the cache first. `--keep 1:2:8388608` then reads every second
//! stretch of 8 MiB into it, `--keep half` the first half of each file, `--keep all` all of it; the
//! kernel is told not to read ahead. Prints a line of JSON: `bytes`, how many of them are in the
//! cache (`cached`, in whole pages), the way it was asked (`method`), and whether that is exactly
//! what was wanted (`as_wanted`): nothing after `--evict` alone, the stretches and no page beside
//! them after `--keep`. Where nobody tells the truth it is an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

use weightlift::{CachedFile, Resident};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (mut evict, mut keep, mut files) = (false, None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--evict" => evict = true,
            "--keep" => keep = arguments.next(),
            _ => files.push(argument),
        }
    }
    let (mut bytes, mut cached, mut method, mut as_wanted) = (0, 0, "unknown", true);
    for path in &files {
        let file = CachedFile::open(path)?;
        let length = file.length();
        if evict {
            // What was just written can only be dropped when the disk has it.
            File::open(path)?.sync_all()?;
            file.drop_pages(0, length)?;
        }
        let stretches = stretches(length, keep.as_deref())?;
        if keep.is_some() {
            let open = File::open(path)?;
            rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::Random)?;
            let mut buffer = vec![0; 1 << 20];
            for &(start, end, _) in stretches.iter().filter(|stretch| stretch.2) {
                for offset in (start..end).step_by(buffer.len()) {
                    let length = buffer.len().min((end - offset) as usize);
                    open.read_exact_at(&mut buffer[..length], offset)?;
                }
            }
        }
        for &(start, end, wanted) in &stretches {
            let pages = (end - start).div_ceil(4096);
            let resident = file.resident(start, end - start);
            cached += match resident {
                Resident::All => pages,
                Resident::None => 0,
                Resident::Part { pages } => pages,
                _ => return Err(format!("nobody tells what the cache holds of {path}").into()),
            };
            let right = if wanted { Resident::All } else { Resident::None };
            as_wanted &= resident == right || (!evict && keep.is_none());
        }
        bytes += length;
        method = file.method();
    }
    let cached = cached * 4096;
    println!(
        "{{\"bytes\": {bytes}, \"cached\": {cached}, \"method\": \"{method}\", \"as_wanted\": {as_wanted}}}"
    );
    Ok(())
}

/// Beginning and end of each stretch of a file of this length, and whether the cache is to hold it.
fn stretches(length: u64, keep: Option<&str>) -> Result<Vec<(u64, u64, bool)>, String> {
    let half = (length / 2).next_multiple_of(4096).min(length);
    match keep {
        None => Ok(vec![(0, length, false)]),
        Some("all") => Ok(vec![(0, length, true)]),
        Some("half") => Ok(vec![(0, half, true), (half, length, false)]),
        Some(pattern) => {
            let numbers: Option<Vec<u64>> =
                pattern.split(':').map(|number| number.parse().ok()).collect();
            let Some(&[every, of, size]) = numbers.as_deref() else {
                return Err(format!("{pattern} is not EVERY:OF:BYTES"));
            };
            if of == 0 || size == 0 || size % 4096 != 0 {
                return Err(format!("{pattern} is not of whole pages"));
            }
            let stretch = |(number, start): (u64, u64)| {
                (start, length.min(start + size), number % of < every)
            };
            Ok((0..).zip((0..length).step_by(size as usize)).map(stretch).collect())
        }
    }
}
