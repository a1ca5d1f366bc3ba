//! Host memory as a destination: where storages lie, what the caller's own is spared, and
//! memory that is pinned.
#![allow(unsafe_code)] // plays the owner of the memory that is loaded into

use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fake_cuda::{Config, Mode};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use testkit::{Fault, Faulty, Random, Sparse, Spec, digest, in_memory};
use weightlift::index::{Dtype, Index, SourceId, SourceInfo, Storage, StorageId, TensorInfo};
use weightlift::{
    CancelToken, Destination, DeviceChoice, DeviceId, ErrorKind, Loader, Model, OpenSource,
    Options, Request, Route, RouteChoice, Source,
};

use crate::{Fake, assert_same, on_cuda, on_host, options};

const MIB: u64 = 1 << 20;

/// An index of tensors of bytes: for each its source, offset and length.
fn index(sources: &[u64], storages: &[(u32, u64, u64)]) -> Index {
    let files = sources.iter().enumerate();
    let tensors = storages.iter().enumerate().map(|(number, (_, _, length))| TensorInfo {
        name: format!("t{number}").into(),
        storage: StorageId(number as u32),
        offset: 0,
        length: *length,
        dtype: Dtype::from_name("U8"),
        shape: vec![*length],
        strides: None,
    });
    Index {
        sources: files.map(|(n, length)| SourceInfo::file(format!("f{n}"), *length)).collect(),
        storages: storages
            .iter()
            .map(|&(source, offset, length)| Storage {
                source: SourceId(source),
                offset,
                length,
                encoding: Default::default(),
            })
            .collect(),
        tensors: tensors.collect(),
        ..Index::default()
    }
}

#[test]
fn storages_lie_as_in_their_file_and_a_file_of_its_own_at_a_page() {
    let lengths = [300_000, 70_000, 5000];
    let bytes: Vec<_> =
        (1..).zip(lengths).map(|(seed, length)| Random::new(seed).bytes(length)).collect();
    let storages = [
        (0, 64, 100_000),
        (0, 100_064, 70_001),
        (0, 170_240, 66_000),
        (1, 104, 69_000),
        (2, 0, 5000),
    ];
    let sources: Vec<Arc<dyn Source>> = bytes
        .iter()
        .map(|bytes| Arc::new(Faulty::new("f", bytes.clone(), Fault::None)) as Arc<dyn Source>)
        .collect();
    let index = index(&lengths.map(|length| length as u64), &storages);
    let model = Arc::new(Model::from_parts(index, sources).unwrap());
    for settings in ["reading_threads=1", "reading_threads=3,block_size=16KiB,piece_size=4KiB"] {
        let loaded = Loader::new(options(settings)).load_model(&model, on_host()).unwrap();
        assert_eq!(loaded.report.staging_bytes_peak, 0);
        let addresses: Vec<u64> = loaded.tensors.iter().map(|tensor| tensor.address()).collect();
        for (tensor, (source, offset, length)) in loaded.tensors.iter().zip(storages) {
            let expected = &bytes[source as usize][offset as usize..][..length as usize];
            assert_eq!(tensor.as_bytes(), Some(expected), "{}", tensor.name());
            assert_eq!(tensor.address() % 64, 0);
        }
        // 100,064 is no multiple of 64, the others of the first file are.
        assert_eq!([addresses[0] % 4096, addresses[2] % 4096], [64, 170_240 % 4096]);
        assert_eq!(addresses[1], (addresses[0] + 100_000).next_multiple_of(64));
        assert_eq!(addresses[3] % 4096, 0, "alone in its file");
        // Alone in its file too, but too small to be worth what is left of a page.
        assert_eq!(addresses[4], (addresses[3] + 69_000).next_multiple_of(64));
    }
    // The only one of its load starts a page, whatever its size.
    let loaded = Loader::default().load_model(&model, on_host().tensors(["t4"])).unwrap();
    assert_eq!(loaded.tensors[0].address() % 4096, 0);
}

/// More than any machine has, and nothing of it.
#[derive(Debug)]
struct Endless(AtomicU64);

impl Source for Endless {
    fn name(&self) -> &str {
        "endless"
    }

    fn length(&self) -> u64 {
        1 << 46
    }

    fn open(&self) -> weightlift::Result<Box<dyn OpenSource>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Nothing))
    }

    fn check_unchanged(&self) -> weightlift::Result<()> {
        Ok(())
    }
}

