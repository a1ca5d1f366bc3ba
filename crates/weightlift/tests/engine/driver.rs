//! The driver in all its moods: missing, old, without devices, current, forked.

use fake_cuda::Config;
use testkit::{Spec, Written};
use weightlift::{DeviceChoice, ErrorKind, Loader, Options, Request, Route, RouteChoice};
use weightlift_cuda_sys::{CuContext, CuDevice, CuStatus, Driver};

use crate::{Fake, assert_same, on_cuda, on_host};

fn model() -> Written {
    Written::single(vec![Spec::u8("t", vec![7; 10_000])], 0)
}

fn to(device: DeviceChoice) -> Request<'static> {
    Request::new().device(device)
}

#[test]
fn without_a_driver_the_host_works_and_cuda_is_a_clear_error() {
    let written = model();
    // A path that leads nowhere stands for a machine without the library.
    let loader = || Loader::default().with_driver("/nonexistent/libcuda.so.1");
    assert_same(&loader().load(written.path(), on_host()).unwrap(), &written.tensors);
    let report = loader().load(written.path(), Request::new()).unwrap().report;
    assert_eq!((report.devices, report.fallbacks), (vec!["host".to_owned()], vec![]));
    assert_eq!(report.bytes.read, report.bytes.planned, "nothing was read for nothing");
    let reason =
        &report.decisions.iter().find(|decision| decision.what == "device").unwrap().reason;
    assert!(reason.contains("no CUDA driver was found"), "{reason}");
    for device in [DeviceChoice::CurrentCuda, DeviceChoice::Cuda(0)] {
        let error = loader().load(written.path(), to(device)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoDriver);
        assert!(error.get_hint().unwrap().contains("--device host"));
    }
    let forced = Request::new().route(RouteChoice::Forced(Route::Pinned));
    assert_eq!(loader().load(written.path(), forced).unwrap_err().kind(), ErrorKind::NoDriver);
}

#[test]
fn a_library_that_is_no_driver_is_told_from_none() {
    let loader = Loader::default().with_driver("libm.so.6");
    let error = loader.load(model().path(), to(DeviceChoice::CurrentCuda)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DriverTooOld, "{error:?}");
}

#[test]
fn an_old_driver_and_one_without_devices_are_named() {
    let written = model();
    let cases = [
        (Config { version: 9020, ..Config::default() }, ErrorKind::DriverTooOld, true),
        (Config { init_status: 35, ..Config::default() }, ErrorKind::DriverTooOld, true),
        (Config { init_status: 100, ..Config::default() }, ErrorKind::NoDevice, false),
        (Config { devices: 0, ..Config::default() }, ErrorKind::NoDevice, false),
        (Config { init_status: 999, ..Config::default() }, ErrorKind::Cuda, true),
        (Config { init_status: 12_345, ..Config::default() }, ErrorKind::Cuda, true),
    ];
    for (config, kind, is_fallback) in cases {
        let fake = Fake::new(config);
        let loader = fake.loader(Options::default());
        let error = loader.load(written.path(), to(DeviceChoice::CurrentCuda)).unwrap_err();
        assert_eq!(error.kind(), kind, "{config:?}: {error:?}");
        let loaded = loader.load(written.path(), Request::new()).unwrap();
        assert_same(&loaded, &written.tensors);
        assert_eq!(loaded.report.devices, ["host"]);
        assert_eq!(loaded.report.fallbacks.len(), usize::from(is_fallback), "{config:?}");
        fake.assert_clean();
    }
}

#[test]
fn an_unknown_status_is_a_value_with_its_number() {
    let fake = Fake::new(Config { init_status: 12_345, ..Config::default() });
    let error = fake
        .loader(Options::default())
        .load(model().path(), to(DeviceChoice::Cuda(0)))
        .unwrap_err();
    assert_eq!((error.value("status"), error.value("function")), (Some("12345"), Some("cuInit")));
}

#[test]
fn a_device_out_of_range_lists_those_that_are_there() {
    let fake = Fake::new(Config { devices: 2, ..Config::default() });
    let loader = fake.loader(Options::default());
    for ordinal in [2, 8, u32::MAX] {
        let error = loader.load(model().path(), to(DeviceChoice::Cuda(ordinal))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidDevice);
        let visible = error.value("visible").unwrap();
        assert!(visible.contains("cuda:0") && visible.contains("cuda:1"), "{visible}");
    }
}

