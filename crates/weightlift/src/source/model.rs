//! A model opened: its index and its sources, before any weight is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weightlift_index::{Format, Index, Limits};

use super::{Source, derived, open};
use crate::error::{Error, ErrorKind, Result};
use crate::system::Threads;

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
    sources: Arc<[Arc<dyn Source>]>,
    open_time: Duration,
}

/// How to open a model.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Limits on what a file may ask for.
    pub limits: Limits,
    /// The format; `None` tells it from the content, and from the name where that does not do.
    pub format: Option<Format>,
    /// Do not use `*.safetensors.index.json` or `*.bin.index.json`; take all shards that are there.
    pub ignore_index: bool,
    /// Allow links that lead out of the model's folder.
    pub follow_links: bool,
    /// Folders to look into, in this order, for files that a model names and that are not in its
    /// own folder: external data of ONNX, the `.bin` of OpenVINO, shards. They are looked for by
    /// the same names, and links may lead out of none of these folders either.
    pub search_dirs: Vec<PathBuf>,
    /// Keep the values of lists in the metadata, a GGUF file's vocabulary for example.
    pub metadata_lists: bool,
}

impl Model {
    /// Opens a model: a file of any format that is read, a shard index, or a folder that holds
    /// one of these.
    ///
    /// Reads headers only. Errors name the file; their kinds are those of
    /// [`weightlift_index::ErrorKind`] for bad files, and `FileNotFound`,
    /// `PermissionDenied`, `NotRegular` or `Io` where the file system says no. `InvalidOption` if
    /// one of [`search_dirs`](OpenOptions::search_dirs) is no folder.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        Self::open_on(path.as_ref(), options, &mut Threads::default())
    }

    /// Opens a model on `threads` too.
    pub(crate) fn open_on(
        path: &Path,
        options: &OpenOptions,
        threads: &mut Threads,
    ) -> Result<Self> {
        let started = Instant::now();
        let (mut index, mut sources) = open::open(path, options, threads)?;
        derived::add(&mut index, &mut sources)?;
        let open_time = started.elapsed();
        Ok(Self { path: path.to_owned(), index, sources: sources.into(), open_time })
    }

    /// A model whose index and sources come from elsewhere: the sources stand in the order of
    /// the index's. Those that the index holds itself (`decoded`) may be left out.
    ///
    /// An error if an index's tensor or storage lies outside its source, or a source's length
    /// is not the one that the index knows.
    pub fn from_parts(mut index: Index, mut sources: Vec<Arc<dyn Source>>) -> Result<Self> {
        index.validate()?;
        derived::add(&mut index, &mut sources)?;
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
        let open_time = Duration::ZERO;
        Ok(Self { path: PathBuf::new(), index, sources: sources.into(), open_time })
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
    pub fn sources(&self) -> &Arc<[Arc<dyn Source>]> {
        &self.sources
    }

    /// How long opening took.
    pub fn open_time(&self) -> Duration {
        self.open_time
    }
}
