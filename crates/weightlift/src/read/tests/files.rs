//! What readers of their own kind do: who chooses, who waits, who falls back.

use rustix::io::Errno;

use super::*;
use crate::error::ErrorKind;

const MIB: usize = 1 << 20;

#[derive(Debug)]
struct InMemory(Vec<u8>);

impl Source for InMemory {
    fn name(&self) -> &str {
        "memory"
    }

    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn open(&self) -> Result<Box<dyn OpenSource>> {
        Ok(Box::new(OpenInMemory(self.0.clone())))
    }

    fn open_direct(&self) -> Result<source::Direct> {
        Ok(source::Direct::InMemory)
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}

struct OpenInMemory(Vec<u8>);

impl OpenSource for OpenInMemory {
    fn read_at(&self, buffers: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        io::Read::read_vectored(&mut &self.0[offset as usize..], buffers)
    }
}

fn pages(count: u64) -> Layout {
    (0..count).map(|page| (page * 4096, vec![(0, 4096)])).collect()
}

#[test]
fn each_piece_is_read_by_what_is_known_of_it() {
    let test = "each_piece_is_read_by_what_is_known_of_it";
    if alignments(test).is_empty() {
        return;
    }
    let file = Written::new(8 * 4096);
    let cases = [
        (DirectIo::Off, [Kind::Buffered, Kind::Buffered]),
        (DirectIo::Auto, [Kind::Direct, Kind::Buffered]),
        (DirectIo::On, [Kind::Direct, Kind::Direct]),
    ];
    for (mode, wanted) in cases {
        let known = Known { alignment: DirectAlignment::USUAL, odd_pages_are_cached: true };
        let access = Access::new(file.source(Fault::None).into(), mode, Box::new(known));
        let (results, memory) = read(&mut Auto::new(&access), &pages(8));
        let kinds: Vec<Kind> = results.into_iter().map(Result::unwrap).collect();
        assert_eq!(kinds, wanted.repeat(4), "{mode:?}");
        assert_same(&memory, &file.bytes, &mode);
        assert_eq!(access.engine().is_some(), mode != DirectIo::Off, "{mode:?}");
        assert_eq!(access.refusals().count(), 0);
    }
}

/// UR-01: what forbids io_uring is no reason to read through the cache.
#[test]
fn without_a_queue_direct_reads_are_one_at_a_time() {
    let test = "without_a_queue_direct_reads_are_one_at_a_time";
    if alignments(test).is_empty() {
        return;
    }
    let file = Written::new(8 * 4096);
    let access = access(file.source(Fault::None), DirectAlignment::USUAL, DirectIo::Auto);
    let mut reader = Auto::with_queue(&access, |_, _| Err("EPERM".to_owned()));
    let (results, memory) = read(&mut reader, &pages(8));
    assert!(results.into_iter().all(|result| result.unwrap() == Kind::Direct));
    assert_same(&memory, &file.bytes, &"one at a time");
    assert_eq!((reader.depth(), access.engine()), (1, Some(("one at a time", "EPERM".to_owned()))));
}

#[test]
fn a_source_without_direct_reads_falls_back_once_for_all_readers() {
    let file = Written::new(8 * 4096);
    let shim = Shim { direct: Some("not here"), ..Shim::new(file.local(), Fault::None) };
    let access = access(vec![Arc::new(shim)], DirectAlignment::USUAL, DirectIo::Auto);
    for _ in 0..2 {
        let (results, memory) = read(&mut Auto::new(&access), &pages(8));
        assert!(results.into_iter().all(|result| result.unwrap() == Kind::Buffered));
        assert_same(&memory, &file.bytes, &"fallen back");
    }
    let refusals: Vec<_> = access.refusals().collect();
    assert_eq!(refusals, [(0, "not here", 2 * 8 * 4096)]);
}

/// Bytes in memory have no cache to be read past: forced or not, that is no fallback.
#[test]
fn bytes_in_memory_are_read_where_direct_reads_are_forced() {
    let bytes = Random::new(1).bytes(8 * 4096);
    for subject in
        subjects("bytes_in_memory_are_read_where_direct_reads_are_forced", &Subject::DIRECT)
    {
        let sources: Vec<Arc<dyn Source>> = vec![Arc::new(InMemory(bytes.clone()))];
        let access = access(sources, DirectAlignment::USUAL, DirectIo::On);
        let (results, memory) = read(&mut *subject.reader(&access, Fault::None), &pages(8));
        assert!(results.into_iter().all(|result| result.unwrap() == Kind::Buffered));
        assert_same(&memory, &bytes, &subject);
        assert_eq!(access.refusals().count(), 0);
    }
}

/// UR-05: a small read of what is in the cache takes a third longer or more by way of a queue. Not
/// even one is made.
#[test]
fn what_the_cache_holds_is_read_without_a_queue() {
    let file = Written::new(8 * 4096);
    let known = Known { alignment: DirectAlignment::USUAL, odd_pages_are_cached: true };
    let access = Access::new(file.source(Fault::None).into(), DirectIo::Auto, Box::new(known));
    let mut reader = Auto::with_queue(&access, |_, _| panic!("a queue for what is in the cache"));
    let layout: Layout = (0..4).map(|page| ((2 * page + 1) * 4096, vec![(0, 4096)])).collect();
    let (results, memory) = read(&mut reader, &layout);
    assert!(results.into_iter().all(|result| result.unwrap() == Kind::Buffered));
    assert_same(&memory, &expected(&layout, &file.bytes), &"cached");
    assert_eq!(access.engine(), None);
}

/// UR-03: memory that pieces go to again and again is registered when it was read into once, and
/// read into as before where it may not be.
#[test]
fn staging_memory_is_registered_once_it_was_read_into() {
    let test = "staging_memory_is_registered_once_it_was_read_into";
    if alignments(test).is_empty() || subjects(test, &[Subject::UringDirect]).is_empty() {
        return;
    }
    let file = Written::new(4 * MIB);
    for (registers, length) in [(true, MIB), (false, 4 * MIB)] {
        let mut scratch = Scratch::new(length);
        let access = access(file.source(Fault::None), DirectAlignment::USUAL, DirectIo::On);
        let access = access.staged(scratch.range());
        let (mut reader, _) = queue(&access, Kind::Direct);
        let mut place = scratch.place(&[(0, MIB)]);
        for piece in 0..4 {
            let offset = (piece * MIB) as u64;
            reader.submit(ReadPiece { piece, source: 0, offset }, place);
            let completed = reader.complete().unwrap();
            assert_eq!(completed.result.unwrap(), Kind::Direct);
            place = completed.place;
            let got = place.buffers(0, MIB, 1)[0].to_vec();
            assert_same(&got, &file.bytes[piece * MIB..][..MIB], &piece);
            let why = access.engine();
            assert_eq!(why, None, "the reader that chooses says it");
            // A user who may lock too little memory is refused.
            if registers && piece > 0 && access.registered() == Some(true) {
                assert!(reader.fixed.is_registered());
            } else {
                assert!(!reader.fixed.is_registered(), "{length} {piece}");
            }
        }
        assert_eq!(access.registered().is_some(), registers);
    }
}

/// A reader that let go of its places while the kernel writes to them would have it write to
/// whoever gets that memory next.
#[test]
fn a_reader_that_goes_waits_for_what_is_under_way() {
    let test = "a_reader_that_goes_waits_for_what_is_under_way";
    if alignments(test).is_empty() || subjects(test, &[Subject::UringDirect]).is_empty() {
        return;
    }
    let file = Written::new(4 * MIB);
    let access = access(file.source(Fault::None), DirectAlignment::USUAL, DirectIo::On);
    for _ in 0..10 {
        let (mut reader, _) = queue(&access, Kind::Direct);
        let mut scratch = Scratch::new(4 * MIB);
        assert_eq!(reader.depth(), 4);
        for piece in 0..4 {
            let place = scratch.place(&[(0, MIB)]);
            reader.submit(ReadPiece { piece, source: 0, offset: (piece * MIB) as u64 }, place);
        }
        drop(reader);
        // Each was one read in place, so that waiting for it means that its bytes are there.
        assert_same(&scratch.into_bytes(), &file.bytes, &"after the reader");
    }
}

#[test]
fn a_queue_that_dies_keeps_what_the_kernel_may_write_to() {
    let test = "a_queue_that_dies_keeps_what_the_kernel_may_write_to";
    if subjects(test, &[Subject::UringDirect]).is_empty() {
        return;
    }
    let file = Written::new(4 * MIB);
    let access = access(file.source(Fault::None), DirectAlignment::USUAL, DirectIo::Auto);
    let (mut reader, _) = queue(&access, Kind::Direct);
    let mut scratch = Scratch::new(4 * MIB);
    let mut submit = |reader: &mut Uring<'_>, piece| {
        let place = scratch.place(&[(0, MIB)]);
        reader.submit(ReadPiece { piece, source: 0, offset: 0 }, place);
    };
    submit(&mut reader, 0);
    submit(&mut reader, 1);
    reader.faults.enter = Some(Errno::BADF);
    submit(&mut reader, 2);
    submit(&mut reader, 3);
    for _ in 0..4 {
        let completed = reader.complete().unwrap();
        let error = completed.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    }
    assert!(reader.complete().is_none());
    drop(reader);
    // Of the fourth the kernel was never told.
    assert_eq!(scratch.out(), 3);
}
