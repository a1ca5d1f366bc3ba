//! OpenVINO networks, right ones and those that broke loaders. The ids in comments name the case
//! that a test is for.

mod common;

use common::openvino::{Const, GOOD, body, layer, many, names, net, read};
use common::{Values, assert_error};
use weightlift_index::openvino::parse;
use weightlift_index::{ErrorKind, Format, Limits};

const LFS: &str = "the file may be a Git LFS pointer: fetch it with `git lfs pull`";

#[test]
fn a_constant_becomes_a_tensor() {
    let index = read(GOOD.net(), 100).unwrap();
    assert_eq!(index.format, Some(Format::OpenVino));
    assert_eq!((&*index.sources[0].name, index.sources[0].length), ("w.bin", 100));
    let w = index.require("w").unwrap();
    assert_eq!((w.dtype.name(), &w.shape[..], w.length), ("F32", &[4][..], 16));
    let storage = index.storages[w.storage.0 as usize];
    assert_eq!((storage.offset, storage.length), (0, 16));
    let metadata: Vec<_> =
        index.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(metadata, ["net.name=n", "net.version=11", "rt_info.Runtime_version=2026.4.1"]);
}

// OV-01. The weights are cut short, empty, or the text that Git LFS leaves in their place.
#[test]
fn a_constant_outside_the_weights_is_refused_with_its_range_and_the_length() {
    let large = Const { shape: "4096", size: "16384", ..GOOD };
    for (length, hint) in [(16_383, false), (200, false), (199, true), (134, true), (0, true)] {
        let result = read(large.net(), length);
        let error = result.as_ref().unwrap_err();
        assert_eq!(error.get_hint() == Some(LFS), hint, "{length}");
        let actual = length.to_string();
        let values = [
            ("tensor", "w"),
            ("file", "w.bin"),
            ("offset", "0"),
            ("expected", "16384"),
            ("actual", &*actual),
        ];
        assert_error(result, ErrorKind::OutOfRange, &values);
    }
    assert!(read(large.net(), 16_384).is_ok());
    assert!(read(large.net(), 1 << 40).is_ok(), "the weights may go on");
}

// OV-01. The weights are not there at all.
#[test]
fn weights_that_are_missing_are_named_as_what_is_missing() {
    let load = |xml: &str| {
        let network = parse(&mut xml.as_bytes(), &Limits::default()).unwrap();
        (network.needs_weights(), network.into_index(None))
    };
    let (needed, result) = load(&GOOD.net());
    assert!(needed);
    assert_error(result, ErrorKind::MissingWeights, &[("tensor", "w"), ("count", "1")]);
    // OpenVINO wants them for a constant without bytes too.
    let (needed, result) = load(&Const { shape: "0", size: "0", ..GOOD }.net());
    assert!(needed);
    assert_error(result, ErrorKind::MissingWeights, &[]);
    let (needed, result) = load(&net(&layer("x", "Parameter", "")));
    assert!(!needed);
    let index = result.unwrap();
    assert_eq!((index.format, index.sources.len()), (Some(Format::OpenVino), 0));
}

// OV-02. A sum that wrapped passed the check of the bounds.
#[test]
fn offsets_and_sizes_are_plain_numbers_whose_sum_fits() {
    for offset in ["18446744073709551600", "18446744073709551615", "9223372036854775808"] {
        let size = if offset.starts_with('9') { "9223372036854775808" } else { "16" };
        let net = Const { offset, size, ..GOOD }.net();
        assert_error(
            read(net, 16),
            ErrorKind::InvalidHeader,
            &[("tensor", "w"), ("actual", offset), ("bytes", size)],
        );
    }
    let wrong = ["-4", "-0", "+0", " 0", "0 ", "", "abc", "0x0", "0.0", "1e0", "0,0", "٣"];
    for text in wrong.into_iter().chain(["18446744073709551616", "99999999999999999999999999"]) {
        let values = |key| [("tensor", "w"), ("key", key), ("actual", text)];
        let offset = Const { offset: text, ..GOOD }.net();
        assert_error(read(offset, 16), ErrorKind::InvalidHeader, &values("offset"));
        let size = Const { size: text, ..GOOD }.net();
        assert_error(read(size, 16), ErrorKind::InvalidHeader, &values("size"));
    }
    let far = ["1", "16", "17", "99999", "9223372036854775807", "18446744073709551599"];
    for offset in far {
        let values = [("tensor", "w"), ("offset", offset), ("actual", "16")];
        assert_error(read(Const { offset, ..GOOD }.net(), 16), ErrorKind::OutOfRange, &values);
    }
    assert!(read(Const { offset: "00", ..GOOD }.net(), 16).is_ok());
}

