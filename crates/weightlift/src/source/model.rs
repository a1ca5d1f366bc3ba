//! A model opened: its index and its sources, before any weight is read.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightlift_index::safetensors::{self, Header};
use weightlift_index::shards::{self, Choice, ShardIndex};
use weightlift_index::{Index, Limits};

use super::file_linux::read_exact_at;
use super::folder::Folder;
use super::{LocalFile, Source};
use crate::error::{Error, ErrorKind, Result};

/// A model whose headers are read and checked. Holds no file open.
///
/// ```no_run
/// use weightlift::{Model, OpenOptions};
/// let model = Model::open("models/llama", &OpenOptions::default())?;
/// for tensor in &model.index().tensors {
///     println!("{} {} {:?}", tensor.name, tensor.dtype.name(), tensor.shape);
/// }
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    index: Index,
    sources: Vec<Arc<dyn Source>>,
    open_time: Duration,
}

/// How to open a model.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Limits on what a file may ask for.
    pub limits: Limits,
    /// Do not use `*.safetensors.index.json`; take all shards that are there.
    pub ignore_index: bool,
    /// Allow links that lead out of the model's folder.
    pub follow_links: bool,
}

impl Model {
    /// Opens a safetensors file, a shard index, or a folder that holds either.
    ///
    /// Reads headers only. Errors name the file; their kinds are those of
    /// [`weightlift_index::ErrorKind`] for bad files, and `FileNotFound`,
    /// `PermissionDenied`, `NotRegular` or `Io` where the file system says no.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let started = Instant::now();
        let path = path.as_ref();
        let metadata = fs::metadata(path)
            .map_err(|error| Error::io(error, "find the model", path.display()))?;
        let (index, sources) = if metadata.is_dir() {
            open_folder(path, options)?
        } else if is_shard_index(path) {
            let folder =
                Folder::open(path.parent().unwrap_or(Path::new(".")), options.follow_links)?;
            open_index(&folder, path, options)?
        } else {
            // The user named this file: wherever its links lead, it is the one that is meant.
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            assemble(vec![open_file(path.to_owned(), &name, options)?], None)?
        };
        let open_time = started.elapsed();
        Ok(Self { path: path.to_owned(), index, sources, open_time })
    }

    /// A model whose index and sources come from elsewhere: the sources stand in the order of
    /// the index's.
    ///
    /// An error if an index's tensor or storage lies outside its source, or a source's length
    /// is not the one that the index knows.
    pub fn from_parts(index: Index, sources: Vec<Arc<dyn Source>>) -> Result<Self> {
        index.validate()?;
        let same = index.sources.len() == sources.len()
            && index
                .sources
                .iter()
                .zip(&sources)
                .all(|(info, source)| info.length == source.length());
        if !same {
            let kind = ErrorKind::Format(weightlift_index::ErrorKind::SizeMismatch);
            return Err(Error::new(kind, "the sources are not those of the index"));
        }
        Ok(Self { path: PathBuf::new(), index, sources, open_time: Duration::ZERO })
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in the model.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// What holds the bytes, in the order of the index's sources.
    pub fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    /// How long opening took.
    pub fn open_time(&self) -> Duration {
        self.open_time
    }
}

type Opened = (Index, Vec<Arc<dyn Source>>);

fn open_folder(path: &Path, options: &OpenOptions) -> Result<Opened> {
    let folder = Folder::open(path, options.follow_links)?;
    let named = |error: Error| error.with("path", path.display());
    let choice = shards::choose(&folder.file_names()?, options.ignore_index);
    match choice.map_err(|error| named(error.into()))? {
        Choice::Index(name) => open_index(&folder, &folder.resolve(&name)?, options),
        Choice::Files(names) => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assemble(open_files(&folder, &names, options)?, None)
        }
    }
}

fn open_index(folder: &Folder, path: &Path, options: &OpenOptions) -> Result<Opened> {
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
    let mut json = Vec::new();
    grow(&mut json, length as usize)?;
    read_exact_at(&file, &mut json, 0)
        .map_err(|error| Error::io(error, "read the shard index", &name))?;
    let index = shards::parse_index(&json, &options.limits)
        .map_err(|error| in_file(error, &name.to_string()))?;
    shards::check_present(&index, |shard| folder.has(shard))?;
    let shards: Vec<&str> = index.shards.iter().map(|shard| &**shard).collect();
    assemble(open_files(folder, &shards, options)?, Some(&index))
}

