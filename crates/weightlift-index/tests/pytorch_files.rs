//! PyTorch checkpoints: the archive, other files, shards, and damage of any kind.

mod common;
#[path = "common/pytorch.rs"]
mod writer;

use common::{Values, assert_error};
use proptest::prelude::*;
use weightlift_index::{Error, ErrorKind, Format, Index, Limits, pytorch, shards};
use writer::{FLOATS, Pickle, Record, Tensor, Zip};

fn parse(mut file: &[u8]) -> Result<Index, Error> {
    let index = pytorch::parse(&mut file, "model.pt", &Limits::default())?;
    index.validate()?;
    Ok(index)
}

// The archive.

fn checkpoint() -> Zip {
    Zip::checkpoint(&Pickle::state_dict(&[("w", FLOATS)]), &[("0", &[7; 24])])
}

#[test]
fn an_archive_may_be_written_in_several_ways() {
    let expected = parse(&checkpoint().bytes()).unwrap();
    let wide = Zip { wide: true, ..checkpoint() };
    let comment = Zip { comment: vec![b'c'; 65535], ..checkpoint() };
    let both = Zip { wide: true, comment: b"PK\x05\x06".repeat(20), ..checkpoint() };
    let mut old = checkpoint().without("model/version");
    old.records.push(Record::new("model/.data/version", "2"));
    let mut checked = checkpoint();
    // By another implementation.
    checked.record("model/byteorder").crc = 1;
    for (number, zip) in [wide, comment, both, old, checked].into_iter().enumerate() {
        let index = parse(&zip.bytes()).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!((&index.tensors, &index.storages), (&expected.tensors, &expected.storages));
    }
    let unaligned = parse(&Zip { alignment: 1, ..checkpoint() }.bytes()).unwrap();
    assert_ne!(unaligned.storages[0].offset % 64, 0);
}

#[test]
fn archives_that_contradict_themselves_are_refused() {
    type Change = fn(&mut Zip);
    let table: [(Change, ErrorKind, Values<'_>); 18] = [
        (
            |z| z.record("model/data/0").method = 8,
            ErrorKind::Unsupported,
            &[("record", "model/data/0")],
        ),
        (|z| z.record("model/data.pkl").method = 8, ErrorKind::Unsupported, &[("method", "8")]),
        (|z| z.record("model/data/0").flags |= 1, ErrorKind::Unsupported, &[]),
        (
            |z| z.record("model/data/0").local_name = Some("model/data/1".into()),
            ErrorKind::InvalidHeader,
            &[],
        ),
        (|z| z.record("model/data/0").local_name = Some("m".into()), ErrorKind::InvalidHeader, &[]),
        (|z| z.record("model/data/0").sizes = Some((24, 20)), ErrorKind::SizeMismatch, &[]),
        (|z| z.record("model/data/0").sizes = Some((200, 200)), ErrorKind::Overlap, &[]),
        (|z| z.record("model/data/0").sizes = Some((1 << 40, 1 << 40)), ErrorKind::OutOfRange, &[]),
        (
            |z| z.record("model/data/0").sizes = Some((u64::MAX, u64::MAX)),
            ErrorKind::OutOfRange,
            &[],
        ),
        (|z| z.record("model/data/0").shift = 1, ErrorKind::InvalidHeader, &[]),
        (|z| z.record("model/data/0").shift = 1 << 40, ErrorKind::OutOfRange, &[]),
        (|z| z.record("model/data/0").shift = -90, ErrorKind::Overlap, &[]),
        (
            |z| z.records.push(Record::new("model/data/0", "x")),
            ErrorKind::InvalidHeader,
            &[("record", "model/data/0")],
        ),
        (
            |z| z.records.push(Record::new("other/data/1", "x")),
            ErrorKind::InvalidHeader,
            &[("record", "other/data/1")],
        ),
        (
            |z| z.record("model/data.pkl").crc = 1,
            ErrorKind::InvalidHeader,
            &[("expected", "00000001")],
        ),
        (
            |z| z.record("model/version").data = b"11".to_vec(),
            ErrorKind::Unsupported,
            &[("actual", "11")],
        ),
        (|z| z.record("model/version").data = b"x".to_vec(), ErrorKind::InvalidHeader, &[]),
        (|z| z.comment = Zip::new(Vec::new()).bytes(), ErrorKind::InvalidHeader, &[]),
    ];
    for (number, (change, kind, values)) in table.into_iter().enumerate() {
        let mut zip = checkpoint();
        change(&mut zip);
        let error = parse(&zip.bytes()).expect_err(&number.to_string());
        assert_eq!(error.kind(), kind, "{number}: {error}");
        assert_error(Err::<(), _>(error), kind, values);
    }
}

#[test]
fn every_cut_of_an_archive_is_truncated() {
    for zip in [checkpoint(), Zip { wide: true, ..checkpoint() }] {
        let file = zip.bytes();
        for length in 4..file.len() - 22 {
            let result = parse(&file[..length]);
            assert_error(result, ErrorKind::Truncated, &[("actual", &length.to_string())]);
        }
        for length in file.len() - 22..file.len() {
            assert!(parse(&file[..length]).is_err(), "{length}");
        }
        let hint = parse(&file[..100]).unwrap_err();
        assert!(hint.get_hint().unwrap().contains("fetch it again"));
    }
    let mut longer = checkpoint().bytes();
    longer.push(0);
    assert_error(parse(&longer), ErrorKind::TrailingBytes, &[]);
    let before = [b"PK\x03\x04", &checkpoint().bytes()[..]].concat();
    assert_error(parse(&before), ErrorKind::InvalidHeader, &[]);
}

#[test]
fn fields_of_the_end_are_checked() {
    for wide in [false, true] {
        let file = Zip { wide, ..checkpoint() }.bytes();
        let end = file.len() - 22;
        let from = if wide { end - 76 } else { end };
        for at in from..file.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut file = file.clone();
                if file[at] == value {
                    continue;
                }
                file[at] = value;
                // Of the ZIP64 record: the versions, which say nothing, and of the end record the
                // marks that say where to look.
                let free = wide && (from + 12..from + 16).contains(&at);
                match parse(&file) {
                    Ok(index) => assert!(
                        free || (wide
                            && index == parse(&Zip { wide, ..checkpoint() }.bytes()).unwrap()),
                        "{wide} {}: {value}",
                        at - from
                    ),
                    Err(error) => assert_ne!(error.kind(), ErrorKind::Io),
                }
            }
        }
    }
}

