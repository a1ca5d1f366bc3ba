//! Tensors are compared with a manifest while they are read: one bit anywhere is found, whatever
//! the order of pieces, and what is right passes.

use std::sync::Arc;

use fake_cuda::Config;
use testkit::{Fault, Random, Spec, Written, in_memory};
use weightlift::{
    ErrorKind, Loaded, Loader, Manifest, Model, Options, Request, Result, Route, TensorDigests,
};

use crate::{Fake, assert_same, on_cuda, on_host, options};

/// Bytes of a leaf of the digest, of which readers know nothing.
const LEAF: usize = 64 << 10;

/// Of every kind: empty, within a leaf, of whole leaves, of many and a part.
fn specs() -> Vec<Spec> {
    let mut random = Random::new(11);
    let lengths = [0, 1, 100, LEAF - 1, LEAF, LEAF + 1, 3 * LEAF, 300_001, 0, 40_000, 7];
    let spec =
        |(number, length): (usize, &usize)| Spec::u8(format!("t{number}"), random.bytes(*length));
    lengths.iter().enumerate().map(spec).collect()
}

fn model(specs: &[Spec]) -> Arc<Model> {
    in_memory(vec![(specs.to_vec(), Fault::None)]).0
}

fn digests(loaded: &Loaded) -> Vec<TensorDigests> {
    loaded.tensors.iter().map(|tensor| tensor.digests().expect("digests")).collect()
}

fn manifest(specs: &[Spec]) -> Arc<Manifest> {
    let loaded = Loader::default().load_model(&model(specs), on_host()).expect("a load");
    Arc::new(Manifest::new(digests(&loaded), Vec::new()))
}

