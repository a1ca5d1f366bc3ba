//! Loads past the page cache: the same bytes, and a report that says what was read how.

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory, skipped};
use weightlift::{CachedFile, CancelToken, DirectIo, ErrorKind, Loader, Options, Resident, Route};

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

/// While the device starts, what is cold and has no place in the ring is read into the page cache,
/// and read from there; afterwards the cache is as it was.
#[test]
fn what_the_ring_has_no_place_for_is_read_ahead_while_the_driver_starts() {
    const TEST: &str = "what_the_ring_has_no_place_for_is_read_ahead_while_the_driver_starts";
    const MIB: u64 = 1 << 20;
    let specs = vec![Spec::u8("w", Random::new(9).bytes(24 << 20))];
    let model = Written::single(specs, 3);
    std::fs::File::open(model.path()).unwrap().sync_all().unwrap();
    let file = CachedFile::open(model.path()).unwrap();
    let evict = || file.drop_pages(0, file.length()).unwrap();
    let resident = |from: u64, to: u64| file.resident(from * MIB, (to - from) * MIB);
    evict();
    if resident(0, 24) != Resident::None {
        return skipped(TEST, "the cache cannot be asked, or nothing can be dropped from it");
    }
    let ring = "block_size=2MiB,piece_size=512KiB,staging_budget=4MiB";
    let load = |mode: DirectIo, threads: u32, init_delay_ms: u64| {
        let fake = Fake::new(Config { init_delay_ms, ..Config::default() });
        let loader = fake.loader(direct(&format!("{ring},reading_threads={threads}"), mode));
        let loaded = loader.load(model.path(), on_cuda(Route::Pinned)).unwrap();
        assert_same(&loaded, &model.tensors);
        let report = loaded.report.clone();
        drop((loaded, loader));
        fake.assert_clean();
        let reads = |kind: &str| report.reads.get(kind).copied().unwrap_or(0);
        (report.read_ahead_bytes, reads("direct"), reads("buffered"))
    };
    for threads in [2, 4] {
        // As much as the disk brings in the time, of all but what the ring holds.
        let (ahead, past, through) = load(DirectIo::Auto, threads, 600);
        assert!((1..=21 * MIB).contains(&ahead), "{ahead} bytes were read ahead");
        assert_eq!((through, past + through), (ahead, 24 * MIB));
        assert_eq!(resident(1, 24), Resident::None, "what was cold is in the cache now");
    }
    // Half of it is there before, and stays. The kernel may take some of it away for reasons of its
    // own, but not each time.
    let stays = || {
        let mut half = std::io::Read::take(std::fs::File::open(model.path()).unwrap(), 12 * MIB);
        std::io::copy(&mut half, &mut std::io::sink()).unwrap();
        // What the kernel has begun to read ahead of that comes when it comes.
        while resident(12, 24) != Resident::None {
            file.drop_pages(12 * MIB, file.length()).unwrap();
        }
        let (ahead, ..) = load(DirectIo::Auto, 3, 600);
        assert!((1..=13 * MIB).contains(&ahead), "{ahead} bytes were read ahead");
        assert_eq!(resident(12, 24), Resident::None, "what was cold is in the cache now");
        resident(0, 12) == Resident::All
    };
    assert!(stays() || stays() || stays(), "what was in the cache is gone");
    // Forced past the cache, nothing goes into it; forced through it, all of it stays there.
    evict();
    assert_eq!(load(DirectIo::On, 3, 300), (0, 24 * MIB, 0));
    assert_eq!(resident(1, 24), Resident::None);
    let (ahead, past, through) = load(DirectIo::Off, 3, 600);
    assert_eq!((past, through, resident(0, 24)), (0, 24 * MIB, Resident::All));
    assert!((1..=21 * MIB).contains(&ahead), "{ahead} bytes were read ahead");
    // Where all of it is there nothing is to be read ahead; nor with one reader, nor with a
    // device that is up.
    assert_eq!(load(DirectIo::Auto, 3, 300), (0, 0, 24 * MIB));
    evict();
    assert_eq!(load(DirectIo::Auto, 1, 300).0, 0);
    assert_eq!(resident(1, 24), Resident::None);
}

/// A load that ends early leaves the cache as it was, too.
#[test]
fn a_load_that_is_cancelled_drops_what_it_read_ahead() {
    const TEST: &str = "a_load_that_is_cancelled_drops_what_it_read_ahead";
    let model = Written::single(vec![Spec::u8("w", Random::new(9).bytes(24 << 20))], 3);
    std::fs::File::open(model.path()).unwrap().sync_all().unwrap();
    let file = CachedFile::open(model.path()).unwrap();
    file.drop_pages(0, file.length()).unwrap();
    let resident = || file.resident(1 << 20, 23 << 20);
    if resident() != Resident::None {
        return skipped(TEST, "the cache cannot be asked, or nothing can be dropped from it");
    }
    let fake = Fake::new(Config { init_delay_ms: 2_000, ..Config::default() });
    let loader = fake.loader(options("block_size=1MiB,staging_budget=2MiB,reading_threads=2"));
    let token = CancelToken::new();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| loader.load(model.path(), on_cuda(Route::Pinned).cancel(&token)));
        while resident() == Resident::None {
            assert!(!load.is_finished(), "nothing was read ahead");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        token.cancel();
        assert_eq!(load.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
    });
    assert_eq!(resident(), Resident::None, "what was cold is in the cache now");
    drop(loader);
    crate::starts_are_over();
    fake.assert_clean();
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
