//! ONNX models, written by hand. The ids in comments name the case that a test is for.

mod common;
#[path = "common/onnx.rs"]
mod writer;

use common::{Values, assert_error};
use fuzz_targets::memory::measure;
use proptest::prelude::*;
use weightlift_index::onnx::{parse, recognises};
use weightlift_index::{Bytes, Error, ErrorKind, Format, Limits, Value};
use writer::{
    Message, attribute, bytes_of, external, graph, index, index_with, model, names, node, one,
    small, tensor,
};

/// The index of a model with one tensor of external data in a file of this length.
fn outside(
    data_type: u64,
    dims: &[u64],
    entries: &[(&str, &str)],
    length: u64,
) -> Result<weightlift_index::Index, Error> {
    index_with(&one(external("w", data_type, dims, entries)), &[length], &Limits::default())
}

/// `W` in each place where a tensor can stand.
fn everywhere() -> Message {
    let inner = graph(&[small("W", b"4")]).message(1, &node("", "", "Add", &[]));
    let loop_node = node("l", "", "Loop", &[attribute("body", 6, &inner)]);
    let then = graph(&[small("W", b"2"), small("V", b"3")]).message(1, &loop_node);
    let sparse = |name: &str| {
        let indices = tensor("", 7, &[1]).packed(7, &[5]);
        Message::new().message(1, &small(name, b"s")).message(2, &indices).number(3, 9)
    };
    let nodes = [
        node("c0", "", "Constant", &[attribute("value", 5, &small("", b"c"))]),
        node("c1", "named", "Constant", &[attribute("value", 5, &small("W", b"d"))]),
        node("c2", "", "Constant", &[attribute("sparse_value", 22, &sparse(""))]),
        node("", "", "Mystery", &[attribute("value", 5, &small("", b"e"))]),
        node(
            "",
            "If_0",
            "If",
            &[
                attribute("then_branch", 6, &then),
                attribute("else_branch", 6, &graph(&[small("W", b"5")])),
            ],
        ),
        node(
            "",
            "many",
            "Many",
            &[
                Message::new()
                    .message(10, &small("", b"f"))
                    .message(10, &small("", b"g"))
                    .bytes(1, "t"),
                Message::new()
                    .message(11, &graph(&[small("W", b"h")]))
                    .message(11, &graph(&[]))
                    .bytes(1, "g"),
                Message::new()
                    .message(11, &graph(&[]))
                    .message(11, &graph(&[small("", b"i")]))
                    .bytes(1, "g2"),
                Message::new()
                    .message(23, &sparse("S"))
                    .message(23, &sparse("S"))
                    .bytes(1, "sparse"),
            ],
        ),
    ];
    let main = nodes.iter().fold(Message::new(), |graph, node| graph.message(1, node));
    let main = main.message(5, &small("W", b"1")).message(15, &sparse("Z")).bytes(2, "main");
    let inner = node("o", "n", "Constant", &[attribute("value", 5, &small("W", b"j"))]);
    let function = Message::new().bytes(1, "F").message(7, &inner).bytes(10, "dom");
    let function = function.message(11, &attribute("default", 5, &small("", b"k")));
    let training = Message::new().message(2, &graph(&[small("W", b"l")]));
    model(&main).message(25, &function).message(20, &training)
}