#[test]
fn every_device_gets_its_own_and_they_share_one_ring() {
    let written = model();
    let fake = Fake::new(Config { devices: 3, ..Config::default() });
    let loader = fake.loader(Options::default());
    let mut all = Vec::new();
    for ordinal in 0..3 {
        let loaded = loader.load(written.path(), to(DeviceChoice::Cuda(ordinal))).unwrap();
        assert_same(&loaded, &written.tensors);
        assert_eq!(loaded.report.devices, [format!("cuda:{ordinal}")]);
        all.push(loaded);
    }
    assert_eq!(fake.cuda.calls("cuMemHostRegister_v2"), 1);
    drop(loader);
    assert_eq!(fake.cuda.live().allocations, 3, "tensors outlive their loader");
    drop(all);
    fake.assert_clean();
}

/// GP-01, invariant 12: bare `cuda` is the calling thread's device, and whatever context the
/// caller had, it has again.
/// What doctor tells of a device, and that it leaves nothing behind.
#[test]
fn the_driver_tells_what_a_device_is() {
    let fake = Fake::new(Config { devices: 2, version: 12080, ..Config::default() });
    let facts = weightlift::device_facts(1, Some(fake.cuda.path())).unwrap();
    assert_eq!((facts.ordinal, &*facts.cuda, &*facts.pci), (1, "CUDA 12.8", "0000:02:00.0"));
    assert!(facts.batched_copies);
    assert!(facts.memory_free > Some(0) && facts.memory_free <= facts.memory_total);
    assert_eq!(facts.library, fake.cuda.path().display().to_string());
    let none = weightlift::device_facts(2, Some(fake.cuda.path())).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::InvalidDevice);
    fake.assert_clean();
    drop(fake);
    let fake = Fake::new(Config { version: 12000, ..Config::default() });
    assert!(!weightlift::device_facts(0, Some(fake.cuda.path())).unwrap().batched_copies);
}

#[test]
#[allow(unsafe_code)] // plays the caller, who uses the driver directly
fn the_callers_device_is_taken_and_the_callers_context_stays() {
    let written = model();
    let fake = Fake::new(Config { devices: 2, ..Config::default() });
    let driver = Driver::load(Some(fake.cuda.path())).unwrap();
    let current = || {
        let mut context = CuContext::NULL;
        // SAFETY: the pointer is a reference.
        assert_eq!(unsafe { (driver.cuCtxGetCurrent)(&mut context) }, CuStatus::SUCCESS);
        context
    };
    let loader = fake.loader(Options::default());
    let report = loader.load(written.path(), to(DeviceChoice::CurrentCuda)).unwrap().report;
    assert_eq!(report.devices, ["cuda:0"], "a thread without a device gets the first");
    assert!(current().is_null());

    let mut second = CuContext::NULL;
    // SAFETY: the pointer is a reference, device 1 exists.
    unsafe {
        assert_eq!((driver.cuDevicePrimaryCtxRetain)(&mut second, CuDevice(1)), CuStatus::SUCCESS);
        assert_eq!((driver.cuCtxSetCurrent)(second), CuStatus::SUCCESS);
    }
    for device in
        [DeviceChoice::CurrentCuda, DeviceChoice::Cuda(0), DeviceChoice::Auto, DeviceChoice::Host]
    {
        let loaded = loader.load(written.path(), to(device)).unwrap();
        let expected = match device {
            DeviceChoice::Cuda(_) => "cuda:0",
            DeviceChoice::Host => "host",
            _ => "cuda:1",
        };
        assert_eq!(loaded.report.devices, [expected]);
        assert_same(&loaded, &written.tensors);
        assert_eq!(current(), second, "{device}");
        drop(loaded);
        assert_eq!(current(), second, "after freeing");
    }
    fake.cuda.fail("cuMemAlloc_v2", 1, 2, fake_cuda::Mode::Once);
    loader.load(written.path(), to(DeviceChoice::Cuda(0))).unwrap_err();
    assert_eq!(current(), second, "after an error");
    // SAFETY: as above.
    unsafe {
        assert_eq!((driver.cuCtxSetCurrent)(CuContext::NULL), CuStatus::SUCCESS);
        assert_eq!((driver.cuDevicePrimaryCtxRelease_v2)(CuDevice(1)), CuStatus::SUCCESS);
    }
    drop(loader);
    fake.assert_clean();
}

