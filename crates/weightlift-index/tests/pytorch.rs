//! PyTorch checkpoints: tensors, their names and the pickle, right and wrong.

mod common;
#[path = "common/pytorch.rs"]
mod writer;

use common::{Values, assert_error};
use weightlift_index::{Encoding, Error, ErrorKind, Format, Index, Limits, pytorch};
use writer::{FLOATS, Pickle, Record, Tensor, Zip};

fn parse(file: &[u8]) -> Result<Index, Error> {
    parse_within(file, &Limits::default())
}

fn parse_within(mut file: &[u8], limits: &Limits) -> Result<Index, Error> {
    let index = pytorch::parse(&mut file, "model.pt", limits)?;
    index.validate()?;
    Ok(index)
}

/// A checkpoint with 24 bytes in storage 0 and 16 in storage 1.
fn with(pickle: &Pickle) -> Result<Index, Error> {
    parse(&Zip::checkpoint(pickle, &[("0", &[7; 24]), ("1", &[8; 16])]).bytes())
}

fn one(tensor: Tensor<'_>) -> Result<Index, Error> {
    with(&Pickle::state_dict(&[("w", tensor)]))
}

fn names(index: &Index) -> Vec<&str> {
    index.tensors.iter().map(|tensor| &*tensor.name).collect()
}

// Storages.

#[test]
fn tensors_over_the_same_storage_share_it() {
    let second = Tensor { key: "1", count: 4, shape: &[4], strides: &[1], ..FLOATS };
    type Case<'a> = (&'a str, Tensor<'a>, u32, u64, u64, Option<Vec<i64>>);
    let table: [Case<'_>; 8] = [
        ("whole", FLOATS, 0, 0, 24, None),
        ("tied", FLOATS, 0, 0, 24, None),
        ("row", Tensor { offset: 3, shape: &[3], strides: &[1], ..FLOATS }, 0, 12, 12, None),
        (
            "transposed",
            Tensor { shape: &[3, 2], strides: &[1, 3], ..FLOATS },
            0,
            0,
            24,
            Some(vec![1, 3]),
        ),
        (
            "column",
            Tensor { offset: 1, shape: &[2], strides: &[3], ..FLOATS },
            0,
            4,
            16,
            Some(vec![3]),
        ),
        (
            "expanded",
            Tensor { offset: 5, shape: &[4, 4], strides: &[0, 0], ..FLOATS },
            0,
            20,
            4,
            Some(vec![0, 0]),
        ),
        ("scalar", Tensor { offset: 2, shape: &[], strides: &[], ..FLOATS }, 0, 8, 4, None),
        ("other", second, 1, 0, 16, None),
    ];
    let tensors: Vec<_> = table.iter().map(|(name, tensor, ..)| (*name, *tensor)).collect();
    let pickle = Pickle::state_dict(&tensors);
    let file = Zip::checkpoint(&pickle, &[("1", &[8; 16]), ("0", &[7; 24])]).bytes();
    let index = parse(&file).unwrap();
    assert_eq!(index.format, Some(Format::PyTorch));
    assert_eq!((&*index.sources[0].name, index.sources[0].length), ("model.pt", file.len() as u64));
    assert_eq!(index.tensors.len(), table.len());
    for ((name, tensor, storage, offset, length, strides), found) in
        table.iter().zip(&index.tensors)
    {
        assert_eq!(&*found.name, *name);
        assert_eq!((found.storage.0, found.offset, found.length), (*storage, *offset, *length));
        assert_eq!(found.dtype.name(), "F32");
        assert_eq!(found.strides, *strides, "{name}");
        let shape: Vec<i64> = found.shape.iter().map(|dim| *dim as i64).collect();
        assert_eq!(shape, tensor.shape);
    }
    // Each once, whole, and where the archive has it.
    assert_eq!(index.storages.len(), 2);
    for (storage, byte) in index.storages.iter().zip([7, 8]) {
        let range = storage.offset as usize..(storage.offset + storage.length) as usize;
        assert!(file[range].iter().all(|found| *found == byte));
        assert_eq!(storage.offset % 64, 0);
    }
    assert_eq!(index.bytes(), 40);
}

#[test]
fn a_storage_that_is_larger_than_its_tensors_is_whole() {
    let index = one(Tensor { offset: 5, shape: &[1], strides: &[1], ..FLOATS }).unwrap();
    assert_eq!((index.storages[0].length, index.tensors[0].offset), (24, 20));
    // A record may be longer than its storage; the rest belongs to nobody.
    let index = one(Tensor { count: 3, shape: &[3], strides: &[1], ..FLOATS }).unwrap();
    assert_eq!(index.storages[0].length, 12);
}

