//! Right GGUF files, damaged ones, and noise: nothing panics, and what is accepted is valid.

#[path = "common/gguf.rs"]
mod writer;

use proptest::prelude::*;
use proptest::sample::Index as Position;
use weightlift_index::Limits;
use weightlift_index::gguf::{Header, Split, part_names};
use writer::{Gguf, list, read, read_lists, text, text_value, typed};

const KINDS: [(u32, u64, usize); 8] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (12, 256, 144),
    (24, 1, 1),
    (28, 1, 8),
    (39, 32, 17),
    // Not known: a block of its own making.
    (77, 1, 3),
];

/// A right file.
fn right() -> impl Strategy<Value = Gguf> {
    let tensor = (any::<String>(), 0..KINDS.len(), prop::collection::vec(0u64..4, 0..5));
    let tensors = prop::collection::btree_map(any::<String>(), tensor, 0..8);
    let numbers = prop::collection::vec(any::<u32>(), 0..5);
    let metadata = prop::collection::btree_map(any::<String>(), (any::<String>(), numbers), 0..6);
    (tensors, metadata, 0u32..8).prop_map(|(tensors, metadata, alignment)| {
        let tensors = tensors.into_iter().map(|(name, (_, kind, mut dims))| {
            let (kind, elements, bytes) = KINDS[kind];
            match dims.first_mut() {
                Some(first) => *first *= elements,
                None if elements > 1 => dims.push(elements),
                None => {}
            }
            let blocks = dims.iter().product::<u64>() / elements;
            typed(&name, kind, &dims, blocks as usize * bytes)
        });
        let mut gguf = Gguf::new(tensors.collect());
        for (key, (content, numbers)) in metadata {
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let texts = [text(content.as_bytes()), text(b"")].concat();
            gguf = gguf
                .with(&key, text_value(content.as_bytes()))
                .with(&format!("numbers.{key}"), list(4, numbers.len() as u64, &bytes))
                .with(&format!("texts.{key}"), list(8, 2, &texts));
        }
        // Keys of the one kind that look like those of another.
        let mut keys = std::collections::BTreeSet::new();
        gguf.metadata.retain(|(key, _)| keys.insert(key.clone()));
        gguf.aligned(1 << alignment)
    })
}

/// Whatever is accepted makes a valid index, with or without lists, and is the same.
fn accepted(file: &[u8]) -> Option<Header> {
    let without = read(file);
    let with = read_lists(file, &Limits::default());
    if let Ok(header) = &without {
        let length = file.len() as u64;
        let index = header.clone().into_index("m.gguf", length).expect("it was checked");
        index.validate().expect("a header that was accepted makes a valid index");
        let bytes: u64 = header.entries.iter().map(|entry| entry.length).sum();
        assert_eq!(index.bytes(), bytes);
        assert_eq!(index.storages.len(), header.entries.len());
        assert!(bytes <= length);
        assert_eq!(with.expect("lists change nothing").entries, header.entries);
    }
    without.ok()
}

proptest! {
    #[test]
    fn right_files_are_read(gguf in right()) {
        let file = gguf.bytes();
        let header = accepted(&file);
        prop_assert!(header.is_some(), "{:?}", read(&file));
        let header = header.unwrap();
        prop_assert_eq!(header.trailing, 0);
        for (tensor, entry) in gguf.tensors.iter().zip(&header.entries) {
            prop_assert_eq!(&*tensor.name, entry.name.as_bytes());
            let range = entry.offset as usize..(entry.offset + entry.length) as usize;
            if entry.dtype.is_opaque() {
                prop_assert!(file[range].starts_with(&tensor.data));
            } else {
                prop_assert_eq!(&file[range], &*tensor.data);
            }
        }
    }

    // Damage to a right file reaches deeper than noise.
    #[test]
    fn damaged_files_are_refused_or_valid(
        gguf in right(),
        edits in prop::collection::vec((any::<Position>(), any::<u8>(), 0..4), 1..5),
    ) {
        let mut file = gguf.bytes();
        for (at, byte, how) in edits {
            if file.is_empty() {
                break;
            }
            let at = at.index(file.len());
            match how {
                0 => file[at] = byte,
                1 => file[at] ^= 1 << (byte % 8),
                2 => file.insert(at, byte),
                _ => file.truncate(at),
            }
        }
        accepted(&file);
    }

    #[test]
    fn noise_never_panics(mut noise in prop::collection::vec(any::<u8>(), 0..300), cut in 0usize..25) {
        accepted(&noise);
        let start = Gguf { tensor_count: Some(2), value_count: Some(2), ..Gguf::default() }.bytes();
        noise.splice(0..0, start[..cut.min(start.len())].iter().copied());
        accepted(&noise);
    }

    #[test]
    fn any_name_and_count_end_in_names_or_an_error(
        name in "[a-b/.-]{0,4}(-0{0,5}[0-9]{1,6}-of-0{0,5}[0-9]{1,6})?(\\.gguf)?",
        number: u64, count in prop_oneof![0u64..100_010, any::<u64>()],
    ) {
        let split = Split { number, count, tensors: 0 };
        if let Ok(names) = part_names(&name, &split) {
            prop_assert!(names.contains(&name));
            prop_assert_eq!(names.len() as u64, count.max(1));
        }
    }
}
