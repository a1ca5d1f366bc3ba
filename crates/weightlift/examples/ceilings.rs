//! The limits of this machine, measured: what a load is compared with.
//!
//! ```text
//! cargo run --release --example ceilings -- [--bus] [--touch] [--cache THREADS] FILE...
//! ```
//!
//! Prints one line of JSON: `bus`, bytes a second of copies of 64 MiB from pinned memory to a
//! CUDA device, best of five runs over 8 GiB (without `--bus` no driver is looked for); and
//! `cache`, bytes a second of plain parallel reads at an offset of the files, in pieces of
//! 1 MiB, into memory of each thread's own (`cache_reused`: one MiB that is read into again and
//! again) and into fresh memory for all of them (`cache_fresh`: what a load has to fill). With
//! `--touch` instead: seconds that one thread takes to touch 1 GiB of fresh memory, best of
//! five, in pages of 4 KiB (`touch_small`) and in huge pages, as far as the kernel gives them
//! (`touch_huge`).
#![allow(unsafe_code)] // touches memory of its own

use std::time::Instant;

use weightlift::{Error, PlainReads, pinned_copies, plain_reads};

const MIB: usize = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut bus, mut threads, mut files) = (false, 4, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bus" => bus = true,
            "--touch" => return touch(),
            "--cache" => {
                threads = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(4)
            }
            _ => files.push(argument),
        }
    }
    let bus = if bus { bus_rate().unwrap_or_else(|error| fail(&error)) } else { 0.0 };
    let (mut reused, mut fresh) = (0.0_f64, 0.0_f64);
    if !files.is_empty() {
        for _ in 0..3 {
            reused =
                reused.max(read_rate(&files, threads, false).unwrap_or_else(|error| fail(&error)));
            fresh =
                fresh.max(read_rate(&files, threads, true).unwrap_or_else(|error| fail(&error)));
        }
    }
    println!(
        "{{\"bus\": {bus:.0}, \"threads\": {threads}, \"cache_reused\": {reused:.0}, \"cache_fresh\": {fresh:.0}}}"
    );
}

fn touch() {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..5 {
        for (best, huge) in best.iter_mut().zip([false, true]) {
            let memory = Mapped::with_pages(1 << 30, huge).unwrap_or_else(|error| fail(&error));
            let started = Instant::now();
            for at in (0..1 << 30).step_by(4096) {
                // SAFETY: within the mapping, which is nobody else's.
                unsafe { memory.0.add(at).write_volatile(0) };
            }
            *best = best.min(started.elapsed().as_secs_f64());
        }
    }
    println!("{{\"touch_small\": {:.3}, \"touch_huge\": {:.3}}}", best[0], best[1]);
}

fn fail(error: &dyn std::fmt::Display) -> ! {
    eprintln!("error: {error}");
    std::process::exit(1)
}

/// Bytes a second of plain reads of all files, in pieces of 1 MiB.
fn read_rate(files: &[String], threads: usize, new_memory: bool) -> Result<f64, Error> {
    let how = PlainReads { threads, new_memory, ..PlainReads::default() };
    let took = plain_reads(files, &how, &|| Ok(()))?;
    let lengths = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len()));
    Ok(how.bytes(lengths) as f64 / took.as_secs_f64())
}

/// Bytes a second of copies of 64 MiB to the first device, best of five runs over 8 GiB.
fn bus_rate() -> Result<f64, Error> {
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let copies = pinned_copies(0, 8 << 30, None)?;
        best = best.max(copies.bytes as f64 / copies.took.as_secs_f64());
    }
    Ok(best)
}

struct Mapped(*mut u8, usize);

impl Mapped {
    fn with_pages(length: usize, huge: bool) -> Result<Self, String> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let length = length.next_multiple_of(2 * MIB) + 2 * MIB;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping touches nothing that is there.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        let start = start.map_err(|error| error.to_string())?;
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // SAFETY: advice on the mapping just made; it may be refused.
        let _ = unsafe { madvise(start, length, advice) };
        Ok(Self(start.cast(), length))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no slice of it is left.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
    }
}
