//! Our verdicts beside those of the format's reference implementation, the crate `safetensors`.

mod common;

use std::collections::BTreeMap;

use common::{entry, file, header, parse, ranges, read};
use proptest::prelude::*;
use proptest::sample::Index;
use safetensors::SafeTensors;
use weightlift_index::Limits;
use weightlift_index::safetensors::{Entry, header_span, parse_header};
use weightlift_index::shards::{check_name, choose, parse_index};

#[rustfmt::skip]
const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8), ("F4", 4), ("F6_E2M3", 6), ("F6_E3M2", 6), ("U8", 8), ("I8", 8),
    ("F8_E5M2", 8), ("F8_E4M3", 8), ("F8_E8M0", 8), ("F8_E4M3FNUZ", 8), ("F8_E5M2FNUZ", 8),
    ("I16", 16), ("U16", 16), ("F16", 16), ("BF16", 16), ("I32", 32), ("U32", 32),
    ("F32", 32), ("C64", 64), ("F64", 64), ("I64", 64), ("U64", 64),
];

type Tensor = (String, usize, Vec<u64>);

fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let tensor = (any::<String>(), 0..DTYPES.len(), prop::collection::vec(0u64..7, 0..5));
    prop::collection::vec(tensor, 0..12)
}

/// A valid header of these tensors in an order of its own, and the length of its data.
fn valid(tensors: &[Tensor], padding: usize, reverse: bool) -> (String, usize) {
    let mut entries = BTreeMap::new();
    let mut at = 0;
    for (name, dtype, shape) in tensors {
        if entries.contains_key(name) || name == "__metadata__" {
            continue;
        }
        let (dtype, bits) = DTYPES[*dtype];
        let mut shape = shape.clone();
        if bits < 8 {
            // Any such type fills whole bytes four elements at a time.
            shape.push(4);
        }
        let bytes = shape.iter().product::<u64>() * bits / 8;
        let name_json = serde_json::to_string(name).unwrap();
        let text =
            entry(&name_json[1..name_json.len() - 1], dtype, &format!("{shape:?}"), at, at + bytes);
        entries.insert(name, text);
        at += bytes;
    }
    let mut entries: Vec<String> = entries.into_values().collect();
    if reverse {
        entries.reverse();
    }
    (header(&entries) + &" ".repeat(padding), at as usize)
}

type Seen = BTreeMap<String, (String, Vec<u64>, u64, u64)>;

fn ours(file: &[u8]) -> Option<Seen> {
    let parsed = read(file, &Limits::default()).ok()?;
    let entry =
        |e: &Entry| (e.name.to_string(), (e.dtype.to_string(), e.shape.clone(), e.begin, e.end));
    Some(parsed.entries.iter().map(entry).collect())
}

fn theirs(file: &[u8]) -> Option<Seen> {
    let (length, metadata) = SafeTensors::read_metadata(file).ok()?;
    let start = length as u64 + 8;
    let entry = |(name, info): (String, &safetensors::tensor::TensorInfo)| {
        let dtype = serde_json::to_value(info.dtype).unwrap().as_str().unwrap().to_owned();
        let shape = info.shape.iter().map(|dim| *dim as u64).collect();
        let (begin, end) = info.data_offsets;
        (name, (dtype, shape, start + begin as u64, start + end as u64))
    };
    Some(metadata.tensors().into_iter().map(entry).collect())
}

/// Cases where the verdicts differ, each with its reason.
const STRICTER: &[(&str, &str)] = &[
    ("equal entries", "a name that stands twice says that the file is not what its writer meant"),
    ("equal ranges, other dtype", "as above; the reference takes the last"),
    ("metadata key twice", "as above; the reference takes the last"),
    ("extra field twice", "as above, for fields the format does not define"),
    ("leading space", "the format says that a header begins with a brace"),
    ("leading line break", "as above"),
    ("trailing line break", "the format says that padding is spaces"),
    ("zero before overflow", "the verdict must not depend on the order of dimensions"),
    ("entry as a list", "the format says that an entry is an object"),
    ("65 dimensions", "no framework takes such a tensor; the limit can be raised"),
];
const LAXER: &[(&str, &str)] =
    &[("unknown dtype", "kept as opaque bytes; an error if its type is asked for")];

