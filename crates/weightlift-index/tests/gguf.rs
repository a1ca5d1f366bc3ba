//! GGUF files that broke loaders, built by hand. The ids in comments name the case that a test is
//! for; `gguf_split.rs`, `gguf_bounds.rs` and `gguf_noise.rs` have the others.

mod common;
#[path = "common/gguf.rs"]
mod writer;

use std::collections::BTreeMap;

use common::assert_error;
use weightlift_index::gguf::Header;
use weightlift_index::{Dtype, ErrorKind, Format, Limits, Value};
use writer::{
    Gguf, Tensor, list, read, read_lists, tensor, text, text_value, typed, u32_value, value,
};

#[test]
fn a_file_becomes_an_index() {
    for version in [2, 3] {
        let mut gguf = Gguf::new(vec![
            tensor("a.weight", &[5, 3]),
            typed("b.weight", 2, &[64, 2], 4 * 18),
            typed("scalar", 28, &[], 8),
        ]);
        gguf.version = version;
        let gguf = gguf.with("general.architecture", text_value(b"llama"));
        let file = gguf.bytes();
        let header = read(&file).unwrap();
        assert_eq!((header.version, header.alignment, header.trailing), (version, 32, 0));
        let length = file.len() as u64;
        let index = header.into_index("m.gguf", length).unwrap();
        index.validate().unwrap();
        assert_eq!(index.format, Some(Format::Gguf));
        assert_eq!(index.metadata["general.architecture"], Value::from("llama"));
        let found: Vec<_> = index
            .tensors
            .iter()
            .map(|t| (&*t.name, t.dtype.name(), &t.shape[..], t.offset, t.length, t.storage.0))
            .collect();
        assert_eq!(
            found,
            [
                ("a.weight", "F32", &[3, 5][..], 0, 60, 0),
                ("b.weight", "Q4_0", &[2, 64][..], 0, 72, 1),
                ("scalar", "F64", &[][..], 0, 8, 2),
            ]
        );
        for (tensor, byte) in index.tensors.iter().zip(*b"abs") {
            let storage = index.storages[tensor.storage.0 as usize];
            let begin = storage.offset as usize;
            assert_eq!(
                file[begin..begin + storage.length as usize],
                vec![byte; storage.length as usize]
            );
        }
    }
}

// GG-01. Counts and lengths sized allocations: a file of 160 bytes asked for gigabytes.
#[test]
fn counts_and_lengths_beyond_the_file_are_refused_before_they_are_used() {
    let huge = [1 << 60, 1 << 62, u64::MAX, u64::MAX / 13, 1000];
    let one = || Gguf::new(vec![tensor("t", &[4])]);
    for count in huge {
        let cases = [
            Gguf { tensor_count: Some(count), ..one() },
            Gguf { value_count: Some(count), ..one() },
            one().with("k", list(4, count, &[0; 16])),
            one().with("k", list(7, count, &[0; 16])),
            one().with("k", list(8, count, &[0; 16])),
            one().with("k", list(12, count, &[0; 16])),
            one().with("k", value(8, &[&count.to_le_bytes()[..], b"x"].concat())),
            one().with("k", list(8, 1, &count.to_le_bytes())),
        ];
        for gguf in cases {
            let file = gguf.bytes();
            let actual = file.len().to_string();
            for result in [read(&file), read_lists(&file, &Limits::default())] {
                assert_error(result, ErrorKind::Truncated, &[("actual", &actual)]);
            }
        }
    }
    // The lengths of a key and of a name.
    let file = one().with("key", u32_value(1)).bytes();
    for at in [24, 24 + 8 + 3 + 8] {
        let mut file = file.clone();
        file[at..at + 8].copy_from_slice(&(1u64 << 62).to_le_bytes());
        assert_error(read(&file), ErrorKind::Truncated, &[]);
    }
}

