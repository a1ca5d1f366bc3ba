//! The bytes are right: for any layout, thread count, block and piece size and budget.

use fake_cuda::Config;
use proptest::prelude::*;
use testkit::{Fault, Random, Spec, Written, in_memory, write_hub_cache, write_sharded};
use weightlift::{Loader, Options, Request, Route, RouteChoice};

use crate::{Fake, assert_same, on_cuda, on_host, options};

/// A layout, and how to load it.
#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    files: usize,
    tensors: usize,
    longest: u64,
    threads: u8,
    block: u64,
    piece: u64,
    budget: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let layout = (
        any::<u64>(),
        1..4_usize,
        1..60_usize,
        prop_oneof![Just(40_u64), Just(5_000), Just(70_000)],
    );
    let how = (0..=12_u8, 1..=16_u64, 1..=16_u64, 2..=20_u64);
    (layout, how).prop_map(|((seed, files, tensors, longest), (threads, block, piece, budget))| {
        Case {
            seed,
            files,
            tensors,
            longest,
            threads,
            block: block * 4096,
            piece: piece * 4096,
            budget: budget * 4096,
        }
    })
}

impl Case {
    fn files(&self, round: u64) -> Vec<(Vec<Spec>, Fault)> {
        let mut random = Random::new(self.seed ^ round);
        let mut files = Vec::new();
        for file in 0..self.files {
            let mut specs = Spec::many(&mut random, self.tensors, self.longest);
            specs.iter_mut().for_each(|spec| spec.name = format!("f{file}.{}", spec.name));
            files.push((specs, Fault::None));
        }
        files
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.set_block_size(self.block).unwrap();
        options.set_piece_size(Some(self.piece)).unwrap();
        options.set_staging_budget(self.budget).unwrap();
        options.reading_threads = weightlift::ReadingThreads::new(self.threads).unwrap();
        options
    }

