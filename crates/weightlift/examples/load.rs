//! Loads a model and prints the report.
//!
//! ```text
//! cargo run --release --example load -- PATH [DEVICE] [name=value,...] [touch]
//! ```
//!
//! With `touch` one byte of each page of every tensor in host memory is looked at, in the time of
//! `touched_seconds`, which the report has then besides: what is compared with libraries that read
//! a page when it is first looked at has to count that for all of them.

use std::process::ExitCode;
use std::time::Instant;

use weightlift::{Loader, Options, Request};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().map_or("model.safetensors", String::as_str);
    let device = arguments.get(1).map_or("auto", String::as_str);
    let settings = arguments.get(2).map_or("", String::as_str);
    match load(path, device, settings, arguments.get(3).is_some_and(|word| word == "touch")) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn load(path: &str, device: &str, settings: &str, touch: bool) -> weightlift::Result<String> {
    let started = Instant::now();
    let options: Options = settings.parse()?;
    let loaded = Loader::new(options).load(path, Request::new().device(device.parse()?))?;
    let mut report = serde_json::to_value(&loaded.report).unwrap_or_default();
    if touch {
        let bytes = loaded.tensors.iter().filter_map(weightlift::Tensor::as_bytes);
        let sum = bytes.flat_map(|bytes| bytes.iter().step_by(4096)).map(|&byte| u64::from(byte));
        report["touched_sum"] = sum.sum::<u64>().into();
        report["touched_seconds"] = started.elapsed().as_secs_f64().into();
    }
    let tensor = loaded.tensors.first();
    eprintln!("{} tensors, the first one: {tensor:?}", loaded.tensors.len());
    Ok(report.to_string())
}