struct Nothing;

impl OpenSource for Nothing {
    fn read_at(&self, _: &mut [io::IoSliceMut<'_>], _: u64) -> io::Result<usize> {
        Err(io::Error::other("nothing was to be read"))
    }
}

/// The kernel maps 64 TiB without a word, and ends the process that then touches them.
#[test]
fn more_than_the_machine_has_is_an_error_before_anything_is_read() {
    let source = Arc::new(Endless(AtomicU64::new(0)));
    let index = index(&[1 << 46], &[(0, 0, 1 << 46)]);
    let model = Arc::new(Model::from_parts(index, vec![source.clone()]).unwrap());
    let error = Loader::default().load_model(&model, on_host()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfHostMemory, "{error:?}");
    assert_eq!(error.value("needed"), Some("70368744177664"));
    let available: u64 = error.value("available").unwrap().parse().unwrap();
    assert!(available > 0 && available < 1 << 46);
    assert!(error.get_hint().unwrap().contains("--tensors"));
    assert_eq!(source.0.load(Ordering::Relaxed), 0, "nothing was opened");
}

/// Pages of a test's own, filled with a pattern that is in no model.
struct Pages {
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to no thread; tests look at it when a load is over.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(length: usize) -> Arc<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping touches nothing that is there.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }.unwrap();
        Arc::new(Self { start: start.cast(), length })
    }

    fn filled(length: usize, byte: u8) -> Arc<Self> {
        let pages = Self::new(length);
        // SAFETY: the whole mapping, which nobody else has yet.
        unsafe { pages.start.write_bytes(byte, length) };
        pages
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and no load is under way while a test looks.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    /// A destination in here.
    fn destination(self: &Arc<Self>, offset: usize, length: u64) -> Destination {
        let address = self.start as u64 + offset as u64;
        assert!(offset as u64 + length <= self.length as u64);
        // SAFETY: within the mapping, which the clone keeps; tests look when the load is over.
        unsafe { Destination::new(DeviceId::Host, address, length, self.clone()) }
    }

    /// A field of the kernel's about this mapping, and all of its flags.
    fn kernel_says(&self, field: &str) -> (u64, String) {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = text.lines().skip_while(|line| {
            let start = line.split('-').next().unwrap_or_default();
            u64::from_str_radix(start, 16) != Ok(self.start as u64)
        });
        let line = lines.find(|line| line.starts_with(field)).expect("the mapping by itself");
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("flags");
        (kib << 10, flags.trim().to_owned())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has a slice of it any more.
        unsafe { munmap(self.start.cast(), self.length) }.unwrap();
    }
}

/// FS and MM cases aside: what the caller did not give is not ours.
#[test]
fn nothing_outside_the_callers_range_is_written_whatever_its_alignment() {
    const GUARD: u8 = 0xEE;
    for (round, settings) in
        [(0, "reading_threads=1"), (1, "reading_threads=3,block_size=16KiB,piece_size=4KiB")]
    {
        for shift in (0..64).chain([127, 4095]) {
            let specs = Spec::many(&mut Random::new(shift + 100 * round), 6, 9_000);
            let (model, _) = in_memory(vec![(specs.clone(), Fault::Short(4000))]);
            let pages = Pages::filled(32 * 9_000 * 2, GUARD);
            let (mut given, mut at) = (Vec::new(), shift as usize);
            let request = on_host().destinations(|wanted| {
                // Every second one is larger than it has to be.
                let more = wanted.length % 2 * 77;
                given.push((at, wanted.length as usize));
                let destination = pages.destination(at, wanted.length + more);
                at += (wanted.length + more) as usize + 1 + shift as usize;
                Ok(destination)
            });
            let loaded = Loader::new(options(settings)).load_model(&model, request).unwrap();
            assert_same(&loaded, &specs);
            let report = &loaded.report;
            assert_eq!((report.staging_bytes_peak, report.pinned_destination_bytes), (0, 0));
            let (bytes, mut end) = (pages.bytes(), 0);
            for (start, length) in given.into_iter().chain([(pages.length, 0)]) {
                let spared = bytes[end..start].iter().all(|byte| *byte == GUARD);
                assert!(spared, "shift {shift}: {end} to {start} is not ours");
                end = start + length;
            }
        }
    }
}

