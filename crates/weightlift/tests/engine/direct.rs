//! Loads past the page cache: the same bytes, and a report that says what was read how.

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory, skipped};
use weightlift::{CachedFile, DirectIo, ErrorKind, Loader, Options, Resident, Route};

use crate::{Fake, assert_same, on_cuda, on_host, options};

fn direct(text: &str, mode: DirectIo) -> Options {
    let mut options = options(text);
    options.direct_io = mode;
    options
}

/// A file with tensors of all sizes, or nothing where files have no direct reads.
fn written(test: &str) -> Option<Written> {
    let mut random = Random::new(5);
    let mut specs = Spec::many(&mut random, 40, 20_000);
    specs.push(Spec::u8("large", random.bytes(3_000_001)));
    specs.push(Spec::u8("last", random.bytes(77)));
    let model = Written::single(specs, 3);
    let loader = Loader::new(direct("", DirectIo::On));
    match loader.load(model.path(), on_host()) {
        Err(error) if error.kind() == ErrorKind::DirectIoUnavailable => {
            skipped(test, "files in the temporary folder have no direct reads");
            None
        }
        loaded => {
            loaded.unwrap();
            Some(model)
        }
    }
}

/// With several reads under way a reader holds parts of several blocks. Were it to wait for
/// another block before it has taken note of those that are read, it would wait for ever.
#[test]
fn direct_loads_bring_the_same_bytes_with_any_ring() {
    let Some(model) = written("direct_loads_bring_the_same_bytes_with_any_ring") else { return };
    let bytes: u64 = model.tensors.iter().map(|spec| spec.bytes.len() as u64).sum();
    for ring in [
        "block_size=16KiB,piece_size=16KiB,staging_budget=32KiB",
        "block_size=16KiB,piece_size=4KiB,staging_budget=32KiB",
        "block_size=256KiB,piece_size=64KiB,staging_budget=1MiB",
    ] {
        for threads in [1, 2, 4] {
            for mode in [DirectIo::On, DirectIo::Auto] {
                let options = direct(&format!("{ring},reading_threads={threads}"), mode);
                let fake = Fake::new(Config { copy_delay_us: 100, ..Config::default() });
                let loader = fake.loader(options);
                for request in [on_host as fn() -> _, || on_cuda(Route::Pinned)] {
                    let loaded = loader.load(model.path(), request()).unwrap();
                    assert_same(&loaded, &model.tensors);
                    let report = &loaded.report;
                    assert_eq!(report.reads.values().sum::<u64>(), bytes);
                    assert_eq!(report.fallbacks, []);
                    // What was written just now may be in the cache, where `auto` reads it.
                    if mode == DirectIo::On {
                        assert_eq!(report.reads["direct"], bytes, "{ring} {threads}");
                        let mut decisions = report.decisions.iter();
                        assert!(decisions.any(|decision| decision.what == "direct_reads"));
                    }
                }
                drop(loader);
                fake.assert_clean();
            }
        }
    }
}

/// Half of the file is in the page cache: it is read from there, the rest past it, and the cache
/// is as it was.
#[test]
fn what_the_cache_holds_is_read_from_there_and_the_rest_past_it() {
    const TEST: &str = "what_the_cache_holds_is_read_from_there_and_the_rest_past_it";
    const HALF: u64 = 16 << 20;
    let specs = vec![Spec::u8("w", Random::new(9).bytes(2 * HALF as usize))];
    let model = Written::single(specs, 3);
    std::fs::File::open(model.path()).unwrap().sync_all().unwrap();
    let file = CachedFile::open(model.path()).unwrap();
    let rest = file.length() - HALF;
    file.drop_pages(HALF, rest).unwrap();
    let evicted = || file.resident(HALF, rest) == Resident::None;
    if file.resident(0, HALF) != Resident::All || !evicted() {
        return skipped(TEST, "the cache cannot be asked, or nothing can be dropped from it");
    }
    let cached = |report: &weightlift::Report| {
        let reads = |kind: &str| report.reads.get(kind).copied().unwrap_or(0);
        // The piece in the middle is partly cold: it is read past the cache whole.
        assert_eq!(reads("buffered") + reads("direct"), 2 * HALF, "{:?}", report.decisions);
        assert!(reads("buffered") <= HALF && reads("buffered") >= HALF - (4 << 20));
        assert!(evicted(), "what was cold is in the cache now");
    };
    let fake = Fake::new(Config::default());
    for device in [on_host(), on_cuda(Route::Pinned)] {
        let loader = fake.loader(options("piece_size=1MiB,reading_threads=3"));
        let loaded = loader.load(model.path(), device).unwrap();
        assert_same(&loaded, &model.tensors);
        cached(&loaded.report);
    }
    let off = Loader::new(direct("", DirectIo::Off)).load(model.path(), on_host()).unwrap();
    assert_same(&off, &model.tensors);
    assert_eq!(off.report.reads.keys().collect::<Vec<_>>(), ["buffered"]);
    fake.assert_clean();
}

/// A reader that waits for the device to hand over a block has no reads under way: they would
/// count as reading, and the driver's start as overlapped.
#[test]
fn waiting_for_the_driver_is_not_reading() {
    let Some(model) = written("waiting_for_the_driver_is_not_reading") else { return };
    for threads in [2, 4] {
        let fake = Fake::new(Config { init_delay_ms: 400, ..Config::default() });
        let text = "block_size=64KiB,piece_size=16KiB,staging_budget=256KiB";
        let loader =
            fake.loader(direct(&format!("{text},reading_threads={threads}"), DirectIo::On));
        let seconds = loader.load(model.path(), on_cuda(Route::Pinned)).unwrap().report.seconds;
        // The ring is full long before the driver is up; half is for a busy machine.
        assert!(seconds.driver_wait > seconds.driver / 2.0, "{threads}: {seconds:?}");
    }
}

#[test]
fn files_in_memory_are_read_through_the_cache_and_the_report_says_why() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        let test = "files_in_memory_are_read_through_the_cache_and_the_report_says_why";
        return skipped(test, "no /dev/shm");
    };
    let specs = vec![Spec::u8("w", Random::new(10).bytes(100_000))];
    let path = folder.path().join("m.safetensors");
    std::fs::copy(Written::single(specs.clone(), 3).path(), &path).unwrap();
    let loaded = Loader::default().load(&path, on_host()).unwrap();
    assert_same(&loaded, &specs);
    let report = &loaded.report;
    assert_eq!((report.reads.len(), report.reads["buffered"]), (1, 100_000));
    let mut decisions = report.decisions.iter();
    let decision = decisions.find(|decision| decision.what == "reads").expect("a reason");
    assert_eq!((&*decision.chosen, &*decision.reason), ("buffered", "tmpfs lies in memory"));
}

/// Sources that are no files stand for files that have no direct reads.
#[test]
fn what_has_no_direct_reads_is_read_otherwise_or_an_error() {
    let specs = Spec::many(&mut Random::new(3), 40, 20_000);
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let text = "piece_size=4KiB,reading_threads=4";
    let loaded = Loader::new(direct(text, DirectIo::Auto)).load_model(&model, on_host()).unwrap();
    assert_same(&loaded, &specs);
    assert_eq!(loaded.report.fallbacks, []);
    let mut decisions = loaded.report.decisions.iter();
    let decision = decisions.find(|decision| decision.what == "reads").expect("a reason");
    assert_eq!((&*decision.chosen, &*decision.reason), ("buffered", "it is no local file"));

    let error = Loader::new(direct(text, DirectIo::On)).load_model(&model, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectIoUnavailable);
    assert_eq!(error.value("file"), Some("memory-0"));
}
