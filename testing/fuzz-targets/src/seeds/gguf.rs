//! Seeds of GGUF.

use super::{PLAIN, Seeds, add, add_damaged, some};
use crate::write::gguf::{Value, file};

pub(crate) fn seeds() -> Seeds {
    let mut seeds = Seeds::new();
    let metadata = [
        ("general.architecture", Value::Text("llama")),
        ("general.alignment", Value::U32(64)),
        ("tokenizer.ggml.tokens", Value::Texts(&["<s>", "a", "\u{2581}b"])),
    ];
    let some_file = file(&some(), &metadata).to_vec();
    let settings = [PLAIN, [4, 8], [8, 8], [16, 8], [0x40, 0], [0, 4]];
    add(&mut seeds, "some", &settings, &some_file);
    add_damaged(&mut seeds, "some", PLAIN, &some_file);
    let mut version = some_file.clone();
    version[4] = 2;
    add(&mut seeds, "version2", &[PLAIN], &version);
    version[4..8].copy_from_slice(&[0, 0, 0, 3]);
    add(&mut seeds, "big-endian", &[PLAIN], &version);
    add(&mut seeds, "none", &[PLAIN], &file(&[], &[]).to_vec());
    // Every type of value, then lists of some.
    let values: [&[u8]; 13] = [
        b"\x01",
        b"\xff",
        b"\x01\x02",
        b"\xff\xff",
        b"\0\0\0\x01",
        b"\xff\xff\xff\xff",
        b"\0\0\x80\x3f",
        b"\x01",
        b"\x01\0\0\0\0\0\0\0t",
        b"\0\0\0\0\x02\0\0\0\0\0\0\0\x07\x08",
        b"\x01\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\0\0\0\0\0\0\xf0\x7f",
    ];
    let keys: Vec<String> = (0..values.len()).map(|kind| format!("k{kind}")).collect();
    let all: Vec<(&str, Value<'_>)> = (0..)
        .zip(keys.iter().zip(values))
        .map(|(kind, (key, bytes))| (key.as_str(), Value::Other(kind, bytes)))
        .collect();
    add(&mut seeds, "values", &[PLAIN, [0, 8]], &file(&[], &all).to_vec());
    for (name, list) in [
        ("list-numbers", &b"\x02\0\0\0\x02\0\0\0\0\0\0\0\x01\x02\x03\x04"[..]),
        ("list-not-utf8", b"\x08\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\xff"),
        ("list-of-lists", b"\x09\0\0\0\x01\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0"),
        ("list-huge", b"\x04\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ] {
        let file = file(&some()[..1], &[("list", Value::Other(9, list))]).to_vec();
        add(&mut seeds, name, &[PLAIN, [0, 8]], &file);
    }
    // Blocks, a type that is not known, and one that was removed, in the place of the first type.
    let one = [crate::write::Tensor::new("t", crate::write::Dtype::F32, &[4, 256])];
    let plain = file(&one, &[]).to_vec();
    let at = 24 + 8 + 1 + 4 + 16;
    for (name, kind) in [("q4-0", 2), ("q4-k", 12), ("mxfp4", 39), ("unknown", 99), ("removed", 4)]
    {
        let mut file = plain[..at + 12].to_vec();
        file[at] = kind;
        add(&mut seeds, name, &[[0, 4], [0, 5], [0, 6]], &file);
    }
    // The second file of a set joined to the first.
    let part = |number: &'static [u8], name| {
        let metadata = [
            ("split.no", Value::Other(2, number)),
            ("split.count", Value::Other(2, b"\x02\0")),
            ("split.tensors.count", Value::Other(5, b"\x02\0\0\0")),
        ];
        file(&[crate::write::Tensor::new(name, crate::write::Dtype::I8, &[32])], &metadata).to_vec()
    };
    let (first, second) = (part(b"\0\0", "a"), part(b"\x01\0", "b"));
    add(&mut seeds, "part", &[PLAIN], &first);
    let both = [&(first.len() as u16).to_le_bytes()[..], &first, &second].concat();
    add(&mut seeds, "set", &[[0, 16]], &both);
    let same = [&(first.len() as u16).to_le_bytes()[..], &first, &part(b"\x01\0", "a")].concat();
    add(&mut seeds, "set-same-name", &[[0, 16]], &same);
    seeds
}
