//! What is known of a load's files: what they lie on, and what of them the page cache holds.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;

use super::access::{DirectAlignment, Facts};
use crate::error::Error;
use crate::source::{LocalFile, Source};
use crate::system::{self, Residency, Resident, StorageFacts, StorageKind};

/// Looked up for each file when a reader first asks for it, and so beside the driver's start.
pub(crate) struct FileFacts {
    sources: Arc<[Arc<dyn Source>]>,
    known: Vec<OnceLock<Known>>,
    /// What of the files read lately is in the cache, the latest last. Each holds a descriptor or
    /// address space: a model may have more files than a process may have open.
    recent: Mutex<VecDeque<(usize, Arc<Residency>)>>,
}

struct Known {
    alignment: Result<DirectAlignment, String>,
    /// Why everything is read through the cache unless direct reads are forced.
    buffered: Option<String>,
    /// Whether the page cache can have it before it is read: it is a file, and not in memory.
    can_be_ahead: bool,
}

/// Pieces come in the files' order, so the readers are in few files at a time.
const MOST_RECENT: usize = 16;

impl FileFacts {
    pub(crate) fn new(sources: Arc<[Arc<dyn Source>]>) -> Self {
        let known = sources.iter().map(|_| OnceLock::new()).collect();
        Self { sources, known, recent: Mutex::default() }
    }

    fn known(&self, source: usize) -> &Known {
        self.known[source].get_or_init(|| {
            let looked = look(&*self.sources[source]).map(|(known, residency)| {
                self.keep(source, Arc::new(residency));
                known
            });
            looked.unwrap_or_else(|why| Known {
                alignment: Ok(DirectAlignment::USUAL),
                buffered: Some(why),
                can_be_ahead: false,
            })
        })
    }

    fn residency(&self, source: usize) -> Option<Arc<Residency>> {
        let kept = self.recent().iter().find(|(number, _)| *number == source).cloned();
        if let Some((_, residency)) = kept {
            return Some(residency);
        }
        let residency = Arc::new(look(&*self.sources[source]).ok()?.1);
        self.keep(source, residency.clone());
        Some(residency)
    }

