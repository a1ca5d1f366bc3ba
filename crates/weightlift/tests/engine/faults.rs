//! The driver fails: every function, at every call, once and for good.

use std::sync::Arc;

use fake_cuda::{Config, FakeCuda, Mode};
use testkit::{Fault, Spec, in_memory};
use weightlift::{DeviceChoice, ErrorKind, Model, Options, Request, Route};

use crate::{Fake, assert_same, on_cuda, on_host, options};

const INVALID_VALUE: u32 = 1;
const ILLEGAL_ADDRESS: u32 = 700;

/// Three readers, a ring of three blocks, five blocks to load; tensors that join and some that do not.
const SETTINGS: &str = "reading_threads=3,block_size=16KiB,piece_size=4KiB,staging_budget=48KiB";

fn specs() -> Vec<Spec> {
    let length = |number: usize| if number.is_multiple_of(5) { 8192 } else { 1900 + number };
    (0..24)
        .map(|number| Spec::u8(format!("t{number}"), vec![number as u8; length(number)]))
        .collect()
}

fn model() -> Arc<Model> {
    in_memory(vec![(specs(), Fault::None)]).0
}

/// Functions that no load calls, and why. Everything else is failed below.
const NOT_CALLED: [(&str, &str); 13] = [
    ("cuEventSynchronize", "waiters ask and yield instead (device/cuda/copy.rs)"),
    ("cuCtxGetDevice", "only to find the number of a caller's context; tested in driver.rs"),
    ("cuCtxSynchronize", "for memory that is handed to others, later"),
    ("cuDeviceGetAttribute", "for choices by device, later"),
    ("cuDeviceGetPCIBusId", "for weightlift doctor; tested in driver.rs"),
    ("cuDeviceGetUuid_v2", "to match devices of other interfaces, later"),
    ("cuDevicePrimaryCtxGetState", "for reports about contexts, later"),
    ("cuDeviceTotalMem_v2", "cuMemGetInfo tells both numbers"),
    ("cuGetErrorName", "only for a status that the table does not know; tested in driver.rs"),
    ("cuGetErrorString", "names are enough"),
    ("cuMemsetD8Async", "for tests on real devices"),
    ("cuPointerGetAttribute", "to check callers' pointers, later"),
    ("cuStreamQuery", "for memory that is handed to others, later"),
];

/// Needs something of its own to be called.
const CALLED_ELSEWHERE: [(&str, &str); 3] = [
    ("cuStreamWaitEvent", "sharing.rs: device_tensors_wait_for_the_callers_event"),
    (
        "cuMemGetInfo_v2",
        "driver.rs: too_little_device_memory_says_what_was_needed_and_what_was_free",
    ),
    ("cuMemcpyBatchAsync", "the form of 12.8 is taken where the form of 13.0 is not there"),
];

/// How to load. The host route is that into pinned memory: without that no driver is called.
#[derive(Clone, Copy, Debug)]
struct Way {
    route: Route,
    version: u64,
    /// Long enough that waiters stop asking and sleep, or so short that they never do.
    copy_delay_us: u64,
}

const WAYS: [Way; 5] = [
    Way { route: Route::Pinned, version: 13000, copy_delay_us: 30 },
    Way { route: Route::Pinned, version: 12080, copy_delay_us: 30 },
    Way { route: Route::Pinned, version: 12000, copy_delay_us: 600 },
    Way { route: Route::Pageable, version: 13000, copy_delay_us: 30 },
    Way { route: Route::Host, version: 13000, copy_delay_us: 30 },
];

impl Way {
    fn request<'a>(self) -> Request<'a> {
        match self.route {
            Route::Host => on_host().pin_host(true),
            route => on_cuda(route),
        }
    }

    fn config(self) -> Config {
        let Self { version, copy_delay_us, .. } = self;
        Config { version, copy_delay_us, ..Config::default() }
    }
}

#[test]
fn every_function_of_the_driver_may_fail_at_any_call() {
    let model = model();
    for way in WAYS {
        for function in FakeCuda::exported() {
            let mut nth = 1;
            while fails_well(&model, way, function, nth) {
                // Which one of a waiter's thousand questions fails makes no difference.
                nth += if *function == "cuEventQuery" && nth > 20 { nth } else { 1 };
            }
        }
    }
}

