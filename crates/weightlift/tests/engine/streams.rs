//! Streams: any reads and seeks give what they give over the same bytes in memory.

mod changes;
mod drop_in;
mod memory;
mod source;

use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use testkit::{Fault, Faulty, Random};
use weightlift::{Error, ErrorKind, Source, Stream, StreamOptions};

use source::Watched;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn settings(threads: u8, window: usize) -> StreamOptions {
    let mut options = StreamOptions::default();
    options.threads = weightlift::ReadingThreads::new(threads).unwrap();
    options.window = window as u64;
    options
}

fn over(source: &Arc<Watched>, threads: u8, window: usize) -> Stream {
    let source: Arc<dyn Source> = source.clone();
    let length = source.length();
    Stream::over(source, 0..length, &settings(threads, window)).unwrap()
}

/// The library's error that a reader's error carries.
fn carried(error: &io::Error) -> &Error {
    error.get_ref().and_then(|error| error.downcast_ref()).expect("an error of weightlift's")
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

#[derive(Debug, Clone)]
enum Step {
    Read(usize),
    ReadAll(usize),
    Buffered(usize),
    At(u64, usize),
    Start(u64),
    Current(i64),
    End(i64),
    ToEnd,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = || prop_oneof![4 => 0..200_usize, 4 => 0..70_000_usize, 1 => 0..6 * MIB];
    let near = || prop_oneof![-200_i64..200, -100_000_i64..100_000, -(9 << 20)..(9_i64 << 20)];
    let step = prop_oneof![
        6 => size().prop_map(Step::Read),
        6 => size().prop_map(Step::ReadAll),
        3 => size().prop_map(Step::Buffered),
        2 => (0..9_u64 << 20, size()).prop_map(|(at, size)| Step::At(at, size)),
        2 => (0..9_u64 << 20).prop_map(Step::Start),
        3 => near().prop_map(Step::Current),
        1 => near().prop_map(Step::End),
        1 => prop_oneof![
            Just(Step::Start(u64::MAX)),
            Just(Step::Current(i64::MIN)),
            Just(Step::Current(i64::MAX)),
            Just(Step::End(i64::MIN)),
            Just(Step::End(i64::MAX)),
        ],
        1 => Just(Step::ToEnd),
    ];
    // What follows a jump shall go on from there for a while.
    let runs = (step, 1..40_usize).prop_map(|(step, times)| match step {
        Step::Read(size) if size < 70_000 => vec![Step::Read(size); times],
        Step::Buffered(size) if size < 70_000 => vec![Step::Buffered(size); times],
        step => vec![step],
    });
    prop::collection::vec(runs, 1..20).prop_map(|runs| runs.concat())
}

/// Takes the same steps in the stream and in memory. `bad` is the position of a byte that cannot
/// be read: what lies before it comes, and the error where it is.
fn compare(stream: &mut Stream, bytes: &[u8], bad: Option<usize>, steps: &[Step]) {
    let mut model = Cursor::new(bytes);
    let bad = bad.unwrap_or(usize::MAX);
    for (number, step) in steps.iter().enumerate() {
        let from = usize::try_from(model.position()).unwrap_or(usize::MAX);
        let (found, expected) = match step {
            Step::Start(to) => {
                (stream.seek(SeekFrom::Start(*to)), model.seek(SeekFrom::Start(*to)))
            }
            Step::Current(by) => {
                (stream.seek(SeekFrom::Current(*by)), model.seek(SeekFrom::Current(*by)))
            }
            Step::End(by) => (stream.seek(SeekFrom::End(*by)), model.seek(SeekFrom::End(*by))),
            Step::Read(size) => {
                let (mut buffer, mut other) = (vec![1; *size], vec![1; *size]);
                let mut count = model.read(&mut other).unwrap();
                let found = stream.read(&mut buffer);
                let mut expected = Ok(count as u64);
                if (from..from + count).contains(&bad) {
                    count = bad - from;
                    model.set_position(bad as u64);
                    expected = Ok(count as u64);
                    if count == 0 {
                        expected = Err(eio());
                    }
                }
                assert!(buffer[..count] == other[..count], "{number}: {step:?} at {from}");
                (found.map(|count| count as u64), expected)
            }
            Step::ReadAll(size) => {
                let mut buffer = vec![1; *size];
                let found = stream.read_exact(&mut buffer);
                let there = bytes.len().saturating_sub(from);
                let end = from.saturating_add(*size);
                let expected = if (from..from + (*size).min(there)).contains(&bad) {
                    model.set_position(bad as u64);
                    Err(eio())
                } else if *size > there {
                    model.set_position(from.max(bytes.len()) as u64);
                    Err(io::ErrorKind::UnexpectedEof.into())
                } else {
                    if *size > 0 {
                        assert!(buffer == bytes[from..end], "{number}: {step:?} at {from}");
                        model.set_position(end as u64);
                    }
                    Ok(0)
                };
                (found.map(|()| 0), expected)
            }
            Step::Buffered(size) => {
                let there = bytes.len().saturating_sub(from);
                match stream.fill_buf() {
                    Ok(found) => {
                        assert_eq!(found.is_empty(), there == 0, "{number}: {step:?} at {from}");
                        assert!(
                            from == bad || found == &bytes[from.min(bytes.len())..][..found.len()]
                        );
                        assert!(!(from..from + found.len()).contains(&bad));
                        let count = found.len().min(*size);
                        stream.consume(count);
                        model.set_position(model.position() + count as u64);
                        (Ok(0), Ok(0))
                    }
                    Err(error) => {
                        assert_eq!(from, bad, "{number}: {error}");
                        (Ok(0), Ok(0))
                    }
                }
            }
            Step::At(at, size) => {
                let mut buffer = vec![1; *size];
                let at = *at as usize;
                let found = stream.read_exact_at(&mut buffer, at as u64).map_err(io::Error::from);
                let expected = if at + size > bytes.len() {
                    Err(io::ErrorKind::Other.into())
                } else if (at..at + size).contains(&bad) {
                    Err(eio())
                } else {
                    assert!(buffer == bytes[at..at + size], "{number}: {step:?}");
                    Ok(0)
                };
                (found.map(|()| 0), expected)
            }
            Step::ToEnd => {
                let mut all = b"before".to_vec();
                let found = stream.read_to_end(&mut all);
                let rest = &bytes[from.min(bytes.len())..];
                let (expected, rest) = if (from..bytes.len()).contains(&bad) {
                    (Err(eio()), &bytes[from..bad])
                } else {
                    (Ok(rest.len() as u64), rest)
                };
                model.set_position(model.position() + rest.len() as u64);
                assert!(
                    all[..6] == *b"before" && all[6..] == *rest,
                    "{number}: {step:?} at {from}"
                );
                (found.map(|count| count as u64), expected)
            }
        };
        match (&found, &expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(found, expected, "{number}: {step:?} at {from}")
            }
            (Err(found), Err(expected)) => {
                assert_eq!(
                    found.kind(),
                    expected.kind(),
                    "{number}: {step:?} at {from}: {found:?}"
                );
            }
            _ => panic!("{number}: {step:?} at {from}: {found:?}, not {expected:?}"),
        }
        assert_eq!(stream.stream_position().unwrap(), model.position(), "{number}: {step:?}");
    }
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        2 => (200..100_000_u64).prop_map(Fault::Short),
        1 => Just(Fault::Interrupted),
        1 => (1..40_u64).prop_map(|nth| Fault::Errno(nth, 116)), // ESTALE, once
    ]
}