// GG-01. The number of dimensions overran a fixed array.
#[test]
fn a_tensor_has_at_most_four_dimensions() {
    assert_eq!(
        Gguf::new(vec![tensor("t", &[1, 2, 3, 4])]).parse().unwrap().entries[0].shape,
        [4, 3, 2, 1]
    );
    for rank in [5, 6, 1 << 16, u32::MAX] {
        let gguf = Gguf::new(vec![Tensor { rank: Some(rank), ..tensor("t", &[1, 1, 1, 1]) }]);
        let actual = rank.to_string();
        let values = [("tensor", "t"), ("actual", &*actual), ("expected", "at most 4")];
        assert_error(gguf.parse(), ErrorKind::InvalidHeader, &values);
    }
}

// GG-01. Lists in lists: readers that call themselves run out of stack.
#[test]
fn lists_of_lists_are_refused_at_any_depth() {
    for depth in [1, 2, 5000] {
        let mut nested = list(4, 1, &7u32.to_le_bytes())[4..].to_vec();
        for _ in 0..depth {
            nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &nested].concat();
        }
        let file = Gguf::default().with("deep", value(9, &nested)).bytes();
        for result in [read(&file), read_lists(&file, &Limits::default())] {
            assert_error(result, ErrorKind::Unsupported, &[("key", "deep")]);
        }
    }
}

// GG-02. Zero divided, large values made readers skip gigabytes, and a number that was read with
// another type or sign moved every tensor.
#[test]
fn the_alignment_is_a_small_power_of_two() {
    for alignment in [1, 2, 4, 8, 16, 32, 64, 4096, 65536] {
        // Metadata of every length, so that the padding before the data takes every size.
        for fill in 0..=64 {
            let gguf = Gguf::new(vec![tensor("a", &[3]), tensor("b", &[2])])
                .with("fill", text_value(&vec![b'x'; fill]))
                .aligned(alignment);
            let file = gguf.bytes();
            let header = read(&file).unwrap();
            assert_eq!((header.alignment, header.trailing), (alignment.into(), 0));
            for (entry, byte) in header.entries.iter().zip(*b"ab") {
                let begin = entry.offset as usize;
                assert_eq!(entry.offset % u64::from(alignment), 0);
                assert!(file[begin..begin + entry.length as usize].iter().all(|b| *b == byte));
            }
        }
    }
    let refused = |value: Vec<u8>, actual: &str| {
        let gguf = Gguf::new(vec![tensor("a", &[3])]).with("general.alignment", value);
        let values = [("key", "general.alignment"), ("actual", actual)];
        assert_error(gguf.parse(), ErrorKind::InvalidHeader, &values);
        gguf.parse().unwrap_err().get_hint().is_some_and(|hint| hint.contains("llama.cpp"))
    };
    for number in [0, 3, 33, 131_072, 1 << 30, 1 << 31, u32::MAX] {
        assert!(!refused(u32_value(number), &format!("uint32 {number}")));
    }
    // What the specification and its readers disagree about.
    for number in [24, 40, 96, 1000] {
        assert!(refused(u32_value(number), &format!("uint32 {number}")));
    }
    for (kind, bytes, actual) in [
        (10, &64u64.to_le_bytes()[..], "uint64 64"),
        (5, &64i32.to_le_bytes(), "int32 64"),
        (2, &64u16.to_le_bytes(), "uint16 64"),
        (6, &64f32.to_le_bytes(), "float32 64.0"),
        (7, &[1], "bool true"),
        (8, &text(b"64"), "string 64"),
    ] {
        refused(value(kind, bytes), actual);
    }
    refused(list(4, 1, &64u32.to_le_bytes()), "array [1 x uint32]");
}

/// The start of the data of files with these tensors.
fn data_start(gguf: &Gguf) -> u64 {
    let data: usize = gguf.tensors.iter().map(|t| t.data.len().next_multiple_of(32)).sum();
    (gguf.bytes().len() - data) as u64
}

