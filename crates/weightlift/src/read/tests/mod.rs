//! What every reader must do, and what each must do beside that.

mod faults;
mod files;
mod layouts;
mod mapped;
mod measure;
mod told;

use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::Random;

use super::access::{Access, DirectAlignment, Facts};
use super::auto::Auto;
use super::direct_linux::Direct;
use super::mapped_linux::Mapped;
use super::positional::Positional;
use super::uring_linux::Uring;
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::Result;
use crate::memory::Scratch;
use crate::options::DirectIo;
use crate::source::{self, LocalFile, OpenSource, Source};
use crate::system::Resident;

/// The readers that the suite is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Positional,
    Direct,
    UringDirect,
    /// With its buffers registered from the beginning.
    UringFixed,
    UringCached,
    Mapped,
    Auto,
}

impl Subject {
    const ALL: [Self; 7] = [
        Self::Positional,
        Self::Direct,
        Self::UringDirect,
        Self::UringFixed,
        Self::UringCached,
        Self::Mapped,
        Self::Auto,
    ];
    const DIRECT: [Self; 4] = [Self::Direct, Self::UringDirect, Self::UringFixed, Self::Auto];

    fn reader<'a>(self, access: &'a Access, fault: Fault) -> Box<dyn Reader + 'a> {
        let distort = || -> Option<Box<dyn FnMut(i32) -> i32>> {
            let mut counter = 0;
            let distort = move |result| {
                counter += 1;
                fault.result(counter, result)
            };
            if fault.is_any() { Some(Box::new(distort)) } else { None }
        };
        let queued = |kind| {
            let (mut reader, entries) = queue(access, kind);
            assert!((8..=64).contains(&entries));
            reader.faults.result = distort();
            reader
        };
        match self {
            Self::Positional => Box::new(Positional::new(access.sources())),
            Self::Direct => Box::new(Direct::new(access)),
            Self::UringDirect => Box::new(queued(Kind::Direct)),
            Self::UringCached => Box::new(queued(Kind::Buffered)),
            Self::UringFixed => {
                let mut reader = queued(Kind::Direct);
                reader.register_now();
                Box::new(reader)
            }
            Self::Mapped => {
                let mut reader = Mapped::new(access);
                reader.fault = distort();
                Box::new(reader)
            }
            // With the faults that the sources have: of its readers the plain direct one.
            Self::Auto => Box::new(Auto::with_queue(access, |_, _| Err("not in this test".into()))),
        }
    }

    /// Whether it can be had here.
    fn is_there(self) -> bool {
        let access = access(Vec::new(), DirectAlignment::USUAL, DirectIo::Auto);
        match self {
            Self::UringDirect | Self::UringCached => Uring::new(&access, Kind::Direct).is_ok(),
            Self::UringFixed => Uring::new(&access, Kind::Direct).is_ok_and(|(mut reader, _)| {
                reader.register_now();
                reader.fixed.is_registered()
            }),
            Self::Mapped => maps_files(),
            Self::Positional | Self::Direct | Self::Auto => true,
        }
    }
}

/// Whether files in the temporary folder can be read by mappings: since Linux 5.14.
fn maps_files() -> bool {
    let access =
        access(Written::new(10).source(Fault::None), DirectAlignment::USUAL, DirectIo::Auto);
    let (results, _) = read(&mut Mapped::new(&access), &vec![(0, vec![(0, 10)])]);
    matches!(results[..], [Ok(Kind::Mapped)])
}

/// A reader with a queue. Tests run side by side, and the kernel takes its time to count off what
/// a queue that went had locked: a user without privileges may have to wait for his turn.
fn queue(access: &Access, kind: Kind) -> (Uring<'_>, u32) {
    for _ in 0..1000 {
        match Uring::new(access, kind) {
            Ok(made) => return made,
            Err(why) if why.contains("os error 12") => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(why) => panic!("{why}"),
        }
    }
    panic!("no memory for a queue in 10 s")
}

