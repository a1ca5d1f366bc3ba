//! Telling formats apart.

use weightlift_index::detect::{Kind, format_of, refuse_stand_in, sniff};

use crate::check;

/// The input is the first bytes of a file.
pub(crate) fn run(input: &[u8]) {
    let kind = check::bounded(0, || sniff(input));
    assert!(!kind.name().is_empty());
    // The documentation promises that 64 bytes are enough, but for ONNX.
    let early = sniff(&input[..input.len().min(64)]);
    if kind != Kind::Onnx && early != Kind::Onnx {
        assert_eq!(early, kind, "the first 64 bytes say something else");
    }
    if kind == Kind::Safetensors {
        assert_eq!(input[8], b'{');
    }
    for name in ["", "a", "a.safetensors", "a.gguf", "a.onnx", "a.xml", "a.pt", "a.bin"] {
        check::checked(format_of(input, name));
    }
    let stand_in = input.is_empty() || matches!(kind, Kind::LfsPointer | Kind::Html);
    assert_eq!(check::checked(refuse_stand_in(input)).is_none(), stand_in);
}
