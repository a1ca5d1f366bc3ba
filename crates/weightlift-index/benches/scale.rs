//! Time and memory of an index by the size of the model: both are to grow with the tensors, not
//! with the bytes of their data, and not faster than the tensors.
//!
//! `cargo bench -p weightlift-index --bench scale [FORMAT]` prints a table. Files are written in
//! memory; their data are zeros that are made when they are read. So nothing here waits for a disk,
//! and time is that of parsing alone.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fuzz_targets::memory::{Usage, measure};
use fuzz_targets::write::{self, Dtype, Sparse, Tensor};
use weightlift_index::{Bytes, Error, Index, Limits, gguf, onnx, openvino, pytorch, safetensors};

/// Each is parsed so often, or as often as fits five seconds.
const SAMPLES: usize = 9;

/// A format: how such a file is written, and read.
struct Format {
    name: &'static str,
    write: fn(&[Tensor]) -> Sparse,
    index: fn(&mut dyn Bytes, &Limits) -> Result<Index, Error>,
}

const FORMATS: &[Format] = &[
    Format { name: "safetensors", write: write::safetensors::file, index: index_safetensors },
    Format {
        name: "gguf",
        write: |tensors| write::gguf::file(tensors, &[]),
        index: |file, limits| gguf::parse(file, false, limits)?.into_index("m", file.length()),
    },
    Format {
        name: "onnx",
        write: write::onnx::file,
        index: |file, limits| onnx::parse(file, limits)?.into_index("m", file.length(), &[]),
    },
    // Its data lie in another file, of which nothing is looked at but the length.
    Format {
        name: "openvino",
        write: |tensors| {
            let mut file = Sparse::default();
            file.write(write::openvino::file(tensors).0.as_bytes());
            file
        },
        index: |file, limits| openvino::parse(file, limits)?.into_index(Some(("m", 1 << 40))),
    },
    Format {
        name: "pytorch",
        write: write::pytorch::file,
        index: |file, limits| pytorch::parse(file, "m", limits),
    },
];

fn index_safetensors(file: &mut dyn Bytes, limits: &Limits) -> Result<Index, Error> {
    let length = file.length();
    let mut first = vec![0; length.min(4096) as usize];
    file.read_at(0, &mut first)?;
    let span = safetensors::header_span(&first, length, limits)?;
    let mut json = vec![0; (span.end - span.start) as usize];
    file.read_at(span.start, &mut json)?;
    safetensors::parse_header(&json, span.end, length, limits)?.into_index("m", length)
}

/// A model of tensors of one shape; names are filled up to a length.
fn model(count: usize, shape: &[u64], name: usize) -> Vec<Tensor> {
    let tensor = |i: usize| {
        let (layer, expert) = (i / 256, i % 256);
        let text = format!("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
        Tensor::new(&format!("{text:x<name$}"), Dtype::F16, shape)
    };
    (0..count).map(tensor).collect()
}

/// A file that counts what is read of it.
struct Counting(Sparse, u64);

impl Bytes for Counting {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.1 += buffer.len() as u64;
        self.0.read_at(offset, buffer)
    }
}

/// One line of the table.
fn row(format: &Format, what: &str, tensors: &[Tensor]) {
    // Beyond the limits that files usually have, since those are about trust.
    let limits = Limits::default().with_header_bytes(1 << 30);
    let mut file = Counting((format.write)(tensors), 0);
    let mut times = Vec::new();
    let mut usage = Usage::default();
    let began = Instant::now();
    while times.len() < SAMPLES && (times.len() < 3 || began.elapsed() < Duration::from_secs(5)) {
        file.1 = 0;
        let (time, used) = measure(|| {
            let start = Instant::now();
            let index = black_box((format.index)(&mut file, &limits).expect("the file is valid"));
            let time = start.elapsed();
            assert_eq!(index.tensors.len(), tensors.len());
            assert_eq!(index.bytes(), tensors.iter().map(Tensor::bytes).sum::<u64>());
            // What is kept is the index: it is counted before it goes.
            (time, measure_kept(index))
        });
        times.push(time.0);
        usage = Usage { kept: time.1, ..used };
    }
    times.sort();
    let count = tensors.len();
    let (median, least, most) = (times[times.len() / 2], times[0], times[times.len() - 1]);
    let each = |bytes: i64| bytes as f64 / count as f64;
    let megabytes = |bytes: u64| figure(bytes as f64 / 1e6);
    println!(
        "| {} | {what} | {count} | {} | {} | {} | {} ({} to {}) | {:.0} | {} | {:.0} | {:.0} |",
        format.name,
        megabytes(file.length()),
        megabytes(file.0.written()),
        megabytes(file.1),
        milliseconds(median),
        milliseconds(least),
        milliseconds(most),
        median.as_secs_f64() * 1e9 / count as f64,
        megabytes(usage.peak as u64),
        each(usage.peak),
        each(usage.kept),
    );
}

/// The memory that goes with a value.
fn measure_kept<T>(value: T) -> i64 {
    let ((), usage) = measure(|| drop(value));
    -usage.kept
}

fn milliseconds(time: Duration) -> String {
    figure(time.as_secs_f64() * 1e3)
}

/// A number with as many digits as say something.
fn figure(number: f64) -> String {
    if number < 1.0 { format!("{number:.4}") } else { format!("{number:.1}") }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Only cargo bench says so; anything else wants to know that it starts.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    println!(
        "| format | model | tensors | file, MB | structure, MB | read, MB | ms, median (range) \
         | ns a tensor | peak, MB | peak bytes a tensor | kept bytes a tensor |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    );
    for format in FORMATS.iter().filter(|format| wanted.is_none_or(|name| name == format.name)) {
        for count in [10_000, 100_000, 1_000_000] {
            row(format, "small tensors", &model(count, &[16], 0));
        }
        row(format, "long names, 100 MB", &model(200_000, &[16], 440));
        row(format, "2.5 GiB in one", &model(1, &[5, 1 << 28], 0));
        row(format, "5 GiB in 40", &model(40, &[1 << 13, 1 << 13], 0));
    }
}
