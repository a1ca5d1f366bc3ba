//! How fast GGUF headers become an index: many tensors, and a large vocabulary.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weightlift_index::gguf::parse;
use weightlift_index::{Bytes, Error, Limits};

/// A header, and as many zeros after it as the length says.
struct File {
    header: Vec<u8>,
    length: u64,
}

impl Bytes for File {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let start = self.header.len().min(offset as usize);
        let there = buffer.len().min(self.header.len() - start);
        buffer[..there].copy_from_slice(&self.header[start..start + there]);
        buffer[there..].fill(0);
        Ok(())
    }
}

fn start(tensors: usize, values: u64) -> Vec<u8> {
    let counts = [&(tensors as u64).to_le_bytes(), &values.to_le_bytes()[..]].concat();
    [b"GGUF\x03\0\0\0", &counts[..]].concat()
}

fn text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

/// Tensors of 2048 elements, with names as long as those of real models.
fn tensors(count: usize) -> File {
    const BYTES: u64 = 2 * 2048;
    let mut header = start(count, 0);
    for i in 0..count {
        let (layer, expert) = (i / 256, i % 256);
        text(&mut header, &format!("blk.{layer}.ffn_up_exps.{expert}.weight"));
        header.extend(1u32.to_le_bytes());
        header.extend(2048u64.to_le_bytes());
        header.extend(1u32.to_le_bytes());
        header.extend((i as u64 * BYTES).to_le_bytes());
    }
    let length = (header.len() as u64).next_multiple_of(32) + count as u64 * BYTES;
    File { header, length }
}

/// A list of texts, about 100 MB of them.
fn vocabulary() -> File {
    const COUNT: u64 = 5_000_000;
    let mut header = start(0, 1);
    text(&mut header, "tokenizer.ggml.tokens");
    header.extend(9u32.to_le_bytes());
    header.extend(8u32.to_le_bytes());
    header.extend(COUNT.to_le_bytes());
    for i in 0..COUNT {
        text(&mut header, &format!("token{i:07}"));
    }
    let length = header.len() as u64;
    File { header, length }
}

fn headers(c: &mut Criterion) {
    let mut group = c.benchmark_group("gguf");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    let limits = Limits::default();
    for (label, count) in [("100k tensors", 100_000), ("1M tensors", 1_000_000)] {
        let mut file = tensors(count);
        group.throughput(Throughput::Bytes(file.header.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(label), |b| {
            b.iter(|| {
                let length = file.length;
                let header = parse(black_box(&mut file), false, &limits).expect("it is valid");
                header.into_index("model.gguf", length).expect("few enough tensors")
            });
        });
    }
    let mut file = vocabulary();
    group.throughput(Throughput::Bytes(file.length));
    for (label, lists) in [("100 MB vocabulary", false), ("100 MB vocabulary, kept", true)] {
        group.bench_function(BenchmarkId::from_parameter(label), |b| {
            b.iter(|| parse(black_box(&mut file), lists, &limits).expect("it is valid"));
        });
    }
    group.finish();
}

criterion_group!(benches, headers);
criterion_main!(benches);
