//! How much memory a load takes: a bound that does not grow with the model.
//!
//! Peak resident memory is the process's, so each load has one of its own: this test program
//! again, told by an environment variable what to do.

mod group;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use fake_cuda::{Config, Digest};
use testkit::{Fault, Sparse, Spec, in_memory, skipped};
use weightlift::{Destination, DeviceId, Loader, Options, Request, Route};

use crate::{Fake, assert_adds_up, assert_same, on_cuda, on_host, options};
use group::Group;

const MIB: u64 = 1 << 20;

/// Tells the child which of the loads is its.
const CHILD: &str = "WEIGHTLIFT_TEST_MEMORY";

/// 4 GiB in tensors of more than 1 GiB, which have allocations of their own on the device, and
/// so digests of their own. Odd lengths: no tensor begins or ends with a page or a block.
const TENSORS: [u64; 3] = [(1 << 30) + 4097, (1 << 30) + (300 << 20) + 13, 2000 << 20];

/// What a host load may take beside the model: the program itself, and the plan.
const SLACK: u64 = 24 * MIB;

/// 2 GiB, for a load whose memory is not given up when it is read.
const TWO_GIB: [u64; 2] = [1023 * MIB + 77, 1025 * MIB + 1];

/// A limit that a model of 4 GiB is eight times as large as. The page cache counts too.
const GROUP: u64 = 512 * MIB;

/// What the 200 MiB are for: the ring, as much again where the fake driver keeps copies of
/// pageable blocks until they run, and the program.
const BUDGET: u64 = 48 * MIB;

/// MM-05, MM-07: and in a group of 512 MiB, where one can be made.
#[test]
fn a_pinned_load_of_4_gib_stays_below_200_mib() {
    if alone_in_a_group("memory::a_pinned_load_of_4_gib_stays_below_200_mib", GROUP) {
        to_the_device(Route::Pinned, &Sparse::new(&TENSORS, 1));
    }
}

#[test]
fn a_pageable_load_of_4_gib_stays_below_200_mib() {
    if alone_in_a_group("memory::a_pageable_load_of_4_gib_stays_below_200_mib", GROUP) {
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

/// MM-03: a ring is pinned once, and what is pinned does not grow with the loads, nor stays behind.
#[test]
fn twenty_loads_pin_what_one_does() {
    let specs = vec![Spec::u8("t", vec![7; 5 << 20])];
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(options("block_size=1MiB,staging_budget=4MiB"));
    for _ in 0..20 {
        assert_same(&loader.load_model(&model, on_cuda(Route::Pinned)).unwrap(), &specs);
        let counts = fake.cuda.counts();
        assert_eq!((counts.registered_bytes, counts.registered_peak), (4 * MIB, 4 * MIB));
    }
    assert_eq!(fake.cuda.calls("cuMemHostRegister_v2"), 1);
    loader.release();
    assert_eq!(fake.cuda.counts().registered_bytes, 0);
    for _ in 0..20 {
        let loaded = loader.load_model(&model, on_host().pin_host(true)).unwrap();
        assert_eq!(fake.cuda.counts().registered_bytes, loaded.report.pinned_destination_bytes);
        drop(loaded);
        assert_eq!(fake.cuda.counts().registered_bytes, 0);
    }
    drop(loader);
    fake.assert_clean();
}

/// MM-04: nothing is rounded up to a power of two; to pages alone.
#[test]
fn what_is_pinned_is_as_large_as_was_asked_for() {
    let length = 129 * MIB + 1;
    let model = Sparse::new(&[length], 9);
    let fake = Fake::new(Config { discard: 1, ..Config::default() });
    let loader = fake.loader(options("block_size=43MiB,staging_budget=129MiB"));
    let loaded = loader.load(model.path(), on_cuda(Route::Pinned)).unwrap();
    assert_eq!(loaded.report.pinned_bytes, 129 * MIB);
    assert_eq!(fake.cuda.counts().registered_peak, 129 * MIB);
    drop(loaded);
    loader.release();
    let loaded = loader.load(model.path(), on_host().pin_host(true)).unwrap();
    let pinned = loaded.report.pinned_destination_bytes;
    assert_eq!(fake.cuda.counts().registered_bytes, pinned);
    assert!((length..=length + 2 * 4096).contains(&pinned), "{pinned} bytes");
    drop((loaded, loader));
    fake.assert_clean();
}

/// MM-10: where device and host share their memory, what the driver calls free leaves out what the
/// page cache would give up. A load that goes by it refuses what there is room for: it is asked
/// when memory was refused, for the error.
#[test]
fn what_the_driver_calls_free_decides_nothing() {
    let specs = vec![Spec::u8("t", vec![7; 300_000])];
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    for route in [Route::Pinned, Route::Pageable] {
        assert_same(&loader.load_model(&model, on_cuda(route)).unwrap(), &specs);
    }
    assert_eq!(fake.cuda.calls("cuMemGetInfo_v2"), 0);
    drop(loader);
    fake.assert_clean();
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
    // MM-13: the tensors and nothing beside them, at any time.
    assert!(counts.allocated_peak < model.bytes() + MIB, "{} bytes", counts.allocated_peak);
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

/// Whether this process is the one that is to run the test of that path, in a memory group of so
/// many bytes. Otherwise starts it and waits. Where there are no groups it runs without.
pub fn alone_in_a_group(path: &str, limit: u64) -> bool {
    const NONE: &str = "none";
    if let Ok(group) = std::env::var(CHILD) {
        if group != NONE {
            Group::enter(Path::new(&group));
        }
        return true;
    }
    let group = Group::new(limit).map_err(|why| skipped(path, &format!("{why}: no limit"))).ok();
    let name = group.as_ref().map_or(NONE.into(), |group| group.path().display().to_string());
    alone_with(path, &name)
}

/// Whether this process is the one that is to run the test of that path. Otherwise starts it with
/// something to know, which is not empty, and waits.
fn alone_with(path: &str, value: &str) -> bool {
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
