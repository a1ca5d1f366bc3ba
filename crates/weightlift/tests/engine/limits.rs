//! Plain copies, by which loads are judged, on the fake driver.

use fake_cuda::{Config, FakeCuda, Mode};
use weightlift::{ErrorKind, pinned_copies};

use crate::Fake;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_asked_for_is_copied_from_pinned_memory() {
    let fake = Fake::new(Config { version: 12040, ..Config::default() });
    let before = fake.cuda.counts().pinned_bytes;
    let found = pinned_copies(0, 200 * MIB, Some(fake.cuda.path())).unwrap();
    // Whole copies of 64 MiB, and one before them that is not in the time.
    assert_eq!((found.bytes, &*found.cuda), (192 * MIB, "CUDA 12.4"));
    let counts = fake.cuda.counts();
    assert_eq!(counts.pinned_bytes - before, (192 + 64) * MIB);
    assert_eq!(counts.registered_peak, 64 * MIB);
    assert!(counts.allocated_peak <= 193 * MIB && !found.took.is_zero());
    fake.assert_clean();
}

#[test]
fn what_is_missing_is_named() {
    let error = pinned_copies(0, MIB, Some("/nonexistent/libcuda.so.1".as_ref())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDriver);
    let cases = [
        (Config { devices: 0, ..Config::default() }, 0, ErrorKind::NoDevice),
        (Config::default(), 3, ErrorKind::InvalidDevice),
        (Config { register_limit: 0, ..Config::default() }, 0, ErrorKind::PinFailed),
        (Config { memory: MIB / 2, ..Config::default() }, 0, ErrorKind::OutOfDeviceMemory),
    ];
    for (config, device, kind) in cases {
        let fake = Fake::new(config);
        let error = pinned_copies(device, MIB, Some(fake.cuda.path())).unwrap_err();
        assert_eq!(error.kind(), kind, "{config:?}");
        fake.assert_clean();
    }
}

#[test]
fn every_function_may_fail_and_nothing_goes_under_a_copy() {
    const INVALID_VALUE: u32 = 1;
    for function in FakeCuda::exported() {
        for nth in 1.. {
            let fake = Fake::new(Config { copy_delay_us: 30, ..Config::default() });
            fake.cuda.fail(function, nth, INVALID_VALUE, Mode::Once);
            let result = pinned_copies(0, 8192, Some(fake.cuda.path()));
            if let Err(error) = result {
                let told = error.value("status").is_some() || error.value("function").is_some();
                assert!(told, "call {nth} of {function}: {error:?}");
            }
            // What could not be proved idle is given up, and nothing else.
            fake.assert_no_violations();
            if fake.cuda.calls(function) < nth {
                break;
            }
        }
    }
}