/// Shards that one thread opens: on a local disk one takes 0.2 ms, and a thread costs as much
/// to start. With many shards, or a network between, several threads wait for the storage.
const SHARDS_EACH: usize = 8;

/// Most threads that open shards.
const MOST_OPENERS: usize = 8;

/// Opens all files, several at once; of several errors the first in the files' order.
fn open_files(
    folder: &Folder,
    names: &[&str],
    options: &OpenOptions,
) -> Result<Vec<(LocalFile, Header)>> {
    let open_part = |part: &[&str]| -> Vec<Result<_>> {
        part.iter().map(|name| open_file(folder.resolve(name)?, name, options)).collect()
    };
    let mut parts = names.chunks(names.len().div_ceil(MOST_OPENERS).max(SHARDS_EACH));
    let own = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let start = |part| {
            let thread = std::thread::Builder::new();
            (part, thread.spawn_scoped(scope, move || open_part(part)))
        };
        let started: Vec<_> = parts.map(start).collect();
        let mut opened = open_part(own);
        for (part, thread) in started {
            // What could not be started, or died, is done here: it then says what is wrong.
            let part = thread
                .ok()
                .and_then(|thread| thread.join().ok())
                .unwrap_or_else(|| open_part(part));
            opened.extend(part);
        }
        opened.into_iter().collect()
    })
}

fn assemble(files: Vec<(LocalFile, Header)>, index: Option<&ShardIndex>) -> Result<Opened> {
    let mut sources: Vec<Arc<dyn Source>> = Vec::with_capacity(files.len());
    let mut headers = Vec::with_capacity(files.len());
    for (file, header) in files {
        headers.push(header.into_index(file.name(), file.length())?);
        sources.push(Arc::new(file));
    }
    Ok((shards::assemble(headers, index)?, sources))
}

/// Bytes read at first: small headers need no second read, and it is enough to tell what a
/// file is that is no safetensors file.
const FIRST_READ: u64 = 4096;

fn open_file(path: PathBuf, name: &str, options: &OpenOptions) -> Result<(LocalFile, Header)> {
    let (source, file) = LocalFile::open_new(path, name)?;
    let header = read_header(&file, source.length(), options).map_err(|error| match error {
        HeaderError::Io(error) => Error::io(error, "read a header", name),
        HeaderError::Format(error) => in_file(error, name),
        HeaderError::Memory(error) => error.with("file", name),
    })?;
    Ok((source, header))
}

enum HeaderError {
    Io(std::io::Error),
    Format(weightlift_index::Error),
    Memory(Error),
}

impl std::convert::From<Error> for HeaderError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

/// Makes room for `length` bytes, zeros. The length is within the file and its limit, which may
/// still be more than there is memory for.
fn grow(bytes: &mut Vec<u8>, length: usize) -> Result<()> {
    bytes.try_reserve_exact(length - bytes.len()).map_err(|error| {
        Error::new(ErrorKind::OutOfHostMemory, "not enough memory for a header")
            .with("bytes", length)
            .because(error)
    })?;
    bytes.resize(length, 0);
    Ok(())
}

impl From<std::io::Error> for HeaderError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<weightlift_index::Error> for HeaderError {
    fn from(error: weightlift_index::Error) -> Self {
        Self::Format(error)
    }
}

fn read_header(file: &File, length: u64, options: &OpenOptions) -> Result<Header, HeaderError> {
    let mut bytes = vec![0; length.min(FIRST_READ) as usize];
    read_exact_at(file, &mut bytes, 0)?;
    let span = safetensors::header_span(&bytes, length, &options.limits)?;
    // The span lies within the file and within the limit: this allocates no more than both.
    let first = bytes.len();
    let end = span.end as usize;
    if end > first {
        grow(&mut bytes, end)?;
        read_exact_at(file, &mut bytes[first..], first as u64)?;
    }
    let json = &bytes[span.start as usize..end];
    Ok(safetensors::parse_header(json, span.end, length, &options.limits)?)
}

fn in_file(error: weightlift_index::Error, name: &str) -> Error {
    let error = Error::from(error);
    if error.value("file").is_some() { error } else { error.with("file", name) }
}

fn is_shard_index(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".index.json"))
}
