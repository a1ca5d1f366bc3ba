//! What works on the real driver works here.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

#[macro_use]
mod common;

use std::ffi::CStr;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Region, Session};
use fake_cuda::{Config, Counts, FakeCuda, Live, library_without};
use weightlift_cuda_sys::{
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CuContext, CuDevice, CuStatus, CuUuid, Driver, LoadError,
};

const MIB: usize = 1 << 20;

#[test]
fn it_has_every_function_of_the_table() {
    let exported = FakeCuda::exported();
    for name in Driver::REQUIRED.iter().chain(Driver::OPTIONAL) {
        assert!(exported.contains(name), "{name}");
    }
    let s = Session::fresh(Config::default());
    assert!(s.driver.cuMemcpyBatchAsync.is_some());
    assert!(s.driver.cuMemcpyBatchAsync_v2.is_some());
    assert_eq!(s.driver.path(), s.fake.path());
    let again = Driver::load(Some(s.fake.path())).unwrap();
    assert!(std::ptr::eq(s.driver, again));
}

#[test]
fn an_older_driver_lacks_functions() {
    let folder = tempfile::tempdir().unwrap();
    let path = library_without(Driver::OPTIONAL, folder.path());
    let driver = Driver::load(Some(&path)).unwrap();
    assert!(driver.cuMemcpyBatchAsync.is_none());
    assert!(driver.cuMemcpyBatchAsync_v2.is_none());

    let folder = tempfile::tempdir().unwrap();
    let path = library_without(&["cuMemHostRegister_v2"], folder.path());
    let error = Driver::load(Some(&path)).unwrap_err();
    assert!(
        matches!(&error, LoadError::MissingSymbol { symbol, .. } if *symbol == "cuMemHostRegister_v2"),
        "{error}"
    );
}

#[test]
fn a_code_that_only_the_driver_knows_gets_its_name() {
    let s = Session::fresh(Config::default());
    assert_eq!(CuStatus(4242).name(Some(s.driver)), "CUDA_ERROR_OF_TOMORROW");
    assert_eq!(CuStatus(4243).name(Some(s.driver)), "CUDA_ERROR_4243");
}

#[test]
fn bytes_go_there_and_back() {
    let s = Session::new(Config::default());
    let stream = s.copy_stream();
    let mut up = Region::new(2 * MIB);
    let mut down = Region::new(2 * MIB);
    for (i, byte) in up.bytes().iter_mut().enumerate() {
        *byte = (i / 7 % 251) as u8;
    }
    s.register(&up);
    s.register(&down);
    let pointer = s.alloc(3 * MIB);
    assert_eq!(pointer % 512, 0);
    // At odd places, so that it crosses the pieces that the fake keeps.
    let len = 2 * MIB - 3;
    assert!(s.copy(pointer + 5, up.at(3), len, stream).is_success());
    let back = down.at(1).cast_mut();
    assert!(cu!(s, cuMemcpyDtoHAsync_v2(back, pointer + 5, len, stream)).is_success());
    assert!(s.sync(stream).is_success());
    assert_eq!(up.bytes()[3..], down.bytes()[1..=len]);
    assert_eq!(s.fake.read_device(pointer, 5), [0xCD; 5]);

    assert!(cu!(s, cuMemsetD8Async(pointer, 7, 4, stream)).is_success());
    assert!(s.sync(stream).is_success());
    assert_eq!(s.fake.read_device(pointer, 5), [7, 7, 7, 7, 0xCD]);
    s.fake.flip_byte(pointer + 1);
    s.fake.fill_device(pointer + 3, 1, 9);
    assert_eq!(s.fake.read_device(pointer, 5), [7, 0xF8, 7, 9, 0xCD]);

    let live = Live { allocations: 1, streams: 1, events: 0, registrations: 2, retained: 1 };
    assert_eq!(s.fake.live(), live);
    assert!(cu!(s, cuStreamDestroy_v2(stream)).is_success());
    assert!(cu!(s, cuMemFree_v2(pointer)).is_success());
    assert!(s.unregister(&up).is_success());
    assert!(s.unregister(&down).is_success());
    assert!(cu!(s, cuDevicePrimaryCtxRelease_v2(CuDevice(0))).is_success());
    assert_eq!(s.fake.live(), Live::default());
    let expected = Counts {
        pinned_copies: 1,
        pinned_bytes: len as u64,
        back_copies: 1,
        back_bytes: len as u64,
        executed_copies: 2,
        registered_peak: 4 * MIB as u64,
        allocated_peak: 3 * MIB as u64,
        ..Counts::default()
    };
    assert_eq!(s.fake.counts(), expected);
    s.no_violation();
}