fn windows() -> impl Strategy<Value = usize> {
    prop_oneof![Just(4 * KIB), 4 * KIB..100 * KIB, Just(256 * KIB), Just(1_000_000), Just(8 * MIB),]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_reads_and_seeks_give_what_memory_gives(
        steps in steps(),
        fault in faults(),
        window in windows(),
        threads in 0..6_u8,
        length in prop_oneof![0..20_usize, 0..200_000_usize, 0..9 * MIB],
        around in (prop_oneof![Just(0), 1..5_000_usize], 0..5_000_usize),
        seed in any::<u64>(),
    ) {
        let bytes = Random::new(seed).bytes(around.0 + length + around.1);
        let range = around.0 as u64..(around.0 + length) as u64;
        let part = bytes[around.0..around.0 + length].to_vec();
        let source = Arc::new(Faulty::new("memory", bytes, fault));
        let mut stream = Stream::over(source, range, &settings(threads, window)).unwrap();
        prop_assert_eq!(stream.len(), length as u64);
        compare(&mut stream, &part, None, &steps);
    }

    #[test]
    fn an_error_comes_where_the_bytes_are_missing_and_not_before(
        steps in steps(),
        window in windows(),
        threads in 0..6_u8,
        length in prop_oneof![1..200_000_usize, 1..9 * MIB],
        bad in any::<prop::sample::Index>(),
        start in prop_oneof![Just(0), 1..5_000_usize],
        seed in any::<u64>(),
    ) {
        let bytes = Random::new(seed).bytes(start + length);
        let part = bytes[start..].to_vec();
        let bad = bad.index(length);
        let source = Watched::new(bytes);
        source.break_at((start + bad) as u64);
        let range = start as u64..(start + length) as u64;
        let mut stream = Stream::over(source.clone(), range, &settings(threads, window)).unwrap();
        compare(&mut stream, &part, Some(bad), &steps);
        // It can be used again when the source can. What was read ahead before may still tell of
        // the error, once.
        source.mend();
        stream.rewind().unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        compare(&mut stream, &part, None, &[&[Step::Start(0), Step::ToEnd][..], &steps].concat());
    }
}

