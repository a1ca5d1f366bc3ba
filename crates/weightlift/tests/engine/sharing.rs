//! Several loads at once, one ring; memory of the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, digest, in_memory};
use weightlift::{
    Destination, DeviceChoice, DeviceId, ErrorKind, Event, Loader, Options, Request, Route,
};
use weightlift_cuda_sys::{CuContext, CuDevice, CuEvent, CuStatus, CuStream, Driver};

use crate::{Fake, assert_same, on_cuda, on_host, options};

#[test]
fn loads_from_several_threads_share_the_ring_and_its_budget() {
    let config = Config { devices: 2, copy_delay_us: 100, ..Config::default() };
    let fake = Fake::new(config);
    let loader = fake
        .loader(options("block_size=16KiB,piece_size=4KiB,staging_budget=48KiB,reading_threads=3"));
    std::thread::scope(|scope| {
        for thread in 0..6_u32 {
            let loader = &loader;
            scope.spawn(move || {
                for round in 0..4 {
                    let seed = u64::from(thread * 100 + round);
                    let specs = Spec::many(&mut Random::new(seed), 30, 9_000);
                    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
                    let request = Request::new().device(DeviceChoice::Cuda(thread % 2));
                    let loaded = loader.load_model(&model, request).unwrap();
                    assert_same(&loaded, &specs);
                    assert!(loaded.report.staging_bytes_peak <= 48 << 10);
                    assert_eq!(loaded.report.pinned_bytes, 48 << 10);
                }
            });
        }
    });
    assert_eq!(fake.cuda.live().registrations, 1);
    drop(loader);
    fake.assert_clean();
}

#[test]
fn a_ring_that_is_given_back_is_made_again() {
    let specs = Spec::many(&mut Random::new(1), 10, 100_000);
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    for _ in 0..2 {
        assert_same(&loader.load_model(&model, on_cuda(Route::Pinned)).unwrap(), &specs);
        loader.release();
        fake.assert_clean();
    }
}