// GG-03. The package gguf reads all of these. An offset near 2^64 wraps, into the header.
#[test]
fn tensors_lie_one_after_the_other() {
    // Two tensors of 64 bytes; the offset of the second.
    let second = |offset| Gguf::new(vec![tensor("a", &[16]), tensor("b", &[16]).at(offset)]);
    let start = data_start(&second(64));
    let from = |offset: u64| (start + offset).to_string();
    let range = |begin: u64, end: u64| format!("{}..{}", start + begin, start + end);
    type Case<'a> = (u64, ErrorKind, Vec<(&'a str, String)>);
    let table: [Case<'_>; 11] = [
        (0, ErrorKind::Overlap, vec![("offset", range(0, 64)), ("other_offset", range(0, 64))]),
        (32, ErrorKind::Overlap, vec![("expected", from(64)), ("actual", from(32))]),
        (96, ErrorKind::OutOfRange, vec![("offset", range(96, 160)), ("actual", from(128))]),
        (128, ErrorKind::OutOfRange, vec![]),
        (1 << 40, ErrorKind::OutOfRange, vec![]),
        (u64::MAX - 31, ErrorKind::Overflow, vec![]),
        (u64::MAX - 31 - start, ErrorKind::Overflow, vec![]),
        (1, ErrorKind::Misaligned, vec![("offset", "1".into())]),
        (72, ErrorKind::Misaligned, vec![("offset", "72".into())]),
        (u64::MAX, ErrorKind::Misaligned, vec![]),
        (i64::MAX as u64, ErrorKind::Misaligned, vec![]),
    ];
    for (offset, kind, values) in &table {
        let values: Vec<_> = values.iter().map(|(key, value)| (*key, &**value)).collect();
        assert_error(second(*offset).parse(), *kind, &[&[("tensor", "b")], &values[..]].concat());
    }
    // A gap, in a file that is long enough for it, before the second and before the first.
    let mut file = second(96).bytes();
    file.extend([0; 32]);
    let values = [("tensor", "b"), ("other", "a"), ("expected", &*from(64)), ("actual", &from(96))];
    assert_error(read(&file), ErrorKind::Hole, &values);
    let mut file = Gguf::new(vec![tensor("a", &[16]).at(32)]).bytes();
    file.extend([0; 32]);
    assert_error(read(&file), ErrorKind::Hole, &[("tensor", "a")]);
}

// GG-03. llama.cpp refuses these; nothing about them is ambiguous.
#[test]
fn tensors_may_be_declared_in_another_order() {
    let gguf = Gguf::new(vec![
        tensor("c", &[3]).at(96),
        tensor("a", &[16]).at(0),
        tensor("empty", &[0]).at(96),
        tensor("b", &[5]).at(64),
    ]);
    let header = gguf.parse().unwrap();
    let start = header.entries[1].offset;
    let found: Vec<_> =
        header.entries.iter().map(|e| (&*e.name, e.offset - start, e.length)).collect();
    assert_eq!(found, [("c", 96, 12), ("a", 0, 64), ("empty", 96, 0), ("b", 64, 20)]);
    assert_eq!(header.trailing, 0);
    let overlapping = Gguf::new(vec![tensor("b", &[16]).at(32), tensor("a", &[16]).at(0)]);
    assert_error(overlapping.parse(), ErrorKind::Overlap, &[("tensor", "b"), ("other", "a")]);
}

// GG-04. A header that is whole and data that are not: readers mapped the file and were killed.
#[test]
fn a_file_cut_anywhere_is_truncated() {
    let gguf = Gguf::new(vec![tensor("a", &[8]), tensor("b", &[7])])
        .with("general.name", text_value(b"cut"))
        .with("list", list(8, 2, &[text(b"x"), text(b"yz")].concat()))
        .with("numbers", list(2, 3, &[1; 6]));
    let file = gguf.bytes();
    let header = read(&file).unwrap();
    let data_end = header.entries[1].offset + header.entries[1].length;
    for length in 0..data_end as usize {
        for result in [read(&file[..length]), read_lists(&file[..length], &Limits::default())] {
            assert_error(result, ErrorKind::Truncated, &[("actual", &length.to_string())]);
        }
    }
    let expected = data_end.to_string();
    let values = [("tensor", "b"), ("expected", &*expected)];
    assert_error(read(&file[..data_end as usize - 1]), ErrorKind::Truncated, &values);
    // Only padding is missing, or something follows.
    assert_eq!(read(&file[..data_end as usize]).unwrap(), header);
    for more in [1, 5, 100] {
        let longer = [&file[..], &vec![9; more]].concat();
        assert_eq!(read(&longer).unwrap(), Header { trailing: more as u64, ..header.clone() });
    }
}

