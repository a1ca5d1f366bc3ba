//! How fast headers become an index, beside the reference implementation's parser.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weightlift_index::Limits;
use weightlift_index::safetensors::parse_header;
use weightlift_index::shards::parse_index;

/// A header of `count` tensors with names as long as those of real models, and the length of its data.
fn header(count: usize, elements: usize) -> (String, u64) {
    let mut text = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let bytes = elements * 2;
    for i in 0..count {
        let (begin, end) = (i * bytes, (i + 1) * bytes);
        let (layer, expert) = (i / 256, i % 256);
        write!(
            text,
            ",\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\":\
             {{\"dtype\":\"BF16\",\"shape\":[{elements}],\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("writing to a string cannot fail");
    }
    text.push('}');
    (text, (count * bytes) as u64)
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("header");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    for (label, count, elements) in [("100k", 100_000, 2048), ("1.3M empty", 1_300_000, 0)] {
        let (text, data) = header(count, elements);
        let start = text.len() as u64 + 8;
        let limits = Limits::default().with_header_bytes(1 << 30);
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("parse", label), |b| {
            b.iter(|| {
                let length = start + data;
                let header = parse_header(black_box(text.as_bytes()), start, length, &limits)
                    .expect("the header is valid");
                header.into_index("model.safetensors", length).expect("few enough tensors")
            });
        });
        group.bench_function(BenchmarkId::new("reference", label), |b| {
            b.iter(|| {
                serde_json::from_str::<safetensors::tensor::Metadata>(black_box(&text))
                    .expect("the header is valid")
            });
        });
    }
    group.finish();
}

fn index_files(c: &mut Criterion) {
    let mut text = String::from("{\"weight_map\":{");
    for i in 0..100_000 {
        let (comma, shard) = (if i == 0 { "" } else { "," }, i / 1000);
        write!(
            text,
            "{comma}\"model.layers.{i}.mlp.up_proj.weight\":\
             \"model-{shard:05}-of-00100.safetensors\""
        )
        .expect("writing to a string cannot fail");
    }
    text.push_str("}}");
    let mut group = c.benchmark_group("index file");
    group.sample_size(10).throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("100k", |b| {
        b.iter(|| {
            parse_index(black_box(text.as_bytes()), &Limits::default()).expect("the index is valid")
        });
    });
    group.finish();
}

criterion_group!(benches, headers, index_files);
criterion_main!(benches);