#[test]
fn hostile_files_get_the_verdict_of_the_reference_or_a_stricter_one() {
    let a = |shape: &str, begin, end| header(&[entry("a", "F32", shape, begin, end)]);
    let u8s = ranges(&[("a", 0, 4)]);
    let field = |extra: &str| u8s.replace(r#"{"dtype""#, &format!(r#"{{{extra},"dtype""#));
    let f32 = |dtype| entry("a", dtype, "[1]", 0, 4);
    let rank = |rank: usize| a(&format!("[{}]", vec!["1"; rank].join(",")), 0, 4);
    let deep = |depth| field(&format!(r#""x":{}{}"#, "[".repeat(depth), "]".repeat(depth)));
    let one = |text: &str| header(&[entry("a", text, "[3]", 0, 2)]);
    let cases: Vec<(&str, String, usize)> = vec![
        ("no tensor", "{}".into(), 0),
        ("no tensor, one byte", "{}".into(), 1),
        ("one tensor", u8s.clone(), 4),
        ("cut short", u8s.clone(), 3),
        ("trailing byte", u8s.clone(), 5),
        ("unordered", ranges(&[("b", 4, 8), ("a", 0, 4)]), 8),
        ("hole", ranges(&[("a", 0, 4), ("b", 8, 12)]), 12),
        ("leading hole", ranges(&[("a", 4, 8)]), 8),
        ("overlap", ranges(&[("a", 0, 8), ("b", 4, 12)]), 12),
        ("same range, two names", ranges(&[("a", 0, 4), ("b", 0, 4)]), 4),
        ("reversed", ranges(&[("a", 8, 0)]), 8),
        ("size mismatch", a("[2]", 0, 4), 4),
        ("scalar", a("[]", 0, 4), 4),
        ("equal entries", header(&[f32("F32"), f32("F32")]), 4),
        ("equal ranges, other dtype", header(&[f32("F32"), f32("I32")]), 4),
        ("metadata key twice", r#"{"__metadata__":{"k":"1","k":"1"}}"#.into(), 0),
        ("metadata twice", r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0),
        ("metadata null", r#"{"__metadata__":null}"#.into(), 0),
        ("metadata number", r#"{"__metadata__":{"k":1}}"#.into(), 0),
        ("extra field", field(r#""x":[1,{"y":null}]"#), 4),
        ("extra field twice", field(r#""x":1,"x":1"#), 4),
        ("field twice", field(r#""dtype":"U8""#), 4),
        ("no field", r#"{"a":{"dtype":"U8","shape":[0]}}"#.into(), 0),
        ("one offset", u8s.replace("[0,4]", "[0]"), 4),
        ("three offsets", u8s.replace("[0,4]", "[0,4,4]"), 4),
        ("leading space", format!(" {u8s}"), 4),
        ("leading line break", format!("\n{u8s}"), 4),
        ("trailing space", format!("{u8s}  "), 4),
        ("trailing line break", format!("{u8s}\n"), 4),
        ("trailing NUL", format!("{u8s}\0"), 4),
        ("byte order mark", format!("\u{feff}{u8s}"), 4),
        ("top-level list", "[]".into(), 0),
        ("lone surrogate", field(r#""x":"\ud800""#), 4),
        ("lone surrogate in a name", u8s.replace("\"a\"", r#""\udc00""#), 4),
        ("NaN", field(r#""x":NaN"#), 4),
        ("number out of range", field(r#""x":1e999"#), 4),
        ("100 deep", deep(100), 4),
        ("200 deep", deep(200), 4),
        ("zero before overflow", a("[0,9223372036854775808,4]", 0, 0), 0),
        ("overflow before zero", a("[9223372036854775808,4,0]", 0, 0), 0),
        ("overflow", a("[1099511627776,1099511627776]", 0, 0), 0),
        ("dimension of 2^64", a("[18446744073709551616]", 0, 0), 0),
        ("negative", a("[-2]", 0, 8), 8),
        ("float", a("[2.0]", 0, 8), 8),
        (
            "empty tensor inside",
            header(&[entry("a", "F32", "[2]", 0, 8), entry("e", "F32", "[0]", 4, 4)]),
            8,
        ),
        ("empty tensor past the end", header(&[entry("e", "F32", "[0]", 4, 4)]), 0),
        ("empty tensor", a("[0]", 0, 0), 0),
        ("F4 odd", one("F4"), 2),
        ("F6 of three", one("F6_E2M3"), 2),
        ("unknown dtype", one("I4"), 2),
        ("names", ranges(&[("", 0, 1), ("../x", 1, 2), ("\\u0000", 2, 3)]), 3),
        ("entry as a list", r#"{"a":["U8",[4],[0,4]]}"#.into(), 4),
        ("64 dimensions", rank(64), 4),
        ("65 dimensions", rank(65), 4),
    ];
    let mut differing = Vec::new();
    for (what, text, data) in &cases {
        let bytes = file(text, *data);
        match (ours(&bytes), theirs(&bytes)) {
            (Some(ours), Some(theirs)) => assert_eq!(ours, theirs, "{what}"),
            (None, None) => {}
            (ours, _) => differing.push((*what, ours.is_some())),
        }
    }
    let named = |list: &[(&'static str, &str)], verdict| {
        list.iter().map(|(what, _)| (*what, verdict)).collect::<Vec<_>>()
    };
    let mut expected = [named(STRICTER, false), named(LAXER, true)].concat();
    expected.sort_unstable();
    differing.sort_unstable();
    assert_eq!(differing, expected);
}

/// What headers and index files are made of.
#[rustfmt::skip]
const PIECES: &[&str] = &[
    "{", "}", "[", "]", ":", ",", " ", "\"a\"", "\"b\"", "\"dtype\"", "\"F32\"", "\"shape\"",
    "\"data_offsets\"", "\"__metadata__\"", "\"weight_map\"", "\"metadata\"", "0", "4", "8",
    "18446744073709551615", "-1", "1e9", "null", "\"\\ud800\"", "\\",
];

const FILE_NAME: &str =
    r"[a-b%2eE5cF/\\.: -]{0,12}(-0{0,30}[0-9]{1,30}-of-[0-9]{1,30}\.safetensors)?";

fn edits() -> impl Strategy<Value = Vec<(Index, u8)>> {
    prop::collection::vec((any::<Index>(), any::<u8>()), 1..4)
}

proptest! {
    #[test]
    fn valid_headers_are_read_as_the_reference_reads_them(
        tensors in tensors(), padding in 0usize..9, reverse: bool,
    ) {
        let (text, data) = valid(&tensors, padding, reverse);
        let bytes = file(text, data);
        let seen = theirs(&bytes);
        prop_assert!(seen.is_some());
        prop_assert_eq!(ours(&bytes), seen);
        let parsed = read(&bytes, &Limits::default()).unwrap();
        let index = parsed.into_index("f", bytes.len() as u64).unwrap();
        prop_assert!(index.validate().is_ok());
        prop_assert_eq!(index.bytes(), data as u64);
    }

    // Damage to a valid header reaches deeper than noise. What both accept, both read alike; what
    // we alone accept can only be a data type that the reference does not know.
    #[test]
    fn damaged_headers_are_never_accepted_alone(tensors in tensors(), edits in edits()) {
        let (text, data) = valid(&tensors, 0, false);
        let mut bytes = file(text, data);
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        match (ours(&bytes), theirs(&bytes)) {
            (Some(ours), Some(theirs)) => prop_assert_eq!(ours, theirs),
            (Some(ours), None) => {
                let known = |dtype: &str| DTYPES.iter().any(|(name, _)| *name == dtype);
                prop_assert!(ours.values().any(|(dtype, ..)| !known(dtype)));
            }
            (None, _) => {}
        }
    }

    #[test]
    fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), length: u64) {
        let limits = Limits::default();
        let _ = read(&bytes, &limits);
        let _ = parse(&bytes, 0);
        let _ = parse_index(&bytes, &limits);
        let _ = header_span(&bytes, length, &limits);
        let _ = parse_header(&bytes, length, u64::MAX, &limits);
    }

    #[test]
    fn pieces_in_any_order_never_panic(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40), length: u64,
    ) {
        let text = pieces.concat();
        let _ = parse(&text, 4);
        let _ = parse_index(text.as_bytes(), &Limits::default());
        let _ = parse_header(text.as_bytes(), 8, length, &Limits::default());
    }

    // What passes has no component that a system or a URL client could take for a way up.
    #[test]
    fn accepted_file_names_stay_inside(
        names in prop::collection::vec(FILE_NAME, 0..6), ignore: bool,
    ) {
        let _ = choose(&names, ignore, None);
        for name in names.iter().filter(|name| check_name(name).is_ok()) {
            let decoded = name.to_lowercase().replace("%2e", ".").replace("%2f", "/");
            let decoded = decoded.replace("%5c", "\\");
            prop_assert!(!decoded.starts_with('/'), "{}", name);
            prop_assert!(!decoded.split(['/', '\\']).any(|part| part == ".."), "{}", name);
        }
    }
}
