//! Loads past the page cache: the same bytes, and a report that says what was read how.

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory, skipped};
use weightlift::{DirectIo, ErrorKind, Loader, Options, Route};

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
                    assert_eq!(report.reads["direct"], bytes, "{ring} {threads} {mode:?}");
                    assert_eq!(report.fallbacks, []);
                    let mut decisions = report.decisions.iter();
                    assert!(decisions.any(|decision| decision.what == "direct_reads"));
                }
                drop(loader);
                fake.assert_clean();
            }
        }
    }
}

#[test]
fn loads_go_through_the_cache_unless_told() {
    let Some(model) = written("loads_go_through_the_cache_unless_told") else { return };
    let loaded = Loader::default().load(model.path(), on_host()).unwrap();
    assert_same(&loaded, &model.tensors);
    assert_eq!(loaded.report.reads.keys().collect::<Vec<_>>(), ["buffered"]);
}

/// Sources that are no files stand for files that have no direct reads.
#[test]
fn what_has_no_direct_reads_falls_back_or_is_an_error() {
    let specs = Spec::many(&mut Random::new(3), 40, 20_000);
    let bytes: u64 = specs.iter().map(|spec| spec.bytes.len() as u64).sum();
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let text = "piece_size=4KiB,reading_threads=4";
    let loaded = Loader::new(direct(text, DirectIo::Auto)).load_model(&model, on_host()).unwrap();
    assert_same(&loaded, &specs);
    let [fallback] = &loaded.report.fallbacks[..] else { panic!("{:?}", loaded.report.fallbacks) };
    assert_eq!((&*fallback.from, &*fallback.to, fallback.bytes), ("direct", "buffered", bytes));
    assert!(fallback.reason.starts_with("memory-0: "), "{}", fallback.reason);

    let error = Loader::new(direct(text, DirectIo::On)).load_model(&model, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DirectIoUnavailable);
    assert_eq!(error.value("file"), Some("memory-0"));
}
