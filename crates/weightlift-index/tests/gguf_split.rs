//! Models of several GGUF files, whole and in disorder.

mod common;
#[path = "common/gguf.rs"]
mod writer;

use common::{Values, assert_error};
use weightlift_index::gguf::{Header, Split, check_set, part_names};
use weightlift_index::{ErrorKind, Format, Value, shards};
use writer::{Gguf, Tensor, read, tensor, text_value, u32_value, value};

// GG-07, and what a model of several files needs: a set of three with two, one and no tensor.
fn parts() -> Vec<Header> {
    let files: [Vec<Tensor>; 3] =
        [vec![tensor("a", &[1]), tensor("b", &[1])], vec![tensor("c", &[1])], vec![]];
    (0..).zip(files).map(|(i, tensors)| part(tensors, i, 3, 3)).collect()
}

fn part(tensors: Vec<Tensor>, number: u16, count: u16, total: i32) -> Header {
    Gguf::new(tensors).split(number, count, total).parse().unwrap()
}

#[test]
fn any_part_names_all_of_them() {
    let split = |number, count| Split { number, count, tensors: 3 };
    let all =
        ["d/m-x-00001-of-00003.gguf", "d/m-x-00002-of-00003.gguf", "d/m-x-00003-of-00003.gguf"];
    for (number, name) in (0..).zip(all) {
        assert_eq!(part_names(name, &split(number, 3)).unwrap(), all);
        // Whether the name is the right one of them is for `check_set`.
        assert_eq!(part_names(name, &split(0, 3)).unwrap(), all);
    }
    // A set of one may be called anything.
    for name in ["x-00001-of-00001.gguf", "best-of-breed.gguf", "x-00002-of-00003.gguf", ""] {
        assert_eq!(part_names(name, &split(0, 1)).unwrap(), [name]);
    }
    let most = part_names("m-00001-of-65535.gguf", &split(0, 65535)).unwrap();
    assert_eq!((most.len(), &*most[65534]), (65535, "m-65535-of-65535.gguf"));

    for name in [
        "best-of-breed.gguf",
        "m.gguf",
        "m-1-of-3.gguf",
        "m-00002-of-00003",
        "m-00002-of-00003.GGUF",
        "m-00002-of-00003.safetensors",
        "m-+0002-of-00003.gguf",
        "m-00002-of-+0003.gguf",
        "m-000002-of-00003.gguf",
        "m00002-of-00003.gguf",
        "-of-.gguf",
        "",
        "é-00002-of-0003é.gguf",
    ] {
        assert_error(
            part_names(name, &split(1, 3)),
            ErrorKind::MissingShards,
            &[("actual", name), ("count", "3")],
        );
    }
    for name in ["m-00002-of-00004.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf"] {
        let values = [("actual", name), ("expected", "m-00002-of-00003.gguf")];
        assert_error(part_names(name, &split(1, 3)), ErrorKind::InvalidIndex, &values);
    }
    // No count makes more names than five digits have.
    for count in [100_000, 1 << 60, u64::MAX] {
        let name = format!("m-00001-of-{count}.gguf");
        assert_error(part_names(&name, &split(0, count)), ErrorKind::MissingShards, &[]);
    }
}

