//! What the fuzzer begins with: small files of each kind, valid and damaged.
//!
//! `cargo xtask fuzz --seeds` writes them to `fuzz/corpus`, where they are kept so that a change of
//! this file shows, and so that the fuzzer and the replay need nothing else.

pub(crate) mod gguf;
pub(crate) mod onnx;
pub(crate) mod openvino;
pub(crate) mod pytorch;

use crate::write::{self, Dtype, Tensor};

/// Inputs by name of file.
pub type Seeds = Vec<(String, Vec<u8>)>;

/// Settings for an input: the usual limits, and choice 0.
const PLAIN: [u8; 2] = [0, 0];

/// Adds a file with each of several settings.
fn add(seeds: &mut Seeds, name: &str, settings: &[[u8; 2]], file: &[u8]) {
    for [limits, choice] in settings {
        let name = match (limits, choice) {
            (0, 0) => name.to_owned(),
            _ => format!("{name}-{limits:02x}-{choice:02x}"),
        };
        seeds.push((name, [&[*limits, *choice], file].concat()));
    }
}

/// Adds a file cut short in several places, and with a byte changed in others.
fn add_damaged(seeds: &mut Seeds, name: &str, settings: [u8; 2], file: &[u8]) {
    for part in [1, 4, 7] {
        let at = file.len() * part / 8;
        add(seeds, &format!("{name}-cut{part}"), &[settings], &file[..at]);
        let mut changed = file.to_vec();
        changed[at] ^= 0x15;
        add(seeds, &format!("{name}-changed{part}"), &[settings], &changed);
    }
}

/// Some tensors of every type, one of them empty and one a scalar.
fn some() -> Vec<Tensor> {
    vec![
        Tensor::new("a.weight", Dtype::F32, &[2, 3]),
        Tensor::new("a.bias", Dtype::F16, &[4]),
        Tensor::new("b", Dtype::I8, &[3, 1, 5]),
        Tensor::new("empty", Dtype::F32, &[0, 7]),
        Tensor::new("one", Dtype::I32, &[]),
    ]
}

pub(crate) fn detect() -> Seeds {
    let files: [(&str, &[u8]); 16] = [
        ("safetensors", b"\x02\0\0\0\0\0\0\0{}"),
        ("lfs", b"version https://git-lfs.github.com/spec/v1\noid sha256:00"),
        ("html", b"<!DOCTYPE html><html><head>"),
        ("html-mark", b"\xef\xbb\xbf\n <HTML lang=\"en\">"),
        ("xml", b"<?xml version=\"1.0\"?><net name=\"m\" version=\"11\">"),
        ("json", b"{\"weight_map\": {\"a\": 1}}"),
        ("text", b"Access denied"),
        ("zip", b"PK\x03\x04\x14\0\0\0"),
        ("zip-empty", b"PK\x05\x06\0\0\0\0"),
        ("gzip", b"\x1f\x8b\x08\0\0\0\0\0"),
        ("pickle", b"\x80\x02}q\0"),
        ("gguf", b"GGUF\x03\0\0\0"),
        ("gguf-big", b"GGUF\0\0\0\x03"),
        ("hdf5", b"\x89HDF\r\n\x1a\n"),
        ("numpy", b"\x93NUMPY\x01\0"),
        ("onnx", b"\x08\x08\x12\x01w:\x05\x12\x03abc"),
    ];
    files.into_iter().map(|(name, file)| (name.to_owned(), file.to_vec())).collect()
}