#[test]
fn tensors_are_found_wherever_they_stand_and_each_has_a_name_of_its_own() {
    let file = everywhere().0;
    let index = index(&file).unwrap();
    let expected = [
        ("c0", "c"),
        ("named::value", "d"),
        ("c2", "s"),
        ("c2.indices", "\x05\0\0\0\0\0\0\0"),
        ("Mystery[3]::value", "e"),
        ("If_0::then_branch::l::body::W", "4"),
        ("If_0::then_branch::W", "2"),
        ("V", "3"),
        ("If_0::else_branch::W", "5"),
        ("many::t[0]", "f"),
        ("many::t[1]", "g"),
        ("many::g[0]::W", "h"),
        ("many::g2[1]::initializer[0]", "i"),
        ("S", "s"),
        ("S.indices", "\x05\0\0\0\0\0\0\0"),
        ("many::sparse[1]", "s"),
        ("many::sparse[1].indices", "\x05\0\0\0\0\0\0\0"),
        ("W", "1"),
        ("Z", "s"),
        ("Z.indices", "\x05\0\0\0\0\0\0\0"),
        ("dom.F::n::value", "j"),
        ("dom.F::default", "k"),
        ("training_info[0]::algorithm::W", "l"),
    ];
    let found = names(&index);
    for (name, bytes) in expected {
        assert_eq!(bytes_of(&index, &file, name), bytes.as_bytes(), "{name}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
    assert_eq!(index.format, Some(Format::Onnx));
    assert_eq!(index.sources.len(), 2);
    assert_eq!(&*index.sources[1].name, "model.onnx");
}

#[test]
fn two_initializers_of_the_graph_may_not_have_one_name() {
    let file = model(&graph(&[small("a", b"1"), small("b", b"2"), small("b", b"2")])).0;
    assert_error(index(&file), ErrorKind::DuplicateTensor, &[("tensor", "b")]);
    // A graph that stands twice is one graph in two parts.
    let half = |name: &str| graph(&[small(name, b"1")]);
    let twice = |other| model(&half("a")).message(7, &half(other)).0;
    assert_error(index(&twice("a")), ErrorKind::DuplicateTensor, &[("tensor", "a")]);
    assert_eq!(names(&index(&twice("b")).unwrap()), ["a", "b"]);
    let sparse = Message::new().message(1, &small("a", b"s"));
    let file = model(&half("a").message(15, &sparse)).0;
    assert_error(index(&file), ErrorKind::DuplicateTensor, &[("tensor", "a")]);
}

// Types in the order of their numbers: name, field with the values, those of the elements 1, 2, 3,
// and their bytes.
type Typed<'a> = (u64, &'a str, u64, &'a [u64], &'a [u8]);

#[test]
fn typed_values_become_the_bytes_that_raw_data_would_be() {
    let minus_2 = (-2_i64) as u64;
    let cases: [Typed<'_>; 21] = [
        (2, "U8", 5, &[1, 2, 255], b"\x01\x02\xff"),
        (3, "I8", 5, &[1, minus_2, 127], b"\x01\xfe\x7f"),
        (4, "U16", 5, &[1, 2, 65535], b"\x01\0\x02\0\xff\xff"),
        (5, "I16", 5, &[1, minus_2, 3], b"\x01\0\xfe\xff\x03\0"),
        (6, "I32", 5, &[1, minus_2, 3], b"\x01\0\0\0\xfe\xff\xff\xff\x03\0\0\0"),
        (
            7,
            "I64",
            7,
            &[1, minus_2, 3],
            b"\x01\0\0\0\0\0\0\0\xfe\xff\xff\xff\xff\xff\xff\xff\x03\0\0\0\0\0\0\0",
        ),
        (9, "BOOL", 5, &[1, 0, 1], b"\x01\0\x01"),
        (10, "F16", 5, &[0x3c00, 0xc000, 0], b"\0\x3c\0\xc0\0\0"),
        (12, "U32", 11, &[1, 2, 0xffff_ffff], b"\x01\0\0\0\x02\0\0\0\xff\xff\xff\xff"),
        (
            13,
            "U64",
            11,
            &[1, 2, u64::MAX],
            b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
        ),
        (16, "BF16", 5, &[0x3f80, 0x4000, 0], b"\x80\x3f\0\x40\0\0"),
        (17, "F8_E4M3", 5, &[1, 2, 0x80], b"\x01\x02\x80"),
        (18, "F8_E4M3FNUZ", 5, &[1, 2, 3], b"\x01\x02\x03"),
        (19, "F8_E5M2", 5, &[1, 2, 3], b"\x01\x02\x03"),
        (20, "F8_E5M2FNUZ", 5, &[1, 2, 3], b"\x01\x02\x03"),
        (24, "F8_E8M0", 5, &[1, 2, 255], b"\x01\x02\xff"),
        // Two or four elements to a value; of six bits, one.
        (21, "U4", 5, &[0x21, 3], b"\x21\x03"),
        (22, "I4", 5, &[0xe1, 3], b"\xe1\x03"),
        (25, "U2", 5, &[0x39], b"\x39"),
        (27, "F6_E2M3", 5, &[1, 2, 3], b"\x81\x30\0"),
        (28, "F6_E3M2", 5, &[63, 63, 63], b"\xff\xff\x03"),
    ];
    for (number, name, field, values, bytes) in cases {
        let packed = tensor("w", number, &[3]).packed(field, values);
        let single = values.iter().fold(tensor("w", number, &[3]), |t, v| t.number(field, *v));
        let (first, rest) = values.split_at(1);
        let mixed = tensor("w", number, &[3]).number(field, first[0]).packed(field, rest);
        // The type after the values, and something in between.
        let late = Message::new().packed(field, first).bytes(12, "doc").packed(field, rest);
        let late = late.raw(&tensor("w", number, &[3]).0);
        for (way, tensor) in [packed, single, mixed, late].into_iter().enumerate() {
            let file = one(tensor);
            let index = index(&file).unwrap_or_else(|error| panic!("{name} {way}: {error}"));
            assert_eq!(bytes_of(&index, &file, "w"), bytes, "{name} {way}");
            assert_eq!(index.tensors[0].dtype.name(), name);
            assert!(index.sources[1].decoded.is_some(), "{name} {way}");
        }
    }
}

#[test]
fn floats_in_one_run_stay_where_they_are() {
    let data: Vec<u8> = (0..48).collect();
    for (number, name, field, count) in
        [(1, "F32", 4, 12), (14, "C64", 4, 6), (11, "F64", 10, 6), (15, "C128", 10, 3)]
    {
        let whole = one(tensor("w", number, &[count]).bytes(field, &data));
        let found = index(&whole).unwrap();
        assert_eq!((found.sources.len(), found.tensors[0].dtype.name()), (1, name));
        assert_eq!(bytes_of(&found, &whole, "w"), data);

        let cut =
            |at| tensor("w", number, &[count]).bytes(field, &data[..at]).bytes(field, &data[at..]);
        let single = match field {
            4 => data.chunks(4).fold(tensor("w", number, &[count]), |tensor, value| {
                tensor.fixed32(4, u32::from_le_bytes(value.try_into().unwrap()))
            }),
            _ => data.chunks(8).fold(tensor("w", number, &[count]), |tensor, value| {
                tensor.fixed64(10, u64::from_le_bytes(value.try_into().unwrap()))
            }),
        };
        for split in [cut(8), single] {
            let file = one(split);
            let found = index(&file).unwrap();
            assert_eq!(bytes_of(&found, &file, "w"), data, "{name}");
            assert_eq!(found.sources.len(), 2);
        }
        assert_error(index(&one(cut(3))), ErrorKind::InvalidHeader, &[("tensor", "w")]);
    }
}

#[test]
fn strings_become_a_count_offsets_and_characters() {
    let file = one(tensor("s", 8, &[3]).bytes(6, "ab").bytes(6, "").bytes(6, "\u{e4}"));
    let found = index(&file).unwrap();
    let expected = b"\x03\0\0\0\0\0\0\0\x02\0\0\0\x02\0\0\0\x04\0\0\0ab\xc3\xa4";
    assert_eq!(bytes_of(&found, &file, "s"), expected);
    assert!(found.tensors[0].dtype.is_opaque());
    assert_eq!(found.tensors[0].dtype.name(), "STRING");
    let file = one(tensor("s", 8, &[0]));
    assert_eq!(bytes_of(&index(&file).unwrap(), &file, "s"), [0; 8]);
    let few = one(tensor("s", 8, &[2]).bytes(6, "a"));
    let values = [("tensor", "s"), ("expected", "2"), ("actual", "1")];
    assert_error(index(&few), ErrorKind::SizeMismatch, &values);
}

#[test]
fn a_tensor_that_contradicts_itself_is_refused() {
    let minus_4 = (-4_i64) as u64;
    let raw = |data: &[u8]| tensor("w", 1, &[2]).bytes(9, data);
    let table: [(Message, ErrorKind, Values<'_>); 25] = [
        (raw(&[0; 7]), ErrorKind::SizeMismatch, &[("expected", "8"), ("actual", "7")]),
        (raw(&[0; 9]), ErrorKind::SizeMismatch, &[("expected", "8"), ("actual", "9")]),
        (tensor("w", 1, &[2]), ErrorKind::SizeMismatch, &[("expected", "8"), ("actual", "0")]),
        (tensor("w", 1, &[]), ErrorKind::SizeMismatch, &[("expected", "4"), ("actual", "0")]),
        (raw(&[0; 8]).packed(4, &[1]), ErrorKind::InvalidHeader, &[]),
        (raw(&[0; 8]).packed(5, &[1]), ErrorKind::InvalidHeader, &[]),
        (tensor("w", 6, &[1]).packed(5, &[1]).packed(7, &[1]), ErrorKind::InvalidHeader, &[]),
        (
            external("w", 1, &[2], &[("location", "d")]).bytes(9, [0; 8]),
            ErrorKind::InvalidHeader,
            &[],
        ),
        (
            external("w", 6, &[1], &[("location", "d")]).packed(5, &[1]),
            ErrorKind::InvalidHeader,
            &[],
        ),
        (tensor("w", 1, &[2]).packed(5, &[1, 2]), ErrorKind::InvalidHeader, &[("field", "5")]),
        (tensor("w", 7, &[2]).packed(5, &[1, 2]), ErrorKind::InvalidHeader, &[("field", "5")]),
        (tensor("w", 6, &[2]).packed(5, &[1]), ErrorKind::SizeMismatch, &[("actual", "1")]),
        (
            tensor("w", 6, &[2]).packed(5, &[1, 2, 3]),
            ErrorKind::SizeMismatch,
            &[("actual", "3 or more")],
        ),
        (tensor("w", 2, &[1]).packed(5, &[256]), ErrorKind::InvalidHeader, &[("actual", "256")]),
        (
            tensor("w", 3, &[1]).packed(5, &[(-129_i64) as u64]),
            ErrorKind::InvalidHeader,
            &[("actual", "-129")],
        ),
        (tensor("w", 27, &[1]).packed(5, &[64]), ErrorKind::InvalidHeader, &[("actual", "64")]),
        // Three and four elements of six bits take the same bytes.
        (
            tensor("w", 27, &[3]).packed(5, &[1, 2, 3, 4]),
            ErrorKind::SizeMismatch,
            &[("expected", "3")],
        ),
        (
            tensor("w", 2, &[minus_4]).bytes(9, [0; 4]),
            ErrorKind::InvalidHeader,
            &[("shape", "[-4]")],
        ),
        (tensor("w", 2, &[1 << 62, 8]), ErrorKind::Overflow, &[]),
        (tensor("w", 2, &[1 << 62, 8, 0]), ErrorKind::Overflow, &[]),
        (tensor("w", 1, &[1 << 62]), ErrorKind::Overflow, &[]),
        (tensor("w", 0, &[0]), ErrorKind::InvalidHeader, &[]),
        (tensor("w", 8, &[1]).bytes(9, "a"), ErrorKind::InvalidHeader, &[]),
        (tensor("w", 29, &[1]).packed(5, &[1]), ErrorKind::UnknownDtype, &[("dtype", "ONNX_29")]),
        (raw(&[0; 8]).message(3, &Message::new().number(1, 0)), ErrorKind::Unsupported, &[]),
    ];
    for (tensor, kind, values) in table {
        let file = one(tensor);
        assert_error(index(&file), kind, &[values, &[("tensor", "w")]].concat());
    }
}

// A value of one byte becomes eight, and while it did there were 16 to 24: a list that doubled, and
// a copy of it. What is decoded is the peak now.
#[test]
fn decoding_takes_eight_times_the_bytes_and_little_more() {
    const VALUES: usize = 1_000_000;
    // Beside it there is a buffer of 1 MiB, and what is kept of a tensor.
    for tensors in [1, 3, 1000] {
        let each = vec![1; VALUES / tensors];
        let all: Vec<_> = (0..tensors)
            .map(|i| tensor(&format!("t{i}"), 7, &[each.len() as u64]).packed(7, &each))
            .collect();
        let file = model(&graph(&all)).0;
        let (found, usage) = measure(|| index(&file).unwrap());
        assert_eq!(found.bytes(), (8 * each.len() * tensors) as u64);
        let most = if tensors == 1 { 8.0 } else { 8.5 } * VALUES as f64 + (3 << 19) as f64;
        assert!((usage.peak as f64) < most, "{tensors}: {usage:?}");
        assert!(usage.kept >= 8 * (VALUES / tensors * tensors) as i64, "{usage:?}");
    }
}

#[test]
fn of_a_field_that_stands_twice_the_last_counts_and_messages_are_one() {
    let twice = small("a", b"1").bytes(9, b"2").bytes(8, "b");
    let file = one(twice);
    assert_eq!(bytes_of(&index(&file).unwrap(), &file, "b"), b"2");
    // An attribute's tensor in two parts.
    let parts = Message::new().bytes(1, "value").message(5, &tensor("x", 2, &[1]));
    let parts = parts.message(5, &Message::new().bytes(9, "7"));
    let file = model(&Message::new().message(1, &node("", "n", "Op", &[parts]))).0;
    assert_eq!(bytes_of(&index(&file).unwrap(), &file, "x"), b"7");
}

#[test]
fn types_of_the_future_keep_their_bytes() {
    let file = one(tensor("w", 99, &[3]).bytes(9, "12345"));
    let found = index(&file).unwrap();
    assert_eq!(bytes_of(&found, &file, "w"), b"12345");
    assert_eq!((found.tensors[0].dtype.name(), &*found.tensors[0].shape), ("ONNX_99", &[3][..]));
    let there = [("location", "d"), ("length", "5")];
    assert_eq!(outside(99, &[3], &there, 5).unwrap().tensors[0].length, 5);
    let result = outside(99, &[3], &there[..1], 5);
    assert_error(result, ErrorKind::UnknownDtype, &[("tensor", "w"), ("dtype", "ONNX_99")]);
    assert_eq!(outside(99, &[0], &there[..1], 5).unwrap().tensors[0].length, 0);
}

// ON-01. Locations that read files outside the model's folder. Links are the library's.
#[test]
fn a_location_that_leaves_the_folder_is_refused() {
    let table = [
        "../w.bin",
        "a/../../w.bin",
        "a/../w.bin",
        "..",
        "/etc/hostname",
        ".//etc/hostname",
        "./../w.bin",
        "././/x",
        "",
        "./",
        ".",
        "C:\\w.bin",
        "\\\\host\\w",
        "a\\b",
        "w\0.bin",
        "w\n",
        "file:w.bin",
        "%2e%2e/w.bin",
        "NUL",
        "*/_ORT_MEM_ADDR_/*",
        "*/_ORT_NATIVE_ENDIAN_MEM_ADDR_/*",
    ];
    for location in table {
        let result = outside(2, &[16], &[("location", location)], 16);
        assert_error(result, ErrorKind::UnsafePath, &[("tensor", "w")]);
    }
    let error = outside(2, &[16], &[("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "94000")], 16);
    let error = error.unwrap_err();
    assert!(error.get("reason").unwrap().contains("ONNX Runtime"), "{error}");
}

#[test]
fn each_file_is_named_once_and_data_may_be_shared() {
    let at = |name: &str, location: &str, offset: &str| {
        external(name, 1, &[4], &[("location", location), ("offset", offset), ("length", "16")])
    };
    let file = model(&graph(&[
        at("a", "data/w.bin", "0"),
        at("b", "./data/w.bin", "16"),
        at("c", "other", "3"),
        at("d", "././data/w.bin", "0"),
        at("e", "data/w.bin", "24"),
    ]))
    .0;
    let mut bytes = &file[..];
    let parsed = parse(&mut bytes, &Limits::default()).unwrap();
    assert_eq!(parsed.locations(), ["data/w.bin".into(), "other".into()]);
    let error = parsed.into_index("m", 1, &[1]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidIndex);

    let found = index_with(&file, &[40, 19], &Limits::default()).unwrap();
    let sources: Vec<_> = found.sources.iter().map(|s| (&*s.name, s.length)).collect();
    assert_eq!(sources, [("model.onnx", file.len() as u64), ("data/w.bin", 40), ("other", 19)]);
    // Tied weights are read once, and so is what overlaps.
    let storages: Vec<_> =
        found.storages.iter().map(|s| (s.source.0, s.offset, s.length)).collect();
    assert_eq!(storages, [(1, 0, 16), (1, 16, 24), (2, 3, 16)]);
    assert_eq!(found.require("a").unwrap().storage, found.require("d").unwrap().storage);
    assert_eq!(found.require("e").unwrap().offset, 8);
    assert_eq!(found.bytes(), 56);
}

// ON-02. Writers leave the length out or write 0.
#[test]
fn a_length_that_is_not_given_is_that_of_the_shape() {
    let with = |length: Option<&str>, file_length| {
        let mut entries = vec![("location", "d")];
        entries.extend(length.map(|length| ("length", length)));
        outside(1, &[2, 2], &entries, file_length)
    };
    for (length, file_length) in
        [(None, 16), (None, 4096), (Some("0"), 16), (Some("16"), 16), (Some("16"), 17)]
    {
        let found = with(length, file_length).unwrap();
        assert_eq!(found.tensors[0].length, 16, "{length:?} {file_length}");
    }
    for length in ["8", "20", "15", "17", "18446744073709551615"] {
        let values = [("tensor", "w"), ("expected", "16"), ("actual", length)];
        assert_error(with(Some(length), 4096), ErrorKind::SizeMismatch, &values);
    }
}

// ON-03. A file of the same name that is another one, or the pointer that Git LFS left.
#[test]
fn a_range_outside_the_file_is_refused_and_a_pointer_suspected() {
    let at = |offset: &str, file_length| {
        outside(1, &[4], &[("location", "d"), ("offset", offset), ("length", "16")], file_length)
    };
    let table = [
        ("0", 135, None),
        ("119", 135, None),
        ("120", 135, Some("136")),
        ("100", 16, Some("116")),
        ("7680000", 2_293_760, Some("7680016")),
        ("18446744073709551600", 16, Some("18446744073709551616")),
    ];
    for (offset, length, expected) in table {
        let Some(expected) = expected else {
            at(offset, length).unwrap();
            continue;
        };
        let actual = length.to_string();
        let values = [
            ("tensor", "w"),
            ("file", "d"),
            ("offset", offset),
            ("expected", expected),
            ("actual", &*actual),
        ];
        let error = at(offset, length).unwrap_err();
        assert_eq!(error.get_hint().unwrap().contains("git lfs"), length < 200, "{error:?}");
        assert_error::<()>(Err(error), ErrorKind::OutOfRange, &values);
    }
    for (text, kind) in [
        ("-16", ErrorKind::OutOfRange),
        ("abc", ErrorKind::InvalidHeader),
        ("0x0", ErrorKind::InvalidHeader),
        ("", ErrorKind::InvalidHeader),
        ("-", ErrorKind::InvalidHeader),
        (" 1", ErrorKind::InvalidHeader),
        ("+1", ErrorKind::InvalidHeader),
        ("1_0", ErrorKind::InvalidHeader),
        ("1.0", ErrorKind::InvalidHeader),
        ("\u{661}", ErrorKind::InvalidHeader),
        ("18446744073709551616", ErrorKind::Overflow),
    ] {
        let values = [("tensor", "w"), ("key", "offset"), ("actual", text)];
        assert_error(at(text, 4096), kind, &values);
        let result = outside(1, &[4], &[("location", "d"), ("length", text)], 4096);
        assert_error(result, kind, &[("tensor", "w"), ("key", "length"), ("actual", text)]);
    }
}

// ON-06. Elements of four bits: two to a byte, the last byte perhaps half filled.
#[test]
fn elements_smaller_than_a_byte_fill_bytes_and_no_more() {
    for (number, dims, bytes, wrong) in [
        (22, 5, "3", "5"),
        (22, 1, "1", "2"),
        (21, 4, "2", "4"),
        (23, 3, "2", "3"),
        (25, 5, "2", "5"),
        (26, 1, "1", "2"),
        (27, 1, "1", "3"),
        (28, 5, "4", "6"),
    ] {
        let with = |length| outside(number, &[dims], &[("location", "d"), ("length", length)], 100);
        assert_eq!(with(bytes).unwrap().tensors[0].length.to_string(), bytes);
        let values = [("tensor", "w"), ("expected", bytes), ("actual", wrong)];
        assert_error(with(wrong), ErrorKind::SizeMismatch, &values);
    }
    let file = one(tensor("w", 22, &[5]).bytes(9, b"\x21\x43\x05"));
    assert_eq!(bytes_of(&index(&file).unwrap(), &file, "w"), b"\x21\x43\x05");
    assert_eq!(outside(22, &[0], &[("location", "d")], 0).unwrap().tensors[0].length, 0);
}

#[test]
fn a_tensor_without_elements_needs_no_bytes() {
    for offset in ["0", "16"] {
        let found = outside(1, &[0, 4], &[("location", "d"), ("offset", offset)], 16).unwrap();
        assert_eq!((found.tensors[0].length, found.bytes()), (0, 0));
    }
    let result = outside(1, &[0], &[("location", "d"), ("offset", "17")], 16);
    assert_error(result, ErrorKind::OutOfRange, &[("tensor", "w")]);
    for tensor in [
        tensor("w", 1, &[3, 0]),
        tensor("w", 1, &[0]).bytes(9, ""),
        tensor("w", 6, &[0]).packed(5, &[]),
    ] {
        assert_eq!(index(&one(tensor)).unwrap().tensors[0].length, 0);
    }
}

#[test]
fn entries_of_external_data_stand_once_and_unknown_ones_do_not_matter() {
    for key in ["location", "offset", "length"] {
        for (first, second) in [("d", "e"), ("16", "16")] {
            let result = outside(1, &[4], &[(key, first), ("location", "d"), (key, second)], 99);
            let values = [("tensor", "w"), ("key", key)];
            assert_error(result, ErrorKind::DuplicateMetadata, &values);
        }
    }
    let other = [("basepath", "../.."), ("checksum", "no"), ("prepacked_0", "x|0;4;y"), ("x", "")];
    let entries = [&other[..], &other, &[("location", "d")]].concat();
    assert_eq!(outside(1, &[4], &entries, 16).unwrap().tensors[0].length, 16);
    let result = outside(1, &[4], &other, 16);
    assert_error(result, ErrorKind::InvalidHeader, &[("tensor", "w"), ("key", "location")]);
    // What is not marked as external is not looked at.
    let entry = Message::new().bytes(1, "location").bytes(2, "../x");
    let file = one(small("w", b"1").message(13, &entry).number(14, 0));
    assert_eq!(bytes_of(&index(&file).unwrap(), &file, "w"), b"1");
    let file = one(small("w", b"1").number(14, 2));
    assert_error(index(&file), ErrorKind::InvalidHeader, &[("tensor", "w"), ("actual", "2")]);
}

#[test]
fn strings_and_untyped_data_cannot_be_external() {
    for number in [0, 8] {
        let result = outside(number, &[1], &[("location", "d"), ("length", "4")], 16);
        assert_error(result, ErrorKind::InvalidHeader, &[("tensor", "w")]);
    }
}

#[test]
fn deep_nesting_is_an_error_and_not_a_crash() {
    let nested = |levels: u64| {
        let mut inner = graph(&[small("W", b"1")]);
        for _ in 0..levels {
            let attribute = Message::new().bytes(1, "b").message(6, &inner);
            inner = Message::new().message(1, &Message::new().message(5, &attribute));
        }
        model(&inner).0
    };
    for (levels, limit) in [(64, 64), (3, 3)] {
        let limits = Limits::default().with_depth(limit);
        assert_eq!(index_with(&nested(levels), &[], &limits).unwrap().tensors.len(), 1);
        let result = index_with(&nested(levels + 1), &[], &limits);
        let (limit, actual) = (limit.to_string(), (limit + 1).to_string());
        let values = [("option", "depth"), ("limit", &*limit), ("actual", &*actual)];
        assert_error(result, ErrorKind::LimitExceeded, &values);
    }
    assert_error(index(&nested(10_000)), ErrorKind::LimitExceeded, &[("option", "depth")]);
}

#[test]
fn limits_are_kept() {
    let file = model(&graph(&[small("a", b"1"), small("b", b"2"), small("c", b"3")])).0;
    let limits = Limits::default().with_tensors(2);
    let values = [("option", "tensors"), ("limit", "2"), ("actual", "3")];
    assert_error(index_with(&file, &[], &limits), ErrorKind::LimitExceeded, &values);
    let limits = Limits::default().with_text_bytes(3);
    let values = [("option", "text_bytes"), ("limit", "3"), ("actual", "4")];
    assert_error(index_with(&file, &[], &limits), ErrorKind::LimitExceeded, &values);
    for dims in [
        tensor("w", 2, &[1; 65]).bytes(9, "1"),
        Message::new().packed(1, &[1; 65]).number(2, 2).bytes(9, "1"),
    ] {
        let values = [("option", "rank"), ("limit", "64"), ("actual", "65")];
        assert_error(index(&one(dims)), ErrorKind::LimitExceeded, &values);
    }
    assert_eq!(index(&one(tensor("w", 2, &[1; 64]).bytes(9, "1"))).unwrap().tensors.len(), 1);
}

#[test]
fn what_is_not_a_model_is_refused() {
    let table: [(&[u8], ErrorKind); 8] = [
        (b"", ErrorKind::InvalidHeader),
        (b"\x08\x08", ErrorKind::InvalidHeader),
        (b"PK\x03\x04", ErrorKind::UnknownFormat),
        (b"\0\0\0\0", ErrorKind::InvalidHeader),
        // A graph that is a number, and one that is a group.
        (b"\x38\x01", ErrorKind::InvalidHeader),
        (b"\x3b\x3c", ErrorKind::InvalidHeader),
        (b"\x3a\x05\x2a\x04abc\x08\x01", ErrorKind::InvalidHeader),
        (b"\x3a\xff\xff\xff\xff\x0f", ErrorKind::Truncated),
    ];
    for (bytes, kind) in table {
        assert_error(index(bytes), kind, &[]);
    }
    let not_text = one(tensor("", 2, &[1]).bytes(8, b"\xff"));
    assert_error(index(&not_text), ErrorKind::InvalidHeader, &[]);
}

#[test]
fn metadata_are_kept() {
    let entry = |key: &str, value: &str| Message::new().bytes(1, key).bytes(2, value);
    let whole = model(&graph(&[])).message(14, &entry("stride", "32")).number(5, 7);
    let metadata = index(&whole.0).unwrap().metadata;
    assert_eq!(metadata["onnx.ir_version"], Value::Int(8));
    assert_eq!(metadata["onnx.model_version"], Value::Int(7));
    assert_eq!(metadata["onnx.producer_name"], Value::from("test"));
    assert_eq!(metadata["onnx.opset_import"].to_string(), r#"["ai.onnx:18"]"#);
    assert_eq!(metadata["stride"], Value::from("32"));
    let twice = whole.message(14, &entry("stride", "32"));
    assert_error(index(&twice.0), ErrorKind::DuplicateMetadata, &[("key", "stride")]);
}

/// A file that is mostly zeros, and is counted as it is read.
struct Sparse {
    start: Vec<u8>,
    zeros: u64,
    end: Vec<u8>,
    read: u64,
}

impl Bytes for Sparse {
    fn length(&self) -> u64 {
        self.start.len() as u64 + self.zeros + self.end.len() as u64
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        self.read += buffer.len() as u64;
        for (at, byte) in (offset..).zip(buffer) {
            let behind = at.checked_sub(self.start.len() as u64 + self.zeros);
            *byte = match (self.start.get(at as usize), behind) {
                (Some(byte), _) => *byte,
                (None, Some(behind)) => self.end[behind as usize],
                (None, None) => 0,
            };
        }
        Ok(())
    }
}

// Protobuf's own readers stop at 2 GiB, and copy what they read.
#[test]
fn weights_of_more_than_two_gib_are_not_read() {
    let zeros = 5 << 29;
    let head = |bytes: Vec<u8>, field: u8, length: u64| {
        [bytes, vec![field << 3 | 2], writer::varint(length)].concat()
    };
    let tail = small("after", b"x").0;
    let tail = Message::new().bytes(5, tail).0;
    let tensor = head(tensor("big", 1, &[zeros / 4]).0, 9, zeros);
    let tensor_length = tensor.len() as u64 + zeros;
    let graph = head(Vec::new(), 5, tensor_length);
    let graph_length = (graph.len() + tail.len()) as u64 + tensor_length;
    let start = [head(b"\x08\x08".to_vec(), 7, graph_length), graph, tensor].concat();
    let data = start.len() as u64;
    let mut file = Sparse { start, zeros, end: [tail, b"\x28\x01".to_vec()].concat(), read: 0 };
    let parsed = parse(&mut file, &Limits::default()).unwrap();
    assert!(file.read <= 8 << 10, "{}", file.read);
    let found = parsed.into_index("m.onnx", file.length(), &[]).unwrap();
    found.validate().unwrap();
    let big = found.require("big").unwrap();
    let storage = &found.storages[big.storage.0 as usize];
    assert_eq!((storage.offset, storage.length), (data, zeros));
    assert_eq!(found.require("after").unwrap().length, 1);
    // The last byte is missing.
    file.end.pop();
    file.end.pop();
    file.end.pop();
    assert_error(parse(&mut file, &Limits::default()), ErrorKind::Truncated, &[]);
}

#[test]
fn a_hundred_thousand_tensors_take_no_time() {
    let unnamed =
        (0..50_000).map(|_| node("", "n", "Op", &[attribute("value", 5, &small("", b"1"))]));
    let main = unnamed.fold(Message::new(), |graph, node| graph.message(1, &node));
    let typed = |i: u64| tensor(&format!("t.{i}"), 7, &[1]).packed(7, &[i]);
    let main = (0..50_000).fold(main, |graph, i| graph.message(5, &typed(i)));
    let file = model(&main).0;
    let found = index(&file).unwrap();
    assert_eq!(found.tensors.len(), 100_000);
    assert_eq!(&*found.tensors[49_999].name, "n::value#50000");
    assert_eq!(&*found.tensors[99_999].name, "t.49999");
}

// A download cut short: before the graph ends it is an error. After it, what is left is a model.
#[test]
fn a_model_cut_anywhere_is_refused_or_has_all_its_tensors() {
    let file = everywhere().0;
    let whole = index(&file).unwrap();
    for length in 0..file.len() {
        match index(&file[..length]) {
            Ok(found) => {
                let all = names(&whole);
                assert!(names(&found).iter().all(|name| all.contains(name)), "{length}");
                assert!(found.tensors.len() >= 20, "{length}");
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Truncated | ErrorKind::InvalidHeader),
                "{length}: {error}"
            ),
        }
    }
}

#[test]
fn models_are_recognised_and_other_files_are_not() {
    let whole = everywhere().0;
    for length in [whole.len(), 64, 32] {
        assert!(recognises(&whole[..length]), "{length}");
    }
    let parts = [
        Message::new().number(1, 13),
        Message::new().message(8, &Message::new().number(2, 22)),
        Message::new().message(7, &graph(&[small("w", b"1")]).bytes(2, "main")),
        Message::new().message(14, &Message::new().bytes(1, "k").bytes(2, "v")),
        Message::new().message(25, &Message::new().bytes(1, "F").bytes(4, "in")),
    ];
    for first in 0..parts.len() {
        let mut order: Vec<_> = parts.iter().collect();
        order.rotate_left(first);
        let file = order.iter().fold(Message::new(), |file, part| file.raw(&part.0)).0;
        assert!(recognises(&file), "{first}");
    }
    let others: [&[u8]; 17] = [
        b"",
        b"\x08",
        b"\x08\x08",
        b"\0\0\0\0\0\0\0\0\0\0",
        b"\x02\0\0\0\0\0\0\0{}",
        b"GGUF\x03\0\0\0\0\0\0\0",
        b"PK\x03\x04\x14\0\0\0\x08\0",
        b"\x80\x02}q\0X\x05\0\0\0hello",
        b"(dp0\nS'a'\np1\nI1\ns.",
        b"<?xml version=\"1.0\"?><net/>",
        b":-) hello, this is a text about nothing",
        b": R\tand other text of few words",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:",
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
        b"\x7fELF\x02\x01\x01\0\0\0\0\0",
        // Messages of another kind.
        b"\x0a\x05hello\x12\x03abc",
        b"\x08\x96\x01\x12\x07testing\x1a\x03abc\x48\x01",
    ];
    for bytes in others {
        assert!(!recognises(bytes), "{:?}", bytes.escape_ascii().to_string());
    }
}

#[test]
fn random_bytes_are_not_recognised() {
    let mut state = 1_u64;
    for _ in 0..100_000 {
        let bytes: Vec<u8> = (0..16)
            .flat_map(|_| {
                // SplitMix64.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                (mixed ^ (mixed >> 31)).to_le_bytes()
            })
            .collect();
        assert!(!recognises(&bytes), "{bytes:?}");
    }
}

/// Neither panics, and what is accepted is a right index.
fn survives(file: &[u8]) {
    let mut bytes = file;
    recognises(&file[..file.len().min(4096)]);
    if let Ok(model) = parse(&mut bytes, &Limits::default()) {
        let lengths = vec![64; model.locations().len()];
        if let Ok(index) = model.into_index("model.onnx", file.len() as u64, &lengths) {
            index.validate().unwrap();
            let mut found = names(&index);
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), index.tensors.len(), "names stand twice");
        }
    }
}

/// Models of all kinds, to be damaged.
fn seeds() -> Vec<Vec<u8>> {
    let all = [("location", "d"), ("offset", "8"), ("length", "16"), ("checksum", "0")];
    let several = graph(&[
        external("x", 1, &[4], &all),
        tensor("i", 7, &[3]).packed(7, &[1, 2, 300]),
        tensor("f", 1, &[2]).fixed32(4, 1).fixed32(4, 2),
        tensor("six", 27, &[3]).packed(5, &[1, 2, 3]),
        tensor("s", 8, &[2]).bytes(6, "ab").bytes(6, "c"),
    ]);
    vec![everywhere().0, model(&several).0]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        survives(&bytes);
    }

    #[test]
    fn damaged_models_are_survived(
        seed in 0..2_usize,
        damages in proptest::collection::vec((any::<u16>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut file = seeds().swap_remove(seed);
        for (at, byte, kind) in damages {
            let at = usize::from(at) % file.len().max(1);
            match kind {
                _ if file.is_empty() => {}
                0 => file[at] = byte,
                1 => file.truncate(at),
                2 => file.insert(at, byte),
                _ => drop(file.remove(at)),
            }
        }
        survives(&file);
    }
}
