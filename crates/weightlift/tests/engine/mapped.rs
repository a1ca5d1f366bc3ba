//! Loads that copy out of mappings of their files.

use std::sync::Arc;

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory, skipped};
use weightlift::{DirectIo, ErrorKind, Loader, Model, OpenOptions, Report, Request, Route};

use crate::{Fake, assert_same, on_cuda, on_host, options};

fn specs() -> Vec<Spec> {
    let mut random = Random::new(5);
    let mut specs = Spec::many(&mut random, 40, 20_000);
    specs.push(Spec::u8("large", random.bytes(9_000_001)));
    specs
}

/// What was not mapped; says so where this kernel maps nothing.
fn unmapped(test: &str, report: &Report) -> u64 {
    let decision = report.decisions.iter().find(|decision| decision.what == "reads").unwrap();
    assert_eq!((&*decision.chosen, &*decision.reason), ("mapped", "asked for"));
    if let Some(fallback) = report.fallbacks.first() {
        assert_eq!((&*fallback.from, &*fallback.to), ("mapped", "buffered"));
        skipped(test, &fallback.reason);
    }
    report.reads["buffered"]
}

/// The driver of the tests takes note of mappings of files that it is given.
#[test]
fn mapped_loads_bring_the_same_bytes_and_no_driver_sees_a_mapping() {
    let test = "mapped_loads_bring_the_same_bytes_and_no_driver_sees_a_mapping";
    let written = Written::single(specs(), 3);
    let fake = Fake::new(Config::default());
    for text in ["reading_threads=1", "reading_threads=3,block_size=64KiB,piece_size=16KiB"] {
        for pin in [false, true] {
            let loader = fake.loader(options(&format!("map_files=on,{text}")));
            let loaded = loader.load(written.path(), on_host().pin_host(pin)).unwrap();
            assert_same(&loaded, &written.tensors);
            if loaded.report.fallbacks.is_empty() {
                assert_eq!(unmapped(test, &loaded.report), 0);
            }
            assert_eq!(loaded.report.pinned_destination_bytes > 0, pin);
            drop(loaded);
        }
    }
    fake.assert_clean();
}

#[test]
fn what_cannot_be_mapped_is_a_fallback_with_its_bytes() {
    let specs = specs();
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let loader = Loader::new(options("map_files=on"));
    let loaded = loader.load_model(&model, on_host()).unwrap();
    assert_same(&loaded, &specs);
    let [fallback] = &loaded.report.fallbacks[..] else { panic!("{:?}", loaded.report.fallbacks) };
    assert_eq!((&*fallback.from, &*fallback.to), ("mapped", "buffered"));
    assert_eq!(fallback.reason, "memory-0: its bytes are not those of a file");
    assert_eq!(fallback.bytes, loaded.report.bytes.read);
}

/// A mapping is read for the host alone: a driver must never see one.
#[test]
fn mapping_is_refused_for_anything_but_the_host() {
    let (model, sources) = in_memory(vec![(specs(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(options("map_files=on"));
    for request in [Request::new(), on_cuda(Route::Pinned), on_cuda(Route::Pageable)] {
        let error = loader.load_model(&model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error}");
        assert_eq!(error.value("option"), Some("map_files"));
        assert_eq!(error.get_hint(), Some("add --device host"));
    }
    let mut settings = options("map_files=on");
    settings.direct_io = DirectIo::On;
    let error = fake.loader(settings).load_model(&model, on_host()).unwrap_err();
    assert_eq!((error.kind(), error.value("direct_io")), (ErrorKind::InvalidOption, Some("on")));
    assert_eq!(sources[0].reads(), 0);
    drop(loader);
    fake.assert_clean();
}

/// FS-15: this was SIGBUS, exit status 135, for everybody who maps.
#[test]
fn a_file_that_is_cut_between_two_pieces_is_an_error() {
    let test = "a_file_that_is_cut_between_two_pieces_is_an_error";
    let written = Written::single(specs(), 3);
    let model = Arc::new(Model::open(written.path(), &OpenOptions::default()).unwrap());
    // The calling thread reads, and is told of each block in between.
    let loader =
        Loader::new(options("map_files=on,reading_threads=1,block_size=64KiB,piece_size=64KiB"));
    let loaded = loader.load_model(&model, on_host()).unwrap();
    if unmapped(test, &loaded.report) > 0 {
        return;
    }
    for cut in [4096, 5_000_000] {
        let written = Written::single(specs(), 3);
        let model = Arc::new(Model::open(written.path(), &OpenOptions::default()).unwrap());
        let file = std::fs::OpenOptions::new().write(true).open(written.path()).unwrap();
        let request = on_host().on_event(move |_| file.set_len(cut).unwrap());
        let error = loader.load_model(&model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{cut}: {error}");
    }
}