#[test]
fn other_files_are_named() {
    let pickle = &Pickle::new(2).op(b"}").bytes();
    let zip = |names: &[&str]| {
        let records = names.iter().map(|name| Record::new(*name, &pickle[..])).collect();
        Zip::new(records).bytes()
    };
    let legacy = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";
    let framed = b"\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let mut tar = vec![0; 512];
    tar[257..262].copy_from_slice(b"ustar");
    let table: [(Vec<u8>, ErrorKind, &str); 13] = [
        (legacy.to_vec(), ErrorKind::Unsupported, "a checkpoint of PyTorch before version 1.6"),
        (framed.to_vec(), ErrorKind::Unsupported, "a checkpoint of PyTorch before version 1.6"),
        (tar, ErrorKind::Unsupported, "a tar archive, perhaps a checkpoint of PyTorch 0.1"),
        (pickle.clone(), ErrorKind::UnknownFormat, "a Python pickle"),
        (b"<!DOCTYPE html><html>".to_vec(), ErrorKind::UnknownFormat, "a web page"),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            ErrorKind::UnknownFormat,
            "a Git LFS pointer",
        ),
        (b"GGUF\x03\0\0\0".to_vec(), ErrorKind::UnknownFormat, "a GGUF file"),
        (Vec::new(), ErrorKind::UnknownFormat, "a file of unknown format"),
        (
            zip(&["m/data.pkl", "m/code/a.py", "m/constants.pkl", "m/version"]),
            ErrorKind::Unsupported,
            "a TorchScript archive",
        ),
        (
            zip(&["m/.data/extern_modules", "m/model/model.pkl"]),
            ErrorKind::Unsupported,
            "a package of torch.package",
        ),
        (zip(&["a.npy", "b.npy"]), ErrorKind::UnknownFormat, "NumPy arrays (.npz)"),
        (zip(&[]), ErrorKind::UnknownFormat, "an empty ZIP archive"),
        (zip(&["word/document.xml"]), ErrorKind::UnknownFormat, "a ZIP archive"),
    ];
    for (file, kind, found) in table {
        assert_error(parse(&file), kind, &[("found", found)]);
    }
    let flat = zip(&["data.pkl", "version", "data/0"]);
    assert_error(parse(&flat), ErrorKind::UnknownFormat, &[]);
    assert_error(
        parse(&checkpoint().without("model/version").bytes()),
        ErrorKind::InvalidHeader,
        &[],
    );
}

// Several files.