#[test]
fn the_size_may_be_larger_than_the_shape_needs_but_has_to_be_there() {
    let larger = Const { size: "20", ..GOOD };
    let index = read(larger.net(), 20).unwrap();
    assert_eq!((index.tensors[0].length, index.storages[0].length), (16, 16));
    let values = [("tensor", "w"), ("expected", "20"), ("actual", "19")];
    assert_error(read(larger.net(), 19), ErrorKind::OutOfRange, &values);
    let values = [("tensor", "w"), ("dtype", "F32"), ("expected", "16"), ("actual", "15")];
    assert_error(read(Const { size: "15", ..GOOD }.net(), 100), ErrorKind::SizeMismatch, &values);
    // 27 bits fit four bytes, but nine elements of three bits are two groups of three bytes.
    for (element_type, size, expected) in [("u3", "4", "6"), ("u6", "7", "9"), ("u4", "4", "5")] {
        let short = Const { element_type, shape: "9", size, ..GOOD };
        let values = [("expected", expected), ("actual", size)];
        assert_error(read(short.net(), 100), ErrorKind::SizeMismatch, &values);
        let right = Const { size: expected, ..short };
        assert_eq!(read(right.net(), 100).unwrap().tensors[0].length.to_string(), expected);
    }
}

// The writer gives an empty tensor a byte, or none.
#[test]
fn an_empty_tensor_has_no_bytes_whatever_its_size() {
    for size in ["0", "1", "16"] {
        let empty = Const { shape: "0, 4", size, ..GOOD };
        let index = read(empty.net(), 16).unwrap();
        assert_eq!((index.tensors[0].length, &index.tensors[0].shape[..]), (0, &[0, 4][..]));
    }
    assert!(read(Const { shape: "0", size: "0", offset: "16", ..GOOD }.net(), 16).is_ok());
    for (offset, size) in [("17", "0"), ("16", "1")] {
        let outside = Const { shape: "0", size, offset, ..GOOD };
        assert_error(read(outside.net(), 16), ErrorKind::OutOfRange, &[("offset", offset)]);
    }
}

#[test]
fn shapes_are_lists_of_whole_numbers() {
    let shape_of = |shape| read(Const { shape, size: "64", ..GOOD }.net(), 64);
    let table: [(&str, &[u64]); 6] = [
        ("", &[]),
        ("4", &[4]),
        ("2, 2", &[2, 2]),
        ("2,\t2 ,1", &[2, 2, 1]),
        ("01,0", &[1, 0]),
        ("9223372036854775807,0", &[9_223_372_036_854_775_807, 0]),
    ];
    for (text, shape) in table {
        assert_eq!(shape_of(text).unwrap().tensors[0].shape, shape, "{text:?}");
    }
    let wrong =
        [" ", ",", "4,", ",4", "4,,1", "-1", "4.0", "0x4", "2 2", "?", "[4]", "1..4", "abc"];
    for text in wrong.into_iter().chain(["18446744073709551616"]) {
        let values = [("tensor", "w"), ("shape", text)];
        assert_error(shape_of(text), ErrorKind::InvalidHeader, &values);
    }
    // OpenVINO multiplies these without looking, and takes the file.
    let large = ["4294967296, 4294967296", "4611686018427387904", "9223372036854775808, 0"];
    for text in large.into_iter().chain(["0, 9223372036854775808", "9223372036854775807, 4, 0"]) {
        assert_error(shape_of(text), ErrorKind::Overflow, &[("tensor", "w")]);
    }
    let [most, more] = [64, 65].map(|count| vec!["1"; count].join(","));
    assert!(shape_of(&most).is_ok());
    let values = [("limit", "64"), ("actual", "65"), ("option", "rank"), ("tensor", "w")];
    assert_error(shape_of(&more), ErrorKind::LimitExceeded, &values);
}

