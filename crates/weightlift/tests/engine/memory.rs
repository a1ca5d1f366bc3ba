//! How much memory a load takes: a bound that does not grow with the model.
//!
//! Peak resident memory is the process's, so each load has one of its own: this test program
//! again, told by an environment variable what to do.

use std::process::Command;
use std::sync::Arc;

use fake_cuda::{Config, Digest};
use testkit::Sparse;
use weightlift::{Destination, DeviceId, Loader, Request, Route};

use crate::{Fake, assert_adds_up, on_cuda, on_host, options};

const MIB: u64 = 1 << 20;

/// Tells the child which of the loads is its.
pub const CHILD: &str = "WEIGHTLIFT_TEST_MEMORY";

/// 4 GiB in tensors of more than 1 GiB, which have allocations of their own on the device, and
/// so digests of their own. Odd lengths: no tensor begins or ends with a page or a block.
const TENSORS: [u64; 3] = [(1 << 30) + 4097, (1 << 30) + (300 << 20) + 13, 2000 << 20];

/// What a host load may take beside the model: the program itself, and the plan.
const SLACK: u64 = 24 * MIB;

/// 2 GiB, for a load whose memory is not given up when it is read.
const TWO_GIB: [u64; 2] = [1023 * MIB + 77, 1025 * MIB + 1];

/// What the 200 MiB are for: the ring, as much again where the fake driver keeps copies of
/// pageable blocks until they run, and the program.
const BUDGET: u64 = 48 * MIB;

#[test]
fn a_pinned_load_of_4_gib_stays_below_200_mib() {
    if alone("a_pinned_load_of_4_gib_stays_below_200_mib") {
        to_the_device(Route::Pinned, &Sparse::new(&TENSORS, 1));
    }
}

#[test]
fn a_pageable_load_of_4_gib_stays_below_200_mib() {
    if alone("a_pageable_load_of_4_gib_stays_below_200_mib") {
        to_the_device(Route::Pageable, &Sparse::new(&TENSORS, 1));
    }
}

/// GG-11: the readers of GGUF that map the file, or read it whole, take as much as it is long.
#[test]
fn a_pinned_load_of_a_gguf_file_stays_below_200_mib() {
    if alone("a_pinned_load_of_a_gguf_file_stays_below_200_mib") {
        to_the_device(Route::Pinned, &Sparse::gguf(&TWO_GIB, 3));
    }
}

#[test]
fn a_host_load_takes_the_models_size_and_little_more() {
    if alone("a_host_load_takes_the_models_size_and_little_more") {
        to_the_host(&Sparse::new(&TWO_GIB, 2), &Loader::default(), on_host());
    }
}

#[test]
fn a_host_load_of_a_gguf_file_takes_its_size_and_little_more() {
    if alone("a_host_load_of_a_gguf_file_takes_its_size_and_little_more") {
        to_the_host(&Sparse::gguf(&TWO_GIB, 4), &Loader::default(), on_host());
    }
}

#[test]
fn a_load_into_the_callers_memory_takes_no_other() {
    if !alone("a_load_into_the_callers_memory_takes_no_other") {
        return;
    }
    #[allow(unsafe_code)] // plays the caller
    let request = on_host().destinations(|wanted| {
        let buffer: Arc<Vec<u8>> = Arc::new(vec![0; wanted.length as usize]);
        let address = buffer.as_ptr() as u64;
        // SAFETY: the buffer lives as long as the Arc and nobody else uses it.
        Ok(unsafe { Destination::new(DeviceId::Host, address, wanted.length, buffer) })
    });
    to_the_host(&Sparse::new(&TWO_GIB, 2), &Loader::default(), request);
}

#[test]
fn a_pinned_host_load_takes_the_models_size_and_little_more() {
    if alone("a_pinned_host_load_takes_the_models_size_and_little_more") {
        let fake = Fake::new(Config::default());
        let model = Sparse::new(&TWO_GIB, 2);
        to_the_host(&model, &fake.loader(options("")), on_host().pin_host(true));
        assert_eq!(fake.cuda.live().registrations, 0);
        fake.assert_no_violations();
    }
}

/// Straight into place: nothing is staged, and nothing is there twice.
fn to_the_host(model: &Sparse, loader: &Loader, request: Request<'_>) {
    let loaded = loader.load(model.path(), request).unwrap();
    let peak = peak_resident();
    eprintln!("a host load of {} MiB: at most {} MiB resident", model.bytes() / MIB, peak / MIB);
    assert_eq!(loaded.report.staging_bytes_peak, 0);
    assert!(peak < model.bytes() + SLACK, "{peak} bytes were resident");
    // Less would mean that the measure is none.
    assert!(peak > model.bytes(), "{peak} bytes were resident");
    assert_adds_up(&loaded, model.bytes());
    for (number, tensor) in loaded.tensors.iter().enumerate() {
        let bytes = tensor.as_bytes().expect("host memory");
        model.read(number, |at, part| {
            let same = bytes[at as usize..][..part.len()] == *part;
            assert!(same, "{} differs within 1 MiB from {at}", tensor.name());
        });
    }
}

/// The device keeps digests only: what is resident is the loader's.
fn to_the_device(route: Route, model: &Sparse) {
    assert!(model.bytes() >= 2 << 30);
    let fake = Fake::new(Config { discard: 1, ..Config::default() });
    let loader = fake.loader(options(&format!("staging_budget={BUDGET}")));
    let loaded = loader.load(model.path(), on_cuda(route)).unwrap();
    let peak = peak_resident();
    eprintln!("{route}: at most {} MiB resident", peak / MIB);
    assert!(peak < 200 * MIB, "{peak} bytes were resident");
    // The ring was used: less would mean that the measure is none.
    assert!(peak > BUDGET, "{peak} bytes were resident");

    assert_adds_up(&loaded, model.bytes());
    let (report, counts) = (&loaded.report, fake.cuda.counts());
    assert!(report.staging_bytes_peak > 0 && report.staging_bytes_peak <= BUDGET);
    if route == Route::Pinned {
        assert!(counts.registered_peak > 0 && counts.registered_peak <= BUDGET);
        assert_eq!(counts.pinned_bytes, model.bytes());
    } else {
        assert_eq!((counts.registered_peak, counts.pinned_bytes), (0, 0));
    }
    for (number, tensor) in loaded.tensors.iter().enumerate() {
        let mut expected = Digest::default();
        model.read(number, |at, part| expected.add(at, part));
        assert_eq!(expected.bytes, tensor.nbytes());
        assert_eq!(fake.cuda.digest(tensor.address()), expected, "{}", tensor.name());
    }
    drop((loaded, loader));
    fake.assert_clean();
}

/// Whether this process is the one that is to run `test`. Otherwise starts it and waits.
fn alone(test: &str) -> bool {
    alone_with(&format!("memory::{test}"), "1")
}

/// Whether this process is the one that is to run the test of that path. Otherwise starts it with
/// something to know, which is not empty, and waits.
pub fn alone_with(path: &str, value: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", path, "--nocapture"])
        .env(CHILD, value)
        // The fake driver keeps copies of pageable blocks. The C library's allocator would keep
        // such buffers when they are freed, in a heap of each thread that made one: 60 MiB that
        // are neither the loader's nor the driver's.
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    // A name that is not that of a test would run none, and succeed.
    assert!(child.status.success() && out.contains("1 passed"), "{out}\n{err}");
    eprint!("{err}");
    false
}

/// The most bytes of this process that ever were in memory.
pub fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}