#[test]
fn pageable_copies_are_staged_and_counted_apart() {
    let s = Session::new(Config::default());
    let stream = s.copy_stream();
    let pointer = s.alloc(4096);
    let mut bytes = vec![1u8; 4096];
    s.fake.hold();
    assert!(s.copy(pointer, bytes.as_ptr().cast(), 4096, stream).is_success());
    // The call took the bytes: the caller may do as it likes.
    bytes.fill(2);
    s.fake.release();
    assert!(s.sync(stream).is_success());
    assert_eq!(s.fake.read_device(pointer, 4096), [1; 4096]);

    let back = bytes.as_mut_ptr().cast();
    assert!(cu!(s, cuMemcpyDtoHAsync_v2(back, pointer, 4096, stream)).is_success());
    assert_eq!(bytes, [1; 4096], "a pageable copy back is done when the call returns");
    let counts = s.fake.counts();
    assert_eq!((counts.pageable_copies, counts.pageable_bytes), (1, 4096));
    assert_eq!(counts.pinned_copies, 0);
    s.no_violation();
}

#[test]
fn devices_are_as_configured() {
    let s = Session::new(Config {
        devices: 2,
        version: 12040,
        memory: 10 * MIB as u64,
        ..Config::default()
    });
    let (mut version, mut count) = (0, 0);
    assert!(cu!(s, cuDriverGetVersion(&mut version)).is_success());
    assert!(cu!(s, cuDeviceGetCount(&mut count)).is_success());
    assert_eq!((version, count), (12040, 2));

    let mut device = CuDevice(-1);
    assert!(cu!(s, cuDeviceGet(&mut device, 1)).is_success());
    assert_eq!(cu!(s, cuDeviceGet(&mut device, 2)), CuStatus::INVALID_DEVICE);
    let mut text = [1; 32];
    assert!(cu!(s, cuDeviceGetName(text.as_mut_ptr(), 32, device)).is_success());
    // SAFETY: the driver ends the text.
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"Fake GPU 1");
    assert!(cu!(s, cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, device)).is_success());
    // SAFETY: as above.
    assert_eq!(unsafe { CStr::from_ptr(text.as_ptr()) }, c"0000:02:00.0");
    let mut ids = [CuUuid::default(); 2];
    for (i, id) in ids.iter_mut().enumerate() {
        assert!(cu!(s, cuDeviceGetUuid_v2(id, CuDevice(i as i32))).is_success());
    }
    assert_ne!(ids[0], ids[1]);
    let mut attribute = 0;
    assert!(cu!(s, cuDeviceGetAttribute(&mut attribute, 75, device)).is_success());
    assert_eq!(attribute, 9);

    // Each device has its own memory, and the current context says which.
    let (mut free, mut total) = (0, 0);
    let first = s.alloc(6 * MIB);
    s.enter(1);
    assert!(cu!(s, cuCtxGetDevice(&mut device)).is_success());
    assert_eq!(device, CuDevice(1));
    let second = s.alloc(7 * MIB);
    assert!(cu!(s, cuMemGetInfo_v2(&mut free, &mut total)).is_success());
    assert_eq!((free, total), (3 * MIB, 10 * MIB));
    let mut third = 0;
    assert_eq!(cu!(s, cuMemAlloc_v2(&mut third, 4 * MIB)), CuStatus::OUT_OF_MEMORY);
    let mut kind = 0u32;
    let place = (&raw mut kind).cast();
    let attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    assert!(cu!(s, cuPointerGetAttribute(place, attribute, second + 1)).is_success());
    assert_eq!(kind, 2);
    let unknown = cu!(s, cuPointerGetAttribute(place, attribute, &raw const kind as u64));
    assert_eq!(unknown, CuStatus::INVALID_VALUE);
    assert!(cu!(s, cuMemFree_v2(second)).is_success());
    assert!(cu!(s, cuMemFree_v2(first)).is_success());
    s.no_violation();
}