#[test]
fn types_without_a_size_keep_all_bytes_they_are_given() {
    let table = [("string", "STRING"), ("dynamic", "dynamic"), ("f2", "f2"), ("C64", "C64")];
    for (element_type, name) in table {
        let index = read(Const { element_type, size: "13", ..GOOD }.net(), 13).unwrap();
        let tensor = &index.tensors[0];
        assert_eq!((tensor.dtype.name(), tensor.length, &tensor.shape[..]), (name, 13, &[4][..]));
        assert!(tensor.dtype.is_opaque());
    }
}

// Offsets have no alignment and no order, and what has the same bytes is written once, whatever
// its type.
#[test]
fn constants_that_share_bytes_share_a_storage() {
    let at = |name, element_type, offset, size| Const { name, element_type, offset, size, ..GOOD };
    let layers = [
        at("last", "f32", "61", "16"),
        at("a", "f32", "3", "16"),
        at("b", "i32", "3", "16"),
        at("c", "i64", "11", "32"),
        at("d", "u8", "1", "2").layer_of_2(),
    ];
    let index = read(net(&layers.map(|layer| layer.layer()).concat()), 77).unwrap();
    let storages: Vec<_> = index.storages.iter().map(|s| (s.offset, s.length)).collect();
    assert_eq!(storages, [(1, 2), (3, 40), (61, 16)]);
    let tensors: Vec<_> =
        index.tensors.iter().map(|t| (&*t.name, t.storage.0, t.offset, t.length)).collect();
    assert_eq!(
        tensors,
        [("last", 2, 0, 16), ("a", 1, 0, 16), ("b", 1, 0, 16), ("c", 1, 8, 32), ("d", 0, 0, 2),]
    );
}

impl Const<'_> {
    fn layer_of_2(self) -> Self {
        Self { shape: "2", ..self }
    }
}

#[test]
fn constants_in_bodies_are_found_at_any_depth() {
    let c = |name| Const { name, ..GOOD }.layer();
    let inner = layer("inner", "If", &(body("then_body", &c("t")) + &body("else_body", &c("e"))));
    let outer = layer("outer", "Loop", &body("body", &(c("l") + &inner)));
    let iterator = layer("ti", "TensorIterator", &body("body", &c("i")));
    assert_eq!(names(&net(&(outer + &iterator + &c("m")))), ["l", "t", "e", "i", "m"]);
}

// OpenVINO asks for names that are unique neither within a network nor between it and its bodies.
#[test]
fn a_name_that_is_taken_gets_the_outer_layers_and_then_a_number() {
    let c = |name| Const { name, ..GOOD }.layer();
    let both = body("then_body", &c("w")) + &body("else_body", &c("w"));
    let text = net(&[
        layer("if", "If", &both),
        layer("loop", "Loop", &body("body", &(c("w") + &c("only") + &layer("in", "If", &both)))),
        c("w"),
        c("w#2"),
        c("w"),
        c("w"),
        c("loop/w"),
        c(""),
        c(""),
    ]
    .concat());
    assert_eq!(
        names(&text),
        [
            "if/w", "if/w#2", "loop/w#2", "only", "in/w", "in/w#2", "w", "w#2", "w#3", "w#4",
            "loop/w", "", "#2",
        ]
    );
}

// A long name of an outer layer, needed for each of many constants, would take memory that the
// file does not have. Equal names would take quadratic time to number.
#[test]
fn equal_names_cost_no_more_than_their_text() {
    let long = "é".repeat(100_000);
    let inside = Const { name: "w", ..GOOD }.layer().repeat(20_000);
    let text = net(&(layer(&long, "Loop", &body("body", &inside)) + &inside));
    let names = names(&text);
    assert_eq!(names.len(), 40_000);
    let prefix = "é".repeat(127);
    assert_eq!(names[0], format!("{prefix}/w"));
    assert_eq!(names[19_999], format!("{prefix}/w#20000"));
    assert_eq!(names[39_999], "w#20000");
}

// What looks like a constant and stands where OpenVINO does not look for one.
#[test]
fn only_layers_in_their_place_count() {
    let w = GOOD.layer();
    let elsewhere = [
        body("rt_info", &w),
        body("other_body", &w),
        format!("<data><layers>{w}</layers></data>"),
        w.clone(),
    ];
    for inside in elsewhere {
        assert_eq!(names(&net(&layer("x", "Loop", &inside))), [""; 0], "{inside}");
    }
    let text = net(&w)
        .replace("<edges>", &format!("<edges>{w}<layers>{w}</layers>"))
        .replace("<rt_info>", &format!("<!-- {w} --><![CDATA[{w}]]><?pi {w} ?><rt_info>{w}"));
    assert_eq!(names(&text), ["w"]);
    for kind in ["const", "Constant", "CONST", "Parameter", ""] {
        assert_eq!(names(&net(&layer("x", kind, &GOOD.data()))), [""; 0], "{kind}");
    }
}

