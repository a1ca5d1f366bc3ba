//! Failures on demand, contexts that are spoilt, and forked children.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[macro_use]
mod common;

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::ptr;

use common::{Region, Session};
use fake_cuda::{Config, Digest, FakeCuda, Mode};
use weightlift_cuda_sys::{
    CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CuContext,
    CuDevice, CuEvent, CuMemcpyAttributes, CuStatus, CuStream, Driver,
};

const ARMED: CuStatus = CuStatus(4321);

/// Calls every function with arguments of the right types, most of which are refused.
fn call(driver: &Driver, name: &str) -> CuStatus {
    const DEVICE: CuDevice = CuDevice(0);
    const STREAM: CuStream = CuStream::NULL;
    const EVENT: CuEvent = CuEvent::NULL;
    let null: *mut c_void = ptr::null_mut();
    let batch = driver.cuMemcpyBatchAsync.unwrap();
    let batch_v2 = driver.cuMemcpyBatchAsync_v2.unwrap();
    let d = driver;
    // SAFETY: the fake refuses null places and addresses.
    unsafe {
        match name {
            "cuInit" => (d.cuInit)(0),
            "cuDriverGetVersion" => (d.cuDriverGetVersion)(null.cast()),
            "cuGetErrorName" => (d.cuGetErrorName)(ARMED, null.cast()),
            "cuGetErrorString" => (d.cuGetErrorString)(ARMED, null.cast()),
            "cuDeviceGet" => (d.cuDeviceGet)(null.cast(), 0),
            "cuDeviceGetCount" => (d.cuDeviceGetCount)(null.cast()),
            "cuDeviceGetName" => (d.cuDeviceGetName)(null.cast(), 0, DEVICE),
            "cuDeviceGetAttribute" => (d.cuDeviceGetAttribute)(null.cast(), 1, DEVICE),
            "cuDeviceGetUuid_v2" => (d.cuDeviceGetUuid_v2)(null.cast(), DEVICE),
            "cuDeviceGetPCIBusId" => (d.cuDeviceGetPCIBusId)(null.cast(), 0, DEVICE),
            "cuDeviceTotalMem_v2" => (d.cuDeviceTotalMem_v2)(null.cast(), DEVICE),
            "cuDevicePrimaryCtxRetain" => (d.cuDevicePrimaryCtxRetain)(null.cast(), DEVICE),
            "cuDevicePrimaryCtxRelease_v2" => (d.cuDevicePrimaryCtxRelease_v2)(CuDevice(-1)),
            "cuDevicePrimaryCtxGetState" => {
                (d.cuDevicePrimaryCtxGetState)(DEVICE, null.cast(), null.cast())
            }
            "cuCtxGetCurrent" => (d.cuCtxGetCurrent)(null.cast()),
            "cuCtxSetCurrent" => (d.cuCtxSetCurrent)(CuContext(8 as _)),
            "cuCtxGetDevice" => (d.cuCtxGetDevice)(null.cast()),
            "cuCtxSynchronize" => (d.cuCtxSynchronize)(),
            "cuMemGetInfo_v2" => (d.cuMemGetInfo_v2)(null.cast(), null.cast()),
            "cuMemAlloc_v2" => (d.cuMemAlloc_v2)(null.cast(), 1),
            "cuMemFree_v2" => (d.cuMemFree_v2)(0),
            "cuMemHostRegister_v2" => (d.cuMemHostRegister_v2)(null, 1, 0),
            "cuMemHostUnregister" => (d.cuMemHostUnregister)(null),
            "cuMemcpyHtoDAsync_v2" => (d.cuMemcpyHtoDAsync_v2)(0, null, 1, STREAM),
            "cuMemcpyDtoHAsync_v2" => (d.cuMemcpyDtoHAsync_v2)(null, 0, 1, STREAM),
            "cuMemsetD8Async" => (d.cuMemsetD8Async)(0, 0, 1, STREAM),
            "cuMemcpyBatchAsync" => batch(
                null.cast(),
                null.cast(),
                null.cast(),
                0,
                null.cast(),
                null.cast(),
                0,
                null.cast(),
                STREAM,
            ),
            "cuMemcpyBatchAsync_v2" => batch_v2(
                null.cast(),
                null.cast(),
                null.cast(),
                0,
                null.cast(),
                null.cast(),
                0,
                STREAM,
            ),
            "cuStreamCreate" => (d.cuStreamCreate)(null.cast(), 0),
            "cuStreamSynchronize" => (d.cuStreamSynchronize)(STREAM),
            "cuStreamQuery" => (d.cuStreamQuery)(STREAM),
            "cuStreamWaitEvent" => (d.cuStreamWaitEvent)(STREAM, EVENT, 0),
            "cuStreamDestroy_v2" => (d.cuStreamDestroy_v2)(STREAM),
            "cuEventCreate" => (d.cuEventCreate)(null.cast(), 0),
            "cuEventRecord" => (d.cuEventRecord)(EVENT, STREAM),
            "cuEventQuery" => (d.cuEventQuery)(EVENT),
            "cuEventSynchronize" => (d.cuEventSynchronize)(EVENT),
            "cuEventDestroy_v2" => (d.cuEventDestroy_v2)(EVENT),
            "cuPointerGetAttribute" => (d.cuPointerGetAttribute)(null, 2, 0),
            other => panic!("no call for {other}"),
        }
    }
}