#[test]
fn bytes_after_the_header_of_a_file_without_tensors_are_counted() {
    let file = Gguf::default().with("k", u32_value(1)).bytes();
    let padding = file.len().next_multiple_of(32) - file.len();
    assert!(padding > 0);
    for more in [0, 1, padding, padding + 7] {
        let header = read(&[&file[..], &vec![0; more]].concat()).unwrap();
        assert_eq!(header.trailing, more.saturating_sub(padding) as u64);
    }
}

// GG-06. The word stays `GGUF`, the version reads as 50331648, and counts as 2^56 and more.
#[test]
fn the_other_byte_order_is_named() {
    for version in [1u32, 2, 3, 4, 0xff] {
        for rest in [vec![], vec![0; 16], [&1u64.to_be_bytes()[..], &[0; 8]].concat(), vec![7; 99]]
        {
            let file = [b"GGUF", &version.to_be_bytes()[..], &rest].concat();
            assert_error(read(&file), ErrorKind::WrongEndian, &[("expected", "little-endian")]);
            let hint = read(&file).unwrap_err().get_hint().map(str::to_owned);
            assert!(hint.is_some_and(|hint| hint.contains("gguf-convert-endian")));
        }
    }
}

#[test]
fn other_versions_and_formats_are_named() {
    for version in [0, 1, 4, 5, 65535, 0x01020304] {
        let gguf = Gguf { version, ..Gguf::new(vec![tensor("a", &[1])]) };
        let values = [("actual", &*version.to_string()), ("expected", "2 or 3")];
        assert_error(gguf.parse(), ErrorKind::Unsupported, &values);
    }
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    let table: [(&[u8], &str); 6] = [
        (lfs, "a Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
        (b"PK\x03\x04\x14\x00\x00\x00\x08\x00archive/data.pkl", "a ZIP archive"),
        (b"\x02\0\0\0\0\0\0\0{}", "a safetensors file"),
        (b"ggjt\x03\0\0\0\0\0\0\0", "a file of unknown format"),
        (b"GGU!", "a file of unknown format"),
    ];
    for (bytes, found) in table {
        assert_error(read(bytes), ErrorKind::UnknownFormat, &[("found", found)]);
    }
    for few in [&b""[..], b"G", b"GGU", b"GGUF", b"GGUF\x03\0"] {
        assert_error(read(few), ErrorKind::Truncated, &[]);
    }
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let gguf = Gguf::new(vec![tensor("a", &[8]), tensor("b", &[8]), tensor("a", &[8])]);
    let values = [("tensor", "a"), ("actual", "F32 at 0 and F32 at 64")];
    assert_error(gguf.parse(), ErrorKind::DuplicateTensor, &values);
    for second in [u32_value(1), text_value(b"x"), list(0, 0, &[])] {
        let gguf =
            Gguf::default().with("k", u32_value(1)).with("j", u32_value(1)).with("k", second);
        assert_error(gguf.parse(), ErrorKind::DuplicateMetadata, &[("key", "k")]);
    }
}

#[test]
fn keys_names_and_texts_are_utf_8_and_pieces_in_lists_are_made_so() {
    let bad = b"\xff\xfe".to_vec();
    let mut key = Gguf::default().with("k", u32_value(1));
    key.metadata[0].0 = bad.clone();
    let name = Gguf::new(vec![Tensor { name: bad.clone(), ..tensor("", &[1]) }]);
    let content = Gguf::default().with("k", text_value(&bad));
    for gguf in [key, name, content] {
        assert_error(gguf.parse(), ErrorKind::InvalidHeader, &[]);
    }
    let pieces = Gguf::default().with("k", list(8, 1, &text(&bad))).bytes();
    let header = read_lists(&pieces, &Limits::default()).unwrap();
    assert_eq!(header.metadata["k"].to_string(), "[\"\u{fffd}\u{fffd}\"]");
}

#[test]
fn every_type_of_value_is_read() {
    let f = |number: f64| Value::Float(number);
    let table: [(u32, &[u8], &str, Value); 16] = [
        (0, &[200], "uint8", Value::Uint(200)),
        (1, &[0x9c], "int8", Value::Int(-100)),
        (1, &[100], "int8", Value::Uint(100)),
        (2, &60000u16.to_le_bytes(), "uint16", Value::Uint(60000)),
        (3, &(-300i16).to_le_bytes(), "int16", Value::Int(-300)),
        (4, &u32::MAX.to_le_bytes(), "uint32", Value::Uint(u32::MAX.into())),
        (5, &i32::MIN.to_le_bytes(), "int32", Value::Int(i32::MIN.into())),
        (6, &0.5f32.to_le_bytes(), "float32", f(0.5)),
        (7, &[0], "bool", Value::Bool(false)),
        (7, &[1], "bool", Value::Bool(true)),
        (7, &[2], "bool", Value::Bool(true)),
        (8, &text("mü".as_bytes()), "string", Value::from("mü")),
        (8, &text(b""), "string", Value::from("")),
        (10, &u64::MAX.to_le_bytes(), "uint64", Value::Uint(u64::MAX)),
        (11, &i64::MIN.to_le_bytes(), "int64", Value::Int(i64::MIN)),
        (12, &1e300f64.to_le_bytes(), "float64", f(1e300)),
    ];
    for (kind, bytes, name, expected) in table {
        let twice = list(kind, 2, &[bytes, bytes].concat());
        let gguf = Gguf::new(vec![tensor("t", &[1])])
            .with("one", value(kind, bytes))
            .with("none", list(kind, 0, &[]))
            .with("two", twice)
            .with("after", u32_value(7));
        let file = gguf.bytes();
        let omitted = |count| Value::Omitted { kind: name, count };
        let rest = |none, two| {
            BTreeMap::from([
                ("one".to_owned(), expected.clone()),
                ("none".to_owned(), none),
                ("two".to_owned(), two),
                ("after".to_owned(), Value::Uint(7)),
            ])
        };
        assert_eq!(read(&file).unwrap().metadata, rest(omitted(0), omitted(2)));
        let kept = Value::List(vec![expected.clone(); 2]);
        let header = read_lists(&file, &Limits::default()).unwrap();
        assert_eq!(header.metadata, rest(Value::List(vec![]), kept));
    }
    for kind in [13, 255, u32::MAX] {
        for value in [value(kind, &[0; 32]), list(kind, 1, &[0; 32])] {
            let values = [("key", "k"), ("actual", &*kind.to_string())];
            let gguf = Gguf::default().with("k", value);
            assert_error(gguf.parse(), ErrorKind::InvalidHeader, &values);
        }
    }
}

#[test]
fn rows_are_whole_blocks() {
    // 64 elements in all are not enough: each row has 16.
    for dims in [&[16, 4][..], &[31], &[33], &[1], &[], &[16, 0]] {
        let values = [("tensor", "t"), ("dtype", "Q4_0"), ("expected", "a multiple of 32")];
        let gguf = Gguf::new(vec![typed("t", 2, dims, 36)]);
        assert_error(gguf.parse(), ErrorKind::Misaligned, &values);
    }
    for dims in [&[32, 3][..], &[96], &[32, 1, 3]] {
        let header = Gguf::new(vec![typed("t", 2, dims, 54)]).parse().unwrap();
        assert_eq!(header.entries[0].length, 54);
    }
}

#[test]
fn shapes_too_large_are_refused_in_any_order() {
    let table: [&[u64]; 8] = [
        &[1 << 40, 1 << 40],
        &[(1 << 63) + 1, 2],
        &[1 << 63],
        &[0, 1 << 63],
        &[1 << 63, 0],
        &[0, 1 << 62, 8],
        &[1 << 62, 8, 0],
        // The number of elements fits, the number of bytes does not.
        &[1 << 62],
    ];
    for dims in table {
        let gguf = Gguf::new(vec![typed("t", 0, dims, 0)]);
        assert_error(gguf.parse(), ErrorKind::Overflow, &[("tensor", "t")]);
    }
    // Neither the shape nor the layout overflows, but the file has no such room.
    let far = Gguf::new(vec![typed("t", 0, &[1 << 60], 0)]);
    assert_error(far.parse(), ErrorKind::Truncated, &[("tensor", "t")]);
}

#[test]
fn tensors_without_bytes_stand_where_another_may() {
    let gguf = Gguf::new(vec![
        tensor("first", &[0]),
        tensor("a", &[8]),
        tensor("between", &[4, 0, 2]),
        typed("b", 2, &[32], 18),
        typed("last", 2, &[0, 7], 0),
    ]);
    let file = gguf.bytes();
    let header = read(&file).unwrap();
    let start = header.entries[0].offset;
    let found: Vec<_> = header.entries.iter().map(|e| (e.offset - start, e.length)).collect();
    assert_eq!(found, [(0, 0), (0, 32), (32, 0), (32, 18), (64, 0)]);
    assert_eq!(header.entries[2].shape, [2, 0, 4]);
    let index = header.into_index("m", file.len() as u64).unwrap();
    index.validate().unwrap();
    assert_eq!((index.storages.len(), index.bytes()), (5, 50));

    let inside = Gguf::new(vec![tensor("a", &[16]), tensor("e", &[0]).at(32)]);
    assert_error(inside.parse(), ErrorKind::Overlap, &[("tensor", "e"), ("other", "a")]);
    let past = Gguf::new(vec![tensor("a", &[16]), tensor("e", &[0]).at(1024)]);
    assert_error(past.parse(), ErrorKind::OutOfRange, &[("tensor", "e")]);
}

#[test]
fn types_that_are_not_known_are_opaque() {
    for kind in [4, 5, 31, 33, 36, 38, 43, 99, u32::MAX] {
        let name = format!("GGML_{kind}");
        let gguf = Gguf::new(vec![
            typed("x", kind, &[7, 3], 40),
            tensor("y", &[8]),
            typed("empty", kind, &[0], 0),
            typed("z", kind, &[3], 5),
        ]);
        let file = gguf.bytes();
        let header = read(&file).unwrap();
        let start = header.entries[0].offset;
        let found: Vec<_> =
            header.entries.iter().map(|e| (e.dtype.name(), e.offset - start, e.length)).collect();
        // Padding included: where such a tensor ends within it is not known.
        let name = &*name;
        assert_eq!(found, [(name, 0, 64), ("F32", 64, 32), (name, 96, 0), (name, 96, 32)]);
        assert_eq!((&header.entries[0].shape[..], header.trailing), (&[3, 7][..], 0));
        let length = file.len() as u64;
        header.into_index("m", length).unwrap().validate().unwrap();

        let longer = read(&[&file[..], &[1; 100]].concat()).unwrap();
        assert_eq!((longer.entries[3].length, longer.trailing), (132, 0));
        // Without any byte of its own.
        let none = Gguf::new(vec![typed("x", kind, &[3], 0)]);
        assert_error(none.parse(), ErrorKind::Truncated, &[("tensor", "x")]);
        let shared = Gguf::new(vec![typed("x", kind, &[3], 5), tensor("y", &[1]).at(0)]);
        assert_error(shared.parse(), ErrorKind::Overlap, &[]);
    }
}

// Every type that has blocks, one block of each, as ggml's structures have them.
#[test]
fn known_types_have_their_bytes() {
    for (kind, name) in [(2, "Q4_0"), (12, "Q4_K"), (16, "IQ2_XXS"), (34, "TQ1_0"), (39, "MXFP4")] {
        let layout = Dtype::from_name(name).layout().unwrap();
        let dims = [u64::from(layout.elements) * 2, 3];
        let header =
            Gguf::new(vec![typed("t", kind, &dims, 6 * layout.bytes as usize)]).parse().unwrap();
        assert_eq!(header.entries[0].dtype.name(), name);
        assert_eq!(header.entries[0].length, u64::from(6 * layout.bytes));
        assert!(header.trailing == 0);
    }
}
