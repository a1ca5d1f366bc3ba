//! How long planning takes: it stands before the first read.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use testkit::{Fault, Random, Spec, in_memory};
use weightlift::{Loader, Options, Request};

fn plan(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    for (name, tensors, longest) in
        [("1,000 of up to 64 KiB", 1_000, 65_536), ("100,000 of up to 256 bytes", 100_000, 256)]
    {
        let specs = Spec::many(&mut Random::new(1), tensors, longest);
        let (model, _) = in_memory(vec![(specs, Fault::None)]);
        let loader = Loader::new(Options::default());
        group.throughput(Throughput::Elements(tensors as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| loader.plan(&model, &Request::new()).expect("a plan"));
        });
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
