//! The text of headers: JSON that parsers disagree about. The ids in comments name the case of a test.

mod common;

use common::{assert_error, entry, header, parse, ranges};
use weightlift_index::ErrorKind;

// ST-17. JSON parsers differ in what they let pass; this is the one strict table.
#[test]
fn odd_header_text_is_refused() {
    let good = ranges(&[("a", 0, 1)]);
    let deep = |depth: usize| {
        let extra = "[".repeat(depth) + &"]".repeat(depth);
        good.replace(r#"{"dtype""#, &format!(r#"{{"x":{extra},"dtype""#))
    };
    let mut not_utf8 = good.clone().into_bytes();
    not_utf8[2] = 0xff;
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("leading space", format!(" {good}").into()),
        ("byte order mark", format!("\u{feff}{good}").into()),
        ("trailing NUL", format!("{good}\0").into()),
        ("trailing line break", format!("{good}\n").into()),
        ("two objects", format!("{good}{good}").into()),
        ("not an object", b"[]".to_vec()),
        ("only a brace", b"{".to_vec()),
        ("only spaces", b"   ".to_vec()),
        ("not UTF-8", not_utf8),
        ("lone surrogate in a name", good.replace("\"a\"", r#""\ud800""#).into()),
        (
            "lone surrogate in an extra field",
            good.replace(r#"{"dtype""#, r#"{"x":"\ud800","dtype""#).into(),
        ),
        ("NaN", good.replace(r#"{"dtype""#, r#"{"x":NaN,"dtype""#).into()),
        ("trailing comma", good.replace("]}}", "]},}").into()),
        ("comment", good.replace("{\"a\"", "{/**/\"a\"").into()),
        ("5000 deep", deep(5000).into()),
        ("126 deep within two", deep(126).into()),
        ("an entry that is a list", br#"{"a":["U8",[1],[0,1]]}"#.to_vec()),
        ("an entry that is null", br#"{"a":null}"#.to_vec()),
        ("a data type that is a number", good.replace("\"U8\"", "8").into()),
        ("a shape that is a number", good.replace("[1]", "1").into()),
    ];
    for (what, text) in table {
        let error = parse(&text, 1).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::InvalidHeader, "{what}: {error}");
    }
    assert!(parse(deep(125), 1).is_ok());
    assert!(parse(good.clone() + "    ", 1).is_ok());
}

// ST-17. Fields that the format does not define are for others to read.
#[test]
fn extra_fields_of_an_entry_are_ignored() {
    let extra = r#"{"x":{"y":[1,-2,3.5,true,null,"\u00e9"]},"dtype""#;
    let text = ranges(&[("a", 0, 1)]).replace(r#"{"dtype""#, extra);
    assert_eq!(parse(&text, 1).unwrap().entries[0].shape, [1]);
}

// ST-17. Missing, repeated and miscounted fields.
#[test]
fn an_entry_has_each_field_once() {
    let fields = [r#""dtype":"U8""#, r#""shape":[1]"#, r#""data_offsets":[0,1]"#];
    let keys = ["dtype", "shape", "data_offsets"];
    for (i, key) in keys.into_iter().enumerate() {
        let mut fewer = fields.to_vec();
        fewer.remove(i);
        let more = [&fields[..], &fields[i..=i]].concat();
        for list in [fewer, more] {
            let text = format!(r#"{{"a":{{{}}}}}"#, list.join(","));
            assert_error(
                parse(text, 1),
                ErrorKind::InvalidHeader,
                &[("tensor", "a"), ("key", key)],
            );
        }
    }
    let text = format!(r#"{{"a":{{{},"x":1,"x":1}}}}"#, fields.join(","));
    assert_error(parse(text, 1), ErrorKind::InvalidHeader, &[("tensor", "a"), ("key", "x")]);
    for (offsets, count) in [("[]", "0"), ("[0]", "1"), ("[0,1,2]", "3"), ("[0,1,null,[]]", "4")] {
        let text = ranges(&[("a", 0, 1)]).replace("[0,1]", offsets);
        let values = [("tensor", "a"), ("expected", "2"), ("actual", count)];
        assert_error(parse(text, 1), ErrorKind::InvalidHeader, &values);
    }
}

#[test]
fn metadata_are_strings_by_strings_or_null() {
    let parsed = parse(r#"{"__metadata__":{"format":"pt","x\n":"\u00e9"}}"#, 0).unwrap();
    let found: Vec<_> = parsed.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(found, [("format", "pt"), ("x\n", "é")]);
    assert!(parse(r#"{"__metadata__":null}"#, 0).unwrap().metadata.is_empty());
    for value in ["1", "null", "{}"] {
        let text = format!(r#"{{"__metadata__":{{"k":{value}}}}}"#);
        assert_error(parse(text, 0), ErrorKind::InvalidHeader, &[("key", "k")]);
    }
    assert_error(parse(r#"{"__metadata__":[]}"#, 0), ErrorKind::InvalidHeader, &[]);
}

// Names are data; what is unsafe about one is for who uses it as a path.
#[test]
fn names_may_hold_anything() {
    let names = ["", "\\u0000", "../x", "é", "\\ud83d\\ude00", "a\\\"b"];
    let entries: Vec<_> = names.iter().map(|name| entry(name, "U8", "[0]", 0, 0)).collect();
    let parsed = parse(header(&entries), 0).unwrap();
    let found: Vec<_> = parsed.entries.iter().map(|e| &*e.name).collect();
    assert_eq!(found, ["", "\0", "../x", "é", "😀", "a\"b"]);
}
