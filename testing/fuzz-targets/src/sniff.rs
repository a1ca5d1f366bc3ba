//! Telling formats apart.

use weightlift_index::detect::{Kind, sniff};

use crate::check;

/// The input is the first bytes of a file.
pub(crate) fn run(input: &[u8]) {
    let kind = check::bounded(0, || sniff(input));
    assert!(!kind.name().is_empty());
    // The documentation promises that 64 bytes are enough.
    let first = &input[..input.len().min(64)];
    assert_eq!(sniff(first), kind, "the first 64 bytes say something else");
    if kind == Kind::Safetensors {
        assert_eq!(input[8], b'{');
    }
}
