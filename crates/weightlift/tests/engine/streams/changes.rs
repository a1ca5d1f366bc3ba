//! Files that are not what they were, and files that lie.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use testkit::{Fault, Faulty, Random};
use weightlift::{ErrorKind, Stream, StreamOptions};

use super::{MIB, carried, settings};

type Change = fn(&Path);

/// Each with a word of the error that says what happened.
const CHANGES: [(&str, Change); 4] = [
    ("length", |path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
    }),
    ("length", |path| {
        let file = fs::OpenOptions::new().append(true).open(path).unwrap();
        io::Write::write_all(&mut &file, b"more").unwrap();
    }),
    ("written", |path| {
        std::thread::sleep(Duration::from_millis(20)); // past the clock tick of the write before
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"x", 0).unwrap();
    }),
    ("replaced", |path| {
        let other = path.with_extension("new");
        fs::copy(path, &other).unwrap();
        fs::rename(&other, path).unwrap();
    }),
];

/// FS-16
#[test]
fn a_file_that_changes_is_told_in_what_at_the_end_and_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bin");
    for (word, change) in CHANGES {
        fs::write(&path, Random::new(1).bytes(9 * MIB)).unwrap();
        let is_told = |error: &weightlift::Error| {
            assert_eq!(error.kind(), ErrorKind::Changed, "{error:?}");
            assert!(error.message().contains(word), "{error:?}, not {word}");
        };
        // The first has it open already, and reads to the end.
        let mut stream = Stream::open(&path, &settings(3, MIB)).unwrap();
        let mut unread = Stream::open(&path, &settings(3, MIB)).unwrap();
        stream.read_exact(&mut [0; 10]).unwrap();
        stream.check().unwrap();
        change(&path);
        is_told(&stream.check().unwrap_err());
        is_told(carried(&io::copy(&mut stream, &mut io::sink()).unwrap_err()));
        // It is opened now: by this thread, and by others.
        is_told(carried(&unread.read(&mut [0; 10]).unwrap_err()));
        is_told(carried(&unread.read_exact(&mut vec![0; 9 * MIB]).unwrap_err()));
        is_told(&unread.read_exact_at(&mut [0; 10], 5).unwrap_err());
        is_told(carried(&unread.read_to_end(&mut Vec::new()).unwrap_err()));
        unread.seek(SeekFrom::End(0)).unwrap();
        is_told(carried(&unread.read(&mut [0; 10]).unwrap_err()));
    }
    fs::remove_file(&path).unwrap();
    let error = Stream::open(&path, &StreamOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FileNotFound);
    let error = Stream::open(folder.path(), &StreamOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRegular);
}

/// 0 bytes mean the end of the stream, never that of a file that is shorter than it should be.
#[test]
fn an_early_end_is_no_end() {
    for size in [100, 6 * MIB] {
        let source = Arc::new(Faulty::new("short", vec![1; 6 * MIB], Fault::Ends(2)));
        let mut stream = Stream::over(source, 0..6 << 20, &settings(1, MIB)).unwrap();
        let mut buffer = vec![0; size];
        let error = loop {
            match stream.read(&mut buffer) {
                Ok(0) => panic!("the end, at {}", stream.stream_position().unwrap()),
                Ok(_) if size > 100 => stream.rewind().map(drop).unwrap(),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(carried(&error).kind().name(), "Truncated");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}

/// IX-11
#[test]
fn stale_once_is_opened_again_and_stale_twice_is_an_error() {
    for (fault, fine) in [(Fault::Errno(1, 116), true), (Fault::Stale, false)] {
        let source = Arc::new(Faulty::new("nfs", vec![9; 100], fault));
        let mut stream = Stream::over(source.clone(), 0..100, &settings(1, MIB)).unwrap();
        assert_eq!(stream.read(&mut [0; 50]).is_ok(), fine);
        assert_eq!(source.opened(), 2);
    }
}

/// A source that never has anything is not one that should be asked again.
#[test]
fn a_source_that_blocks_for_ever_times_out() {
    let source = Arc::new(Faulty::new("blocked", vec![9; 100], Fault::WouldBlock(1_000_000)));
    let mut stream = Stream::over(source, 0..100, &settings(1, MIB)).unwrap();
    let error = stream.read(&mut [0; 50]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(carried(&error).kind(), ErrorKind::Io);
}
