//! Loads that are cancelled, and callers that panic.

use std::time::{Duration, Instant};

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, in_memory};
use weightlift::{CancelToken, ErrorKind, Request, Route};

use crate::{Fake, assert_same, on_cuda, on_host, options};

const SMALL: &str = "block_size=16KiB,piece_size=4KiB,staging_budget=48KiB,reading_threads=3";

fn specs() -> Vec<Spec> {
    Spec::many(&mut Random::new(3), 60, 20_000)
}

/// The time is printed, and bounded far above the 0.2 s that are promised: the machines that
/// run tests are shared.
#[test]
fn a_cancelled_load_stops_soon_and_drains() {
    let slow = Fault::Slow(Duration::from_millis(5));
    let routes: [fn() -> Request<'static>; 3] =
        [on_host, || on_cuda(Route::Pinned), || on_cuda(Route::Pageable)];
    for threads in ["1", "3"] {
        for request in routes {
            let fake = Fake::new(Config { copy_delay_us: 2_000, ..Config::default() });
            let loader = fake.loader(options(&format!("{SMALL},reading_threads={threads}")));
            let (model, sources) = in_memory(vec![(specs(), slow)]);
            let token = CancelToken::new();
            let stopper = token.clone();
            let cancelled_at = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(60));
                stopper.cancel();
                Instant::now()
            });
            let error = loader.load_model(&model, request().cancel(&token)).unwrap_err();
            let took = cancelled_at.join().unwrap().elapsed();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
            eprintln!("stopped after {took:?}, {} reads", sources[0].reads());
            assert!(took < Duration::from_secs(2), "{took:?}");
            let (good, _) = in_memory(vec![(specs(), Fault::None)]);
            assert_same(&loader.load_model(&good, request()).unwrap(), &specs());
            drop(loader);
            fake.assert_clean();
        }
    }
}

#[test]
fn a_load_cancelled_while_the_driver_starts_does_not_wait_for_it() {
    let fake = Fake::new(Config { init_delay_ms: 1_500, ..Config::default() });
    let loader = fake.loader(options(SMALL));
    let (model, _) = in_memory(vec![(specs(), Fault::None)]);
    let token = CancelToken::new();
    token.cancel();
    let started = Instant::now();
    let error = loader.load_model(&model, on_cuda(Route::Pinned).cancel(&token)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(started.elapsed() < Duration::from_millis(1_000), "{:?}", started.elapsed());
    // What was started is the loader's: the next load takes it.
    assert_same(&loader.load_model(&model, on_cuda(Route::Pinned)).unwrap(), &specs());
    drop(loader);
    crate::starts_are_over();
    fake.assert_clean();
}

/// So that an interpreter, for example, can look at its signals on the thread that called.
#[test]
fn a_caller_is_told_while_it_waits_and_can_cancel() {
    let fake = Fake::new(Config { init_delay_ms: 1_000, ..Config::default() });
    let (model, _) = in_memory(vec![(specs(), Fault::None)]);
    let (slow, _) = in_memory(vec![(specs(), Fault::Slow(Duration::from_millis(60)))]);
    let calling = std::thread::current().id();
    for (model, request) in [(&model, on_cuda(Route::Pinned)), (&slow, on_host())] {
        let token = CancelToken::new();
        let mut told = 0;
        let request = request.cancel(&token).on_event(|event| {
            assert_eq!(std::thread::current().id(), calling);
            if matches!(event, weightlift::Event::Waiting) {
                told += 1;
                token.cancel();
            }
        });
        let loader = fake.loader(options(SMALL));
        let error = loader.load_model(model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(told > 0);
    }
    crate::starts_are_over();
    fake.assert_clean();
}

#[test]
fn a_token_that_was_used_stops_the_next_load_before_it_reads() {
    let (model, sources) = in_memory(vec![(specs(), Fault::None)]);
    let token = CancelToken::new();
    token.cancel();
    let loader = weightlift::Loader::new(options(SMALL));
    let error = loader.load_model(&model, on_host().cancel(&token)).unwrap_err();
    assert_eq!((error.kind(), sources[0].reads()), (ErrorKind::Cancelled, 0));
}

/// Invariant 4: also when the caller's own code panics in the middle.
#[test]
fn a_caller_that_panics_leaves_nothing_under_way() {
    let fake = Fake::new(Config { copy_delay_us: 1_000, ..Config::default() });
    let loader = fake.loader(options(SMALL));
    let (model, _) = in_memory(vec![(specs(), Fault::None)]);
    for (threads, pin_host) in [(1, false), (3, false), (1, true), (3, true)] {
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut left = 5_i32;
            let threads = weightlift::ReadingThreads::new(threads).unwrap();
            let request = if pin_host { on_host().pin_host(true) } else { on_cuda(Route::Pinned) };
            let request = request.reading_threads(threads).on_event(|_| {
                left -= 1;
                // Once: a panic that was swallowed would let the load go on.
                assert_ne!(left, 0, "the caller's own panic");
            });
            loader.load_model(&model, request)
        }));
        assert!(panics.is_err());
        assert_same(&loader.load_model(&model, on_cuda(Route::Pinned)).unwrap(), &specs());
    }
    drop(loader);
    fake.assert_clean();
}
