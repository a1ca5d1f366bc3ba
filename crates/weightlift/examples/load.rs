//! Loads a model and prints the report.
//!
//! ```text
//! cargo run --release --example load -- PATH [DEVICE] [name=value,...]
//! ```

use std::process::ExitCode;

use weightlift::{Loader, Options, Request};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().map_or("model.safetensors", String::as_str);
    let device = arguments.get(1).map_or("auto", String::as_str);
    let settings = arguments.get(2).map_or("", String::as_str);
    match load(path, device, settings) {
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

fn load(path: &str, device: &str, settings: &str) -> weightlift::Result<String> {
    let options: Options = settings.parse()?;
    let loaded = Loader::new(options).load(path, Request::new().device(device.parse()?))?;
    let tensor = loaded.tensors.first();
    eprintln!("{} tensors, the first one: {tensor:?}", loaded.tensors.len());
    Ok(serde_json::to_string(&loaded.report).unwrap_or_default())
}
