//! What is fuzzed: one function for each parser, which takes any bytes and panics where a promise
//! of the index is broken.
//!
//! The fuzzer (`fuzz/`, a workspace of its own) and the replay of its corpus (`tests/replay.rs`)
//! call the same functions. Inputs begin with two bytes of settings (`input.rs`), so that limits are
//! reached by small files.
//!
//! Besides that nothing panics, every function checks
//!
//! - of an index: that it is [valid](weightlift_index::Index::validate), that names are unique, and
//!   that known types, shapes and bytes agree;
//! - of an error: that it is one line, and names the option where it names a limit;
//! - of memory and reading: that both are bounded by the bytes that are there.

mod check;
mod gguf;
mod input;
pub mod memory;
mod onnx;
mod openvino;
mod pytorch;
mod safetensors;
pub mod seeds;
mod shards;
mod sniff;
pub mod write;

/// A target by name.
pub struct Target {
    /// The name of the program in `fuzz/` and of the folders of its inputs.
    pub name: &'static str,
    /// What it does with an input.
    pub run: fn(&[u8]),
    /// Its first inputs, by name of file.
    pub seeds: fn() -> seeds::Seeds,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "detect", run: sniff::run, seeds: seeds::detect },
    Target { name: "gguf", run: gguf::run, seeds: seeds::gguf::seeds },
    Target { name: "onnx", run: onnx::run, seeds: seeds::onnx::seeds },
    Target { name: "openvino", run: openvino::run, seeds: seeds::openvino::seeds },
    Target { name: "pytorch", run: pytorch::run, seeds: seeds::pytorch::seeds },
    Target { name: "safetensors", run: safetensors::run, seeds: seeds::safetensors },
    Target { name: "shards", run: shards::run, seeds: seeds::shards },
];

/// Runs the target of this name.
///
/// # Panics
///
/// If the input breaks a promise, or there is no such target.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("the target is in the table").run)(input);
}
