//! Errors: which are tried again, which are the end, and which say that there are no direct reads.

use super::*;
use crate::error::ErrorKind;

const MIB: usize = 1 << 20;

/// Four pieces of a MiB whose places agree with their offsets: one read each where it is direct.
fn four() -> (Written, Layout) {
    let layout = (0..4).map(|piece| (piece * MIB as u64, vec![(0, MIB)])).collect();
    (Written::new(4 * MIB), layout)
}

fn kinds(results: &[Result<Kind>]) -> Vec<Option<Kind>> {
    results.iter().map(|result| result.as_ref().ok().copied()).collect()
}

#[test]
fn a_failed_read_is_an_error_that_says_where() {
    let test = "a_failed_read_is_an_error_that_says_where";
    let (file, layout) = four();
    for subject in subjects(test, &Subject::ALL) {
        let access =
            access(file.source(Fault::Once(2, EIO)), DirectAlignment::USUAL, DirectIo::Auto);
        let fault = Fault::Once(2, EIO);
        let (results, memory) = read(&mut *subject.reader(&access, fault), &layout);
        let failed: Vec<usize> = (0..4).filter(|piece| results[*piece].is_err()).collect();
        assert_eq!(failed.len(), 1, "{subject:?}: the other pieces come");
        let error = results[failed[0]].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{subject:?}");
        assert_eq!(error.value("offset"), Some(&*(failed[0] * MIB).to_string()), "{subject:?}");
        for piece in (0..4).filter(|piece| *piece != failed[0]) {
            let range = piece * MIB..(piece + 1) * MIB;
            assert_same(&memory[range.clone()], &file.bytes[range], &subject);
        }
    }
}

#[test]
fn a_stale_handle_is_opened_again_once() {
    let test = "a_stale_handle_is_opened_again_once";
    let (file, layout) = four();
    for subject in subjects(test, &Subject::ALL) {
        let fault = Fault::Once(2, ESTALE);
        let shim = Arc::new(Shim::new(file.local(), fault));
        let once = access(vec![shim.clone()], DirectAlignment::USUAL, DirectIo::Auto);
        let (results, memory) = read(&mut *subject.reader(&once, fault), &layout);
        assert!(results.iter().all(Result::is_ok), "{subject:?}");
        assert_same(&memory, &file.bytes, &subject);
        assert_eq!(shim.opened.load(Ordering::Relaxed), 2, "{subject:?}");

        let fault = Fault::From(2, ESTALE);
        let ever = access(file.source(fault), DirectAlignment::USUAL, DirectIo::Auto);
        let (results, _) = read(&mut *subject.reader(&ever, fault), &layout);
        let failed = results.iter().find_map(|result| result.as_ref().err()).unwrap();
        assert_eq!(failed.kind(), ErrorKind::Io, "{subject:?}");
    }
}

/// FS-08: opening works, reading says EINVAL.
#[test]
fn an_einval_while_reading_goes_on_through_the_cache() {
    let test = "an_einval_while_reading_goes_on_through_the_cache";
    let (file, layout) = four();
    if alignments(test).is_empty() {
        return;
    }
    for subject in subjects(test, &Subject::DIRECT) {
        for errno in [EINVAL, 95, 1] {
            let fault = Fault::Once(2, errno);
            let shim = Shim { direct_only: true, ..Shim::new(file.local(), fault) };
            let access = access(vec![Arc::new(shim)], DirectAlignment::USUAL, DirectIo::Auto);
            let (results, memory) = read(&mut *subject.reader(&access, fault), &layout);
            assert_same(&memory, &file.bytes, &subject);
            let kinds = kinds(&results);
            assert!(kinds.contains(&Some(Kind::Direct)), "{subject:?} {kinds:?}");
            let cached = kinds.iter().filter(|kind| **kind == Some(Kind::Buffered)).count();
            assert!(cached > 0, "{subject:?}");
            let refusals: Vec<_> = access.refusals().collect();
            assert_eq!(refusals.len(), 1, "{subject:?}: once for a source");
            let (source, why, bytes) = refusals[0];
            assert_eq!((source, bytes), (0, (cached * MIB) as u64), "{subject:?}");
            assert!(why.starts_with("reading it says E"), "{why}");
            let (results, _) = read(&mut *subject.reader(&access, Fault::None), &layout);
            let later: Vec<Kind> = results.into_iter().map(Result::unwrap).collect();
            assert_eq!(later, [Kind::Buffered; 4], "{subject:?}: and from then on");
        }
    }
}

#[test]
fn where_direct_reads_are_forced_that_is_an_error() {
    let test = "where_direct_reads_are_forced_that_is_an_error";
    let (file, layout) = four();
    for subject in subjects(test, &Subject::DIRECT) {
        let refusing = Shim { direct: Some("not here"), ..Shim::new(file.local(), Fault::None) };
        let access = access(vec![Arc::new(refusing)], DirectAlignment::USUAL, DirectIo::On);
        let (results, memory) = read(&mut *subject.reader(&access, Fault::None), &layout);
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::DirectIoUnavailable, "{subject:?}");
            assert_eq!(error.value("reason"), Some("not here"));
            assert_eq!(error.value("file"), Some("a file"));
        }
        assert!(memory.iter().all(|byte| *byte == 0), "nothing was read");
        assert_eq!(access.refusals().count(), 0, "an error is no fallback");
    }
}

/// FS-09: alignments that cannot be served are no reason to fail, nor to read wrongly.
#[test]
fn odd_alignments_are_refused() {
    let test = "odd_alignments_are_refused";
    let (file, layout) = four();
    for subject in subjects(test, &Subject::DIRECT) {
        for (memory, offset) in [(0, 0), (512, 0), (512, 768), (65536, 4096), (512, 2 << 20)] {
            let alignment = DirectAlignment { memory, offset };
            let access = access(file.source(Fault::None), alignment, DirectIo::Auto);
            let (results, memory) = read(&mut *subject.reader(&access, Fault::None), &layout);
            assert_eq!(kinds(&results), [Some(Kind::Buffered); 4], "{subject:?} {alignment:?}");
            assert_same(&memory, &file.bytes, &subject);
            assert!(access.refusals().next().unwrap().1.contains("alignment"));
        }
    }
}

/// FS-15 and FS-16: the file is cut after it was opened.
#[test]
fn a_file_that_is_cut_while_it_is_read_is_told() {
    let test = "a_file_that_is_cut_while_it_is_read_is_told";
    let subjects = subjects(test, &Subject::ALL);
    let cuts = [MIB as u64, MIB as u64 + 100];
    for (cut, subject) in cuts.iter().flat_map(|cut| subjects.iter().map(move |who| (*cut, who))) {
        for mode in [DirectIo::Auto, DirectIo::On] {
            let (file, _) = four();
            let access = access(file.source(Fault::None), DirectAlignment::USUAL, mode);
            let mut reader = subject.reader(&access, Fault::None);
            let (results, _) = read(&mut *reader, &vec![(0, vec![(0, 4096)])]);
            if mode == DirectIo::On && results[0].is_err() {
                continue; // told by the other tests
            }
            results.into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
            file.file.as_file().set_len(cut).unwrap();
            let (results, _) = read(&mut *reader, &vec![(MIB as u64, vec![(0, 2 * MIB)])]);
            let error = results[0].as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Changed, "{subject:?} {mode:?} {cut}: {error}");
        }
    }
}