#[test]
fn the_nth_call_of_any_function_fails() {
    let s = Session::new(Config::default());
    for &name in FakeCuda::exported() {
        let before = s.fake.calls(name);
        s.fake.fail(name, 3, ARMED.0, Mode::Once);
        let answers: Vec<_> = (0..5).map(|_| call(s.driver, name) == ARMED).collect();
        assert_eq!(answers, [false, false, true, false, false], "{name}");
        assert_eq!(s.fake.calls(name), before + 5, "{name}");

        s.fake.fail(name, 2, ARMED.0, Mode::Always);
        let answers: Vec<_> = (0..3).map(|_| call(s.driver, name) == ARMED).collect();
        assert_eq!(answers, [false, true, true], "{name}");
    }
    let known: BTreeSet<_> = Driver::REQUIRED.iter().chain(Driver::OPTIONAL).collect();
    assert_eq!(known, FakeCuda::exported().iter().collect());
}

#[test]
fn a_failed_call_does_nothing() {
    let s = Session::new(Config::default());
    s.fake.fail("cuMemAlloc_v2", 1, 2, Mode::Once);
    let mut pointer = 77;
    assert_eq!(cu!(s, cuMemAlloc_v2(&mut pointer, 512)), CuStatus::OUT_OF_MEMORY);
    assert_eq!(pointer, 77);
    assert_eq!(s.fake.live().allocations, 0);
    assert!(cu!(s, cuMemAlloc_v2(&mut pointer, 512)).is_success());
}

#[test]
fn a_sticky_failure_spoils_the_context() {
    let s = Session::new(Config { devices: 2, ..Config::default() });
    let (stream, pointer) = (s.copy_stream(), s.alloc(8));
    let bytes = [1u8; 8];
    s.fake.hold();
    assert!(s.copy(pointer, bytes.as_ptr().cast(), 8, stream).is_success());
    s.fake.fail("cuEventCreate", 1, 700, Mode::Sticky);
    let spoilt = CuStatus::ILLEGAL_ADDRESS;
    for _ in 0..2 {
        let mut event = CuEvent::NULL;
        assert_eq!(cu!(s, cuEventCreate(&mut event, 0)), spoilt);
    }
    // Also those that would wait, and those that give something back.
    assert_eq!(s.sync(stream), spoilt);
    assert_eq!(cu!(s, cuMemFree_v2(pointer)), spoilt);
    let mut context = CuContext::NULL;
    assert_eq!(cu!(s, cuDevicePrimaryCtxRetain(&mut context, CuDevice(0))), spoilt);
    // Queries work, and other devices do.
    let mut count: c_int = 0;
    assert!(cu!(s, cuDeviceGetCount(&mut count)).is_success());
    s.fake.release();
    s.enter(1);
    s.alloc(8);
    assert_eq!(s.fake.read_device(pointer, 8), [0xCD; 8], "what was queued is dropped");
}