/// How reads of a file go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// They come short by any number of bytes, but bring one at least.
    Short,
    /// They come short by a multiple of 512 bytes, where they are longer than that.
    ShortAligned,
    /// Every second one fails with this error.
    EverySecond(i32),
    /// The n-th fails with this error, and all after it.
    From(u64, i32),
    /// The n-th alone does.
    Once(u64, i32),
}

const EINTR: i32 = 4;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const ESTALE: i32 = 116;

impl Fault {
    fn is_any(self) -> bool {
        self != Self::None
    }

    /// What becomes of the result of the n-th read: bytes, or an error as a negative number.
    fn result(self, number: u64, result: i32) -> i32 {
        match self {
            Self::Short if result > 1 => {
                1 + (number.wrapping_mul(0x9e37_79b9) % result as u64) as i32
            }
            Self::ShortAligned if result > 512 => {
                let units = (result / 512) as u64;
                512 * (1 + number.wrapping_mul(0x9e37_79b9) % units) as i32
            }
            Self::EverySecond(errno) if number % 2 == 1 => -errno,
            Self::From(nth, errno) if number >= nth => -errno,
            Self::Once(nth, errno) if number == nth => -errno,
            _ => result,
        }
    }
}

/// A file whose reads go wrong: direct ones, or all.
#[derive(Debug)]
struct Shim {
    file: LocalFile,
    fault: Fault,
    direct_only: bool,
    direct: Option<&'static str>,
    reads: Arc<AtomicU64>,
    opened: AtomicU64,
}

impl Shim {
    fn new(file: LocalFile, fault: Fault) -> Self {
        let (reads, opened) = (Arc::default(), AtomicU64::new(0));
        Self { file, fault, direct_only: false, direct: None, reads, opened }
    }

    fn wrap(&self, inner: Box<dyn OpenSource>, fault: Fault) -> Box<dyn OpenSource> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Box::new(OpenShim { inner, fault, reads: self.reads.clone() })
    }
}

impl Source for Shim {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn length(&self) -> u64 {
        self.file.length()
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        let fault = if self.direct_only { Fault::None } else { self.fault };
        Ok(self.wrap(self.file.open()?, fault))
    }

    fn open_direct(&self) -> Result<source::Direct> {
        if let Some(why) = self.direct {
            return Ok(source::Direct::Unavailable(why.to_owned()));
        }
        Ok(match self.file.open_direct()? {
            source::Direct::Open(inner) => source::Direct::Open(self.wrap(inner, self.fault)),
            other => other,
        })
    }

    fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }
}

struct OpenShim {
    inner: Box<dyn OpenSource>,
    fault: Fault,
    reads: Arc<AtomicU64>,
}

impl OpenSource for OpenShim {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let count = self.inner.read_at(buffers, offset)?;
        let result = self.fault.result(number, count as i32);
        match usize::try_from(result) {
            Ok(count) => Ok(count),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }
}

/// What a test knows of its files.
struct Known {
    alignment: DirectAlignment,
    /// A range is cached where its first byte's page has an odd number.
    odd_pages_are_cached: bool,
}

impl Facts for Known {
    fn alignment(&self, _source: usize) -> Result<DirectAlignment, String> {
        Ok(self.alignment)
    }

    fn resident(&self, _source: usize, offset: u64, _length: u64) -> Resident {
        match self.odd_pages_are_cached && (offset / 4096) % 2 == 1 {
            true => Resident::All,
            false => Resident::None,
        }
    }
}

fn access(sources: Vec<Arc<dyn Source>>, alignment: DirectAlignment, mode: DirectIo) -> Access {
    let facts = Known { alignment, odd_pages_are_cached: false };
    Access::new(sources.into(), mode, Box::new(facts))
}

/// A file of so many random bytes.
struct Written {
    file: tempfile::NamedTempFile,
    bytes: Vec<u8>,
}

