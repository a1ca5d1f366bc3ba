//! The model's folder, the folders to look into beside it, and what may be opened from inside them.

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
///
/// A file that is not there is looked for in the caller's other folders, by the same name, in their
/// order; each is a folder with the same rules. Which one has the file is decided by what is there
/// alone: a file that may not be opened is an error, not a reason to look on.
pub(super) struct Folder {
    path: PathBuf,
    real: PathBuf,
    hub_blobs: Option<PathBuf>,
    /// Where the model itself lies, if it is a link out of the folder: its other files may be
    /// links to the same place.
    beside_model: Option<PathBuf>,
    follow_links: bool,
    /// Where files are looked for that are not here.
    others: Vec<Folder>,
}

impl Folder {
    pub(super) fn open(path: &Path, follow_links: bool) -> Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let real = fs::canonicalize(path)
            .map_err(|error| Error::io(error, "find the model's folder", path.display()))?;
        let snapshots = real.ancestors().find(|part| part.ends_with("snapshots"));
        let repository = snapshots.and_then(Path::parent);
        let hub_blobs = repository.map(|folder| folder.join("blobs"));
        let path = path.to_owned();
        let others = Vec::new();
        Ok(Self { path, real, hub_blobs, beside_model: None, follow_links, others })
    }

    /// The same folder, and others that are looked into after it. All must be there: a folder that
    /// is misspelt would otherwise show as files that are missing.
    pub(super) fn and_then(mut self, others: &[PathBuf]) -> Result<Self> {
        for path in others {
            let metadata = fs::metadata(path)
                .map_err(|error| Error::io(error, "find a folder to search", path.display()))?;
            if !metadata.is_dir() {
                return Err(Error::new(ErrorKind::InvalidOption, "this is no folder to search")
                    .with("option", "search_dirs")
                    .with("value", path.display())
                    .with("wanted", "a folder"));
            }
            self.others.push(Self::open(path, self.follow_links)?);
        }
        Ok(self)
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

    /// Whether there is something behind `name`, here or in the other folders; opens nothing.
    pub(super) fn has(&self, name: &str) -> bool {
        self.holder(name).is_some()
    }

    /// The first folder that has something behind `name`.
    fn holder(&self, name: &str) -> Option<&Self> {
        std::iter::once(self).chain(&self.others).find(|folder| folder.has_here(name))
    }

    fn has_here(&self, name: &str) -> bool {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let found = fs::metadata(self.path.join(name));
        // Anything else that is wrong with it shows, with its reason, when it is opened.
        !found.is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
    }

    /// The real path of the file that the model calls `name`.
    pub(super) fn resolve(&self, name: &str) -> Result<PathBuf> {
        shards::check_name(name)?;
        // Where none has it, the error names the model's own folder.
        self.holder(name).unwrap_or(self).resolve_here(name)
    }

    fn resolve_here(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        let real = fs::canonicalize(&path)
            .map_err(|error| Error::io(error, "find a file of the model", path.display()))?;
        let also = [&self.hub_blobs, &self.beside_model];
        let allowed = also.into_iter().flatten().any(|folder| real.starts_with(folder));
        if real.starts_with(&self.real) || allowed || self.follow_links {
            return Ok(real);
        }
        let kind = ErrorKind::Format(weightlift_index::ErrorKind::UnsafePath);
        Err(Error::new(kind, "a file of the model is a link out of its folder")
            .with("file", name)
            .with("folder", self.path.display())
            .with("target", real.display())
            .hint(
                "if you trust the link, allow it with --follow-links (OpenOptions::follow_links)",
            ))
    }
}