#[test]
fn a_copy_that_fails_later_is_told_by_later_calls() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(4));
    let mut region = Region::new(4096);
    region.fill(6);
    s.register(&region);
    s.fake.hold();
    s.fake.fail_copy(2, 719);
    for i in 0..3 {
        assert!(s.copy(pointer + i, region.at(0), 1, stream).is_success());
    }
    s.fake.release();
    assert_eq!(s.sync(stream), CuStatus::LAUNCH_FAILED);
    assert_eq!(cu!(s, cuStreamQuery(stream)), CuStatus::LAUNCH_FAILED);
    assert_eq!(s.unregister(&region), CuStatus::LAUNCH_FAILED);
    assert_eq!(s.fake.read_device(pointer, 4), [6, 0xCD, 0xCD, 0xCD]);
    s.no_violation();
    // The mapping outlives the driver that it is registered with.
    std::mem::forget(region);
}

#[test]
fn a_forked_child_cannot_use_the_driver() {
    unsafe extern "C" {
        fn fork() -> c_int;
        fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
        fn _exit(code: c_int) -> !;
    }
    let s = Session::new(Config::default());
    // SAFETY: the child calls functions that take no lock of another thread's, and exits.
    let child = unsafe { fork() };
    if child == 0 {
        let mut count = 0;
        let answers =
            [cu!(s, cuInit(0)), cu!(s, cuDeviceGetCount(&mut count)), cu!(s, cuCtxSynchronize())];
        let right = answers == [CuStatus::NOT_INITIALIZED; 3];
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { _exit(if right { 42 } else { 1 }) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: the child is ours, and the place a reference.
    assert_eq!(unsafe { waitpid(child, &mut status, 0) }, child);
    assert_eq!(status >> 8, 42);
    assert!(cu!(s, cuCtxSynchronize()).is_success());
}

#[test]
fn a_discarding_device_keeps_a_digest() {
    let s = Session::new(Config { discard: 1, ..Config::default() });
    let (stream, pointer) = (s.copy_stream(), s.alloc(1 << 20));
    let mut region = Region::new(1 << 20);
    for (i, byte) in region.bytes().iter_mut().enumerate() {
        *byte = (i * 31 % 253) as u8;
    }
    s.register(&region);
    // In pieces, the last first, one of them pageable.
    let bytes = region.bytes().to_vec();
    for (from, to) in [(500_001, 1 << 20), (0, 300_000)] {
        let copied = s.copy(pointer + from as u64, region.at(from), to - from, stream);
        assert!(copied.is_success());
    }
    let middle = bytes[300_000..].as_ptr().cast();
    assert!(s.copy(pointer + 300_000, middle, 200_001, stream).is_success());
    assert!(s.sync(stream).is_success());
    let expected = Digest::of(&bytes);
    assert_eq!(s.fake.digest(pointer), expected);
    assert_eq!(expected.bytes, 1 << 20);
    s.fake.flip_byte(pointer + 9);
    assert_ne!(s.fake.digest(pointer), expected);
    s.no_violation();

    let back = region.at(0).cast_mut();
    let refused = cu!(s, cuMemcpyDtoHAsync_v2(back, pointer, 8, stream));
    assert_eq!(refused, CuStatus::NOT_SUPPORTED);
    s.told_off("cannot give them back");
    assert!(s.unregister(&region).is_success());
}

/// A batch of two copies, with a kind of its own each.
struct Batch {
    to: [u64; 2],
    from: [u64; 2],
    sizes: [usize; 2],
    kinds: [CuMemcpyAttributes; 2],
    firsts: [usize; 2],
}

impl Batch {
    fn new(pointer: u64, region: &Region) -> Batch {
        let kind = |src_access_order| CuMemcpyAttributes {
            src_access_order,
            ..CuMemcpyAttributes::default()
        };
        Batch {
            to: [pointer, pointer + 4096],
            from: [region.at(0) as u64, region.at(4096) as u64],
            sizes: [4096; 2],
            kinds: [
                kind(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                kind(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
            ],
            firsts: [0, 1],
        }
    }

    fn call(&mut self, s: &Session, stream: CuStream) -> (CuStatus, usize) {
        let mut failed = 0;
        // SAFETY: arrays of the lengths that are told.
        let status = unsafe {
            (s.driver.cuMemcpyBatchAsync.unwrap())(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.sizes.as_mut_ptr(),
                2,
                self.kinds.as_mut_ptr(),
                self.firsts.as_mut_ptr(),
                2,
                &mut failed,
                stream,
            )
        };
        (status, failed)
    }

    fn call_v2(&mut self, s: &Session, stream: CuStream) -> CuStatus {
        // SAFETY: arrays of the lengths that are told.
        unsafe {
            (s.driver.cuMemcpyBatchAsync_v2.unwrap())(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.sizes.as_mut_ptr(),
                2,
                self.kinds.as_mut_ptr(),
                self.firsts.as_mut_ptr(),
                2,
                stream,
            )
        }
    }
}

#[test]
fn batches_take_each_source_when_they_were_told_to() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(8192));
    let mut region = Region::new(8192);
    region.fill(1);
    s.register(&region);
    for second in [false, true] {
        region.fill(1);
        s.fake.hold();
        let mut batch = Batch::new(pointer, &region);
        if second {
            assert!(batch.call_v2(&s, stream).is_success());
        } else {
            assert!(batch.call(&s, stream).0.is_success());
        }
        region.fill(2);
        s.fake.release();
        assert!(s.sync(stream).is_success());
        assert_eq!(s.fake.read_device(pointer, 4096), [2; 4096]);
        assert_eq!(s.fake.read_device(pointer + 4096, 4096), [1; 4096]);
        s.fake.fill_device(pointer, 8192, 0);
    }
    let counts = s.fake.counts();
    assert_eq!((counts.batch_calls, counts.batch_copies), (2, 4));
    assert_eq!((counts.pinned_copies, counts.pinned_bytes), (4, 16384));
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn batches_are_checked_before_anything_is_queued() {
    let s = Session::new(Config::default());
    let (stream, pointer) = (s.copy_stream(), s.alloc(8192));
    let region = Region::new(8192);
    let invalid = CuStatus::INVALID_VALUE;
    let batch = || Batch::new(pointer, &region);

    let mut wrong = batch();
    wrong.firsts = [0, 0];
    assert_eq!(wrong.call(&s, stream), (invalid, usize::MAX));
    wrong.firsts = [1, 2];
    assert_eq!(wrong.call(&s, stream), (invalid, usize::MAX));
    wrong.firsts = [0, 2];
    assert_eq!(wrong.call_v2(&s, stream), invalid);
    let mut wrong = batch();
    wrong.kinds[1].src_access_order = 0;
    assert_eq!(wrong.call_v2(&s, stream), invalid);
    s.no_violation();

    assert_eq!(batch().call(&s, CuStream::NULL), (invalid, usize::MAX));
    let mut wrong = batch();
    wrong.sizes[1] = 4097;
    assert_eq!(wrong.call(&s, stream), (invalid, 1));
    let mut wrong = batch();
    wrong.sizes[0] = 0;
    assert_eq!(wrong.call(&s, stream), (invalid, 0));
    let all = s.fake.violations();
    assert_eq!(all.len(), 3, "{all:?}");
    let counts = s.fake.counts();
    assert_eq!((counts.batch_calls, counts.pageable_copies), (0, 0));
}

#[test]
fn batches_need_a_driver_that_is_new_enough() {
    for (version, old, new) in [(12060, false, false), (12080, true, false), (13000, true, true)] {
        let s = Session::new(Config { version, ..Config::default() });
        let (stream, pointer) = (s.copy_stream(), s.alloc(8192));
        let region = Region::new(8192);
        let mut batch = Batch::new(pointer, &region);
        let expected = |works| {
            if works { CuStatus::SUCCESS } else { CuStatus::NOT_SUPPORTED }
        };
        assert_eq!(batch.call(&s, stream).0, expected(old), "{version}");
        assert_eq!(batch.call_v2(&s, stream), expected(new), "{version}");
        assert!(s.sync(stream).is_success());
    }
}