impl Written {
    fn new(length: usize) -> Self {
        let bytes = Random::new(length as u64).bytes(length);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        file.as_file().sync_all().unwrap();
        Self { file, bytes }
    }

    fn local(&self) -> LocalFile {
        LocalFile::open_new(self.file.path().to_owned(), "a file").unwrap().0
    }

    fn source(&self, fault: Fault) -> Vec<Arc<dyn Source>> {
        vec![Arc::new(Shim::new(self.local(), fault))]
    }
}

/// The alignments that direct reads are tried with here: none where there are no direct reads.
fn alignments(test: &str) -> Vec<DirectAlignment> {
    let all = [(512, 512), (4096, 512), (512, 4096), (4096, 4096)]
        .map(|(memory, offset)| DirectAlignment { memory, offset });
    let file = Written::new(200_000);
    let allowed = |alignment: &DirectAlignment| {
        let access = access(file.source(Fault::None), *alignment, DirectIo::On);
        let mut scratch = Scratch::new(160_512);
        // Partly in place, as near to the alignment as can be.
        let place = scratch.place(&[(512, 160_000)]);
        let mut reader = Direct::new(&access);
        reader.submit(ReadPiece { piece: 0, source: 0, offset: 512 }, place);
        reader.complete().unwrap().result.is_ok()
    };
    let allowed: Vec<_> = all.into_iter().filter(allowed).collect();
    if allowed.is_empty() {
        testkit::skipped(test, "files in the temporary folder have no direct reads");
    }
    allowed
}

/// The subjects that are there; what is missing is told.
fn subjects(test: &str, all: &[Subject]) -> Vec<Subject> {
    let (there, missing): (Vec<_>, Vec<_>) = all.iter().partition(|subject| subject.is_there());
    if !missing.is_empty() {
        testkit::skipped(test, &format!("this kernel has no {missing:?}"));
    }
    there
}

/// Pieces for one file: an offset each, and the ranges of the place as [`Scratch::place`] takes
/// them.
type Layout = Vec<(u64, Vec<(usize, usize)>)>;

/// Reads all pieces, with as many under way as the reader takes; what came of each, and the memory.
fn read(reader: &mut dyn Reader, layout: &Layout) -> (Vec<Result<Kind>>, Vec<u8>) {
    let length = layout.iter().flat_map(|(_, ranges)| ranges).map(|(skip, length)| skip + length);
    let mut scratch = Scratch::new(length.sum());
    let mut results: Vec<Option<Result<Kind>>> = layout.iter().map(|_| None).collect();
    let mut pieces = layout.iter().enumerate();
    let mut under_way = 0;
    loop {
        while under_way < reader.depth()
            && let Some((piece, (offset, ranges))) = pieces.next()
        {
            let place = scratch.place(ranges);
            reader.submit(ReadPiece { piece, source: 0, offset: *offset }, place);
            under_way += 1;
        }
        let Some(Completed { piece, place, result }) = reader.complete() else { break };
        under_way -= 1;
        drop(place);
        assert!(results[piece].replace(result).is_none(), "a piece came twice");
    }
    assert_eq!(under_way, 0);
    let all = results.into_iter().map(|result| result.expect("every piece ends")).collect();
    (all, scratch.into_bytes())
}

/// What the memory holds after a good read of `layout`; what lies between places stays zero.
fn expected(layout: &Layout, file: &[u8]) -> Vec<u8> {
    let mut memory = Vec::new();
    for (offset, ranges) in layout {
        let mut at = *offset as usize;
        for (skip, length) in ranges {
            memory.resize(memory.len() + skip, 0);
            memory.extend_from_slice(&file[at..at + length]);
            at += length;
        }
    }
    memory
}

fn assert_same(got: &[u8], wanted: &[u8], what: &dyn std::fmt::Debug) {
    if got != wanted {
        let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
        panic!("{what:?}: byte {differs:?} differs, lengths {} and {}", got.len(), wanted.len());
    }
}