/// New memory of our own is touched before it is read into, and made of huge pages. The caller's
/// is as the caller made it.
#[test]
fn the_callers_memory_is_neither_touched_nor_advised() {
    let length = 64 * MIB;
    let pages = Pages::new(length as usize);
    // A gigantic range, of which the tensor takes a part in the middle.
    let specs = vec![Spec::u8("t", Random::new(3).bytes(3 << 20))];
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    let (_, before) = pages.kernel_says("Rss:");
    let request = || on_host().destinations(|_| Ok(pages.destination(20 << 20, 40 * MIB)));
    let loaded = Loader::default().load_model(&model, request()).unwrap();
    assert_same(&loaded, &specs);
    let (resident, after) = pages.kernel_says("Rss:");
    assert_eq!(before, after, "advice shows in the flags");
    // A machine that makes huge pages unasked makes the first and the last one whole.
    assert!((3 * MIB..=8 * MIB).contains(&resident), "{resident} bytes are resident");

    // Nothing could be read: nothing was written, not even a touch.
    let pages = Pages::filled(length as usize, 0xEE);
    let (model, sources) = in_memory(vec![(specs, Fault::Errno(1, 5))]);
    let request = on_host().destinations(|_| Ok(pages.destination(20 << 20, 40 * MIB)));
    let loader = Loader::new(options("reading_threads=1"));
    let error = loader.load_model(&model, request).unwrap_err();
    assert_eq!((error.kind(), sources[0].reads()), (ErrorKind::Io, 1));
    assert!(pages.bytes().iter().all(|byte| *byte == 0xEE));
}

fn pinned<'a>() -> Request<'a> {
    on_host().pin_host(true)
}

#[test]
fn a_pinned_destination_stays_pinned_with_its_tensors() {
    let specs = Spec::many(&mut Random::new(21), 30, 90_000);
    let (model, _) = in_memory(vec![(specs.clone(), Fault::None)]);
    for settings in ["reading_threads=1", "reading_threads=3,block_size=16KiB,piece_size=4KiB"] {
        let fake = Fake::new(Config { init_delay_ms: 20, ..Config::default() });
        let loader = fake.loader(options(settings));
        let loaded = loader.load_model(&model, pinned()).unwrap();
        assert_same(&loaded, &specs);
        let report = &loaded.report;
        assert_eq!(
            (report.route().as_str(), &report.devices[..]),
            ("host", &["host".to_owned()][..])
        );
        assert_eq!((report.pinned_bytes, report.staging_bytes_peak, report.copy_calls), (0, 0, 0));
        assert_eq!(report.pinned_destination_bytes, fake.cuda.counts().registered_bytes);
        assert!(report.pinned_destination_bytes >= report.bytes.planned);
        assert!(report.seconds.driver > 0.01 && report.seconds.pin > 0.0, "{:?}", report.seconds);

        // An engine copies a tensor at once, and from pinned memory: see `copies_like_an_engine`.
        let tensor = loaded.tensor("t3").unwrap_or(&loaded.tensors[3]).clone();
        let counts = fake.cuda.counts();
        copies_like_an_engine(&fake, tensor.address(), tensor.nbytes());
        let copied = fake.cuda.counts();
        assert_eq!(copied.pinned_bytes - counts.pinned_bytes, tensor.nbytes());
        assert_eq!(copied.pageable_copies, counts.pageable_copies);

        // Whatever goes first, the last tensor keeps it all.
        drop((loaded, loader));
        assert_eq!(fake.cuda.live().registrations, 1);
        let keep = tensor.keep_alive();
        drop(tensor);
        assert_eq!(fake.cuda.live().registrations, 1);
        fake.assert_no_violations();
        drop(keep);
        fake.assert_clean();
    }
}