/// Whether the function was called `nth` times, and so failed.
fn fails_well(model: &Arc<Model>, way: Way, function: &str, nth: u64) -> bool {
    let what = format!("{way:?}, call {nth} of {function}");
    let fake = Fake::new(way.config());
    let loader = fake.loader(options(SETTINGS));
    fake.cuda.fail(function, nth, INVALID_VALUE, Mode::Once);
    let result = loader.load_model(model, way.request());
    match result {
        Ok(loaded) => {
            assert_same_at_last(&loaded);
        }
        Err(error) => {
            assert!(
                !matches!(error.kind(), ErrorKind::Internal | ErrorKind::Cancelled),
                "{what}: {error:?}"
            );
            assert!(
                error.value("status").is_some() || error.value("function").is_some(),
                "{what}: {error:?}"
            );
        }
    }
    let load_again = |loader: &weightlift::Loader| {
        let again = loader.load_model(model, way.request());
        assert_same_at_last(&again.unwrap_or_else(|error| panic!("{what}: {error:?}")));
    };
    let fired = fake.cuda.calls(function) >= nth;
    if fired {
        load_again(&loader);
    }
    loader.release();
    let given_up = loader.quarantined();
    drop(loader);
    // Or while everything was given back.
    let fired_late = !fired && fake.cuda.calls(function) >= nth;
    let live = fake.cuda.live();
    assert_eq!(fake.cuda.violations(), Vec::<String>::new(), "{what}");
    let handles = live.streams + live.events + live.retained;
    assert!(handles <= given_up.handles, "{what}: {live:?} left, {given_up:?} counted");
    let memory = live.allocations + live.registrations;
    assert!(memory == 0 || given_up.bytes > 0, "{what}: {live:?} left, {given_up:?} counted");
    if fired_late {
        load_again(&fake.loader(options(SETTINGS)));
    }
    fired || fired_late
}

/// The call may also fail when the bytes come back, and then only once.
fn assert_same_at_last(loaded: &weightlift::Loaded) {
    for spec in specs() {
        let tensor = loaded.tensor(&spec.name).expect("a tensor of that name");
        let digest = tensor.digest().or_else(|_| tensor.digest()).expect("a digest");
        assert_eq!(digest, testkit::digest(&spec.bytes), "{}", spec.name);
    }
}

#[test]
fn every_function_is_failed_somewhere_or_has_a_reason_not_to_be() {
    let model = model();
    let mut called = vec![0; FakeCuda::exported().len()];
    for way in WAYS {
        let fake = Fake::new(way.config());
        let loader = fake.loader(options(SETTINGS));
        let loaded = loader.load_model(&model, way.request()).unwrap();
        assert_same(&loaded, &specs());
        drop((loaded, loader));
        for (count, function) in called.iter_mut().zip(FakeCuda::exported()) {
            *count += fake.cuda.calls(function);
        }
    }
    for (count, function) in called.iter().zip(FakeCuda::exported()) {
        let excused = |list: &[(&str, &str)]| list.iter().any(|(name, _)| name == function);
        if excused(&NOT_CALLED) {
            assert_eq!(*count, 0, "{function} is called: take it off the list");
        } else if !excused(&CALLED_ELSEWHERE) {
            assert!(*count > 0, "{function} is never called: test it or say why");
        }
    }
}

