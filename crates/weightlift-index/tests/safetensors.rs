//! Headers that broke loaders, built by hand. The ids in comments name the case that a test is for.

mod common;

use common::{Ranges, Values, assert_error, entry, file, header, parse, ranges, read};
use weightlift_index::{ErrorKind, Limits, safetensors::header_span};

// ST-01. JSON readers keep the last of two equal keys. The reference does too, and notices only
// where the two ranges differ, as a hole. A file that says two things about a tensor is refused.
#[test]
fn a_tensor_named_twice_is_refused_whatever_the_two_entries_say() {
    let a = |dtype, begin, end| entry("a", dtype, "[1]", begin, end);
    let table = [
        (a("F32", 0, 4), a("F32", 0, 4), 4, "F32 0..4 and F32 0..4"),
        (a("F32", 0, 4), a("I32", 0, 4), 4, "F32 0..4 and I32 0..4"),
        (a("F32", 0, 4), a("F32", 4, 8), 8, "F32 0..4 and F32 4..8"),
        // The same name in another spelling.
        (a("F32", 0, 4), entry("\\u0061", "F32", "[1]", 4, 8), 8, "F32 0..4 and F32 4..8"),
    ];
    for (first, second, data, actual) in table {
        let result = parse(header(&[first, second]), data);
        assert_error(result, ErrorKind::DuplicateTensor, &[("tensor", "a"), ("actual", actual)]);
    }
}

// ST-01. Which of several duplicates is named does not depend on how names are looked up.
#[test]
fn the_first_repeated_name_is_reported() {
    let names = ["p", "q", "r", "q", "p", "q"];
    let entries: Vec<_> = names.iter().map(|name| entry(name, "U8", "[0]", 0, 0)).collect();
    for _ in 0..20 {
        assert_error(parse(header(&entries), 0), ErrorKind::DuplicateTensor, &[("tensor", "q")]);
    }
}

