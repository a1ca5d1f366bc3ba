//! How fast an OpenVINO network becomes an index: time has to grow with its constants and no faster.

use std::fmt::Write as _;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use weightlift_index::Limits;
use weightlift_index::openvino::parse;

/// A network of so many constants of two bytes, with the ports and white space that OpenVINO writes.
fn network(count: usize) -> String {
    let mut text =
        String::from("<?xml version=\"1.0\"?>\n<net name=\"n\" version=\"11\">\n\t<layers>\n");
    for i in 0..count {
        let (layer, expert) = (i / 256, i % 256);
        write!(
            text,
            "\t\t<layer id=\"{i}\" name=\"model.layers.{layer}.mlp.experts.{expert}.up_proj.weight\" \
             type=\"Const\" version=\"opset1\">\n\t\t\t<data element_type=\"f16\" shape=\"1, 1\" \
             offset=\"{}\" size=\"2\" />\n\t\t\t<output>\n\t\t\t\t<port id=\"0\" precision=\"FP16\">\n\
             \t\t\t\t\t<dim>1</dim>\n\t\t\t\t\t<dim>1</dim>\n\t\t\t\t</port>\n\t\t\t</output>\n\
             \t\t</layer>\n",
            2 * i
        )
        .expect("writing to a string cannot fail");
    }
    text.push_str("\t</layers>\n\t<edges/>\n</net>\n");
    text
}

fn networks(c: &mut Criterion) {
    let mut group = c.benchmark_group("openvino");
    group.sample_size(10);
    for (label, count) in [("100k", 100_000), ("300k", 300_000), ("1M", 1_000_000)] {
        let text = network(count);
        let weights = Some(("model.bin", 2 * count as u64));
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(BenchmarkId::new("constants", label), |b| {
            b.iter(|| {
                let network = parse(&mut black_box(text.as_bytes()), &Limits::default())
                    .expect("the network is valid");
                network.into_index(weights).expect("the constants lie in the weights")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, networks);
criterion_main!(benches);