#[test]
fn an_error_is_the_librarys_own_and_the_same_position_can_be_read_again() {
    let bytes = Random::new(1).bytes(12 * MIB);
    // Found by a read of its own, by one ahead, and by one of several threads.
    for (bad, size) in [(100, 4 * KIB), (3 * MIB + 7, 4 * KIB), (9 * MIB + 1, 12 * MIB)] {
        let source = Watched::new(bytes.clone());
        source.break_at(bad as u64);
        let mut stream = over(&source, 4, 4 * MIB);
        let mut found = vec![0; 12 * MIB];
        let mut done = 0;
        let error = loop {
            let end = found.len().min(done + size);
            match stream.read(&mut found[done..end]) {
                Ok(count) => done += count,
                Err(error) => break error,
            }
        };
        assert_eq!((done, stream.stream_position().unwrap()), (bad, bad as u64));
        assert_eq!(carried(&error).kind(), ErrorKind::Io);
        assert_eq!(carried(&error).value("offset"), Some(&*bad.to_string()));
        let below = std::error::Error::source(carried(&error)).unwrap();
        assert_eq!(below.downcast_ref::<io::Error>().unwrap().raw_os_error(), Some(5));
        assert_eq!(stream.read(&mut [0; 5]).unwrap_err().kind(), error.kind());
        source.mend();
        stream.read_exact(&mut found[done..]).unwrap();
        assert!(found == bytes);
    }
}

/// Several threads fail, the later ones first: the error is the one where bytes are missing.
#[test]
fn of_several_errors_the_first_in_the_file_is_told() {
    let bytes = Random::new(3).bytes(16 * MIB);
    // On a busy machine the threads may come one after the other: then it is tried once more.
    let several = (0..20).any(|_| {
        let source = Watched::slow(bytes.clone(), Duration::from_millis(20));
        source.break_from(100);
        let mut stream = over(&source, 4, MIB);
        let mut found = vec![0; 16 * MIB];
        assert_eq!(stream.read(&mut found).unwrap(), 100);
        assert_eq!(found[..100], bytes[..100]);
        let error = stream.read(&mut found).unwrap_err();
        assert_eq!(carried(&error).value("offset"), Some("100"));
        source.peak() > 1
    });
    assert!(several);
}