    fn keep(&self, source: usize, residency: Arc<Residency>) {
        let mut recent = self.recent();
        recent.push_back((source, residency));
        if recent.len() > MOST_RECENT {
            recent.pop_front();
        }
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(usize, Arc<Residency>)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Facts for FileFacts {
    fn alignment(&self, source: usize) -> Result<DirectAlignment, String> {
        self.known(source).alignment.clone()
    }

    fn resident(&self, source: usize, offset: u64, length: u64) -> Resident {
        match self.known(source).buffered {
            Some(_) => Resident::Unknown,
            None => {
                self.residency(source).map_or(Resident::Unknown, |file| file.range(offset, length))
            }
        }
    }

    fn buffered(&self, source: usize) -> Option<&str> {
        self.known(source).buffered.as_deref()
    }

    fn can_be_ahead(&self, source: usize) -> bool {
        self.known(source).can_be_ahead
    }

    /// Half of what is free: the other half is for whoever else runs, and for what the kernel
    /// keeps of files that are in use.
    fn room_ahead(&self) -> u64 {
        system::available_memory() / 2
    }
}

/// Why nothing is known otherwise.
fn look(source: &dyn Source) -> Result<(Known, Residency), String> {
    let open = source.open().map_err(|error| error.to_string())?;
    let descriptor = open.descriptor().ok_or("it is no local file")?;
    let file: File = descriptor.try_clone_to_owned().map_err(|error| error.to_string())?.into();
    judge(&file).map(|(known, residency, _)| (known, residency)).map_err(|error| error.to_string())
}

fn judge(file: &File) -> io::Result<(Known, Residency, StorageFacts)> {
    let facts = StorageFacts::of(file)?;
    let alignment = match facts.direct {
        system::DirectAlignment::Told { memory, offset }
        | system::DirectAlignment::Assumed { memory, offset } => {
            Ok(DirectAlignment { memory, offset })
        }
        system::DirectAlignment::Refused => Err("its file system has no direct reads".to_owned()),
        system::DirectAlignment::Unknown => Ok(DirectAlignment::USUAL),
    };
    let residency = Residency::of(file, &facts);
    let buffered = rule(&facts)
        .or_else(|| alignment.clone().err())
        .or_else(|| (residency.method() == "unknown").then(|| UNASKED.to_owned()));
    let can_be_ahead = facts.kind != StorageKind::Memory;
    Ok((Known { alignment, buffered, can_be_ahead }, residency, facts))
}

/// How loads read a file, unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReadFacts {
    /// The file's length in bytes.
    pub bytes: u64,
    /// What it lies on.
    pub storage: StorageFacts,
    /// How it is learnt what the page cache holds: `memory`, `cachestat`, `mincore` or `unknown`.
    pub residency: String,
    /// Bytes of it that are in the page cache, in whole pieces of 1 MiB; `None` where nobody tells.
    pub cached_bytes: Option<u64>,
    /// Why all of it is read through the page cache; `None` where what the cache does not hold is
    /// read past it.
    pub buffered: Option<String>,
}

/// Looks at the regular file at `path`; links are followed. It reads nothing of it.
///
/// # Errors
///
/// [`ErrorKind::FileNotFound`](crate::ErrorKind::FileNotFound), `PermissionDenied`, `Io`, and
/// `NotRegular` for what is no file, each with the path.
pub fn read_facts(path: impl AsRef<Path>) -> Result<ReadFacts, Error> {
    const PIECE: u64 = 1 << 20;
    let path = path.as_ref();
    let (source, file) = LocalFile::open_new(path.to_owned(), &path.to_string_lossy())?;
    let (known, residency, storage) =
        judge(&file).map_err(|error| Error::io(error, "look at a file", path.display()))?;
    let bytes = source.length();
    let pieces = (0..bytes).step_by(PIECE as usize).map(|at| (at, PIECE.min(bytes - at)));
    let cached = |(at, length)| match residency.range(at, length) {
        Resident::All => Some(length),
        Resident::Unknown => None,
        _ => Some(0),
    };
    Ok(ReadFacts {
        bytes,
        storage,
        residency: residency.method().to_owned(),
        cached_bytes: pieces.map(cached).sum(),
        buffered: known.buffered,
    })
}

/// Read past the cache, a file that is in it takes twenty times as long or more; read through it,
/// one that is not takes about twice as long. So where nobody can tell, the cache it is.
const UNASKED: &str = "nobody tells what of it is in the page cache";

/// Where direct reads are not tried unasked, whatever is in the cache.
fn rule(facts: &StorageFacts) -> Option<String> {
    let name = &facts.file_system;
    match facts.kind {
        StorageKind::Memory => Some(format!("{name} lies in memory")),
        // Their clients read ahead in requests of their own size, and some refuse at the first
        // direct read what they allowed at opening.
        StorageKind::Network => Some(format!("{name} is on a network")),
        StorageKind::Fuse => Some(format!("{name} is served by a program")),
        StorageKind::Unknown => Some(format!("the file system {name} is not known")),
        StorageKind::Disk | StorageKind::Overlay => {
            // The kernel's read-ahead keeps the head where it is.
            (facts.rotational == Some(true)).then(|| "its disk rotates".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_kept_of_few_files() {
        let folder = tempfile::tempdir().unwrap();
        let source = |number: usize| -> Arc<dyn Source> {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, [7; 5000]).unwrap();
            Arc::new(LocalFile::open_new(path, "f").unwrap().0)
        };
        let sources: Arc<[Arc<dyn Source>]> = (0..100).map(source).collect();
        let facts = FileFacts::new(sources);
        // The first ones are asked again when they are long forgotten.
        for source in (0..100).chain(0..3) {
            let cached = facts.resident(source, 0, 5000);
            assert!(cached == Resident::All || facts.buffered(source).is_some(), "just written");
        }
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter(|entry| {
            std::fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(folder.path()))
        });
        let open = open.count();
        assert!(open <= MOST_RECENT, "{open} files are open");
    }
}