// ST-01. The reference keeps the last of two equal metadata keys.
#[test]
fn metadata_that_stand_twice_are_refused() {
    let once = r#"{"__metadata__":{"k":"1","k":"2"}}"#;
    assert_error(parse(once, 0), ErrorKind::DuplicateMetadata, &[("key", "k")]);
    for second in ["{}", "null"] {
        let twice = format!(r#"{{"__metadata__":{{}},"__metadata__":{second}}}"#);
        assert_error(parse(twice, 0), ErrorKind::DuplicateMetadata, &[("key", "__metadata__")]);
    }
}

// ST-02. Parsers that check each tensor alone load overlapping and gapped ranges without a word.
#[test]
fn ranges_that_do_not_cover_the_data_once_are_refused() {
    let table: [(Ranges, ErrorKind, Values); 7] = [
        (
            &[("a", 0, 8), ("b", 4, 12)],
            ErrorKind::Overlap,
            &[("tensor", "b"), ("other", "a"), ("offset", "4..12"), ("other_offset", "0..8")],
        ),
        (
            &[("a", 0, 4), ("b", 8, 12)],
            ErrorKind::Hole,
            &[("tensor", "b"), ("other", "a"), ("expected", "4"), ("actual", "8")],
        ),
        (&[("a", 4, 8)], ErrorKind::Hole, &[("tensor", "a"), ("expected", "0"), ("actual", "4")]),
        (&[("a", 8, 0)], ErrorKind::Reversed, &[("tensor", "a"), ("offset", "8..0")]),
        (&[("a", 0, 12), ("b", 0, 12)], ErrorKind::Overlap, &[("tensor", "b"), ("other", "a")]),
        (&[("a", 0, 12), ("b", 4, 8)], ErrorKind::Overlap, &[("tensor", "b"), ("other", "a")]),
        (&[("a", u64::MAX - 1, u64::MAX)], ErrorKind::Hole, &[("tensor", "a"), ("expected", "0")]),
    ];
    for (tensors, kind, values) in table {
        assert_error(parse(ranges(tensors), 12), kind, values);
    }
}

// ST-02. The order of the header is free; entries come back in the order of the file.
#[test]
fn entries_may_stand_in_any_order() {
    let text = ranges(&[("b", 8, 12), ("a", 0, 8)]);
    let parsed = parse(&text, 12).unwrap();
    let start = 8 + text.len() as u64;
    let found: Vec<_> = parsed.entries.iter().map(|e| (&*e.name, e.begin, e.end)).collect();
    assert_eq!(found, [("a", start, start + 8), ("b", start + 8, start + 12)]);
}

// ST-04. One file that some loaders read and others refuse: the strict answer, everywhere.
#[test]
fn bytes_after_the_last_tensor_are_refused() {
    let text = ranges(&[("a", 0, 8)]);
    let length = (text.len() + 16).to_string();
    let values = [("tensor", "a"), ("bytes", "1"), ("expected", &*length)];
    assert_error(parse(&text, 9), ErrorKind::TrailingBytes, &values);
    let values = [("bytes", "1"), ("expected", "10"), ("actual", "11")];
    assert_error(parse("{}", 1), ErrorKind::TrailingBytes, &values);
}

// ST-05, IX-10. A download cut short: mapped tensors after its end read as zeros or as garbage, and
// the model talks nonsense. The lengths tell before the first byte of data is read.
#[test]
fn a_file_cut_short_is_refused() {
    let whole = file(ranges(&[("a", 0, 8), ("b", 8, 16), ("c", 16, 24)]), 24);
    let expected = whole.len().to_string();
    for (cut, tensor) in [(1, "c"), (8, "c"), (9, "b"), (12, "b"), (24, "a")] {
        let rest = &whole[..whole.len() - cut];
        let actual = rest.len().to_string();
        let values = [("expected", &*expected), ("actual", &*actual), ("tensor", tensor)];
        assert_error(read(rest, &Limits::default()), ErrorKind::Truncated, &values);
    }
    let header_end = (whole.len() - 24).to_string();
    let values = [("expected", &*header_end), ("actual", "30")];
    assert_error(read(&whole[..30], &Limits::default()), ErrorKind::HeaderPastEof, &values);
    for few in [0, 7] {
        let values = [("expected", "8"), ("actual", &*few.to_string())];
        assert_error(read(&whole[..few], &Limits::default()), ErrorKind::Truncated, &values);
    }
}

// ST-06. The eight bytes before the header sized an allocation: out of memory, or an abort.
#[test]
fn the_length_of_the_header_is_checked_before_it_is_used() {
    let span = |length: u64, file_length| {
        let mut first = length.to_le_bytes().to_vec();
        first.push(b'{');
        header_span(&first, file_length, &Limits::default())
    };
    let limit = [("limit", "100000000"), ("option", "header_bytes")];
    for length in [u64::MAX, 100_000_001] {
        assert_error(span(length, 20), ErrorKind::HeaderTooLarge, &limit);
        let actual = length.to_string();
        assert_error(span(length, 1 << 40), ErrorKind::HeaderTooLarge, &[("actual", &actual)]);
    }
    let values = [("expected", "21"), ("actual", "20")];
    assert_error(span(13, 20), ErrorKind::HeaderPastEof, &values);
    assert_eq!(span(12, 20).unwrap(), 8..20);
    assert_eq!(span(100_000_000, 1 << 40).unwrap(), 8..100_000_008);
    assert_error(span(0, 20), ErrorKind::InvalidHeader, &[]);
    // The largest length, with the limit out of the way.
    let unlimited = Limits::default().with_header_bytes(u64::MAX);
    let result = header_span(&[0xff; 9], u64::MAX, &unlimited);
    assert_error(result, ErrorKind::HeaderPastEof, &[("actual", &u64::MAX.to_string())]);
}

// ST-07. A model of 1.29 million tensors has a header of 132 MB, which writers write and readers
// refuse. The limit can be raised, and its error says how. (Small here; the benchmark has it whole.)
#[test]
fn a_raised_limit_lets_a_large_header_through() {
    let names: Vec<String> =
        (0..2000).map(|i| entry(&format!("t{i}"), "F32", "[0]", 0, 0)).collect();
    let bytes = file(header(&names), 0);
    let length = bytes.len() as u64 - 8;
    let low = Limits::default().with_header_bytes(length - 1);
    let values = [("actual", &*length.to_string()), ("limit", &*(length - 1).to_string())];
    assert_error(read(&bytes, &low), ErrorKind::HeaderTooLarge, &values);
    let hint = read(&bytes, &low).unwrap_err().get_hint().map(str::to_owned);
    assert!(hint.is_some_and(|hint| hint.contains("header_bytes")));
    let found = read(&bytes, &low.with_header_bytes(length)).unwrap();
    assert_eq!(found.entries.len(), 2000);
}

#[test]
fn the_other_limits_name_themselves() {
    let text = header(&[entry("a", "U8", "[1,1,1]", 0, 1), entry("b", "U8", "[1]", 1, 2)]);
    let bytes = file(text, 2);
    let table = [
        (Limits::default().with_tensors(1), "tensors", "1", "more than 1", "b"),
        (Limits::default().with_rank(2), "rank", "2", "more than 2", "a"),
    ];
    for (limits, option, limit, actual, tensor) in table {
        let values = [("option", option), ("limit", limit), ("actual", actual), ("tensor", tensor)];
        assert_error(read(&bytes, &limits), ErrorKind::LimitExceeded, &values);
    }
    assert!(read(&bytes, &Limits::default().with_tensors(2).with_rank(3)).is_ok());
}

// ST-08. "Header too large" was the answer for Git LFS pointers, web pages and pickles, whose text
// was read as a length.
#[test]
fn other_formats_are_named() {
    let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    let table: [(&[u8], &str); 6] = [
        (lfs, "a Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "a web page"),
        (b"PK\x03\x04\x14\x00\x00\x00\x08\x00archive/data.pkl", "a ZIP archive"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "a Python pickle"),
        (b"GGUF\x03\x00\x00\x00\x00\x00\x00\x00", "a GGUF file"),
        (b"Not Found", "a text file"),
    ];
    for (bytes, found) in table {
        let result = read(bytes, &Limits::default());
        assert_error(result, ErrorKind::NotSafetensors, &[("found", found)]);
    }
    let hint = read(lfs, &Limits::default()).unwrap_err().get_hint().map(str::to_owned);
    assert!(hint.is_some_and(|hint| hint.contains("git lfs pull")));
}

// ST-10. A product that wraps to a small number allocates too little. The reference multiplies in
// order, so that for it a zero helps only if it comes before the overflow; here order is nothing.
#[test]
fn shapes_too_large_are_refused_in_any_order() {
    let table = [
        "[1099511627776,1099511627776]",
        "[9223372036854775809,2]",
        "[9223372036854775808]",
        "[0,9223372036854775808,4]",
        "[9223372036854775808,4,0]",
        "[0,4611686018427387904,8]",
        "[4611686018427387904,8,0]",
        // The number of elements fits, the number of bytes does not.
        "[4611686018427387904]",
    ];
    for shape in table {
        for dtype in ["F64", "F32"] {
            let result = parse(header(&[entry("w", dtype, shape, 0, 0)]), 0);
            let shown = shape.replace(',', ", ");
            let values = [("tensor", "w"), ("shape", &*shown), ("dtype", dtype)];
            assert_error(result, ErrorKind::Overflow, &values);
        }
    }
    for shape in ["[0,4611686018427387904]", "[4611686018427387904,0]"] {
        let parsed = parse(header(&[entry("w", "F32", shape, 0, 0)]), 0).unwrap();
        assert_eq!(parsed.entries[0].begin, parsed.entries[0].end);
    }
}

// ST-10, ST-17. What is not an unsigned 64-bit integer is no dimension and no offset.
#[test]
fn dimensions_and_offsets_are_unsigned_integers() {
    for number in ["18446744073709551616", "-2", "2.0", "-0", "1e0", "\"2\"", "null", "[2]"] {
        let shape = header(&[entry("w", "U8", &format!("[{number}]"), 0, 2)]);
        assert_error(parse(shape, 2), ErrorKind::InvalidHeader, &[("tensor", "w"), ("line", "1")]);
        let offsets =
            format!(r#"{{"w":{{"dtype":"U8","shape":[2],"data_offsets":[0,{number}]}}}}"#);
        assert_error(parse(offsets, 2), ErrorKind::InvalidHeader, &[("tensor", "w")]);
    }
}

// ST-11. Files use the shape [0] as a marker; loaders hung on it, raised, or refused the file.
#[test]
fn tensors_without_bytes_are_valid_between_others_and_nowhere_else() {
    let empty = |name, shape, at| entry(name, "F32", shape, at, at);
    let full = |name, begin, end| entry(name, "F32", "[2]", begin, end);
    let text = header(&[
        empty("end", "[0]", 16),
        full("b", 8, 16),
        empty("between", "[2,0]", 8),
        full("a", 0, 8),
        empty("start", "[0]", 0),
    ]);
    let parsed = parse(text, 16).unwrap();
    let found: Vec<_> = parsed.entries.iter().map(|e| (&*e.name, e.end - e.begin)).collect();
    assert_eq!(found, [("start", 0), ("a", 8), ("between", 0), ("b", 8), ("end", 0)]);
    assert_eq!(parsed.entries[2].shape, [2, 0]);

    assert_eq!(parse(header(&[empty("only", "[0]", 0)]), 0).unwrap().entries.len(), 1);

    let inside = header(&[full("a", 0, 8), empty("e", "[0]", 4)]);
    assert_error(parse(inside, 8), ErrorKind::Overlap, &[("tensor", "e"), ("other", "a")]);
    let past = header(&[full("a", 0, 8), empty("e", "[0]", 12)]);
    assert_error(parse(past, 8), ErrorKind::Hole, &[("tensor", "e"), ("actual", "12")]);
    let past = header(&[full("a", 0, 8), empty("e", "[0]", 8)]);
    assert_error(parse(past, 7), ErrorKind::Truncated, &[("tensor", "a")]);
}

#[test]
fn a_scalar_is_one_element() {
    assert_eq!(
        parse(header(&[entry("s", "F32", "[]", 0, 4)]), 4).unwrap().entries[0].shape,
        [0; 0]
    );
    let values = [("tensor", "s"), ("expected", "4"), ("actual", "0"), ("offset", "0..0")];
    let empty = parse(header(&[entry("s", "F32", "[]", 0, 0)]), 0);
    assert_error(empty, ErrorKind::SizeMismatch, &values);
}

// ST-13. One tensor of a new data type made whole files unreadable. It stays as bytes, and is an
// error only for who asks for its type.
#[test]
fn an_unknown_dtype_is_kept_as_bytes() {
    for dtype in ["I4", "C128", "f32"] {
        let text = header(&[entry("a", "F32", "[1]", 0, 4), entry("odd", dtype, "[3]", 4, 6)]);
        let parsed = parse(text, 6).unwrap();
        let odd = &parsed.entries[1];
        assert_eq!((odd.end - odd.begin, odd.dtype.name(), &odd.shape[..]), (2, dtype, &[3][..]));
        let values = [("tensor", "odd"), ("dtype", dtype)];
        assert_error(odd.dtype.known("odd"), ErrorKind::UnknownDtype, &values);
    }
}

// ST-14. Types of less than a byte: the header counts elements, and an odd count of four-bit ones
// was cut off without a word.
#[test]
fn elements_smaller_than_a_byte_must_fill_bytes() {
    for (dtype, shape, bytes) in
        [("F4", "[2]", 1), ("F4", "[2,8]", 8), ("F6_E2M3", "[4]", 3), ("F6_E3M2", "[2,2]", 3)]
    {
        let parsed = parse(header(&[entry("w", dtype, shape, 0, bytes)]), bytes as usize);
        assert!(parsed.is_ok(), "{dtype} {shape}");
    }
    for (dtype, shape) in [("F4", "[3]"), ("F4", "[1]"), ("F6_E2M3", "[3]"), ("F6_E3M2", "[2]")] {
        let values = [("tensor", "w"), ("dtype", dtype), ("shape", shape)];
        let result = parse(header(&[entry("w", dtype, shape, 0, 2)]), 2);
        assert_error(result, ErrorKind::Misaligned, &values);
    }
}

// ST-15. The format asks for no alignment: headers of any length, and a byte before a float.
#[test]
fn offsets_need_no_alignment() {
    let text = header(&[entry("byte", "U8", "[1]", 0, 1), entry("float", "F32", "[1]", 1, 5)]);
    for padding in 0..8 {
        let padded = text.clone() + &" ".repeat(padding);
        let parsed = parse(&padded, 5).unwrap();
        let float = &parsed.entries[1];
        let start = 8 + padded.len() as u64;
        assert_eq!((float.begin, float.end), (start + 1, start + 5));
    }
}
