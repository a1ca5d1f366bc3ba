//! Who breaks a rule is told off, and the process lives on.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[macro_use]
mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;

use common::{Region, Session};
use fake_cuda::Config;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use weightlift_cuda_sys::{CuDevice, CuStatus, CuStream};

const PAGE: usize = 4096;

#[test]
fn unmapping_before_unregistering() {
    let s = Session::new(Config::default());
    let mut region = Region::new(4 * PAGE);
    s.register(&region);
    s.no_violation();
    region.unmap();
    s.told_off("unmapped while registered");
    // Told once; the range itself is registered and can be given back.
    assert!(s.unregister(&region).is_success());
    assert_eq!(s.fake.violations().len(), 1);
}

#[test]
fn unmapping_and_mapping_anew() {
    let s = Session::new(Config::default());
    let mut region = Region::new(PAGE);
    s.register(&region);
    s.no_violation();
    region.remap();
    s.told_off("unmapped while registered");
    assert!(s.unregister(&region).is_success());
}

#[test]
fn unmapping_under_a_running_copy() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(PAGE));
    // So large that nobody else fills the hole by chance.
    let mut region = Region::new(256 << 20);
    s.register(&region);
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), PAGE, stream).is_success());
    region.unmap();
    s.fake.release();
    assert!(s.sync(stream).is_success());
    let all = s.fake.violations();
    assert!(all.iter().any(|v| v.contains("unmapped while registered")), "{all:?}");
    assert!(all.iter().any(|v| v.contains("gone when its copy ran")), "{all:?}");
    assert_eq!(s.fake.read_device(pointer, PAGE), [0xCD; PAGE]);
}

#[test]
fn unregistering_under_a_running_copy() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(PAGE));
    let region = Region::new(PAGE);
    s.register(&region);
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), PAGE, stream).is_success());
    assert!(s.unregister(&region).is_success());
    s.told_off("unregistered under a running copy");
    s.fake.release();
    assert!(s.sync(stream).is_success());
}

#[test]
fn freeing_under_a_running_copy() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(PAGE));
    let region = Region::new(PAGE);
    s.register(&region);
    s.fake.hold();
    assert!(s.copy(pointer, region.at(0), PAGE, stream).is_success());
    assert!(cu!(s, cuMemFree_v2(pointer)).is_success());
    s.told_off("freed under a running copy");
    s.fake.release();
    assert!(s.sync(stream).is_success());
    assert_eq!(s.fake.counts().executed_copies, 1, "it ran, into memory of nobody");
    assert!(s.unregister(&region).is_success());
}

#[test]
fn using_and_freeing_what_was_freed() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(PAGE));
    let bytes = [0u8; PAGE];
    assert!(cu!(s, cuMemFree_v2(pointer)).is_success());
    s.no_violation();
    let late = s.copy(pointer + 8, bytes.as_ptr().cast(), 8, stream);
    assert_eq!(late, CuStatus::INVALID_VALUE);
    s.told_off("lies in freed memory");
    assert_eq!(cu!(s, cuMemFree_v2(pointer)), CuStatus::INVALID_VALUE);
    assert!(s.fake.violations()[1].contains("was freed before"));
}

#[test]
fn copying_beyond_an_allocation() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(PAGE));
    s.alloc(PAGE);
    let bytes = [0u8; PAGE];
    let beyond = s.copy(pointer + 1, bytes.as_ptr().cast(), PAGE, stream);
    assert_eq!(beyond, CuStatus::INVALID_VALUE);
    s.told_off("does not lie within one allocation");
}

#[test]
fn copying_beyond_a_registration() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(4 * PAGE));
    let region = Region::new(4 * PAGE);
    let half = |i: usize| region.at(i * 2 * PAGE).cast_mut();
    // Two registrations side by side are still two.
    for i in 0..2 {
        assert!(cu!(s, cuMemHostRegister_v2(half(i), 2 * PAGE, 1)).is_success());
    }
    assert!(s.copy(pointer, half(1), 2 * PAGE, stream).is_success());
    let across = s.copy(pointer, region.at(PAGE), 2 * PAGE, stream);
    assert_eq!(across, CuStatus::INVALID_VALUE);
    s.told_off("does not lie within one registration");
    assert!(s.sync(stream).is_success());
    for i in 0..2 {
        assert!(cu!(s, cuMemHostUnregister(half(i))).is_success());
    }
}

