//! The model's folder, and what may be opened from inside it.

use std::fs;
use std::path::{Path, PathBuf};

use weightlift_index::shards;

use crate::error::{Error, ErrorKind, Result};

/// A folder that holds a model. Names in the model's own files lead to files in this folder,
/// or, in the cache of the Hugging Face Hub, through a link to the same repository's `blobs`:
///
/// ```text
/// models--org--name/blobs/4f3c…
/// models--org--name/snapshots/a1b2…/model.safetensors -> ../../blobs/4f3c…
/// ```
///
/// Anything else that a name or a link leads to is an error before it is opened, unless the
/// caller allowed links. Siblings are looked for beside the link, not beside its target.
pub(super) struct Folder {
    path: PathBuf,
    real: PathBuf,
    hub_blobs: Option<PathBuf>,
    /// Where the model itself lies, if it is a link out of the folder: its other files may be
    /// links to the same place.
    beside_model: Option<PathBuf>,
    follow_links: bool,
}

impl Folder {
    pub(super) fn open(path: &Path, follow_links: bool) -> Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let real = fs::canonicalize(path)
            .map_err(|error| Error::io(error, "find the model's folder", path.display()))?;
        let snapshots = real.ancestors().find(|part| part.ends_with("snapshots"));
        let repository = snapshots.and_then(Path::parent);
        let hub_blobs = repository.map(|folder| folder.join("blobs"));
        Ok(Self { path: path.to_owned(), real, hub_blobs, beside_model: None, follow_links })
    }

    /// The folder of a file that is the model.
    pub(super) fn of_file(path: &Path, follow_links: bool) -> Result<Self> {
        let folder = Self::open(path.parent().unwrap_or(Path::new("")), follow_links)?;
        let real = fs::canonicalize(path).ok();
        let beside_model = real.and_then(|real| Some(real.parent()?.to_owned()));
        Ok(Self { beside_model, ..folder })
    }

    /// Names of the files directly in the folder, sorted; links to files count.
    pub(super) fn file_names(&self) -> Result<Vec<String>> {
        let cannot = |error| Error::io(error, "list a folder", self.path.display());
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let is_folder = fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir());
            // A name that is not UTF-8 can be no model file that an index could name.
            if let (false, Ok(name)) = (is_folder, entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether there is something behind `name`; opens nothing.
    pub(super) fn has(&self, name: &str) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let found = fs::metadata(self.path.join(name));
        // Anything else that is wrong with it shows, with its reason, when it is opened.
        !found.is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
    }

    /// The real path of the file that the model calls `name`.
    pub(super) fn resolve(&self, name: &str) -> Result<PathBuf> {
        shards::check_name(name)?;
        let path = self.path.join(name);
        let real = fs::canonicalize(&path)
            .map_err(|error| Error::io(error, "find a file of the model", path.display()))?;
        let also = [&self.hub_blobs, &self.beside_model];
        let allowed = also.into_iter().flatten().any(|folder| real.starts_with(folder));
        if real.starts_with(&self.real) || allowed || self.follow_links {
            return Ok(real);
        }
        let kind = ErrorKind::Format(weightlift_index::ErrorKind::UnsafePath);
        Err(Error::new(kind, "a file of the model is a link out of the model's folder")
            .with("file", name)
            .with("folder", self.path.display())
            .with("target", real.display())
            .hint(
                "if you trust the link, allow it with --follow-links (OpenOptions::follow_links)",
            ))
    }
}