pub(crate) fn safetensors() -> Seeds {
    let mut seeds = Seeds::new();
    let file = write::safetensors::file(&some()).to_vec();
    add(&mut seeds, "some", &[PLAIN, [1, 0], [4, 0], [0x40, 0], [0, 4], [0, 7]], &file);
    add_damaged(&mut seeds, "some", PLAIN, &file);
    let headers = [
        ("none", "{}", 0),
        ("metadata", r#"{"__metadata__":{"a":"b","\u00e9\n":"\ud83d\ude00"}}   "#, 0),
        ("metadata-null", r#"{"__metadata__":null}"#, 0),
        ("metadata-twice", r#"{"__metadata__":{"a":"b","a":"b"}}"#, 0),
        (
            "twice",
            r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#,
            1,
        ),
        (
            "unordered",
            r#"{"b":{"data_offsets":[1,3],"shape":[1],"dtype":"F16"},"a":{"dtype":"BOOL","shape":[1,1],"data_offsets":[0,1]}}"#,
            3,
        ),
        ("hole", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#, 2),
        (
            "overlap",
            r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
            3,
        ),
        ("reversed", r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}"#, 1),
        (
            "packed",
            r#"{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]},"b":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[3,6]}}"#,
            6,
        ),
        ("opaque", r#"{"a":{"dtype":"Q4_0","shape":[32],"data_offsets":[0,18]}}"#, 18),
        (
            "overflow",
            r#"{"a":{"dtype":"U64","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
            0,
        ),
        (
            "huge",
            r#"{"a":{"dtype":"U8","shape":[0,18446744073709551615],"data_offsets":[0,0]}}"#,
            0,
        ),
        (
            "extra",
            r#"{"a":{"dtype":"U8","x":[1,-2.5e3,true,{"y":null}],"shape":[1],"data_offsets":[0,1]}}"#,
            1,
        ),
        ("surrogate", r#"{"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1),
        ("list", r#"[{"dtype":"U8"}]"#, 0),
    ];
    for (name, header, data) in headers {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + data, 0);
        add(&mut seeds, name, &[PLAIN], &file);
    }
    let deep = format!(r#"{{"a":{{"x":{}{}}}}}"#, "[".repeat(140), "]".repeat(140));
    let file = [&(deep.len() as u64).to_le_bytes(), deep.as_bytes()].concat();
    add(&mut seeds, "deep", &[PLAIN], &file);
    add(&mut seeds, "past-the-end", &[PLAIN, [0, 5]], b"\xff\xff\0\0\0\0\0\0{");
    add(&mut seeds, "lfs", &[PLAIN], b"version https://git-lfs.github.com/spec/v1\n");
    add(&mut seeds, "short", &[PLAIN], b"\x02\0\0");
    seeds
}

pub(crate) fn shards() -> Seeds {
    let mut seeds = Seeds::new();
    let two = r#"{"metadata":{"total_size":8,"x":null,"y":[1]},"weight_map":{"a":"m-00001-of-00002.safetensors","b":"m-00002-of-00002.safetensors","c":"m-00001-of-00002.safetensors"}}"#;
    add(&mut seeds, "index", &[PLAIN, [2, 0], [4, 0]], two.as_bytes());
    add_damaged(&mut seeds, "index", PLAIN, two.as_bytes());
    for (name, text) in [
        ("index-twice", r#"{"weight_map":{"a":"x","a":"y"}}"#),
        ("index-empty", r#"{"weight_map":{}}"#),
        ("index-path", r#"{"weight_map":{"a":"../x"}}"#),
        ("index-short", r#"{"weight_map":{"a":"x","b":"long/name"}}"#),
    ] {
        add(&mut seeds, name, &[PLAIN], text.as_bytes());
    }
    for (name, text) in [
        ("folder-one", "config.json\nmodel.safetensors\n"),
        ("folder-set", "m-00002-of-00002.safetensors\nm-00001-of-00002.safetensors\nREADME.md"),
        ("folder-part", "m-00002-of-00030.safetensors"),
        ("folder-index", "model.safetensors.index.json\nx.safetensors.index.json\na.safetensors"),
        ("folder-two", "a.safetensors\nb.safetensors\n.hidden.safetensors"),
        ("folder-huge", "m-1-of-18446744073709551615.safetensors\nm-0-of-0.safetensors"),
        ("folder-same", "m-1-of-2.safetensors\nm-01-of-2.safetensors\nm-2-of-2.safetensors"),
        ("folder-other", "pytorch_model.bin\nmodel.safetensors.incomplete"),
    ] {
        add(&mut seeds, name, &[[0, 1], [0, 5]], text.as_bytes());
    }
    for (name, text) in [
        ("name-plain", "text_encoder/model.fp16.safetensors"),
        ("name-up", "a/../../x"),
        ("name-encoded", "%252e%252E/100%.x"),
        ("name-device", "a/com1.safetensors"),
        ("name-other", "モデル/.x/ .."),
    ] {
        add(&mut seeds, name, &[[0, 2]], text.as_bytes());
    }
    let joined = format!(
        "{two}\u{1e}m-00001-of-00002.safetensors\na\nc\nb\u{1e}m-00002-of-00002.safetensors\nb\nd"
    );
    add(&mut seeds, "join-index", &[[0, 3]], joined.as_bytes());
    add(&mut seeds, "join", &[[0, 3]], b"\x1ex\na\nb\x1ey\nc");
    add(&mut seeds, "join-twice", &[[0, 3]], b"\x1ex\na\nb\x1ey\nb");
    add(&mut seeds, "join-one", &[[0, 3]], b"\x1ex\na\nb");
    seeds
}
