//! Streams and events: what runs when.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[macro_use]
mod common;

use std::thread;
use std::time::Duration;

use common::{Region, Session};
use fake_cuda::Config;
use weightlift_cuda_sys::{CuStatus, CuStream};

/// Long enough that what ran too early would have been seen.
const A_WHILE: Duration = Duration::from_millis(30);

#[test]
fn a_copy_takes_its_bytes_when_it_runs() {
    let s = Session::new(Config::default());
    let stream = s.copy_stream();
    let pointer = s.alloc(4096);
    let mut region = Region::new(4096);
    s.register(&region);
    region.fill(1);
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), 4096, stream).is_success());
    assert_eq!(cu!(s, cuStreamQuery(stream)), CuStatus::NOT_READY);
    thread::sleep(A_WHILE);
    assert_eq!(s.fake.read_device(pointer, 4096), [0xCD; 4096], "it is held");
    // The mistake that a staging ring must not make.
    region.fill(2);
    s.fake.release();
    assert!(s.sync(stream).is_success());
    assert_eq!(s.fake.read_device(pointer, 4096), [2; 4096]);
    assert!(cu!(s, cuStreamQuery(stream)).is_success());
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn an_event_is_done_with_the_work_before_it() {
    let s = Session::new(Config::default());
    let (stream, event) = (s.copy_stream(), s.event());
    let pointer = s.alloc(4096);
    let region = Region::new(4096);
    s.register(&region);
    // Never recorded: done, and holds nobody up.
    assert!(cu!(s, cuEventQuery(event)).is_success());
    assert!(cu!(s, cuEventSynchronize(event)).is_success());
    s.fake.hold();
    assert!(cu!(s, cuStreamWaitEvent(stream, event, 0)).is_success());
    assert!(cu!(s, cuStreamQuery(stream)).is_success());

    assert!(s.copy(pointer, region.at(0), 4096, stream).is_success());
    assert!(cu!(s, cuEventRecord(event, stream)).is_success());
    assert_eq!(cu!(s, cuEventQuery(event)), CuStatus::NOT_READY);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(A_WHILE);
            s.fake.release();
        });
        assert!(cu!(s, cuEventSynchronize(event)).is_success());
    });
    assert!(cu!(s, cuEventQuery(event)).is_success());
    assert_eq!(s.fake.counts().executed_copies, 1);
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn a_wait_is_for_the_latest_record_at_the_time_of_the_call() {
    let s = Session::new(Config::default());
    let (first, second, third) = (s.copy_stream(), s.copy_stream(), s.copy_stream());
    let (event, never) = (s.event(), s.event());
    let pointer = s.alloc(3);
    let mut region = Region::new(4096);
    region.bytes()[..3].copy_from_slice(b"abc");
    s.register(&region);
    s.fake.hold();
    // `third` waits for the record in `first`, not for the later one in `second`, which waits
    // for `third` in turn: with another meaning, this would never end.
    assert!(s.copy(pointer, region.at(0), 1, first).is_success());
    assert!(cu!(s, cuEventRecord(event, first)).is_success());
    assert!(cu!(s, cuStreamWaitEvent(third, event, 0)).is_success());
    assert!(s.copy(pointer + 1, region.at(1), 1, third).is_success());
    assert!(cu!(s, cuEventRecord(never, third)).is_success());
    assert!(cu!(s, cuStreamWaitEvent(second, never, 0)).is_success());
    assert!(s.copy(pointer + 2, region.at(2), 1, second).is_success());
    assert!(cu!(s, cuEventRecord(event, second)).is_success());
    // Destroying an event that is waited for is legal.
    assert!(cu!(s, cuEventDestroy_v2(never)).is_success());
    s.fake.release();
    assert!(cu!(s, cuEventSynchronize(event)).is_success());
    assert_eq!(s.fake.read_device(pointer, 3), b"abc");
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn a_destroyed_stream_ends_its_work() {
    let s = Session::new(Config::default());
    let (stream, event) = (s.copy_stream(), s.event());
    let pointer = s.alloc(4096);
    let mut region = Region::new(4096);
    region.fill(5);
    s.register(&region);
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), 4096, stream).is_success());
    assert!(cu!(s, cuEventRecord(event, stream)).is_success());
    assert!(cu!(s, cuStreamDestroy_v2(stream)).is_success());
    assert_eq!(s.fake.live().streams, 0);
    assert_eq!(cu!(s, cuEventQuery(event)), CuStatus::NOT_READY);
    s.fake.release();
    assert!(cu!(s, cuCtxSynchronize()).is_success());
    assert!(cu!(s, cuEventQuery(event)).is_success());
    assert_eq!(s.fake.read_device(pointer, 4096), [5; 4096]);
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_they_for_it() {
    let s = Session::new(Config { copy_delay_us: 5_000, ..Config::default() });
    let (pointer, elsewhere) = (s.alloc(4096), s.alloc(4096));
    let (legacy, blocking, free) = (CuStream::NULL, s.stream(0), s.copy_stream());
    let mut region = Region::new(2 * 4096);
    region.fill(1);
    region.bytes()[4096..].fill(2);
    s.register(&region);
    // The first is held up by a third; both write the same place, and only waiting makes the
    // second one win.
    for (first, second) in [(blocking, legacy), (legacy, blocking)] {
        let event = s.event();
        s.fake.hold();
        assert!(s.copy(elsewhere, region.at(0), 4096, free).is_success());
        assert!(cu!(s, cuEventRecord(event, free)).is_success());
        assert!(cu!(s, cuStreamWaitEvent(first, event, 0)).is_success());
        assert!(s.copy(pointer, region.at(0), 4096, first).is_success());
        assert!(s.copy(pointer, region.at(4096), 4096, second).is_success());
        assert_eq!(cu!(s, cuStreamQuery(second)), CuStatus::NOT_READY);
        s.fake.release();
        assert!(s.sync(second).is_success());
        assert!(cu!(s, cuStreamQuery(first)).is_success());
        assert!(cu!(s, cuCtxSynchronize()).is_success());
        assert_eq!(s.fake.read_device(pointer, 4096), [2; 4096]);
        assert!(cu!(s, cuEventDestroy_v2(event)).is_success());
    }
    // A stream that does not block has no part in that.
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), 4096, legacy).is_success());
    assert!(cu!(s, cuStreamQuery(free)).is_success());
    assert_eq!(cu!(s, cuStreamQuery(blocking)), CuStatus::SUCCESS);
    s.fake.release();
    assert!(s.sync(legacy).is_success());
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}
