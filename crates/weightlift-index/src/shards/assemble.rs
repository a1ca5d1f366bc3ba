//! Indexes of several files to one.

use std::collections::{HashMap, HashSet};

use super::ShardIndex;
use crate::{Error, ErrorKind, Index, SourceId, StorageId, TensorInfo, model::id};

/// Joins the indexes of a model's files to one.
///
/// A file goes by the name of its index's first source. Sources, storages and tensors come in the
/// order of the files; storages that no tensor lies in are left out.
///
/// With an index file, its `weight_map` decides for each tensor: a tensor that it does not name, or
/// for which it names another file, is left out and counted. So a stale copy in one file never
/// replaces the right one in another, in whatever order the files come.
///
/// Time is linear in the number of tensors.
///
/// # Errors
///
/// - [`ErrorKind::DuplicateTensor`] if, without an index file, a tensor stands in two files;
/// - [`ErrorKind::NotInShard`] if a file lacks a tensor that the index file says it holds, naming
///   the first by name and, as `count`, how many the file lacks;
/// - [`ErrorKind::MissingShards`] if a file that the index file names is not among `files`;
/// - [`ErrorKind::AmbiguousModel`] if a file stands twice in `files`;
/// - [`ErrorKind::InvalidIndex`] if an index names a storage that it does not have;
/// - [`ErrorKind::LimitExceeded`] if there are more than 2^32 files or tensors.
pub fn assemble(mut files: Vec<Index>, index: Option<&ShardIndex>) -> Result<Index, Error> {
    if let (1, None) = (files.len(), index) {
        return Ok(files.remove(0));
    }
    refuse_repeated_files(&files)?;
    let mapping = match index {
        Some(index) => Some(Mapping::new(index, &files)?),
        None => {
            refuse_shared_names(&files)?;
            None
        }
    };
    let mut assembled =
        Index { format: files.first().and_then(|file| file.format), ..Index::default() };
    for file in files {
        add(&mut assembled, file, mapping.as_ref())?;
    }
    Ok(assembled)
}

fn add(assembled: &mut Index, file: Index, mapping: Option<&Mapping<'_>>) -> Result<(), Error> {
    let name = Box::<str>::from(name_of(&file));
    let first_source = assembled.sources.len();
    let first_tensor = assembled.tensors.len();
    id(first_source + file.sources.len())?;
    for (key, value) in file.metadata {
        assembled.metadata.entry(key).or_insert(value);
    }
    assembled.skipped_tensors += file.skipped_tensors;
    let mut storage_of: Vec<Option<StorageId>> = vec![None; file.storages.len()];
    for mut tensor in file.tensors {
        if mapping.is_some_and(|mapping| !mapping.takes(&tensor.name, &name)) {
            assembled.skipped_tensors += 1;
            continue;
        }
        let number = tensor.storage.0 as usize;
        let Some(known) = storage_of.get_mut(number) else {
            return Err(Error::new(
                ErrorKind::InvalidIndex,
                "the index names a storage that it does not have",
            )
            .with("tensor", &tensor.name)
            .with("actual", number));
        };
        tensor.storage = match known {
            Some(storage) => *storage,
            None => {
                let mut storage = file.storages[number];
                // Checked above: the last source has a number.
                storage.source = SourceId(storage.source.0 + first_source as u32);
                let new = id(assembled.storages.len())?;
                assembled.storages.push(storage);
                *known.insert(new)
            }
        };
        assembled.tensors.push(tensor);
    }
    if let Some(mapping) = mapping {
        mapping.check_complete(&name, &assembled.tensors[first_tensor..])?;
    }
    assembled.sources.extend(file.sources);
    Ok(())
}

/// The name that a file goes by.
fn name_of(file: &Index) -> &str {
    file.sources.first().map_or("", |source| &source.name)
}

fn refuse_repeated_files(files: &[Index]) -> Result<(), Error> {
    let mut names: Vec<&str> = files.iter().map(name_of).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(Error::new(ErrorKind::AmbiguousModel, "a file is given twice")
                .with("file", pair[0]))
        }
        None => Ok(()),
    }
}

/// Without an index file nothing says which of two tensors of one name is meant.
fn refuse_shared_names(files: &[Index]) -> Result<(), Error> {
    // Names within one file are distinct already.
    if files.len() < 2 {
        return Ok(());
    }
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for file in files {
        for tensor in &file.tensors {
            if let Some(other) = seen.insert(&tensor.name, name_of(file)) {
                return Err(Error::new(ErrorKind::DuplicateTensor, "a tensor stands in two files")
                    .with("tensor", &tensor.name)
                    .with("file", name_of(file))
                    .with("other_file", other)
                    .hint("name the files that are the model, or give it an index file"));
            }
        }
    }
    Ok(())
}

/// What an index file says, by the names of files.
struct Mapping<'a> {
    index: &'a ShardIndex,
    /// The number of each file of the index file, and how many tensors it must hold.
    shards: HashMap<&'a str, (u32, u64)>,
}

impl<'a> Mapping<'a> {
    fn new(index: &'a ShardIndex, files: &[Index]) -> Result<Self, Error> {
        let given: HashSet<&str> = files.iter().map(name_of).collect();
        super::check_present(index, |name| given.contains(name))?;

        let mut expected = vec![0; index.shards.len()];
        for &number in index.weight_map.values() {
            let Some(count) = expected.get_mut(number as usize) else {
                return Err(Error::new(
                    ErrorKind::InvalidIndex,
                    "the shard index names a file that it does not have",
                )
                .with("actual", number)
                .with("count", index.shards.len()));
            };
            *count += 1;
        }
        let numbered = (0..).zip(expected);
        let shards = index.shards.iter().map(|name| &**name).zip(numbered).collect();
        Ok(Self { index, shards })
    }

    fn takes(&self, tensor: &str, file: &str) -> bool {
        let mapped = self.index.weight_map.get(tensor);
        mapped.is_some_and(|number| {
            self.index.shards.get(*number as usize).is_some_and(|shard| **shard == *file)
        })
    }

    /// Checks that the tensors taken from a file are all that it must hold.
    fn check_complete(&self, file: &str, taken: &[TensorInfo]) -> Result<(), Error> {
        // A file that the index file does not name must hold nothing.
        let (number, expected) = self.shards.get(file).copied().unwrap_or_default();
        let missing = expected.saturating_sub(taken.len() as u64);
        if missing == 0 {
            return Ok(());
        }
        let taken: HashSet<&str> = taken.iter().map(|tensor| &*tensor.name).collect();
        let lacking = self.index.weight_map.iter().filter_map(|(name, shard)| {
            (*shard == number && !taken.contains(&**name)).then_some(&**name)
        });
        Err(Error::new(
            ErrorKind::NotInShard,
            "a file lacks a tensor that the index file says it holds",
        )
        .with("tensor", lacking.min().unwrap_or_default())
        .with("file", file)
        .with("count", missing)
        .hint("the index file and the file are of different versions: fetch both again"))
    }
}