/// Copies host memory to the device by itself, through the driver.
fn copies_like_an_engine(fake: &Fake, address: u64, length: u64) {
    use weightlift_cuda_sys::{CuContext, CuDevice, CuStatus, CuStream, Driver};
    let driver = Driver::load(Some(fake.cuda.path())).unwrap();
    let ok = |status: CuStatus| assert_eq!(status, CuStatus::SUCCESS);
    let (mut context, mut stream, mut pointer) = (CuContext::NULL, CuStream::NULL, 0);
    // SAFETY: pointers are references; the source is a tensor that lives, and the stream is
    // drained before anything goes.
    unsafe {
        ok((driver.cuDevicePrimaryCtxRetain)(&mut context, CuDevice(0)));
        ok((driver.cuCtxSetCurrent)(context));
        ok((driver.cuStreamCreate)(&mut stream, 1));
        ok((driver.cuMemAlloc_v2)(&mut pointer, length as usize));
        ok((driver.cuMemcpyHtoDAsync_v2)(pointer, address as *const _, length as usize, stream));
        ok((driver.cuStreamSynchronize)(stream));
        ok((driver.cuMemFree_v2)(pointer));
        ok((driver.cuStreamDestroy_v2)(stream));
        ok((driver.cuCtxSetCurrent)(CuContext::NULL));
        ok((driver.cuDevicePrimaryCtxRelease_v2)(CuDevice(0)));
    }
}

/// MM-06. Tensors of 120 MiB, two a part; and one that is larger than a part.
#[test]
fn large_memory_is_pinned_in_parts_that_cut_no_tensor() {
    let lengths = [120 * MIB, 120 * MIB, 120 * MIB + 1, 260 * MIB, 10 * MIB];
    let model = Sparse::new(&lengths, 5);
    let fake = Fake::new(Config { register_max: 260 * MIB + 4096, ..Config::default() });
    let loader = fake.loader(Options::default());
    let loaded = loader.load(model.path(), pinned()).unwrap();
    // The small one would fit beside none of its neighbours.
    assert_eq!(fake.cuda.live().registrations, 4);
    assert!(loaded.report.pinned_destination_bytes >= model.bytes());
    for tensor in &loaded.tensors {
        // The driver refuses a copy that runs out of a registration.
        copies_like_an_engine(&fake, tensor.address(), tensor.nbytes());
    }
    drop((loaded, loader));
    fake.assert_clean();
}

/// MM-02, MM-06: a limit of all that can be pinned, one of a single registration, and a refusal
/// in the middle. What was asked for is had or is an error, and nothing stays half pinned.
#[test]
fn what_cannot_be_pinned_is_an_error_and_nothing_stays_pinned() {
    let model = Sparse::new(&[130 * MIB; 5], 6);
    for (config, nth) in [
        (Config { register_max: 100 * MIB, ..Config::default() }, 0),
        (Config { register_limit: 0, ..Config::default() }, 0),
        (Config { register_limit: 300 * MIB, ..Config::default() }, 0),
        (Config::default(), 1),
        (Config::default(), 5),
    ] {
        let fake = Fake::new(config);
        let loader = fake.loader(Options::default());
        if nth > 0 {
            fake.cuda.fail("cuMemHostRegister_v2", nth, 2, Mode::Once);
        }
        let error = loader.load(model.path(), pinned()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PinFailed, "{error:?}");
        assert!(error.get_hint().unwrap().contains("--pin-host"));
        if nth == 5 {
            assert_eq!(error.value("pinned_before"), Some(&*(4 * 130 * MIB).to_string()));
        }
        assert_eq!(fake.cuda.live().registrations, 0);
        assert_eq!(loader.quarantined().bytes, 0);
        if nth > 0 {
            let again = loader.load(model.path(), pinned()).unwrap();
            assert!(again.report.pinned_destination_bytes >= model.bytes());
        }
        drop(loader);
        fake.assert_clean();
    }
}

/// One of several registrations cannot be ended: the memory stays, all of it, and is counted.
#[test]
fn memory_that_stays_pinned_stays_mapped() {
    let model = Sparse::new(&[130 * MIB; 3], 7);
    for nth in 1..=3 {
        let fake = Fake::new(Config::default());
        let loader = fake.loader(Options::default());
        let loaded = loader.load(model.path(), pinned()).unwrap();
        assert_eq!(fake.cuda.live().registrations, 3);
        fake.cuda.fail("cuMemHostUnregister", nth, 1, Mode::Once);
        drop(loaded);
        let live = fake.cuda.live();
        assert_eq!(live.registrations, 1, "the others ended");
        assert!(loader.quarantined().bytes >= model.bytes());
        drop(loader);
        fake.assert_no_violations();
    }
}