/// `auto` goes on where only the pinning fails: smaller first, then without, and remembers.
#[test]
fn a_ring_that_cannot_be_pinned_is_halved_then_pageable_and_remembered() {
    let model = model();
    let request = || Request::new().device(DeviceChoice::Cuda(0));
    let bytes: u64 = specs().iter().map(|spec| spec.bytes.len() as u64).sum();

    let fake = Fake::new(Config { register_limit: 30 << 10, ..Config::default() });
    let loader = fake.loader(options(SETTINGS));
    for _ in 0..2 {
        let loaded = loader.load_model(&model, request()).unwrap();
        assert_same(&loaded, &specs());
        assert_eq!(
            (loaded.report.route().as_str(), loaded.report.pinned_bytes),
            ("pinned", 24 << 10)
        );
        assert!(
            loaded.report.decisions.iter().any(|decision| decision.what == "staging"),
            "{:?}",
            loaded.report.decisions
        );
    }
    assert_eq!(fake.cuda.calls("cuMemHostRegister_v2"), 2, "what could be pinned is remembered");
    drop(loader);
    fake.assert_clean();
    drop(fake);

    let fake = Fake::new(Config { register_limit: 0, ..Config::default() });
    let loader = fake.loader(options(SETTINGS));
    let mut calls = 0;
    for round in 0..2 {
        let loaded = loader.load_model(&model, request()).unwrap();
        assert_same(&loaded, &specs());
        let report = &loaded.report;
        assert_eq!((report.route().as_str(), report.pinned_bytes), ("pageable", 0));
        let fallback = &report.fallbacks[0];
        assert_eq!(
            (fallback.from.as_str(), fallback.to.as_str(), fallback.bytes),
            ("pinned", "pageable", bytes)
        );
        assert!(fallback.reason.contains("could not be pinned"), "{}", fallback.reason);
        if round == 0 {
            calls = fake.cuda.calls("cuMemHostRegister_v2");
            assert!(calls >= 3, "halved: {calls}");
        }
    }
    assert_eq!(fake.cuda.calls("cuMemHostRegister_v2"), calls, "the failure is remembered");
    let error = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PinFailed, "a forced route does not fall back");
    drop(loader);
    fake.assert_clean();
}

/// An error that spoils the context: told, nothing touched again, and told again.
#[test]
fn a_spoilt_context_is_told_at_once_and_from_then_on() {
    let model = model();
    for nth in [1, 3, 7] {
        let fake = Fake::new(Config { copy_delay_us: 50, ..Config::default() });
        let loader = fake.loader(options(SETTINGS));
        fake.cuda.fail_copy(nth, ILLEGAL_ADDRESS);
        let error = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error:?}");
        let again = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Poisoned, "{again:?}");
        assert!(again.get_hint().unwrap().contains("new process"));
        let other = fake.loader(Options::default());
        let error = other.load_model(&model, on_cuda(Route::Pinned)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Cuda), "{error:?}");
        let to_host = loader.load_model(&model, on_host()).unwrap();
        assert_same(&to_host, &specs());
        loader.release();
        assert!(loader.quarantined().bytes > 0, "what may still be written to is given up");
        drop((loader, other));
        fake.assert_no_violations();
    }
}

/// Releasing the last reference to a context frees what is left in it: somebody may still be
/// using what was given up there.
#[test]
fn a_context_outlives_what_was_given_up_in_it() {
    let model = model();
    for function in ["cuMemFree_v2", "cuMemHostUnregister", "cuStreamDestroy_v2"] {
        let fake = Fake::new(Config::default());
        let loader = fake.loader(options(SETTINGS));
        let loaded = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap();
        fake.cuda.fail(function, 1, INVALID_VALUE, Mode::Once);
        drop(loaded);
        loader.release();
        let given_up = loader.quarantined();
        drop(loader);
        let live = fake.cuda.live();
        let left = live.allocations + live.registrations + live.streams;
        assert_eq!((left, live.retained), (1, 1), "{function}: {live:?}");
        // The context itself, and the stream.
        let handles = 1 + live.streams;
        assert_eq!((given_up.bytes > 0, given_up.handles), (live.streams == 0, handles));
        fake.assert_no_violations();
    }
}

#[test]
fn memory_that_runs_out_at_any_allocation_leaves_nothing() {
    let model = model();
    let fake = Fake::new(Config { memory: 60_000, ..Config::default() });
    let loader = fake.loader(options(SETTINGS));
    for _ in 0..3 {
        let error = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfDeviceMemory);
        assert_eq!(fake.cuda.live().allocations, 0);
    }
    let some = on_cuda(Route::Pinned).tensors(["t1"]);
    loader.load_model(&model, some).expect("a smaller load fits");
    drop(loader);
    fake.assert_clean();
}