#[test]
fn what_a_layer_or_its_data_lacks_is_named() {
    for key in ["element_type", "shape", "offset", "size"] {
        let text = GOOD.net().replace(&format!(" {key}="), " unknown=");
        assert_error(read(text, 16), ErrorKind::InvalidHeader, &[("key", key), ("tensor", "w")]);
    }
    for key in ["id", "name", "type", "version"] {
        let layer = GOOD.layer().replacen(&format!("{key}="), "unknown=", 1);
        assert_error(read(net(&layer), 16), ErrorKind::InvalidHeader, &[("key", key)]);
    }
    let none = net(&layer("w", "Const", ""));
    assert_error(read(none, 16), ErrorKind::InvalidHeader, &[("tensor", "w")]);
    let two = net(&layer("w", "Const", &GOOD.data().repeat(2)));
    assert_error(read(two, 16), ErrorKind::InvalidHeader, &[("tensor", "w")]);
    let text = GOOD.net().replace("shape=", "value=\"abcd\" shape=");
    assert_error(read(text, 16), ErrorKind::Unsupported, &[("tensor", "w")]);
}

#[test]
fn limits_bound_what_a_file_may_ask_for() {
    let check = |text: &str, limits: &Limits, values: Values<'_>| {
        let result = parse(&mut text.as_bytes(), limits);
        assert_error(result, ErrorKind::LimitExceeded, values);
    };
    let limits = Limits::default();
    let deep = GOOD.net().replace("<edges>", &("<a>".repeat(5000) + "<edges>"));
    check(&deep, &limits, &[("limit", "64"), ("option", "depth")]);
    let nested = (0..30).fold(GOOD.layer(), |inner, _| layer("l", "Loop", &body("body", &inner)));
    check(&net(&nested), &limits, &[("limit", "64"), ("option", "depth")]);
    let nested = (0..19).fold(GOOD.layer(), |inner, _| layer("l", "Loop", &body("body", &inner)));
    assert_eq!(names(&net(&nested)), ["w"]);

    check(&many(11), &limits.with_tensors(10), &[("limit", "10"), ("option", "tensors")]);
    assert!(parse(&mut many(10).as_bytes(), &limits.with_tensors(10)).is_ok());

    let few = limits.with_text_bytes(1000);
    let text_bytes = [("limit", "1000"), ("option", "text_bytes")];
    let long = "x".repeat(1001);
    check(&Const { name: &long, ..GOOD }.net(), &few, &text_bytes);
    for filler in [format!("<!--{long}-->"), long.clone(), format!("<a b='{long}'/>")] {
        check(&GOOD.net().replace("<edges>", &format!("<edges>{filler}")), &few, &text_bytes);
    }
    // The metadata together, by number and by the length of their keys.
    let entries = (0..20).map(|i| format!("<k{i} value='v'/>")).collect::<String>();
    check(&GOOD.net().replace("<rt_info>", &format!("<rt_info>{entries}")), &few, &text_bytes);
    let name = "k".repeat(300);
    let keys = format!("<a name='{name}'>").repeat(4) + &"</a>".repeat(4);
    check(&GOOD.net().replace("<rt_info>", &format!("<rt_info>{keys}")), &few, &text_bytes);
}

#[test]
fn metadata_are_kept_under_dotted_keys() {
    let info = "<rt_info><a value='1'/><b><c value='x&amp;y'/><info name='d e' value=''/>\
                <deep><er value='2'/></deep></b><f/><a value='last'/><g value='1'><h value='2'/></g>\
                <layers><layer value='3'/></layers>";
    let index = read(GOOD.net().replace("<rt_info>", info), 16).unwrap();
    let kept: Vec<_> = index
        .metadata
        .iter()
        .filter_map(|(key, value)| Some(format!("{}={value}", key.strip_prefix("rt_info.")?)))
        .collect();
    assert_eq!(
        kept,
        [
            "Runtime_version=2026.4.1",
            "a=last",
            "b.c=x&y",
            "b.d e=",
            "b.deep.er=2",
            "g=1",
            "g.h=2",
            "layers.layer=3",
        ]
    );
}