#[test]
fn a_load_that_fails_leaves_nothing_pinned() {
    let specs: Vec<Spec> =
        (0..40).map(|number| Spec::u8(format!("t{number}"), vec![1; 9_000])).collect();
    for nth in [1, 30, 85] {
        let (model, _) = in_memory(vec![(specs.clone(), Fault::Errno(nth, 5))]);
        let fake = Fake::new(Config::default());
        let settings = "block_size=16KiB,piece_size=4KiB,reading_threads=3";
        let loader = fake.loader(options(settings));
        let error = loader.load_model(&model, pinned()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
        drop(loader);
        fake.assert_clean();
    }
}

/// The other way: everything is there and pinned, and then it turns out that a file changed.
#[test]
fn a_load_that_fails_at_last_unpins_everything() {
    let specs = vec![Spec::u8("t", vec![7; 100_000])];
    let (model, sources) = in_memory(vec![(specs, Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let request = pinned().on_event(|_| sources[0].change());
    let error = loader.load_model(&model, request).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert_eq!(fake.cuda.calls("cuMemHostRegister_v2"), 1);
    drop(loader);
    fake.assert_clean();
}

#[test]
fn a_load_cancelled_while_the_driver_starts_to_pin_ends_at_once() {
    let (model, _) = in_memory(vec![(vec![Spec::u8("t", vec![7; 100])], Fault::None)]);
    let fake = Fake::new(Config { init_delay_ms: 2_000, ..Config::default() });
    let loader = fake.loader(Options::default());
    let token = CancelToken::new();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            token.cancel();
        });
        let started = Instant::now();
        let error = loader.load_model(&model, pinned().cancel(&token)).unwrap_err();
        assert!(started.elapsed() < Duration::from_millis(1_500), "{:?}", started.elapsed());
        error
    });
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    // The driver's thread goes on by itself, and the next load waits for it.
    assert!(loader.load_model(&model, pinned()).unwrap().report.pinned_destination_bytes > 0);
    drop(loader);
    crate::starts_are_over();
    fake.assert_clean();
}

#[test]
fn pinning_is_for_host_memory_of_our_own_and_needs_a_driver() {
    let specs = vec![Spec::u8("t", vec![7; 10_000])];
    let (model, sources) = in_memory(vec![(specs.clone(), Fault::None)]);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let own = vec![0_u8; 10_000];
    let provided = || {
        pinned().destinations(|wanted| {
            let address = own.as_ptr() as u64;
            // SAFETY: refused, so never used.
            Ok(unsafe { Destination::new(wanted.device, address, 10_000, Arc::new(())) })
        })
    };
    let refused = [
        on_cuda(Route::Pinned).pin_host(true),
        Request::new().pin_host(true),
        provided(),
        pinned().apart(true),
        pinned().reading_threads("0".parse().unwrap()),
    ];
    for request in refused {
        let error = loader.load_model(&model, request).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption, "{error:?}");
        assert_eq!(error.value("option"), Some("pin_host"));
    }
    assert_eq!(sources[0].reads(), 0);
    // The host route is the host, and a request overrules the loader.
    let by_route =
        Request::new().route(RouteChoice::Forced(Route::Host)).device(DeviceChoice::Auto);
    let loader = fake.loader(options("pin_host=on"));
    let loaded = loader.load_model(&model, by_route).unwrap();
    assert_same(&loaded, &specs);
    assert!(loaded.report.pinned_destination_bytes > 0);
    // All of it: what is let go of later would be taken from another test's driver.
    drop(loaded);
    let loaded = loader.load_model(&model, on_host().pin_host(false)).unwrap();
    assert_eq!(loaded.report.pinned_destination_bytes, 0);
    drop((loaded, loader));

    let loader = Loader::default().with_driver("/nonexistent/libcuda.so.1");
    let error = loader.load_model(&model, pinned()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDriver);
    assert!(error.get_hint().unwrap().contains("--pin-host"));
    drop(fake);
    let fake = Fake::new(Config { devices: 0, ..Config::default() });
    let error = fake.loader(Options::default()).load_model(&model, pinned()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoDevice);
}

#[test]
fn models_without_bytes_pin_nothing() {
    let empty = Spec { name: "e".into(), dtype: "F32", shape: vec![2, 0], bytes: vec![] };
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let (model, _) = in_memory(vec![(vec![empty.clone()], Fault::None)]);
    let loaded = loader.load_model(&model, pinned()).unwrap();
    assert_same(&loaded, &[empty]);
    assert_eq!(
        (loaded.report.pinned_destination_bytes, digest(&[])),
        (0, loaded.tensors[0].digest().unwrap())
    );
    drop((loaded, loader));
    fake.assert_clean();
}