/// A thread that panics is an error, not a reader that waits for ever.
#[test]
fn a_source_that_panics_is_an_error_on_every_way() {
    // 64, 128 and 256 KiB are read by the caller, what follows by others.
    for (nth, size) in [(1, KIB), (6, KIB), (3, 8 * MIB)] {
        let source = Arc::new(Faulty::new("memory", vec![7; 8 * MIB], Fault::Panics(nth)));
        let mut stream = Stream::over(source, 0..8 << 20, &settings(4, 8 * MIB)).unwrap();
        let mut buffer = vec![0; size];
        let error = loop {
            if let Err(error) = stream.read_exact(&mut buffer) {
                break error;
            }
            assert!(stream.stream_position().unwrap() < 8 << 20, "no error at all");
        };
        assert_eq!(carried(&error).kind(), ErrorKind::Internal);
        // The n-th read panicked; later ones do not.
        stream.rewind().unwrap();
        assert_eq!(io::copy(&mut stream, &mut io::sink()).unwrap(), 8 << 20);
    }
}

#[test]
fn large_reads_and_reads_ahead_are_done_by_several_threads_at_once() {
    let bytes = Random::new(2).bytes(16 * MIB);
    for size in [16 * MIB, 10_000] {
        let source = Watched::slow(bytes.clone(), Duration::from_millis(3));
        let mut stream = over(&source, 4, 8 * MIB);
        let mut found = vec![0; bytes.len()];
        for part in found.chunks_mut(size) {
            stream.read_exact(part).unwrap();
        }
        assert!(found == bytes);
        let (peak, opened) = (source.peak(), source.opened());
        // With the calling thread, which reads too where it would only wait.
        assert!((2..=5).contains(&peak), "{peak} reads at a time");
        assert!((2..=5).contains(&opened), "opened {opened} times");
    }
    let source = Watched::slow(bytes, Duration::from_millis(1));
    let mut stream = over(&source, 1, 8 * MIB);
    io::copy(&mut stream, &mut io::sink()).unwrap();
    assert_eq!((source.peak(), source.opened()), (1, 1));
}

/// Nothing shows that the reading goes on, so little more is read than was asked for.
#[test]
fn random_and_backward_reads_stay_small() {
    let source = Watched::new(vec![3; 16 * MIB]);
    let mut random = Random::new(4);
    let mut stream = over(&source, 4, 8 * MIB);
    let before = source.bytes();
    for _ in 0..500 {
        stream.seek(SeekFrom::Start(random.below((16 << 20) - 200))).unwrap();
        stream.read_exact(&mut [0; 200]).unwrap();
    }
    let each = (source.bytes() - before) / 500;
    assert!(each <= 16 << 10, "{each} bytes for each read of 200");

    let before = source.bytes();
    let mut at = 16 << 20;
    while at >= 500 {
        at -= 500;
        stream.seek(SeekFrom::Start(at)).unwrap();
        stream.read_exact(&mut [0; 500]).unwrap();
    }
    let times = (source.bytes() - before) / (16 << 20);
    assert!(times <= 2, "every byte was read {times} times");
}

/// Steps within the window read nothing again.
#[test]
fn a_seek_within_the_window_keeps_it() {
    let bytes = Random::new(5).bytes(4 * MIB);
    let source = Watched::new(bytes.clone());
    let mut stream = over(&source, 4, 2 * MIB);
    let mut buffer = [0; 100];
    while let Ok(()) = stream.read_exact(&mut buffer) {
        stream.seek_relative(-50).unwrap();
        stream.read_exact(&mut buffer[..50]).unwrap();
        let at = stream.stream_position().unwrap() as usize;
        assert_eq!(buffer[..50], bytes[at - 50..at]);
    }
    assert_eq!(source.bytes(), 4 << 20);
}