    fn specs(files: &[(Vec<Spec>, Fault)]) -> Vec<Spec> {
        files.iter().flat_map(|(specs, _)| specs.clone()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_layout_lands_whole_in_host_memory(case in cases()) {
        let files = case.files(0);
        let specs = Case::specs(&files);
        let (model, _) = in_memory(files);
        let loaded = Loader::new(case.options()).load_model(&model, on_host()).unwrap();
        assert_same(&loaded, &specs);
        for tensor in &loaded.tensors {
            prop_assert_eq!(tensor.address() % 64, 0);
        }
    }

    /// Twice over the same ring: what the first load left in it must not show in the second.
    #[test]
    fn any_layout_lands_whole_on_the_device_twice(case in cases(), batched: bool, fill: u8) {
        let version = if batched { 13000 } else { 12000 };
        let config = Config {
            version, copy_delay_us: case.seed % 200, fill: u64::from(fill), ..Config::default()
        };
        let fake = Fake::new(config);
        let loader = fake.loader(case.options());
        let routes: &[Route] =
            if case.threads == 0 { &[Route::Pageable] } else { &[Route::Pinned, Route::Pageable] };
        for (round, route) in routes.iter().flat_map(|route| [(0, *route), (1, *route)]) {
            let files = case.files(round);
            let specs = Case::specs(&files);
            let (model, _) = in_memory(files);
            let loaded = loader.load_model(&model, on_cuda(route)).unwrap();
            assert_same(&loaded, &specs);
            for tensor in &loaded.tensors {
                prop_assert_eq!(tensor.address() % 256, 0);
            }
            prop_assert!(loaded.report.staging_bytes_peak <= case.budget);
            prop_assert!(loaded.report.pinned_bytes <= case.budget);
            let counts = fake.cuda.counts();
            if route == Route::Pinned {
                // The one that readies the device's stream when it is started.
                prop_assert_eq!(counts.pageable_copies, 1);
            }
        }
        drop(loader);
        fake.assert_clean();
    }
}

#[test]
fn files_shards_and_hub_caches_load_the_same() {
    let mut random = Random::new(7);
    let specs = Spec::many(&mut random, 40, 30_000);
    for padding in 0..8 {
        let written = Written::single(specs.clone(), padding);
        assert_same(&Loader::default().load(written.path(), on_host()).unwrap(), &specs);
    }
    for written in [write_sharded(specs.clone(), 3), write_hub_cache(specs.clone(), 3)] {
        assert_same(&Loader::default().load(written.path(), on_host()).unwrap(), &specs);
        let index = written.path().join("model.safetensors.index.json");
        assert_same(&Loader::default().load(&index, on_host()).unwrap(), &specs);
        let fake = Fake::new(Config::default());
        let loader = fake.loader(Options::default());
        assert_same(&loader.load(written.path(), on_cuda(Route::Pinned)).unwrap(), &specs);
        drop(loader);
        fake.assert_clean();
    }
}

#[test]
fn every_number_of_reading_threads_gives_the_same_bytes() {
    let specs = Spec::many(&mut Random::new(8), 50, 20_000);
    // So many shards that threads are started for opening them.
    let written = write_sharded(specs.clone(), 9);
    let fake = Fake::new(Config::default());
    for threads in 0..=64_u8 {
        let loader = fake.loader(options(&format!(
            "reading_threads={threads},block_size=32KiB,piece_size=8KiB,staging_budget=96KiB"
        )));
        let on_the_host = loader.load(written.path(), on_host()).unwrap();
        assert_same(&on_the_host, &specs);
        if threads > 0 {
            assert_eq!(on_the_host.report.reading_threads, usize::from(threads));
        }
        let request = Request::new().device(weightlift::DeviceChoice::Cuda(0));
        let loaded = loader.load(written.path(), request).unwrap();
        assert_same(&loaded, &specs);
        let expected = if threads == 0 { "pageable" } else { "pinned" };
        assert_eq!(loaded.report.route(), expected);
        // The budget has places for twelve readers' pieces; there are more pieces than that.
        if (1..=12).contains(&threads) {
            assert_eq!(loaded.report.reading_threads, usize::from(threads));
        } else {
            assert!(loaded.report.reading_threads <= 12);
        }
    }
    fake.assert_no_violations();
}

#[test]
fn small_tensors_are_copied_in_batches_where_the_driver_can() {
    // Lengths that are no multiple of 256 leave gaps on the device: no two copies join.
    let specs: Vec<Spec> =
        (0..5_000).map(|number| Spec::u8(format!("t{number}"), vec![number as u8; 100])).collect();
    let written = Written::single(specs.clone(), 0);
    for (version, calls) in [(13000, 5), (12080, 5), (12070, 5_000)] {
        let fake = Fake::new(Config { version, ..Config::default() });
        let loader = fake.loader(Options::default());
        let loaded = loader.load(written.path(), on_cuda(Route::Pinned)).unwrap();
        assert_same(&loaded, &specs);
        assert_eq!(loaded.report.copy_calls, calls, "driver {version}");
        let batch = match version {
            13000 => fake.cuda.calls("cuMemcpyBatchAsync_v2"),
            12080 => fake.cuda.calls("cuMemcpyBatchAsync"),
            _ => 0,
        };
        assert_eq!(batch, if version < 12080 { 0 } else { 5 });
        fake.assert_no_violations();
    }
}

#[test]
fn tensors_that_lie_side_by_side_are_one_copy_a_block() {
    let specs: Vec<Spec> = (0..64)
        .map(|number| Spec::u8(format!("t{number}"), vec![number as u8; 64 << 10]))
        .collect();
    let written = Written::single(specs.clone(), 0);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(options("block_size=1MiB"));
    let loaded = loader.load(written.path(), on_cuda(Route::Pinned)).unwrap();
    assert_same(&loaded, &specs);
    // 4 MiB that begin anywhere in a page: four blocks and a little.
    assert_eq!(loaded.report.copy_calls, 5);
}

#[test]
fn only_the_tensors_asked_for_are_read() {
    let specs = Spec::many(&mut Random::new(9), 30, 4_000);
    let written = write_sharded(specs.clone(), 2);
    let request = on_host().tensors(["t1?", "t3"]);
    let loaded = Loader::default().load(written.path(), request).unwrap();
    let expected: Vec<Spec> = specs
        .iter()
        .filter(|spec| spec.name == "t3" || (spec.name.len() == 3 && spec.name.starts_with("t1")))
        .cloned()
        .collect();
    assert_same(&loaded, &expected);
}

#[test]
fn a_name_nobody_has_is_an_error_that_lists_near_ones() {
    let specs = vec![Spec::u8("model.embed.weight", vec![1]), Spec::u8("lm_head.bias", vec![2])];
    let written = Written::single(specs, 0);
    // ST-20: a tied weight that the file does not hold is not made up.
    let request = on_host().tensors(["lm_head.weight"]);
    let error = Loader::default().load(written.path(), request).unwrap_err();
    assert_eq!(error.kind().name(), "NotFound");
    assert!(error.value("near").unwrap().contains("lm_head.bias"), "{error}");
}

#[test]
fn models_without_bytes_load() {
    let empty = Spec { name: "e".into(), dtype: "F32", shape: vec![2, 0], bytes: vec![] };
    for specs in [vec![], vec![empty]] {
        let written = Written::single(specs.clone(), 0);
        assert_same(&Loader::default().load(written.path(), on_host()).unwrap(), &specs);
        let fake = Fake::new(Config::default());
        for route in [Route::Pinned, Route::Pageable] {
            let loaded =
                fake.loader(Options::default()).load(written.path(), on_cuda(route)).unwrap();
            assert_same(&loaded, &specs);
            drop(loaded);
        }
        fake.assert_clean();
    }
}

#[test]
fn a_byte_flipped_in_device_memory_changes_the_digest() {
    let written = Written::single(vec![Spec::u8("t", vec![7; 100_000])], 0);
    let fake = Fake::new(Config::default());
    let loaded =
        fake.loader(Options::default()).load(written.path(), on_cuda(Route::Pinned)).unwrap();
    let before = loaded.tensors[0].digest().unwrap();
    fake.cuda.flip_byte(loaded.tensors[0].address() + 77_777);
    assert_ne!(loaded.tensors[0].digest().unwrap(), before);
}

#[test]
fn auto_takes_the_gpu_where_there_is_one() {
    let written = Written::single(vec![Spec::u8("t", vec![7; 100])], 0);
    let fake = Fake::new(Config::default());
    let loader = fake.loader(Options::default());
    let report = loader.load(written.path(), Request::new()).unwrap().report;
    assert_eq!(
        (report.devices, report.routes.keys().next().unwrap().as_str()),
        (vec!["cuda:0".to_owned()], "pinned")
    );
    assert!(
        report
            .decisions
            .iter()
            .any(|decision| decision.what == "route" && decision.chosen == "pinned")
    );
    let request = Request::new().route(RouteChoice::Forced(Route::Host));
    assert_eq!(loader.load(written.path(), request).unwrap().report.devices, ["host"]);
}
