//! What tensors should be: digests, a manifest of them, and the comparison while they are read.

mod checks;
mod manifest;
mod tree;

pub(crate) use checks::Checks;
pub use manifest::{FileDigests, Manifest, TensorDigests};
pub(crate) use tree::Tree;