#[test]
fn empty_tensors_may_begin_anywhere() {
    for (offset, shape, strides) in
        [(0, [0, 3], [3, 1]), (8, [2, 0], [3, 1]), (i64::MAX, [0, 0], [1, 1])]
    {
        let index = one(Tensor { offset, shape: &shape, strides: &strides, ..FLOATS }).unwrap();
        assert_eq!((index.tensors[0].length, &index.tensors[0].strides), (0, &None));
    }
    let none = Tensor { count: 0, key: "2", shape: &[0], strides: &[1], ..FLOATS };
    let pickle = Pickle::state_dict(&[("none", none)]);
    let index = parse(&Zip::checkpoint(&pickle, &[("2", &[])]).bytes()).unwrap();
    assert_eq!(index.storages[0].length, 0);
}

#[test]
fn every_type_has_its_name_and_size() {
    #[rustfmt::skip]
    let table = [
        ("FloatStorage", None, "F32", 4), ("DoubleStorage", None, "F64", 8),
        ("HalfStorage", None, "F16", 2), ("BFloat16Storage", None, "BF16", 2),
        ("ByteStorage", None, "U8", 1), ("CharStorage", None, "I8", 1),
        ("ShortStorage", None, "I16", 2), ("IntStorage", None, "I32", 4),
        ("LongStorage", None, "I64", 8), ("BoolStorage", None, "BOOL", 1),
        ("ComplexFloatStorage", None, "C64", 8), ("ComplexDoubleStorage", None, "C128", 16),
        ("UntypedStorage", None, "U8", 1),
        ("UntypedStorage", Some("uint16"), "U16", 2), ("UntypedStorage", Some("uint32"), "U32", 4),
        ("UntypedStorage", Some("uint64"), "U64", 8), ("UntypedStorage", Some("float32"), "F32", 4),
        ("UntypedStorage", Some("float8_e4m3fn"), "F8_E4M3", 1),
        ("UntypedStorage", Some("float8_e5m2"), "F8_E5M2", 1),
        ("UntypedStorage", Some("float8_e4m3fnuz"), "F8_E4M3FNUZ", 1),
        ("UntypedStorage", Some("float8_e5m2fnuz"), "F8_E5M2FNUZ", 1),
        ("UntypedStorage", Some("float8_e8m0fnu"), "F8_E8M0", 1),
        ("UntypedStorage", Some("complex32"), "C32", 4),
        ("UntypedStorage", Some("bits8"), "bits8", 1),
    ];
    for (class, dtype, name, size) in table {
        let count = if class == "UntypedStorage" { size } else { 1 };
        let index =
            one(Tensor { class, dtype, count, shape: &[1], strides: &[1], ..FLOATS }).unwrap();
        let tensor = &index.tensors[0];
        assert_eq!((tensor.dtype.name(), tensor.length), (name, size as u64), "{dtype:?}");
    }
}

#[test]
fn two_numbers_in_a_byte_are_two_elements() {
    let packed = Tensor {
        class: "UntypedStorage",
        dtype: Some("float4_e2m1fn_x2"),
        count: 8,
        shape: &[2, 4],
        strides: &[4, 1],
        ..FLOATS
    };
    let index = one(packed).unwrap();
    let tensor = &index.tensors[0];
    assert_eq!((tensor.dtype.name(), &*tensor.shape, tensor.length), ("F4", &[2, 8][..], 8));
    for refused in [
        Tensor { shape: &[4, 2], strides: &[1, 4], ..packed },
        Tensor { shape: &[], strides: &[], ..packed },
    ] {
        assert_error(one(refused), ErrorKind::Unsupported, &[("tensor", "w")]);
    }
}