#[test]
fn host_loads_touch_no_driver() {
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    loader.load(model().path(), on_host()).unwrap();
    for function in fake_cuda::FakeCuda::exported() {
        assert_eq!(fake.cuda.calls(function), 0, "{function}");
    }
}

#[test]
fn the_drivers_start_stands_beside_the_rate() {
    let fake = Fake::new(Config { init_delay_ms: 60, retain_delay_ms: 40, ..Config::default() });
    let loader = fake.loader(Options::default());
    let first = loader.load(model().path(), on_cuda(Route::Pinned)).unwrap().report.seconds;
    assert!(
        first.driver >= 0.1 && first.driver_wait > 0.0 && first.total >= first.driver_wait,
        "{first:?}"
    );
    let second = loader.load(model().path(), on_cuda(Route::Pinned)).unwrap().report.seconds;
    assert_eq!((second.driver, second.driver_wait), (0.0, 0.0));
}

#[test]
fn too_little_device_memory_says_what_was_needed_and_what_was_free() {
    let fake = Fake::new(Config { memory: 5_000, ..Config::default() });
    let loader = fake.loader(Options::default());
    let error = loader.load(model().path(), on_cuda(Route::Pinned)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfDeviceMemory);
    assert_eq!(
        (error.value("needed"), error.value("free"), error.value("total")),
        (Some("10000"), Some("5000"), Some("5000"))
    );
    drop(loader);
    fake.assert_clean();
}

/// GP-05. The child is this test program again, told to fork by an environment variable.
#[test]
fn a_forked_child_is_told_to_spawn_and_can_still_load_to_the_host() {
    if std::env::var_os("WEIGHTLIFT_TEST_FORK").is_some() {
        return forks();
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "driver::a_forked_child_is_told_to_spawn_and_can_still_load_to_the_host",
            "--nocapture",
        ])
        .env("WEIGHTLIFT_TEST_FORK", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && text.contains("the child is content"),
        "{text}\n{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

#[allow(unsafe_code)] // forks
fn forks() {
    // The C library's fork, which also leaves its allocator usable in the child.
    unsafe extern "C" {
        fn fork() -> i32;
        fn _exit(status: i32) -> !;
    }
    let written = model();
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let loaded = loader.load(written.path(), on_cuda(Route::Pinned)).unwrap();
    let to_host = loader.load(written.path(), on_host().pin_host(true)).unwrap();
    // SAFETY: the child calls what a user's child would, then ends without unwinding.
    let child = unsafe { fork() };
    if child == 0 {
        let error = loader.load(written.path(), on_cuda(Route::Pinned)).unwrap_err();
        let pinned = loader.load(written.path(), on_host().pin_host(true)).unwrap_err();
        let on_host = loader.load(written.path(), on_host());
        let bytes = Some(&written.tensors[0].bytes[..]);
        let good = error.kind() == ErrorKind::Forked
            && pinned.kind() == ErrorKind::Forked
            && to_host.tensors[0].as_bytes() == bytes
            && error.get_hint().unwrap().contains("spawn")
            && on_host.is_ok_and(|loaded| loaded.tensors[0].as_bytes() == bytes);
        // Neither of them may call a driver that does not know this process: it would refuse, and
        // memory that is the child's own copy would be given up for that.
        drop((loaded, to_host));
        loader.release();
        let given_up = loader.quarantined();
        let good = good && (given_up.bytes, given_up.handles) == (0, 0);
        drop(loader);
        // SAFETY: ends the child.
        unsafe { _exit(i32::from(!good)) };
    }
    let child = rustix::process::Pid::from_raw(child).expect("a fork");
    let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
    let (_, status) = status.unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0));
    drop((loaded, to_host, loader));
    fake.assert_clean();
    println!("the child is content");
}