#[test]
fn a_set_is_whole_and_of_one_piece() {
    let [a, b, c] = &parts()[..] else { unreachable!() };
    check_set(&[("1", a), ("2", b), ("3", c)]).unwrap();

    let missing = ErrorKind::MissingShards;
    assert_error(check_set(&[]), missing, &[]);
    assert_error(check_set(&[("1", a), ("2", b)]), missing, &[("count", "1"), ("of", "3")]);

    let other_count = part(vec![tensor("c", &[1])], 1, 4, 3);
    let other_total = part(vec![tensor("c", &[1])], 1, 3, 4);
    let whole = Gguf::new(vec![tensor("c", &[1])]).parse().unwrap();
    let two = part(vec![tensor("c", &[1]), tensor("d", &[1])], 1, 3, 3);
    let table: [(&[(&str, &Header)], Values<'_>); 8] = [
        (
            &[("1", a), ("2", c), ("3", b)],
            &[("file", "2"), ("expected", "part 2 of 3"), ("actual", "part 3 of 3")],
        ),
        (&[("1", a), ("2", b), ("3", b)], &[("file", "3"), ("actual", "part 2 of 3")]),
        (&[("1", a), ("2", b), ("3", c), ("4", c)], &[("file", "4"), ("actual", "part 3 of 3")]),
        (
            &[("1", a), ("2", &other_count), ("3", c)],
            &[("file", "2"), ("other_file", "1"), ("actual", "part 2 of 4")],
        ),
        (
            &[("1", a), ("2", &other_total), ("3", c)],
            &[("file", "2"), ("other_file", "1"), ("expected", "3"), ("actual", "4")],
        ),
        (&[("1", a), ("2", &whole), ("3", c)], &[("file", "2"), ("actual", "a model of its own")]),
        (&[("1", a), ("2", &two), ("3", c)], &[("expected", "3"), ("actual", "4")]),
        (&[("1", &whole), ("2", b)], &[("file", "1"), ("actual", "a model of its own")]),
    ];
    for (parts, values) in table {
        assert_error(check_set(parts), ErrorKind::InvalidIndex, values);
    }
    check_set(&[("m", &whole)]).unwrap();
    check_set(&[("x-00001-of-00001", &part(vec![tensor("a", &[1])], 0, 1, 1))]).unwrap();
}

#[test]
fn the_parts_make_one_index() {
    let gguf = |tensors, number: u16, name: &str| {
        let gguf = Gguf::new(tensors)
            .split(number, 2, 3)
            .with("general.name", text_value(name.as_bytes()));
        let file = gguf.bytes();
        let length = file.len() as u64;
        read(&file)
            .unwrap()
            .into_index(&format!("m-0000{}-of-00002.gguf", number + 1), length)
            .unwrap()
    };
    let first = gguf(vec![tensor("a", &[1]), tensor("b", &[1])], 0, "first");
    let second = gguf(vec![tensor("c", &[1])], 1, "second");
    let index = shards::assemble(vec![first.clone(), second], None).unwrap();
    index.validate().unwrap();
    assert_eq!(index.format, Some(Format::Gguf));
    assert_eq!((index.tensors.len(), index.sources.len()), (3, 2));
    assert_eq!(index.metadata["general.name"], Value::from("first"));
    assert_eq!(index.metadata["split.no"], Value::Uint(0));
    let twice = gguf(vec![tensor("b", &[1])], 1, "second");
    let result = shards::assemble(vec![first, twice], None);
    assert_error(result, ErrorKind::DuplicateTensor, &[("tensor", "b")]);
}

type Keys<'a> = &'a [(&'a str, Vec<u8>)];

#[test]
fn a_split_needs_all_its_numbers() {
    let with = |keys: Keys<'_>| {
        let mut gguf = Gguf::default();
        for (key, value) in keys {
            gguf = gguf.with(key, value.clone());
        }
        gguf.parse().map(|header| header.split)
    };
    let (no, count, total) = ("split.no", "split.count", "split.tensors.count");
    assert_eq!(with(&[]).unwrap(), None);
    assert_eq!(with(&[(count, u32_value(0))]).unwrap(), None);
    let all = [(no, u32_value(1)), (count, u32_value(2)), (total, u32_value(5))];
    assert_eq!(with(&all).unwrap(), Some(Split { number: 1, count: 2, tensors: 5 }));
    let negative = value(5, &(-1i32).to_le_bytes());
    let table: [(Keys<'_>, &str); 6] = [
        (&all[1..], no),
        (&all[..2], total),
        (&[(no, u32_value(2)), all[1].clone(), all[2].clone()], no),
        (&[(no, negative.clone()), all[1].clone(), all[2].clone()], no),
        (&[all[0].clone(), (count, text_value(b"2")), all[2].clone()], count),
        (&[all[0].clone(), all[1].clone(), (total, negative.clone())], total),
    ];
    for (keys, key) in table {
        assert_error(with(keys), ErrorKind::InvalidHeader, &[("key", key)]);
    }
}