#[test]
fn tensors_outside_their_storage_are_refused() {
    type Case<'a> = (Tensor<'a>, ErrorKind, Values<'a>);
    let at = |offset| Tensor { offset, shape: &[1], strides: &[1], ..FLOATS };
    let shaped = |shape, strides| Tensor { shape, strides, ..FLOATS };
    let table: [Case<'_>; 15] = [
        (at(6), ErrorKind::OutOfRange, &[("expected", "28"), ("actual", "24")]),
        (at(i64::MAX), ErrorKind::Overflow, &[]),
        (at(-1), ErrorKind::InvalidHeader, &[("actual", "-1")]),
        (shaped(&[7], &[1]), ErrorKind::OutOfRange, &[]),
        (shaped(&[2, 3], &[4, 1]), ErrorKind::OutOfRange, &[("expected", "28")]),
        (shaped(&[2], &[i64::MAX]), ErrorKind::Overflow, &[]),
        (shaped(&[i64::MAX, i64::MAX, 3], &[0, 0, 0]), ErrorKind::Overflow, &[]),
        (shaped(&[i64::MAX, i64::MAX, 0], &[0, 0, 0]), ErrorKind::Overflow, &[]),
        (shaped(&[2], &[-1]), ErrorKind::InvalidHeader, &[]),
        (shaped(&[-2], &[1]), ErrorKind::InvalidHeader, &[]),
        (shaped(&[2], &[1, 1]), ErrorKind::InvalidHeader, &[]),
        (shaped(&[1; 65], &[1; 65]), ErrorKind::LimitExceeded, &[("option", "rank")]),
        (
            Tensor { count: 7, ..FLOATS },
            ErrorKind::SizeMismatch,
            &[("storage", "0"), ("expected", "28"), ("actual", "24")],
        ),
        (Tensor { count: i64::MAX, ..FLOATS }, ErrorKind::Overflow, &[]),
        // Storages on the device `meta` have no record.
        (Tensor { key: "9", ..FLOATS }, ErrorKind::InvalidHeader, &[("storage", "9")]),
    ];
    for (tensor, kind, values) in table {
        assert_error(one(tensor), kind, &[&[("tensor", "w")], values].concat());
    }
    assert_error(one(Tensor { count: -1, ..FLOATS }), ErrorKind::InvalidHeader, &[("key", "w")]);
}

#[test]
fn a_storage_is_declared_once() {
    let other = Tensor { class: "IntStorage", ..FLOATS };
    let shorter = Tensor { count: 5, shape: &[5], strides: &[1], ..FLOATS };
    for second in [other, shorter] {
        let pickle = Pickle::state_dict(&[("a", FLOATS), ("b", second)]);
        assert_error(with(&pickle), ErrorKind::InvalidHeader, &[("storage", "0"), ("tensor", "b")]);
    }
}

// Byte order.

