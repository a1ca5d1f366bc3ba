//! Which files are the model, and how they join.

use std::collections::{BTreeSet, HashSet};

use weightlift_index::shards::{
    Choice, ShardIndex, assemble, check_name, check_present, choose, parse_index,
};
use weightlift_index::{
    Dtype, Encoding, Format, Index, Limits, SourceId, SourceInfo, Storage, StorageId, TensorInfo,
};

use crate::check;
use crate::input::Input;

/// The low bits of the choice say what the rest is: an index file, the names in a folder, one in
/// each line, a name, or an index file and the contents of files.
pub(crate) fn run(input: &[u8]) {
    let Some(Input { limits, choice, file }) = Input::new(input) else { return };
    check::bounded(file.len() as u64, || match choice & 3 {
        0 => drop(index_file(file, &limits)),
        1 => folder(&String::from_utf8_lossy(file), choice),
        2 => name(&String::from_utf8_lossy(file)),
        _ => join(file, &limits),
    });
}

fn index_file(json: &[u8], limits: &Limits) -> Option<ShardIndex> {
    let index = check::checked(parse_index(json, limits))?;
    assert!(index.shards.is_sorted_by(|a, b| a < b), "{:?}", index.shards);
    index.shards.iter().for_each(|shard| name(shard));
    let used: BTreeSet<u32> = index.weight_map.values().copied().collect();
    assert!(used.into_iter().eq(0..index.shards.len() as u32), "{index:?}");
    assert!(index.weight_map.len() as u64 <= limits.tensors);
    check_present(&index, |_| true).expect("all files are there");
    let missing = check_present(&index, |shard| shard.len() > 4);
    assert_eq!(missing.is_err(), index.shards.iter().any(|shard| shard.len() <= 4));
    check::checked(missing);
    Some(index)
}

fn folder(lines: &str, choice: u8) {
    let names: Vec<String> = lines.lines().map(str::to_owned).collect();
    let ignore_index = choice & 4 != 0;
    // All formats, and none.
    let format = Format::ALL.get(usize::from(choice >> 3) % 7).copied();
    let Some(choice) = check::checked(choose(&names, ignore_index, format)) else { return };
    let chosen = match choice {
        Choice::Index(index) => {
            assert!(!ignore_index && index.ends_with(".index.json"), "{index}");
            vec![index]
        }
        Choice::Files(files) => {
            assert!(!files.is_empty() && files.is_sorted_by(|a, b| a < b), "{files:?}");
            files
        }
    };
    let names: HashSet<String> = names.into_iter().collect();
    for file in chosen {
        assert!(names.contains(&file) && !file.starts_with('.'), "{file} was made up");
    }
}

/// What is accepted is no way out of a folder, not even for who decodes it first.
fn name(name: &str) {
    if check::checked(check_name(name)).is_none() {
        return;
    }
    let decoded = name.to_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\");
    for name in [name, &decoded] {
        assert!(!name.is_empty() && !name.contains(['\\', ':', '\0', '\n']), "{name:?}");
        assert!(name.split('/').all(|part| !matches!(part, "" | "." | "..")), "{name:?}");
    }
}

/// Parts divided by a control character: an index file or nothing, then for each file its name and
/// its tensors, one in each line.
fn join(input: &[u8], limits: &Limits) {
    let mut parts = input.split(|byte| *byte == 0x1e);
    let json = parts.next().unwrap_or_default();
    let index = if json.is_empty() { None } else { index_file(json, limits) };
    let files: Vec<Index> = parts.map(|part| contents(&String::from_utf8_lossy(part))).collect();
    let tensors: usize = files.iter().map(|file| file.tensors.len()).sum();
    let joined = assemble(files, index.as_ref());
    if let Ok(joined) = &joined {
        assert_eq!(joined.tensors.len() as u64 + joined.skipped_tensors, tensors as u64);
        if let Some(index) = &index {
            assert_eq!(joined.tensors.len(), index.weight_map.len());
        }
    }
    check::index(joined);
}

/// A file of U8 tensors of four bytes, each over half of the one before.
fn contents(lines: &str) -> Index {
    let mut lines = lines.lines();
    let file = lines.next().unwrap_or_default();
    let names: BTreeSet<&str> = lines.collect();
    let length = 2 * names.len() as u64 + 2;
    let (source, encoding) = (SourceId(0), Encoding::Raw);
    let tensor = |(at, name): (u64, &str)| TensorInfo {
        name: name.into(),
        storage: StorageId(0),
        offset: 2 * at,
        length: 4,
        dtype: Dtype::from_name("U8"),
        shape: vec![4],
        strides: None,
    };
    Index {
        sources: vec![SourceInfo::file(file, length)],
        storages: vec![Storage { source, offset: 0, length, encoding }],
        tensors: (0..).zip(names).map(tensor).collect(),
        ..Index::default()
    }
}
