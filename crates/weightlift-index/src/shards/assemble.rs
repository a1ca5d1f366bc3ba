//! Headers of several files to one index.

use std::collections::{HashMap, HashSet};

use super::ShardIndex;
use crate::safetensors::{Entry, Header};
use crate::{
    Encoding, Error, ErrorKind, Index, SourceId, SourceInfo, Storage, StorageId, TensorInfo,
};

/// Joins the headers of a model's files, each with its name and length in bytes, to one index.
///
/// Sources, storages and tensors come in the order of the files and, within a file, of the
/// offsets. Each tensor has a storage of its own; that of a tensor without bytes has length 0.
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
/// - [`ErrorKind::LimitExceeded`] if there are more than 2^32 files or tensors.
pub fn assemble(
    files: Vec<(Box<str>, u64, Header)>,
    index: Option<&ShardIndex>,
) -> Result<Index, Error> {
    refuse_repeated_files(&files)?;
    let mapping = match index {
        Some(index) => Some(Mapping::new(index, &files)?),
        None => {
            refuse_shared_names(&files)?;
            None
        }
    };
    let mut assembled = Index::default();
    for (name, length, header) in files {
        let source = SourceId(id(assembled.sources.len())?);
        let first = assembled.tensors.len();
        for (key, value) in header.metadata {
            assembled.metadata.entry(key).or_insert(value);
        }
        for entry in header.entries {
            if mapping.as_ref().is_some_and(|mapping| !mapping.takes(&entry.name, &name)) {
                assembled.skipped_tensors += 1;
                continue;
            }
            add(&mut assembled, source, entry)?;
        }
        if let Some(mapping) = &mapping {
            mapping.check_complete(&name, &assembled.tensors[first..])?;
        }
        assembled.sources.push(SourceInfo { name, length });
    }
    Ok(assembled)
}

fn add(index: &mut Index, source: SourceId, entry: Entry) -> Result<(), Error> {
    let length = entry.end.saturating_sub(entry.begin);
    let storage = StorageId(id(index.storages.len())?);
    index.storages.push(Storage { source, offset: entry.begin, length, encoding: Encoding::Raw });
    index.tensors.push(TensorInfo {
        name: entry.name,
        storage,
        offset: 0,
        length,
        dtype: entry.dtype,
        shape: entry.shape,
        strides: None,
    });
    Ok(())
}

fn id(position: usize) -> Result<u32, Error> {
    u32::try_from(position).map_err(|_| {
        Error::new(ErrorKind::LimitExceeded, "the model has more parts than can be numbered")
            .with("limit", u32::MAX)
            .with("actual", position)
    })
}

fn refuse_repeated_files(files: &[(Box<str>, u64, Header)]) -> Result<(), Error> {
    let mut names: Vec<&str> = files.iter().map(|(name, ..)| &**name).collect();
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
fn refuse_shared_names(files: &[(Box<str>, u64, Header)]) -> Result<(), Error> {
    // Names within one header are distinct already.
    if files.len() < 2 {
        return Ok(());
    }
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for (file, _, header) in files {
        for entry in &header.entries {
            if let Some(other) = seen.insert(&entry.name, file) {
                return Err(Error::new(ErrorKind::DuplicateTensor, "a tensor stands in two files")
                    .with("tensor", &entry.name)
                    .with("file", file)
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
    fn new(index: &'a ShardIndex, files: &[(Box<str>, u64, Header)]) -> Result<Self, Error> {
        let given: HashSet<&str> = files.iter().map(|(name, ..)| &**name).collect();
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
