//! What weightlift's tests are made of: models written by code, and sources that misbehave.

#![forbid(unsafe_code)]

mod faulty;
mod model;
mod random;
mod sparse;

pub use faulty::{Fault, Faulty};
pub use model::{Spec, Written, header, in_memory, safetensors, write_hub_cache, write_sharded};
pub use random::Random;
pub use sparse::Sparse;

/// The XXH3-64 of `bytes`, as [`weightlift::Tensor::digest`] gives it.
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Says that a test did not run, and why; `cargo xtask test` counts these lines.
pub fn skipped(test: &str, why: &str) {
    eprintln!("skipped: {test}: {why}");
}
