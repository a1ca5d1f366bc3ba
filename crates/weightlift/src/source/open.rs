//! From a path to a model's index and sources: which files they are, opened side by side.

use std::fs;
use std::path::Path;
use std::sync::{Arc, mpsc};

use weightlift_index::shards::{self, Choice, ShardIndex};
use weightlift_index::{Format, Index, gguf};

use super::folder::Folder;
use super::formats::{self, Content, Part, read_start};
use super::{LocalFile, OpenOptions, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::system::Threads;

/// A model's index, and its sources in the order of the index's.
pub(super) type Opened = (Index, Vec<Arc<dyn Source>>);

/// Where and how the files of a model are opened, and by whom.
struct Site<'a> {
    folder: Arc<Folder>,
    options: &'a OpenOptions,
    threads: &'a mut Threads,
}

/// Opens the model at `path`, on `threads` too if there are any.
pub(super) fn open(path: &Path, options: &OpenOptions, threads: &mut Threads) -> Result<Opened> {
    let metadata =
        fs::metadata(path).map_err(|error| Error::io(error, "find the model", path.display()))?;
    if metadata.is_dir() {
        let folder =
            Arc::new(Folder::open(path, options.follow_links)?.and_then(&options.search_dirs)?);
        return open_folder(path, &mut Site { folder, options, threads });
    }
    let folder = Folder::of_file(path, options.follow_links)?.and_then(&options.search_dirs)?;
    let folder = Arc::new(folder);
    let mut site = Site { folder, options, threads };
    if is_shard_index(path) && options.format != Some(Format::Raw) {
        return open_index(path, &mut site);
    }
    // The user named this file: wherever its links lead, it is the one that is meant.
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let part = formats::open(path.to_owned(), &name, &site.folder, options)?;
    join(vec![part], None, &mut site)
}

fn open_folder(path: &Path, site: &mut Site<'_>) -> Result<Opened> {
    let (folder, options) = (&site.folder, site.options);
    let named = |error: Error| error.with("path", path.display());
    let choice = shards::choose(&folder.file_names()?, options.ignore_index, options.format);
    match choice.map_err(|error| named(error.into()))? {
        Choice::Index(name) => open_index(&folder.resolve(&name)?, site),
        Choice::Files(names) => join(open_files(names, site)?, None, site),
    }
}

fn open_index(path: &Path, site: &mut Site<'_>) -> Result<Opened> {
    let options = site.options;
    let name = path.display();
    let (_, file) = LocalFile::open_new(path.to_owned(), &name.to_string())?;
    let length = file.metadata().map_err(|error| Error::io(error, "read", name.to_string()))?.len();
    if length > options.limits.index_bytes {
        let kind = ErrorKind::Format(weightlift_index::ErrorKind::LimitExceeded);
        return Err(Error::new(kind, "the shard index is larger than the limit")
            .with("file", name)
            .with("actual", length)
            .with("limit", options.limits.index_bytes)
            .with("option", "index_bytes"));
    }
    let json = read_start(&file, length, &name.to_string())?;
    let index = shards::parse_index(&json, &options.limits)
        .map_err(|error| in_file(error, &name.to_string()))?;
    shards::check_present(&index, |shard| site.folder.has(shard))?;
    let shards = index.shards.iter().map(ToString::to_string).collect();
    join(open_files(shards, site)?, Some(&index), site)
}

/// Shards that one thread opens: on a local disk one takes 0.2 ms, and to hand over work is not
/// free either. With many shards, or a network between, several threads wait for the storage.
const SHARDS_EACH: usize = 8;

/// Most threads that open shards, the calling one among them.
const MOST_OPENERS: usize = 8;

/// Opens all files, several at once; of several errors the first in the files' order.
fn open_files(names: Vec<String>, site: &mut Site<'_>) -> Result<Vec<Part>> {
    let openers = names.len().div_ceil(SHARDS_EACH).clamp(1, MOST_OPENERS);
    // What cannot be started is done here.
    let _ = site.threads.start(openers - 1);
    let mut parts = names.chunks(names.len().div_ceil(openers).max(1));
    let own = parts.next().unwrap_or_default();
    let given: Vec<_> = parts
        .map(|part| {
            let (sender, opened) = mpsc::channel();
            let (folder, options) = (site.folder.clone(), site.options.clone());
            let names = part.to_vec();
            let work = move || {
                let _ = sender.send(open_part(&names, &folder, &options));
            };
            site.threads.give(Box::new(work));
            (part, opened)
        })
        .collect();
    let mut opened = open_part(own, &site.folder, site.options);
    for (part, done) in given {
        // A thread that died, or was not there, has sent nothing.
        let done = done.recv().unwrap_or_else(|_| open_part(part, &site.folder, site.options));
        opened.extend(done);
    }
    opened.into_iter().collect()
}

fn open_part(names: &[String], folder: &Folder, options: &OpenOptions) -> Vec<Result<Part>> {
    let open = |name: &String| formats::open(folder.resolve(name)?, name, folder, options);
    names.iter().map(open).collect()
}

/// Joins the files of a model. One part of a split GGUF file brings the others with it.
fn join(mut parts: Vec<Part>, index: Option<&ShardIndex>, site: &mut Site<'_>) -> Result<Opened> {
    if let [Part { name, content: Content::Gguf(header), .. }] = &parts[..]
        && let Some(split) = header.split.as_ref().filter(|split| split.count > 1)
    {
        let names = gguf::part_names(name, split).map_err(|error| in_file(error, name))?;
        shards::check_set_present(&names, |name| site.folder.has(name))?;
        parts = open_files(names, site)?;
    }
    let headers: Vec<(&str, &gguf::Header)> = parts.iter().filter_map(Part::gguf).collect();
    if !headers.is_empty() {
        gguf::check_set(&headers)?;
    }
    let mut sources: Vec<Arc<dyn Source>> = Vec::with_capacity(parts.len());
    let mut indexes = Vec::with_capacity(parts.len());
    for part in parts {
        indexes.push(match part.content {
            Content::Index(index) => index,
            Content::Gguf(header) => {
                let length = part.sources.first().map_or(0, |source| source.length());
                header.into_index(&part.name, length).map_err(|error| in_file(error, &part.name))?
            }
        });
        sources.extend(part.sources);
    }
    Ok((shards::assemble(indexes, index)?, sources))
}

/// The error with the file that it is about, if it does not name one.
pub(super) fn in_file(error: weightlift_index::Error, name: &str) -> Error {
    let error = Error::from(error);
    if error.value("file").is_some() { error } else { error.with("file", name) }
}

fn is_shard_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".index.json"))
}