#[test]
fn shards_go_through_their_index_file_and_keep_what_they_share() {
    let part = |name: &str, tensors: &[(&str, Tensor<'_>)]| {
        let file = Zip::checkpoint(&Pickle::state_dict(tensors), &[("0", &[7; 24])]).bytes();
        pytorch::parse(&mut &file[..], name, &Limits::default()).unwrap()
    };
    let row = Tensor { offset: 3, shape: &[3], strides: &[1], ..FLOATS };
    let files = vec![
        part("pytorch_model-00001-of-00002.bin", &[("a", FLOATS), ("a.row", row)]),
        part("pytorch_model-00002-of-00002.bin", &[("b", FLOATS), ("stale", FLOATS)]),
    ];
    let json = br#"{"weight_map":{"a":"pytorch_model-00001-of-00002.bin",
        "a.row":"pytorch_model-00001-of-00002.bin","b":"pytorch_model-00002-of-00002.bin"}}"#;
    let map = shards::parse_index(json, &Limits::default()).unwrap();
    let index = shards::assemble(files, Some(&map)).unwrap();
    index.validate().unwrap();
    assert_eq!(index.format, Some(Format::PyTorch));
    let names: Vec<&str> = index.tensors.iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["a", "a.row", "b"]);
    assert_eq!((index.storages.len(), index.skipped_tensors), (2, 1));
    assert_eq!(index.require("a").unwrap().storage, index.require("a.row").unwrap().storage);
}

// Anything.

/// A checkpoint with a bit of everything.
fn rich(protocol: u8, wide: bool) -> Vec<u8> {
    let odd = Tensor {
        class: "UntypedStorage",
        dtype: Some("uint16"),
        key: "1",
        count: 16,
        offset: 1,
        shape: &[2, 2],
        strides: &[1, 3],
    };
    let pickle = Pickle::new(protocol).op(b"}(").text("a").tensor(&FLOATS).op(b"q\x01");
    let pickle = pickle.text("b").op(b"](h\x01").tensor(&odd).op(b"K\x01M\x02\0e").text("c");
    let pickle = pickle.global("collections", "OrderedDict").op(b")R(").text("d").op(b"h\x01u");
    let pickle = pickle.op(b"}").text("_metadata").op(b"Nsb").int(5).op(b")u");
    Zip { wide, ..Zip::checkpoint(&pickle, &[("0", &[7; 24]), ("1", &[8; 16])]) }.bytes()
}

fn harmless(file: &[u8]) {
    if let Ok(index) = pytorch::parse(&mut { file }, "model.pt", &Limits::default()) {
        index.validate().unwrap();
        for tensor in &index.tensors {
            assert!(index.storages.len() > tensor.storage.0 as usize);
        }
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Cut(prop::sample::Index, u8),
    Insert(prop::sample::Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Flip(at, byte)),
        (at(), any::<u8>()).prop_map(|(at, count)| Damage::Cut(at, count)),
        (at(), prop::collection::vec(any::<u8>(), 1..9)).prop_map(|(at, b)| Damage::Insert(at, b)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damages: Vec<Damage>) {
    for damage in damages {
        if bytes.is_empty() {
            return;
        }
        match damage {
            Damage::Flip(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            Damage::Cut(at, count) => {
                let at = at.index(bytes.len());
                let end = (at + usize::from(count)).min(bytes.len());
                bytes.drain(at..end);
            }
            Damage::Insert(at, inserted) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, inserted);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        harmless(&bytes);
        harmless(&[b"PK\x03\x04", &bytes[..]].concat());
        harmless(&Zip::new(vec![
            Record::new("a/data.pkl", [b"\x80\x04", &bytes[..]].concat()),
            Record::new("a/version", "3"),
        ]).bytes());
    }

    #[test]
    fn damaged_files_are_harmless(
        protocol in 2..=5_u8,
        wide: bool,
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        let mut file = rich(protocol, wide);
        prop_assert!(parse(&file).is_ok());
        apply(&mut file, damages);
        harmless(&file);
    }

    #[test]
    fn damaged_pickles_are_harmless(
        protocol in 2..=5_u8,
        damages in prop::collection::vec(damage(), 1..5),
    ) {
        let file = rich(protocol, false);
        let start = file.windows(2).position(|two| two == [0x80, protocol]).unwrap();
        let end = file.windows(4).position(|four| four == b"PK\x07\x08").unwrap();
        let mut pickle = file[start..end].to_vec();
        apply(&mut pickle, damages);
        harmless(&Zip::new(vec![
            Record::new("model/data.pkl", pickle),
            Record::new("model/data/0", [7; 24]),
            Record::new("model/data/1", [8; 16]),
            Record::new("model/version", "3"),
        ]).bytes());
    }
}