#[test]
fn a_stream_dropped_or_left_while_it_is_read_ahead_waits_for_little() {
    let time = Duration::from_millis(5);
    let source = Watched::slow(vec![1; 64 * MIB], time);
    let mut stream = over(&source, 2, 32 * MIB);
    for _ in 0..1024 {
        stream.read_exact(&mut [0; 4096]).unwrap();
    }
    assert_eq!(source.peak(), 2);
    let started = std::time::Instant::now();
    let reads = source.reads();
    drop(stream);
    // Those under way or just begun, and none of the dozens that were asked for.
    assert!(source.reads() <= reads + 4, "{} reads more", source.reads() - reads);
    assert!(started.elapsed() < 20 * time, "{:?}", started.elapsed());
    assert_eq!(Arc::strong_count(&source), 1);
}

/// More open files than the process may have: those that are open read for the others.
#[test]
fn a_source_that_can_be_opened_once_only_is_read_by_one_at_a_time() {
    let bytes = Random::new(6).bytes(12 * MIB);
    for size in [12 * MIB, 10_000] {
        let source = Watched::new(bytes.clone());
        source.allow_open(1);
        let mut stream = over(&source, 4, 4 * MIB);
        let mut found = vec![0; bytes.len()];
        for part in found.chunks_mut(size) {
            stream.read_exact(part).unwrap();
        }
        assert!(found == bytes);
    }
    let source = Watched::new(bytes);
    source.allow_open(0);
    let mut stream = over(&source, 4, 4 * MIB);
    assert_eq!(carried(&stream.read(&mut [0; 4]).unwrap_err()).kind(), ErrorKind::Io);
}

#[test]
fn two_streams_over_a_source_and_threads_that_share_one() {
    fn can_be_shared<T: Send + Sync>() {}
    can_be_shared::<Stream>();
    let bytes = Random::new(7).bytes(10 * MIB);
    let source = Watched::new(bytes.clone());
    let (mut one, mut two) = (over(&source, 3, MIB), over(&source, 3, MIB));
    let (mut first, mut second) = (vec![0; 10 * MIB], vec![0; 10 * MIB]);
    for (a, b) in first.chunks_mut(30_000).zip(second.chunks_mut(30_000)) {
        one.read_exact(a).unwrap();
        two.read_exact(b).unwrap();
    }
    assert!(first == bytes && second == bytes);
    std::thread::scope(|scope| {
        for part in 0..4 {
            let (one, bytes) = (&one, &bytes);
            scope.spawn(move || {
                let mut buffer = vec![0; 5 * MIB];
                one.read_exact_at(&mut buffer, (part * MIB) as u64).unwrap();
                assert!(buffer == bytes[part * MIB..][..5 * MIB]);
            });
        }
    });
}

#[test]
fn refused_ranges_and_options_say_why() {
    let source = Watched::new(vec![0; 100]);
    for (start, end) in [(0, 101), (101, 101), (u64::MAX, u64::MAX), (60, 50)] {
        let error =
            Stream::over(source.clone(), start..end, &StreamOptions::default()).unwrap_err();
        assert_eq!(error.kind().name(), "OutOfRange");
    }
    let error = Stream::over(source.clone(), 0..1, &settings(2, 4095)).unwrap_err();
    assert_eq!((error.kind(), error.value("option")), (ErrorKind::InvalidOption, Some("window")));
    let stream = Stream::over(source, 90..100, &StreamOptions::default()).unwrap();
    for (offset, size) in [(0, 11), (10, 1), (11, 0), (u64::MAX, 1)] {
        let error = stream.read_exact_at(&mut vec![0; size], offset).unwrap_err();
        assert_eq!(error.kind().name(), "OutOfRange", "{size} at {offset}");
    }
    stream.read_exact_at(&mut [], 10).unwrap();
}