#[test]
fn contexts_are_counted_and_belong_to_threads() {
    let s = Session::fresh(Config::default());
    let mut count = 0;
    assert_eq!(cu!(s, cuDeviceGetCount(&mut count)), CuStatus::NOT_INITIALIZED);
    assert!(cu!(s, cuInit(0)).is_success());
    let mut pointer = 0;
    assert_eq!(cu!(s, cuMemAlloc_v2(&mut pointer, 1)), CuStatus::INVALID_CONTEXT);
    let context = s.enter(0);
    s.enter(0);
    assert_eq!(s.fake.live().retained, 2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut current = context;
            assert!(cu!(s, cuCtxGetCurrent(&mut current)).is_success());
            assert!(current.is_null());
            let mut pointer = 0;
            let refused = cu!(s, cuMemAlloc_v2(&mut pointer, 1));
            assert_eq!(refused, CuStatus::INVALID_CONTEXT);
        });
    });
    let (mut flags, mut active) = (1, 0);
    for expected in [1, 1, 0] {
        let state = cu!(s, cuDevicePrimaryCtxGetState(CuDevice(0), &mut flags, &mut active));
        assert!(state.is_success());
        assert_eq!(active, expected);
        let released = cu!(s, cuDevicePrimaryCtxRelease_v2(CuDevice(0)));
        assert_eq!(released.is_success(), expected == 1);
    }
    s.told_off("released more often than retained");
    assert_eq!(cu!(s, cuCtxSynchronize()), CuStatus::CONTEXT_IS_DESTROYED);
    assert_eq!(cu!(s, cuCtxSetCurrent(CuContext(8 as _))), CuStatus::INVALID_CONTEXT);
}

#[test]
fn slow_starts_and_slow_buses_take_their_time() {
    let s = Session::fresh(Config {
        init_delay_ms: 30,
        retain_delay_ms: 30,
        copy_delay_us: 20_000,
        bandwidth: 100 * MIB as u64,
        ..Config::default()
    });
    let start = Instant::now();
    assert!(cu!(s, cuInit(0)).is_success());
    s.enter(0);
    assert!(start.elapsed() >= Duration::from_millis(60));
    let region = Region::new(MIB);
    s.register(&region);
    let pointer = s.alloc(MIB);
    let start = Instant::now();
    // Two streams share the bus: 2 × (20 ms + 10 ms).
    for _ in 0..2 {
        assert!(s.copy(pointer, region.at(0), MIB, s.copy_stream()).is_success());
    }
    assert!(cu!(s, cuCtxSynchronize()).is_success());
    assert!(start.elapsed() >= Duration::from_millis(60));
    assert!(s.unregister(&region).is_success());
    s.no_violation();
}

#[test]
fn a_driver_can_refuse_to_start() {
    let no_device = Config { devices: 0, ..Config::default() };
    let too_old = Config { init_status: 35, ..Config::default() };
    let s = Session::fresh(no_device);
    assert_eq!(cu!(s, cuInit(0)), CuStatus::NO_DEVICE);
    s.fake.reset(too_old);
    assert_eq!(cu!(s, cuInit(0)), CuStatus::INSUFFICIENT_DRIVER);
    let mut count = 0;
    assert_eq!(cu!(s, cuDeviceGetCount(&mut count)), CuStatus::NOT_INITIALIZED);
}

#[test]
fn a_child_process_is_set_by_its_environment() {
    if std::env::var_os("FAKE_CUDA").is_some() {
        // In the child: without a reset.
        let driver = Driver::load(Some(&fake_cuda::library_path())).unwrap();
        let (mut version, mut count) = (0, 0);
        // SAFETY: places for answers are references.
        unsafe {
            assert!((driver.cuInit)(0).is_success());
            assert!((driver.cuDriverGetVersion)(&mut version).is_success());
            assert!((driver.cuDeviceGetCount)(&mut count).is_success());
            let _ = (driver.cuDevicePrimaryCtxRelease_v2)(CuDevice(0));
        }
        assert_eq!((version, count), (12080, 3));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let violations = folder.path().join("violations");
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_process_is_set_by_its_environment"])
        .env("FAKE_CUDA", "devices=3,version=12080")
        .env("FAKE_CUDA_VIOLATIONS", &violations)
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    let text = std::fs::read_to_string(violations).unwrap();
    assert!(text.contains("released more often than retained"), "{text}");
}