#[test]
fn registering_what_cannot_be() {
    let s = Session::new(Config {
        register_max: 4 * PAGE as u64,
        register_limit: 6 * PAGE as u64,
        ..Config::default()
    });
    let region = Region::new(16 * PAGE);
    let register =
        |from: usize, len: usize| cu!(s, cuMemHostRegister_v2(region.at(from).cast_mut(), len, 1));
    assert_eq!(register(0, 5 * PAGE), CuStatus::OUT_OF_MEMORY, "too large");
    assert!(register(0, 4 * PAGE).is_success());
    assert_eq!(register(8 * PAGE, 3 * PAGE), CuStatus::OUT_OF_MEMORY, "too much in all");
    let again = CuStatus::HOST_MEMORY_ALREADY_REGISTERED;
    assert_eq!(register(0, PAGE), again);
    assert_eq!(register(3 * PAGE, 2 * PAGE), again);
    assert!(register(8 * PAGE, PAGE).is_success());
    assert_eq!(s.fake.counts().registered_bytes, 5 * PAGE as u64);
    s.no_violation();

    let unknown = cu!(s, cuMemHostUnregister(region.at(12 * PAGE).cast_mut()));
    assert_eq!(unknown, CuStatus::HOST_MEMORY_NOT_REGISTERED);
    s.told_off("no registration starts");
    assert!(cu!(s, cuMemHostUnregister(region.at(0).cast_mut())).is_success());
    assert!(cu!(s, cuMemHostUnregister(region.at(8 * PAGE).cast_mut())).is_success());
}

#[test]
fn registering_a_file_mapping() {
    let s = Session::new(Config::default());
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let (protection, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: a new mapping disturbs nobody.
    let start = unsafe { mmap(ptr::null_mut(), PAGE, protection, flags, file.as_fd(), 0) }.unwrap();
    assert!(cu!(s, cuMemHostRegister_v2(start, PAGE, 1)).is_success());
    s.told_off("a mapping of a file");
    assert!(cu!(s, cuMemHostUnregister(start)).is_success());
    // SAFETY: it is ours.
    unsafe { munmap(start, PAGE) }.unwrap();
}

#[test]
fn using_events_and_streams_that_are_gone() {
    let s = Session::new(Config::default());
    let (stream, event) = (s.copy_stream(), s.event());
    assert!(cu!(s, cuEventDestroy_v2(event)).is_success());
    let gone = [
        cu!(s, cuEventRecord(event, stream)),
        cu!(s, cuStreamWaitEvent(stream, event, 0)),
        cu!(s, cuEventQuery(event)),
        cu!(s, cuEventSynchronize(event)),
        cu!(s, cuEventDestroy_v2(event)),
    ];
    assert_eq!(gone, [CuStatus(400); 5]);
    assert!(cu!(s, cuStreamDestroy_v2(stream)).is_success());
    assert_eq!(s.sync(stream), CuStatus::INVALID_HANDLE);
    let all = s.fake.violations();
    assert_eq!(all.len(), 6, "{all:?}");
    assert!(all[..5].iter().all(|v| v.contains("is not an event")), "{all:?}");
    assert!(all[5].contains("is not a stream"), "{all:?}");
}

#[test]
fn mixing_devices() {
    let s = Session::new(Config { devices: 2, ..Config::default() });
    let (stream, event, pointer) = (s.copy_stream(), s.event(), s.alloc(PAGE));
    s.enter(1);
    let other = s.copy_stream();
    let bytes = [0u8; 8];
    let from = bytes.as_ptr().cast();
    assert_eq!(s.copy(pointer, from, 8, stream), CuStatus::INVALID_HANDLE);
    assert_eq!(s.copy(pointer, from, 8, other), CuStatus::INVALID_VALUE);
    assert_eq!(cu!(s, cuEventRecord(event, other)), CuStatus::INVALID_HANDLE);
    let all = s.fake.violations();
    assert_eq!(all.len(), 3, "{all:?}");
    // Waiting across devices is what events are for.
    assert!(cu!(s, cuStreamWaitEvent(other, event, 0)).is_success());
    assert_eq!(s.fake.violations().len(), 3);
}

#[test]
fn destroying_a_context_with_things_in_it() {
    let s = Session::new(Config::default());
    let region = Region::new(PAGE);
    s.register(&region);
    s.alloc(PAGE);
    s.copy_stream();
    s.event();
    assert!(cu!(s, cuDevicePrimaryCtxRelease_v2(CuDevice(0))).is_success());
    s.told_off("1 allocations, 1 registrations, 1 streams and 1 events");
    assert_eq!(s.fake.live(), Default::default());
}

#[test]
fn reading_a_source_that_is_not_there() {
    let s = Session::new(Config::default());
    let pointer = s.alloc(PAGE);
    // The lowest pages are never mapped.
    let nowhere = ptr::without_provenance(PAGE);
    let outcome = s.copy(pointer, nowhere, PAGE, CuStream::NULL);
    assert_eq!(outcome, CuStatus::INVALID_VALUE);
    s.told_off("cannot be read");
}
