//! The limits of this machine, measured: what a load is compared with.
//!
//! ```text
//! cargo run --release --example ceilings -- [--bus] [--touch] [--cache THREADS] FILE...
//! cargo run --release --example ceilings -- --plain buffered|direct THREADS BYTES new|same FILE...
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
#![allow(unsafe_code)] // calls the driver as a benchmark of its own would

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use weightlift_cuda_sys::{CuContext, CuDevice, CuStatus, CuStream, Driver};

const MIB: usize = 1 << 20;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut bus, mut threads, mut files) = (false, 4, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bus" => bus = true,
            "--touch" => return touch(),
            "--plain" => {
                let arguments: Vec<String> = arguments.collect();
                return plain(&arguments).unwrap_or_else(|error| fail(&error));
            }
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

/// Reads all files once and prints how long that took.
fn plain(arguments: &[String]) -> Result<(), String> {
    let [way, threads, size, memory, files @ ..] = arguments else {
        return Err("--plain buffered|direct THREADS BYTES new|same FILE...".to_owned());
    };
    let direct = way == "direct";
    let number = |text: &String| text.parse::<usize>().map_err(|_| format!("{text} is no number"));
    let (threads, size) = (number(threads)?, number(size)?);
    // What direct reads ask for nearly everywhere; also of the last read, which comes short.
    const UNIT: usize = 4096;
    if size == 0 || size % UNIT != 0 {
        return Err(format!("{size} is no multiple of {UNIT}"));
    }
    let started = Instant::now();
    let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    let open = |file: &String| OpenOptions::new().read(true).custom_flags(flags).open(file);
    let (mut pieces, mut total) = (Vec::new(), 0);
    for (number, file) in files.iter().enumerate() {
        let length = std::fs::metadata(file).map_err(|error| format!("{file}: {error}"))?.len();
        for offset in (0..length as usize).step_by(size) {
            // Where it goes in new memory: each file begins at a page of its own.
            pieces.push((number, offset, size.min(length as usize - offset), total + offset));
        }
        total += (length as usize).next_multiple_of(UNIT);
    }
    let new = memory == "new";
    let memory = Mapped::new(if new { total } else { threads * size })?;
    let (next, read) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = |thread: usize| -> Result<(), String> {
        let opened: Result<Vec<File>, _> = files.iter().map(open).collect();
        let opened = opened.map_err(|error| format!("cannot open: {error}"))?;
        while let Some(&(file, offset, length, place)) =
            pieces.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let place = if new { place } else { thread * size };
            let room = length.next_multiple_of(UNIT);
            // SAFETY: every piece, rounded up, or every thread has bytes of its own in the mapping.
            let into = unsafe { std::slice::from_raw_parts_mut(memory.at(place), room) };
            let mut done = 0;
            while done < length {
                // A file that ends early, or a read that ends within a unit, is not gone on with.
                match opened[file].read_at(&mut into[done..], (offset + done) as u64) {
                    Ok(0) => return Err(format!("{} ended early", files[file])),
                    Ok(count) => done += count,
                    Err(error) => return Err(format!("{}: {error}", files[file])),
                }
            }
            read.fetch_add(length as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let work = &work;
                scope.spawn(move || work(thread))
            })
            .collect();
        let panicked = |_| Err("a thread panicked".to_owned());
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(panicked))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{{\"seconds\": {seconds:.6}, \"bytes\": {}}}", read.into_inner());
    Ok(())
}

fn fail(error: &str) -> ! {
    eprintln!("error: {error}");
    std::process::exit(1)
}

fn read_rate(files: &[String], threads: usize, fresh: bool) -> Result<f64, String> {
    let mut sizes = Vec::new();
    for file in files {
        sizes.push(
            std::fs::metadata(file).map_err(|error| format!("{file}: {error}"))?.len() as usize
        );
    }
    let total: usize = sizes.iter().sum();
    let started = Instant::now();
    // Anonymous memory in huge pages, like that of a load.
    let memory = if fresh { Some(Mapped::new(total)?) } else { None };
    let (next, read) = (AtomicUsize::new(0), AtomicU64::new(0));
    let pieces: Vec<(usize, usize, usize)> = sizes
        .iter()
        .enumerate()
        .flat_map(|(file, size)| {
            (0..*size).step_by(MIB).map(move |offset| (file, offset, MIB.min(size - offset)))
        })
        .collect();
    let starts: Vec<usize> = sizes
        .iter()
        .scan(0, |end, size| {
            let start = *end;
            *end += size;
            Some(start)
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let opened: Vec<File> =
                    files.iter().filter_map(|file| File::open(file).ok()).collect();
                let mut own = vec![0; if fresh { 0 } else { MIB }];
                while let Some((file, offset, length)) =
                    pieces.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let into = match &memory {
                        // SAFETY: every piece has bytes of its own in the mapping.
                        Some(memory) => unsafe {
                            std::slice::from_raw_parts_mut(
                                memory.0.add(starts[*file] + offset),
                                *length,
                            )
                        },
                        None => &mut own[..*length],
                    };
                    if opened[*file].read_exact_at(into, *offset as u64).is_ok() {
                        read.fetch_add(*length as u64, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    if read.into_inner() != total as u64 {
        return Err("not every byte could be read".to_owned());
    }
    Ok(total as f64 / seconds)
}

struct Mapped(*mut u8, usize);

// SAFETY: an address; its users write to different bytes.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn at(&self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }

    fn new(length: usize) -> Result<Self, String> {
        Self::with_pages(length, true)
    }

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

fn bus_rate() -> Result<f64, String> {
    let driver = Driver::load(None).map_err(|error| error.to_string())?;
    let check = |status: CuStatus, what: &str| {
        if status.is_success() { Ok(()) } else { Err(format!("{what}: {status}")) }
    };
    const COPY: usize = 64 * MIB;
    const TOTAL: usize = 8 << 30;
    let pinned = Mapped::new(COPY)?;
    let (mut context, mut stream, mut memory) = (CuContext::NULL, CuStream::NULL, 0);
    let mut best = 0.0_f64;
    // SAFETY: all pointers are references or the mapping above, which stays until the end of
    // the process's use of it: the stream is drained before the registration ends.
    unsafe {
        std::ptr::write_bytes(pinned.0, 1, COPY);
        check((driver.cuInit)(0), "cuInit")?;
        check(
            (driver.cuDevicePrimaryCtxRetain)(&mut context, CuDevice(0)),
            "cuDevicePrimaryCtxRetain",
        )?;
        check((driver.cuCtxSetCurrent)(context), "cuCtxSetCurrent")?;
        check((driver.cuStreamCreate)(&mut stream, 1), "cuStreamCreate")?;
        check((driver.cuMemAlloc_v2)(&mut memory, TOTAL), "cuMemAlloc")?;
        check((driver.cuMemHostRegister_v2)(pinned.0.cast(), COPY, 1), "cuMemHostRegister")?;
        for _ in 0..5 {
            let started = Instant::now();
            for offset in (0..TOTAL).step_by(COPY) {
                let to = memory + offset as u64;
                check(
                    (driver.cuMemcpyHtoDAsync_v2)(to, pinned.0.cast(), COPY, stream),
                    "cuMemcpyHtoDAsync",
                )?;
            }
            check((driver.cuStreamSynchronize)(stream), "cuStreamSynchronize")?;
            best = best.max(TOTAL as f64 / started.elapsed().as_secs_f64());
        }
        check((driver.cuMemHostUnregister)(pinned.0.cast()), "cuMemHostUnregister")?;
        check((driver.cuMemFree_v2)(memory), "cuMemFree")?;
    }
    Ok(best)
}