/// Loads by every route, with so many threads and in blocks and pieces of such sizes.
fn by_every_route(
    fake: &Fake,
    model: &Arc<Model>,
    manifest: &Arc<Manifest>,
    settings: &str,
    check: &dyn Fn(Result<Loaded>, &str),
) {
    let loader = fake.loader(options(settings));
    let requests: [(&str, Request<'_>); 3] = [
        ("host", on_host()),
        ("pinned", on_cuda(Route::Pinned)),
        ("pageable", on_cuda(Route::Pageable)),
    ];
    for (route, request) in requests {
        let loaded = loader.load_model(model, request.verify(manifest.clone()));
        check(loaded, &format!("{route}, {settings}"));
    }
    drop(loader);
    fake.assert_clean();
}

const SIZES: [&str; 4] = [
    "block_size=4KiB,piece_size=4KiB,staging_budget=64KiB",
    "block_size=96KiB,piece_size=20KiB,staging_budget=192KiB",
    "block_size=128KiB,piece_size=64KiB,staging_budget=512KiB",
    "block_size=1MiB",
];

#[test]
fn what_is_right_passes_with_any_number_of_threads() {
    let specs = specs();
    let (model, manifest) = (model(&specs), manifest(&specs));
    let fake = Fake::new(Config::default());
    for threads in [1, 2, 3, 7, 12, 64] {
        for sizes in SIZES {
            let settings = format!("reading_threads={threads},{sizes}");
            by_every_route(&fake, &model, &manifest, &settings, &|loaded, how| {
                let loaded = loaded.unwrap_or_else(|error| panic!("{how}: {error}"));
                assert_same(&loaded, &specs);
                assert_eq!(digests(&loaded), manifest.tensors, "{how}");
                assert_eq!(loaded.report.verified_tensors, specs.len() as u64);
                assert!(loaded.report.seconds.verify > 0.0, "{how}");
            });
        }
    }
}

#[test]
fn one_bit_anywhere_is_found_by_every_route() {
    let specs = specs();
    let manifest = manifest(&specs);
    let fake = Fake::new(Config::default());
    let mut random = Random::new(12);
    let mut planted = 0;
    for (number, spec) in specs.iter().enumerate() {
        let length = spec.bytes.len();
        // First and last bytes, both sides of a page, of a piece's end and of a leaf's.
        let mut places = vec![0, 1, 4095, 4096, 20 << 10, LEAF - 1, LEAF, 2 * LEAF - 1, 2 * LEAF];
        places.extend([length / 2, length.wrapping_sub(1)]);
        places.retain(|place| *place < length);
        places.sort_unstable();
        places.dedup();
        for place in places {
            let mut corrupt = specs.clone();
            corrupt[number].bytes[place] ^= 1 << random.below(8);
            let model = model(&corrupt);
            let threads = [1, 2, 7, 12][planted % 4];
            let settings = format!("reading_threads={threads},{}", SIZES[planted / 4 % 4]);
            by_every_route(&fake, &model, &manifest, &settings, &|loaded, how| {
                let error = loaded.expect_err(how);
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{how}: {error}");
                assert_eq!(error.value("tensor"), Some(&*spec.name), "{how}: byte {place}");
                let expected = format!("{:016x}", manifest.tensors[number].tree);
                assert_eq!(error.value("expected"), Some(&*expected));
                assert!(error.value("actual").is_some_and(|actual| actual != expected));
            });
            planted += 1;
        }
    }
    assert!(planted > 40, "{planted}");
}

/// Where every read comes short or is interrupted, what is compared is still what was read last.
#[test]
fn reads_that_come_in_parts_are_compared_whole() {
    let specs = specs();
    let manifest = manifest(&specs);
    for fault in [Fault::Short(1000), Fault::Interrupted, Fault::WouldBlock(2)] {
        let (model, _) = in_memory(vec![(specs.clone(), fault)]);
        let loaded = Loader::default().load_model(&model, on_host().verify(manifest.clone()));
        assert_same(&loaded.expect("a load"), &specs);
    }
}

#[test]
fn files_are_compared_also_where_they_are_read_past_the_cache_or_mapped() {
    let specs = specs();
    let manifest = manifest(&specs);
    let mut corrupt = specs.clone();
    corrupt[7].bytes[200_000] ^= 0x10;
    for settings in ["direct_io=auto", "direct_io=off", "map_files=on"] {
        let loader = Loader::new(options(settings));
        let right = Written::single(specs.clone(), 3);
        let loaded = loader.load(right.path(), on_host().verify(manifest.clone()));
        assert_same(&loaded.expect(settings), &specs);
        let wrong = Written::single(corrupt.clone(), 3);
        let error = loader.load(wrong.path(), on_host().verify(manifest.clone()));
        assert_eq!(error.expect_err(settings).value("tensor"), Some("t7"));
    }
}

#[test]
fn a_manifest_of_another_model_is_refused_before_anything_is_read() {
    let specs = specs();
    let right = manifest(&specs);
    let change = |change: &dyn Fn(&mut Vec<TensorDigests>)| {
        let mut tensors = right.tensors.clone();
        change(&mut tensors);
        Arc::new(Manifest::new(tensors, Vec::new()))
    };
    let additional = || TensorDigests { name: "more".to_owned(), ..right.tensors[1].clone() };
    let wrong = [
        ("t4", change(&|tensors| drop(tensors.remove(4)))),
        ("t4", change(&|tensors| tensors[4].dtype = "I8".to_owned())),
        ("t4", change(&|tensors| tensors[4].shape = vec![1])),
        ("t4", change(&|tensors| tensors[4].length -= 1)),
        ("more", change(&|tensors| tensors.push(additional()))),
    ];
    for (name, wrong) in wrong {
        let (model, sources) = in_memory(vec![(specs.clone(), Fault::None)]);
        let error = Loader::default().load_model(&model, on_host().verify(wrong));
        let error = error.expect_err(name);
        assert_eq!((error.kind(), error.value("tensor")), (ErrorKind::Mismatch, Some(name)));
        assert!(error.value("expected").is_some() && error.value("actual").is_some());
        assert_eq!(sources[0].reads(), 0);
    }
    // What is empty has a digest too.
    let wrong = change(&|tensors| tensors[0].tree ^= 1);
    let error = Loader::default().load_model(&model(&specs), on_host().verify(wrong));
    assert_eq!(error.expect_err("an empty one").value("tensor"), Some("t0"));
}

/// Only what is loaded is compared.
#[test]
fn some_tensors_can_be_compared_alone() {
    let specs = specs();
    let manifest = manifest(&specs);
    let mut corrupt = specs.clone();
    corrupt[6].bytes[70_000] ^= 1;
    let model = model(&corrupt);
    let loader = Loader::new(Options::default());
    let request = |name: &str| on_host().tensors([name]).verify(manifest.clone());
    let loaded = loader.load_model(&model, request("t7")).expect("a sound one");
    assert_eq!(loaded.report.verified_tensors, 1);
    let error = loader.load_model(&model, request("t[5-7]")).expect_err("one that is not");
    assert_eq!(error.value("tensor"), Some("t6"));
}
