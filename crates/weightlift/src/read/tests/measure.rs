//! How fast the readers are: a measurement, not a test.
//!
//! ```text
//! WEIGHTLIFT_MEASURE=FILE cargo test --release -p weightlift --lib -- --ignored --nocapture cold
//! ```
//!
//! The file is read wholly, evicted before each sample; that it was is checked by reads that do
//! not wait. Samples of the readers alternate. Processor seconds are the process's own, so those
//! of interrupts are not among them. Where the kernel gives no huge pages other numbers come, as
//! they do in a process for which these are turned off (`PR_SET_THP_DISABLE`).

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::*;

const ROUNDS: usize = 7;
const PIECE: usize = 1 << 20;
/// Of each thread.
const MEMORY: usize = 6 << 20;
const DEPTH: usize = 4;

#[test]
#[ignore = "a measurement: needs a file of a gigabyte or so in WEIGHTLIFT_MEASURE"]
fn cold_reads_by_each_reader() {
    let path = PathBuf::from(std::env::var_os("WEIGHTLIFT_MEASURE").expect("WEIGHTLIFT_MEASURE"));
    let length = std::fs::metadata(&path).unwrap().len();
    println!("{} GB, {ROUNDS} rounds: median, least and most", length as f64 / 1e9);
    for (threads, address) in [(1, 0), (2, 0), (4, 0), (2, 64)] {
        let subjects = [
            Subject::Positional,
            Subject::Mapped,
            Subject::UringCached,
            Subject::Direct,
            Subject::UringDirect,
            Subject::UringFixed,
        ];
        let mut samples: Vec<Vec<(f64, f64)>> = vec![Vec::new(); subjects.len()];
        for round in 0..ROUNDS {
            for turn in 0..subjects.len() {
                // Another order in each round: what one leaves behind meets each of the others.
                let number = (round + turn) % subjects.len();
                evict(&path, length);
                samples[number].push(sample(&path, length, subjects[number], threads, address));
            }
        }
        for (subject, samples) in subjects.iter().zip(samples) {
            let (rates, seconds): (Vec<f64>, Vec<f64>) = samples.into_iter().unzip();
            let (rate, seconds) = (spread(rates), spread(seconds));
            println!(
                "{threads} threads, address {address:2}  {:<12} {:.2} GB/s ({:.2} to {:.2})  {:.3} processor s ({:.3} to {:.3})",
                format!("{subject:?}"),
                rate.1,
                rate.0,
                rate.2,
                seconds.1,
                seconds.0,
                seconds.2,
            );
        }
    }
}

fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

/// Bytes in a second, and processor seconds.
fn sample(
    path: &Path,
    length: u64,
    subject: Subject,
    threads: usize,
    address: usize,
) -> (f64, f64) {
    let local = LocalFile::open_new(path.to_owned(), "a file").unwrap().0;
    // Large enough for huge pages, as the ring is, whatever the depth: into small ones a direct
    // read of a MiB has 256 targets, and takes several times as long.
    let mut scratch = Scratch::new(threads * MEMORY);
    let mut access = access(vec![Arc::new(local)], DirectAlignment::USUAL, DirectIo::On);
    if subject == Subject::UringFixed {
        access = access.staged(scratch.range());
    }
    let (next, read) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (started, before) = (Instant::now(), processor_seconds());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let mut places: Vec<_> =
                (0..DEPTH).map(|_| scratch.place(&[(address, PIECE)])).collect();
            let (access, next, read) = (&access, &next, &read);
            scope.spawn(move || {
                let mut reader: Box<dyn Reader> = match subject {
                    // As loads do it: when the memory was read into once.
                    Subject::UringFixed => Box::new(queue(access, Kind::Direct).0),
                    Subject::UringDirect => {
                        let (mut reader, _) = queue(access, Kind::Direct);
                        reader.fixed.refuse();
                        Box::new(reader)
                    }
                    _ => subject.reader(access, Fault::None),
                };
                places.truncate(reader.depth());
                loop {
                    while let Some(place) = places.pop() {
                        let piece = next.fetch_add(1, Ordering::Relaxed);
                        let offset = (piece * PIECE) as u64;
                        if offset + PIECE as u64 > length {
                            break;
                        }
                        reader.submit(ReadPiece { piece, source: 0, offset }, place);
                    }
                    let Some(completed) = reader.complete() else { break };
                    completed.result.unwrap();
                    read.fetch_add(PIECE as u64, Ordering::Relaxed);
                    places.push(completed.place);
                }
            });
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let read = read.into_inner();
    assert_eq!(read, length / PIECE as u64 * PIECE as u64, "all whole pieces");
    (read as f64 / seconds / 1e9, processor_seconds() - before)
}

/// Takes the file out of the page cache, and makes sure.
fn evict(path: &Path, length: u64) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // Pages that a processor has just put aside for one of the kernel's lists are passed over.
    for _ in 0..20 {
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut byte = [0];
    for sample in 0..64 {
        let offset = length / 64 * sample;
        let mut buffers = [IoSliceMut::new(&mut byte)];
        let read = preadv2(file.as_fd(), &mut buffers, offset, ReadWriteFlags::NOWAIT);
        assert_eq!(read, Err(Errno::AGAIN), "offset {offset} is still in the cache");
    }
}

/// Of this process, all its threads and those that the kernel runs for it.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