#[test]
fn a_small_model_pins_little() {
    let (model, _) = in_memory(vec![(vec![Spec::u8("t", vec![1; 100])], Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let report = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap().report;
    assert!(report.pinned_bytes <= 16 << 10, "{}", report.pinned_bytes);
    // And a larger one after it gets what it needs.
    let specs = Spec::many(&mut Random::new(1), 10, 1_000_000);
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    assert_same(&loader.load_model(&model, on_cuda(Route::Pinned)).unwrap(), &specs);
    assert_eq!(fake.cuda.live().registrations, 1, "the small ring went");
}

/// Memory of a test's own, aligned like any other.
fn buffer(length: usize) -> (Arc<Vec<u8>>, u64) {
    let buffer = Arc::new(vec![0xEE; length]);
    let address = buffer.as_ptr() as u64;
    (buffer, address)
}

#[test]
#[allow(unsafe_code)] // gives memory of its own
fn host_tensors_go_where_the_caller_says() {
    let specs = Spec::many(&mut Random::new(5), 20, 9_000);
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let mut names = Vec::new();
    let request = on_host().destinations(|wanted| {
        assert_eq!(wanted.device, DeviceId::Host);
        names.push(wanted.tensors[0].name.to_string());
        let (buffer, address) = buffer(wanted.length as usize + 16);
        // SAFETY: the buffer lives as long as the Arc and nobody else uses it.
        Ok(unsafe { Destination::new(DeviceId::Host, address + 8, wanted.length, buffer) })
    });
    let loader = Loader::new(options("piece_size=4KiB,reading_threads=3"));
    let loaded = loader.load_model(&model, request).unwrap();
    assert_same(&loaded, &specs);
    names.sort();
    names.dedup();
    assert_eq!(names.len(), specs.len(), "asked once for each");
}

#[test]
#[allow(unsafe_code)] // claims memory that it never gives
fn destinations_that_do_not_fit_are_refused_before_a_byte_is_read() {
    let (model, sources) = in_memory(vec![(vec![Spec::u8("t", vec![1; 100])], Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let cases = [
        (DeviceId::Host, 0, 100),
        (DeviceId::Host, 4096, 99),
        (DeviceId::Cuda(0), 4096, 100),
        (DeviceId::Host, u64::MAX - 50, 100),
    ];
    for (device, address, length) in cases {
        let request = on_host().destinations(|_| {
            // SAFETY: refused, so never used.
            Ok(unsafe { Destination::new(device, address, length, Arc::new(())) })
        });
        let error = loader.load_model(&model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidDestination, "{device} {address}");
    }
    assert_eq!(sources[0].reads(), 0);
    let request = on_cuda(Route::Pinned).destinations(|_| {
        // SAFETY: as above.
        Ok(unsafe { Destination::new(DeviceId::Cuda(1), 4096, 100, Arc::new(())) })
    });
    assert_eq!(
        loader.load_model(&model, request).unwrap_err().kind(),
        ErrorKind::InvalidDestination
    );
    drop(loader);
    fake.assert_clean();
}

/// Invariant 6: we write only behind the work that the owner had pending on the memory. The
/// owner's stream clears the memory late; if we did not wait, that would clear our bytes.
#[test]
#[allow(unsafe_code)] // plays the caller, who uses the driver directly
fn device_tensors_wait_for_the_callers_event() {
    let specs = vec![Spec::u8("a", vec![1; 50_000]), Spec::u8("b", vec![2; 70_000])];
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config { copy_delay_us: 20_000, ..Config::default() });
    let driver = Driver::load(Some(fake.cuda.path())).unwrap();
    let ok = |status: CuStatus| assert_eq!(status, CuStatus::SUCCESS);
    let (mut context, mut stream) = (CuContext::NULL, CuStream::NULL);
    // SAFETY: all pointers are references; this is how a caller sets itself up.
    unsafe {
        ok((driver.cuInit)(0));
        ok((driver.cuDevicePrimaryCtxRetain)(&mut context, CuDevice(0)));
        ok((driver.cuCtxSetCurrent)(context));
        ok((driver.cuStreamCreate)(&mut stream, 1));
    }
    let mut theirs = Vec::new();
    let mut pending = vec![vec![0xFF_u8; 70_000]; 2];
    let mut sources = pending.iter_mut();
    let request = on_cuda(Route::Pinned).destinations(|wanted| {
        let (mut pointer, mut event) = (0, CuEvent::NULL);
        let length = wanted.length as usize;
        let scribble = sources.next().unwrap();
        // SAFETY: the pointers are references; `scribble` lives until the stream is drained.
        unsafe {
            ok((driver.cuMemAlloc_v2)(&mut pointer, length));
            // Longer than all of our copies take: with less we came late enough without waiting.
            for _ in 0..16 {
                let from = scribble.as_ptr().cast();
                ok((driver.cuMemcpyHtoDAsync_v2)(pointer, from, length, stream));
            }
            ok((driver.cuEventCreate)(&mut event, 2));
            ok((driver.cuEventRecord)(event, stream));
        }
        theirs.push((pointer, event));
        // SAFETY: allocated above and freed below, after the tensors; the event lives too.
        Ok(unsafe {
            Destination::new(DeviceId::Cuda(0), pointer, wanted.length, Arc::new(()))
                .ready_event(event.0 as u64)
        })
    });
    let loader = fake.loader(options("block_size=16KiB,reading_threads=2"));
    let loaded = loader.load_model(&model, request).unwrap();
    for (tensor, spec) in loaded.tensors.iter().zip(&specs) {
        assert_eq!(tensor.digest().unwrap(), digest(&spec.bytes), "{}", spec.name);
        assert!(theirs.iter().any(|(pointer, _)| *pointer == tensor.address()));
    }
    drop((loaded, loader));
    // SAFETY: what was made above, once.
    unsafe {
        for (pointer, event) in theirs {
            ok((driver.cuEventDestroy_v2)(event));
            ok((driver.cuMemFree_v2)(pointer));
        }
        ok((driver.cuStreamDestroy_v2)(stream));
        ok((driver.cuCtxSetCurrent)(CuContext::NULL));
        ok((driver.cuDevicePrimaryCtxRelease_v2)(CuDevice(0)));
    }
    fake.assert_clean();
}

#[test]
fn an_error_while_providing_memory_gives_everything_back() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let specs: Vec<Spec> =
        (0..20).map(|number| Spec::u8(format!("t{number}"), vec![1; 9_000])).collect();
    let (model, _) = in_memory(vec![(specs, Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake
        .loader(options("block_size=16KiB,piece_size=4KiB,staging_budget=48KiB,reading_threads=4"));
    let dropped = Arc::new(AtomicUsize::new(0));
    let mut given = 0;
    let request = on_host().destinations(|wanted| {
        given += 1;
        if given == 15 {
            return Err(weightlift::Error::new(ErrorKind::OutOfHostMemory, "no more"));
        }
        let counted = Counted(dropped.clone());
        let (buffer, address) = buffer(wanted.length as usize);
        #[allow(unsafe_code)]
        // SAFETY: the buffer lives as long as the Arc and nobody else uses it.
        Ok(unsafe {
            Destination::new(DeviceId::Host, address, wanted.length, Arc::new((counted, buffer)))
        })
    });
    let error = loader.load_model(&model, request).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::OutOfHostMemory, "no more"));
    assert_eq!(dropped.load(Ordering::Relaxed), 14);

    let request = on_cuda(Route::Pinned)
        .destinations(|_| Err(weightlift::Error::new(ErrorKind::OutOfDeviceMemory, "none")));
    let error = loader.load_model(&model, request).unwrap_err();
    assert_eq!(error.message(), "none");
    drop(loader);
    fake.assert_clean();
}

#[test]
fn events_tell_of_every_byte_and_every_tensor_once() {
    let specs = Spec::many(&mut Random::new(11), 30, 30_000);
    let total: u64 = specs.iter().map(|spec| spec.bytes.len() as u64).sum();
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(options("block_size=16KiB,reading_threads=3,staging_budget=64KiB"));
    for request in [on_host(), on_cuda(Route::Pinned)] {
        let (mut last, mut ready) = (0, Vec::new());
        let request = request.on_event(|event| match event {
            Event::Landed { bytes, total: all } => {
                assert!(bytes > last && all == total);
                last = bytes;
            }
            Event::Ready { tensor } => ready.push(tensor.name.to_string()),
            _ => {}
        });
        loader.load_model(&model, request).unwrap();
        assert_eq!(last, total);
        ready.sort();
        let mut names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
        names.sort();
        assert_eq!(ready, names);
    }
}

/// Whoever keeps some tensors of a load and lets go of others gets the others' memory back.
#[test]
fn tensors_that_lie_apart_free_their_memory_one_by_one() {
    let sizes = [300_000, 20_000, 70_000];
    let specs: Vec<_> = (0_u8..)
        .zip(sizes)
        .map(|(n, size)| Spec::u8(n.to_string(), Random::new(n.into()).bytes(size)))
        .collect();
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let mut loaded = loader.load_model(&model, on_cuda(Route::Pinned).apart(true)).unwrap();
    assert_same(&loaded, &specs);
    let before = fake.cuda.live().allocations;
    for left in (0..3).rev() {
        drop(loaded.tensors.pop());
        assert_eq!(fake.cuda.live().allocations, before - 3 + left);
    }
    let together = loader.load_model(&model, on_cuda(Route::Pinned)).unwrap();
    assert_eq!(fake.cuda.live().allocations, before - 2);
    drop((together, loader));
    fake.assert_clean();

    let mut loaded = Loader::default().load_model(&model, on_host().apart(true)).unwrap();
    assert_same(&loaded, &specs);
    assert!(loaded.tensors.iter().all(|tensor| tensor.address() % 64 == 0));
    let gone = loaded.tensors.remove(0);
    let page = gone.address() / 4096 * 4096;
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let mut ends = line.split([' ', '-']).map(|end| u64::from_str_radix(end, 16));
            let (from, to) = (ends.next().unwrap().unwrap(), ends.next().unwrap().unwrap());
            (from..to).contains(&page)
        })
    };
    assert!(mapped());
    drop(gone);
    assert!(!mapped(), "its pages are gone while the others are there");
    for (tensor, spec) in loaded.tensors.iter().zip(&specs[1..]) {
        assert_eq!(tensor.digest().unwrap(), digest(&spec.bytes));
    }
}