fn big_endian(tensors: &[(&str, Tensor<'_>)]) -> Result<Index, Error> {
    let mut zip = Zip::checkpoint(&Pickle::state_dict(tensors), &[("0", &[7; 24]), ("1", &[8; 7])]);
    zip.record("model/byteorder").data = b"big".to_vec();
    parse(&zip.bytes())
}

#[test]
fn storages_of_the_other_byte_order_are_swapped_by_their_type() {
    let bytes =
        Tensor { key: "1", class: "ByteStorage", count: 7, shape: &[7], strides: &[1], ..FLOATS };
    let complex =
        Tensor { class: "ComplexFloatStorage", count: 3, shape: &[3], strides: &[1], ..FLOATS };
    let odd = Tensor { class: "UntypedStorage", dtype: Some("uint16"), shape: &[3], ..bytes };
    for (tensor, encoding, length) in [
        (FLOATS, Encoding::Swapped(4), 24),
        (complex, Encoding::Swapped(4), 24),
        (bytes, Encoding::Raw, 7),
        (odd, Encoding::Swapped(2), 6),
    ] {
        let index = big_endian(&[("w", tensor)]).unwrap();
        assert_eq!((index.storages[0].encoding, index.storages[0].length), (encoding, length));
    }
    let untyped =
        Tensor { class: "UntypedStorage", count: 24, shape: &[3], strides: &[1], ..FLOATS };
    let words = Tensor { dtype: Some("uint16"), ..untyped };
    let bytes = Tensor { dtype: Some("uint8"), ..untyped };
    let none = Tensor { dtype: Some("uint64"), shape: &[0], ..untyped };
    assert!(big_endian(&[("a", words), ("b", words), ("c", none)]).is_ok());
    for pair in [[words, bytes], [bytes, words]] {
        let result = big_endian(&[("a", pair[0]), ("b", pair[1])]);
        assert_error(result, ErrorKind::Unsupported, &[("tensor", "b"), ("storage", "0")]);
    }
}

#[test]
fn the_byte_order_is_little_where_nothing_is_said() {
    let zip = Zip::checkpoint(&Pickle::state_dict(&[("w", FLOATS)]), &[("0", &[7; 24])]);
    let index = parse(&zip.clone().without("model/byteorder").bytes()).unwrap();
    assert_eq!(index.storages[0].encoding, Encoding::Raw);
    for word in ["middle", "", "big\n", &"x".repeat(1000)] {
        let mut zip = zip.clone();
        zip.record("model/byteorder").data = word.into();
        assert_error(parse(&zip.bytes()), ErrorKind::InvalidHeader, &[("record", "byteorder")]);
    }
}

// Names.

#[test]
fn names_are_the_way_through_the_containers() {
    let pickle = Pickle::new(4).op(b"}(").text("model").op(b"}(").text("w").tensor(&FLOATS);
    let pickle = pickle.text("").tensor(&FLOATS).op(b"u").text("epoch").int(3);
    let pickle = pickle.text("opt").op(b"}").text("state").op(b"}").int(0).op(b"}");
    let pickle = pickle.text("step").tensor(&FLOATS).op(b"sss");
    let pickle = pickle.text("list").op(b"](N").tensor(&FLOATS).op(b"N)").tensor(&FLOATS);
    let pickle = pickle.tensor(&FLOATS).op(b"\x86e").text("none").op(b"Nu");
    let index = with(&pickle).unwrap();
    assert_eq!(
        names(&index),
        ["model.w", "model.", "opt.state.0.step", "list.1", "list.4.0", "list.4.1"]
    );
    assert_eq!(index.storages.len(), 1);
    assert_eq!(names(&with(&Pickle::new(2).tensor(&FLOATS)).unwrap()), ["tensor"]);
    let pair = Pickle::new(2).tensor(&FLOATS).tensor(&FLOATS).op(b"\x86");
    assert_eq!(names(&with(&pair).unwrap()), ["0", "1"]);
    for nothing in [&b"}"[..], b"N", b"K\x05", b")", b"\x8f"] {
        assert!(with(&Pickle::new(4).op(nothing)).unwrap().tensors.is_empty());
    }
}

#[test]
fn names_that_meet_are_refused() {
    let twice = Pickle::state_dict(&[("a", FLOATS), ("a", FLOATS)]);
    assert_error(with(&twice), ErrorKind::DuplicateTensor, &[("tensor", "a")]);
    let joined = Pickle::new(2).op(b"}(").text("a.b").tensor(&FLOATS).text("a").op(b"}").text("b");
    let joined = joined.tensor(&FLOATS).op(b"su");
    assert_error(with(&joined), ErrorKind::DuplicateTensor, &[("tensor", "a.b")]);
    let number = Pickle::new(2).op(b"}(").int(1).tensor(&FLOATS).text("1").tensor(&FLOATS).op(b"u");
    assert_error(with(&number), ErrorKind::DuplicateTensor, &[("tensor", "1")]);
    let tuple = Pickle::new(2).op(b"}(NN\x86").tensor(&FLOATS).op(b"u");
    assert_error(with(&tuple), ErrorKind::Unsupported, &[("tensor", "?")]);
}

#[test]
fn containers_that_hold_themselves_or_each_other_end() {
    let itself = Pickle::new(2).op(b"]q\0h\0a");
    assert_error(with(&itself), ErrorKind::InvalidHeader, &[]);
    let each_other = Pickle::new(2).op(b"}q\0").text("a").op(b"}q\x01").text("b").op(b"h\0sh\x01");
    let each_other = each_other.op(b"0s");
    assert_error(with(&each_other), ErrorKind::InvalidHeader, &[]);
    // Each level holds the one below it a thousand times.
    let laughs = |bottom: fn(Pickle) -> Pickle| {
        let mut pickle = bottom(Pickle::new(2)).op(b"q\0");
        for _ in 0..20 {
            let items = b"h\0".repeat(1000);
            pickle = pickle.op(b"0(").op(&items).op(b"tq\0");
        }
        with(&pickle)
    };
    assert!(laughs(|pickle| pickle.op(b")")).unwrap().tensors.is_empty());
    let full = laughs(|pickle| pickle.tensor(&FLOATS));
    assert_error(full, ErrorKind::LimitExceeded, &[]);
    // A long list with one tensor, shown often.
    let mut pickle = Pickle::new(2).op(b"](").op(&b"N".repeat(10_000)).tensor(&FLOATS).op(b"eq\0");
    pickle = pickle.op(b"0(").op(&b"h\0".repeat(10_000)).op(b"t");
    assert_error(with(&pickle), ErrorKind::LimitExceeded, &[("option", "tensors")]);
    // A long key over many tensors.
    let long = "k".repeat(1_000_000);
    let mut pickle = Pickle::new(2).op(b"}").text(&long).op(b"](").tensor(&FLOATS).op(b"q\0");
    pickle = pickle.op(&b"h\0".repeat(1000)).op(b"es");
    assert_error(with(&pickle), ErrorKind::LimitExceeded, &[]);
}

/// Containers, each of which holds the one before it many times.
fn nested(kind: &str, inner: Pickle, times: usize, depth: usize) -> Pickle {
    let mut pickle = inner.op(b"q\0");
    for _ in 0..depth {
        pickle = pickle.op(match kind {
            "dict" => b"0}(",
            "list" => b"0](",
            _ => b"0(",
        });
        for key in 0..times {
            pickle = if kind == "dict" { pickle.text(&format!("{key:x}")) } else { pickle };
            pickle = pickle.op(b"h\0");
        }
        pickle = pickle.op(match kind {
            "dict" => b"uq\0",
            "list" => b"eq\0",
            _ => b"tq\0",
        });
    }
    pickle
}

/// A list that names one tensor often.
fn often(tensor: &Tensor<'_>, times: usize) -> Pickle {
    let list = Pickle::new(2).op(b"](").tensor(tensor).op(b"q\0");
    list.op(&b"h\0".repeat(times - 1)).op(b"e")
}

// A dictionary of n tensors under n keys: 300 kB of pickle were 4 million tensors, and a gigabyte of
// memory. However things are shared, what is found grows as the file does.
#[test]
fn tensors_are_not_more_than_the_pickle_has_room_for() {
    let scalar = Tensor { shape: &[], strides: &[], ..FLOATS };
    for kind in ["dict", "list", "tuple"] {
        for (length, times, depth) in [(2000, 2000, 1), (1500, 2, 20), (1, 2, 20), (100, 40, 3)] {
            let pickle = nested(kind, often(&scalar, length), times, depth);
            let error = with(&pickle).unwrap_err();
            assert_error::<Index>(Err(error), ErrorKind::LimitExceeded, &[]);
        }
    }
    // Shapes count too: one of 64 dimensions is 512 bytes in memory, and named with two bytes.
    let many = Tensor { count: 1, shape: &[1; 64], strides: &[1; 64], ..FLOATS };
    assert_error(with(&often(&many, 10_000)), ErrorKind::LimitExceeded, &[]);
    assert_eq!(with(&often(&many, 100)).unwrap().tensors.len(), 100);
}

// What is honest: tied weights, a state dict under several keys, even a list of one tensor.
#[test]
fn sharing_as_programs_do_it_is_read() {
    let tied = Pickle::new(2).op(b"}(").text("a").tensor(&FLOATS).op(b"q\0");
    let tied = tied.text("b").op(b"h\0").text("c").op(b"h\0u");
    let index = with(&tied).unwrap();
    assert_eq!((names(&index), index.storages.len()), (vec!["a", "b", "c"], 1));

    assert_eq!(with(&often(&FLOATS, 100_000)).unwrap().tensors.len(), 100_000);

    let state: Vec<String> = (0..5000).map(|number| format!("layers.{number}.weight")).collect();
    let state: Vec<_> = state.iter().map(|name| (&**name, FLOATS)).collect();
    for kind in ["dict", "tuple"] {
        let ten = nested(kind, Pickle::state_dict(&state), 10, 1);
        let index = with(&ten).unwrap();
        assert_eq!((index.tensors.len(), index.storages.len()), (50_000, 1));
    }
    // Small ones may as they like.
    assert_eq!(with(&nested("dict", often(&FLOATS, 30), 30, 1)).unwrap().tensors.len(), 900);
}

#[test]
fn depth_and_numbers_are_limited() {
    let nested = |depth: usize| {
        let pickle = Pickle::new(2).op(&b"]".repeat(depth)).tensor(&FLOATS);
        with(&pickle.op(&b"a".repeat(depth)))
    };
    assert_eq!(nested(64).unwrap().tensors.len(), 1);
    assert_error(nested(65), ErrorKind::LimitExceeded, &[("option", "depth"), ("limit", "64")]);
    assert_error(nested(100_000), ErrorKind::LimitExceeded, &[("option", "depth")]);

    let pickle = Pickle::state_dict(&[("a", FLOATS), ("b", FLOATS)]);
    let file = Zip::checkpoint(&pickle, &[("0", &[7; 24])]).bytes();
    let limits = Limits::default();
    for (limits, kind, option) in [
        (limits.with_tensors(1), ErrorKind::LimitExceeded, "tensors"),
        (limits.with_rank(1), ErrorKind::LimitExceeded, "rank"),
        (limits.with_depth(0), ErrorKind::LimitExceeded, "depth"),
        (limits.with_list_values(5), ErrorKind::LimitExceeded, "list_values"),
        (limits.with_header_bytes(100), ErrorKind::HeaderTooLarge, "header_bytes"),
        (limits.with_header_bytes(250), ErrorKind::HeaderTooLarge, "header_bytes"),
    ] {
        assert_error(parse_within(&file, &limits), kind, &[("option", option)]);
    }
    assert!(parse_within(&file, &limits.with_tensors(2).with_rank(2).with_depth(1)).is_ok());
}

// The pickle.

#[test]
fn what_could_run_is_refused_by_name_and_nothing_else_is_looked_at() {
    let names = [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("__builtin__", "exec"),
        ("os", "system"),
        ("posix", "system"),
        ("nt", "system"),
        ("subprocess", "Popen"),
        ("runpy", "run_path"),
        ("torch", "load"),
        ("torch.hub", "load"),
        ("torch.storage", "_load_from_bytes"),
        ("torch.nn.modules.linear", "Linear"),
        ("__main__", "Net"),
        ("collections", "defaultdict"),
        ("collections", "OrderedDict.fromkeys"),
        ("pathlib", "PosixPath"),
        ("numpy.core.multiarray", "_reconstruct"),
    ];
    for protocol in [2, 4] {
        for (module, name) in names {
            let full = format!("{module}.{name}");
            let start = Pickle::new(protocol).op(b"}(").text("a").tensor(&FLOATS).text("b");
            let used = start.clone().global(module, name).text("x").op(b"\x85Ru");
            let unused = start.global(module, name).op(b"0Nu");
            for pickle in [used, unused] {
                let result = with(&pickle);
                let values = [("found", &*full), ("key", "b"), ("record", "data.pkl")];
                assert!(result.as_ref().unwrap_err().get_hint().is_some());
                assert_error(result, ErrorKind::UnsafePickle, &values);
            }
        }
    }
}

#[test]
fn the_key_is_the_whole_way_as_far_as_it_is_known() {
    let bad = |pickle: Pickle| with(&pickle.global("os", "system"));
    let start = Pickle::new(2).op(b"}");
    let table = [
        (start.clone(), None),
        (start.clone().text("a"), Some("a")),
        (start.clone().op(b"(").text("a").op(b"N").text("b"), Some("b")),
        (start.clone().text("a").op(b"}").text("b"), Some("a.b")),
        (start.clone().op(b"(").text("a").op(b"}(").text("b").op(b"N").text("c"), Some("a.c")),
        (
            start
                .clone()
                .op(b"(")
                .text("x")
                .op(b"}")
                .text("y")
                .op(b"Ns")
                .text("a")
                .op(b"}(")
                .text("b"),
            Some("a.b"),
        ),
        (
            start.clone().text("a").global("torch._utils", "_rebuild_parameter").op(b"((N"),
            Some("a"),
        ),
        (start.text("a").op(b"](NN}").text("b"), Some("a")),
    ];
    for (number, (pickle, key)) in table.into_iter().enumerate() {
        let error = bad(pickle).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnsafePickle);
        assert_eq!(error.get("key"), key, "{number}");
    }
}

#[test]
fn instances_states_and_registries_are_refused() {
    let ordered = |pickle: Pickle| pickle.global("collections", "OrderedDict");
    let new = || Pickle::new(2);
    let table = [
        ordered(new()).op(b")\x81"),
        ordered(new()).op(b")}\x92"),
        new().op(b"(icollections\nOrderedDict\n"),
        ordered(new().op(b"(")).op(b"o"),
        new().op(b"\x82\x01"),
        new().op(b"\x84\x01\0\0\0"),
        new().op(b"})R"),
        new().op(b"]}b"),
        new().op(b"}}b"),
        new().tensor(&FLOATS).op(b"}b"),
        new().text("os").op(b")R"),
        ordered(new()).op(b"]\x85R"),
        new().global("torch", "FloatStorage").op(b"K\x05\x85R"),
        new().global("torch", "float32").op(b")R"),
        new().global("torch", "Tensor").op(b")R"),
    ];
    for pickle in table {
        assert_error(with(&pickle), ErrorKind::UnsafePickle, &[]);
    }
}

#[test]
fn what_state_dicts_keep_beside_tensors_is_passed_over() {
    let new = || Pickle::new(2);
    let call = |module, name| new().global(module, name);
    let table = [
        // The versions of modules, as an attribute.
        call("collections", "OrderedDict").op(b")R}").text("_metadata").op(b"Nsb"),
        call("collections", "Counter").op(b"}\x85R"),
        call("torch", "Size").ints(&[1, 2]).op(b"\x85R"),
        call("torch", "device").text("cpu").op(b"\x85R"),
        call("torch", "float16"),
        call("torch", "uint4"),
        call("torch", "qint8"),
        call("torch.serialization", "_get_layout").text("torch.strided").op(b"\x85R"),
        call("__builtin__", "set").op(b"](K\x01K\x02e\x85R"),
        call("builtins", "complex").op(b"K\x01K\x02\x86R"),
        call("_codecs", "encode").text("x").text("latin1").op(b"\x86R"),
        // A NumPy scalar with its type.
        call("numpy.core.multiarray", "scalar")
            .global("numpy", "dtype")
            .text("f8")
            .op(b"\x89\x88\x87R(K\x03N)tb")
            .op(b"C\x0812345678\x86R"),
        new().op(b"\x8f(K\x01K\x02\x90"),
        new().op(b"(K\x01\x91"),
        new().op(b"G12345678"),
        new().op(b"\x8a\x0912345678\x01"),
        new().op(b"\x8b\x01\0\0\0\x05"),
        new().op(b"\x96\x02\0\0\0\0\0\0\0ab"),
        new().op(b"\x8d\x02\0\0\0\0\0\0\0ab"),
        new().op(b"\x8e\x02\0\0\0\0\0\0\0ab"),
        new().op(b"X\x03\0\0\0\xed\xa0\x80"),
        new().storage("FloatStorage", "0", 6),
        new().op(b"(NNlN0(NN1"),
        new().op(b"(NNd"),
    ];
    for value in table {
        let bytes = value.bytes();
        let pickle = new().op(b"}(").text("w").tensor(&FLOATS).text("v");
        let pickle = pickle.op(&bytes[2..bytes.len() - 1]).op(b"u");
        assert_eq!(names(&with(&pickle).unwrap()), ["w"], "{}", bytes.escape_ascii());
    }
}

#[test]
fn parameters_and_tensors_with_attributes_are_tensors() {
    let new = || Pickle::new(2);
    let hooks = |pickle: Pickle| pickle.op(b"\x88").global("collections", "OrderedDict").op(b")R");
    let parameter = new().global("torch._utils", "_rebuild_parameter").op(b"(").tensor(&FLOATS);
    let with_state =
        new().global("torch._utils", "_rebuild_parameter_with_state").op(b"(").tensor(&FLOATS);
    let made = new().global("torch.nn.parameter", "Parameter").tensor(&FLOATS).op(b"\x88\x86R");
    // The arguments of the inner function are those of the call inside `tensor`.
    let inner = new().tensor(&FLOATS).bytes();
    let inner = &inner[2 + "ctorch._utils\n_rebuild_tensor_v2\n".len()..inner.len() - 2];
    let from_type = |class| {
        new()
            .global("torch._tensor", "_rebuild_from_type_v2")
            .op(b"(")
            .global("torch._utils", "_rebuild_tensor_v2")
            .global("torch", class)
            .op(inner)
            .op(b"}tR")
    };
    for pickle in [
        hooks(parameter).op(b"tR"),
        hooks(with_state).op(b"}").text("tag").op(b"NstR"),
        made,
        from_type("Tensor"),
    ] {
        assert_eq!(names(&with(&pickle).unwrap()), ["tensor"]);
    }
    assert_error(with(&from_type("float32")), ErrorKind::InvalidHeader, &[]);
}

#[test]
fn tensors_that_are_known_and_not_read_are_named() {
    for (function, what) in [
        ("_rebuild_qtensor", "quantized"),
        ("_rebuild_sparse_tensor", "sparse"),
        ("_rebuild_nested_tensor", "nested"),
        ("_rebuild_meta_tensor_no_storage", "meta"),
        ("_rebuild_wrapper_subclass", "class"),
        ("_rebuild_device_tensor_from_numpy", "NumPy"),
    ] {
        let pickle = Pickle::new(2).op(b"}").text("w").global("torch._utils", function);
        let error = with(&pickle.op(b")Rs")).unwrap_err();
        assert_eq!((error.kind(), error.get("key")), (ErrorKind::Unsupported, Some("w")));
        assert!(error.message().contains(what), "{error}");
    }
    let quantized = Tensor { class: "QInt8Storage", ..FLOATS };
    assert_error(one(quantized), ErrorKind::Unsupported, &[("key", "w")]);
}

#[test]
fn conjugated_and_negated_views_are_refused() {
    let view = |metadata: Pickle| {
        let tensor = Pickle::new(2).tensor(&FLOATS).bytes();
        let metadata = metadata.bytes();
        let pickle = Pickle::new(2).op(&tensor[2..tensor.len() - 3]);
        with(&pickle.op(&metadata[2..metadata.len() - 1]).op(b"tR"))
    };
    let new = || Pickle::new(2);
    for flags in [new().op(b"}"), new().op(b"N"), new().op(b"}").text("conj").op(b"\x89s")] {
        assert_eq!(view(flags).unwrap().tensors.len(), 1);
    }
    for flags in [
        new().op(b"}").text("conj").op(b"\x88s"),
        new().op(b"}(").text("conj").op(b"\x89").text("neg").op(b"\x88u"),
        new().op(b"}").text("conj").op(b"K\x01s"),
    ] {
        assert_error(view(flags), ErrorKind::Unsupported, &[]);
    }
    assert_error(view(new().op(b"K\x01")), ErrorKind::InvalidHeader, &[]);
}

#[test]
fn pickles_that_are_none_are_refused() {
    type Case<'a> = (&'a [u8], ErrorKind);
    let table: &[Case<'_>] = &[
        (b"", ErrorKind::InvalidHeader),
        (b"\x80", ErrorKind::InvalidHeader),
        (b"\x80\x01N.", ErrorKind::InvalidHeader),
        (b"\x80\x06N.", ErrorKind::InvalidHeader),
        (b"(dp0\n.", ErrorKind::InvalidHeader),
        (b"\x80\x02", ErrorKind::Truncated),
        (b"\x80\x02N", ErrorKind::Truncated),
        (b"\x80\x02N..", ErrorKind::TrailingBytes),
        (b"\x80\x02NN.", ErrorKind::InvalidHeader),
        (b"\x80\x02(N.", ErrorKind::InvalidHeader),
        (b"\x80\x02N(.", ErrorKind::InvalidHeader),
        (b"\x80\x02.", ErrorKind::InvalidHeader),
        (b"\x80\x020.", ErrorKind::InvalidHeader),
        (b"\x80\x02N(0.", ErrorKind::InvalidHeader),
        (b"\x80\x02Nt.", ErrorKind::InvalidHeader),
        (b"\x80\x02N(\x85.", ErrorKind::InvalidHeader),
        (b"\x80\x02}(Nu.", ErrorKind::InvalidHeader),
        (b"\x80\x02}Ns.", ErrorKind::InvalidHeader),
        (b"\x80\x02]NNs.", ErrorKind::InvalidHeader),
        (b"\x80\x02}Na.", ErrorKind::InvalidHeader),
        (b"\x80\x02)Na.", ErrorKind::InvalidHeader),
        (b"\x80\x02](Nt(N\x90.", ErrorKind::InvalidHeader),
        (b"\x80\x02h\x01.", ErrorKind::InvalidHeader),
        (b"\x80\x02Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff.", ErrorKind::InvalidHeader),
        (b"\x80\x02X\xff\xff\xff\xffabc.", ErrorKind::Truncated),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", ErrorKind::Truncated),
        (b"\x80\x04\x95\xff\0\0\0\0\0\0\0N.", ErrorKind::Truncated),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", ErrorKind::Truncated),
        (b"\x80\x02ctorch\n", ErrorKind::Truncated),
        (b"\x80\x02c\xff\n\xff\n.", ErrorKind::InvalidHeader),
        (b"\x80\x04NN\x93.", ErrorKind::InvalidHeader),
        (b"\x80\x02ccollections\nOrderedDict\n]R.", ErrorKind::InvalidHeader),
        (b"\x80\x02NQ.", ErrorKind::InvalidHeader),
        (b"\x80\x02(NNNNNtQ.", ErrorKind::InvalidHeader),
        (b"\x80\x02Pabc\n.", ErrorKind::InvalidHeader),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", ErrorKind::InvalidHeader),
        (b"\x80\x02ctorch._utils\n_rebuild_parameter\nN\x85R.", ErrorKind::InvalidHeader),
        (b"\x80\x02\xff.", ErrorKind::InvalidHeader),
    ];
    for (pickle, kind) in table {
        let zip = Zip::new(vec![Record::new("a/data.pkl", *pickle), Record::new("a/version", "3")]);
        let result = parse(&zip.bytes());
        let error = result.expect_err(&pickle.escape_ascii().to_string());
        assert_eq!(error.kind(), *kind, "{}: {error}", pickle.escape_ascii());
    }
    let sparse = b"\x80\x02Nr\xff\xff\xff\xff0j\xff\xff\xff\xff.";
    let zip = Zip::new(vec![Record::new("a/data.pkl", &sparse[..]), Record::new("a/version", "3")]);
    assert!(parse(&zip.bytes()).is_ok(), "a number of the memo costs nothing");
}
