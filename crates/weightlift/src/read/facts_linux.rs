//! What is known of a load's files: what they lie on, and what of them the page cache holds.

use std::fs::File;
use std::sync::{Arc, OnceLock};

use super::access::{DirectAlignment, Facts};
use crate::source::Source;
use crate::system::{self, Residency, Resident, StorageFacts, StorageKind};

/// Looked up for each file when a reader first asks for it, and so beside the driver's start.
pub(crate) struct FileFacts {
    sources: Arc<[Arc<dyn Source>]>,
    known: Vec<OnceLock<Known>>,
}

struct Known {
    alignment: Result<DirectAlignment, String>,
    /// Why everything is read through the cache unless direct reads are forced.
    buffered: Option<String>,
    residency: Option<Residency>,
}

impl FileFacts {
    pub(crate) fn new(sources: Arc<[Arc<dyn Source>]>) -> Self {
        let known = sources.iter().map(|_| OnceLock::new()).collect();
        Self { sources, known }
    }

    fn known(&self, source: usize) -> &Known {
        self.known[source].get_or_init(|| {
            look(&*self.sources[source]).unwrap_or_else(|why| Known {
                alignment: Ok(DirectAlignment::USUAL),
                buffered: Some(why),
                residency: None,
            })
        })
    }
}

impl Facts for FileFacts {
    fn alignment(&self, source: usize) -> Result<DirectAlignment, String> {
        self.known(source).alignment.clone()
    }

    fn is_cached(&self, source: usize, offset: u64, length: u64) -> bool {
        let residency = &self.known(source).residency;
        residency.as_ref().is_some_and(|file| file.range(offset, length) == Resident::All)
    }

    fn buffered(&self, source: usize) -> Option<&str> {
        self.known(source).buffered.as_deref()
    }
}

/// Why nothing is known otherwise.
fn look(source: &dyn Source) -> Result<Known, String> {
    let open = source.open().map_err(|error| error.to_string())?;
    let descriptor = open.descriptor().ok_or("it is no local file")?;
    let file: File = descriptor.try_clone_to_owned().map_err(|error| error.to_string())?.into();
    let facts = StorageFacts::of(&file).map_err(|error| error.to_string())?;
    let alignment = match facts.direct {
        system::DirectAlignment::Told { memory, offset }
        | system::DirectAlignment::Assumed { memory, offset } => {
            Ok(DirectAlignment { memory, offset })
        }
        system::DirectAlignment::Refused => Err("its file system has no direct reads".to_owned()),
        system::DirectAlignment::Unknown => Ok(DirectAlignment::USUAL),
    };
    let residency = Residency::of(&file, &facts);
    let buffered = rule(&facts)
        .or_else(|| alignment.clone().err())
        .or_else(|| (residency.method() == "unknown").then(|| UNASKED.to_owned()));
    Ok(Known { alignment, buffered, residency: Some(residency) })
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
            // A head that moves between a dozen readers; the kernel's read-ahead keeps it still.
            (facts.rotational == Some(true)).then(|| "its disk rotates".to_owned())
        }
    }
}
