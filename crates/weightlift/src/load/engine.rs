//! What outlives one load; the [`Loader`](crate::Loader) is its face.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Staging;
use crate::device::cuda::Platform;
use crate::error::Result;
use crate::memory::Quarantine;
use crate::options::Options;
use crate::report::Quarantined;

/// Settings, the driver, staging memory, and what was given up.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    pub(crate) options: Options,
    /// The driver's library, if it is not to be looked for.
    pub(crate) library: Option<PathBuf>,
    pub(super) staging: Staging,
    pub(super) quarantine: Arc<Quarantine>,
    platform: Arc<Mutex<Option<Arc<Platform>>>>,
}

impl Engine {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Finds the driver, on whichever thread calls what is returned: loading its library takes
    /// some milliseconds.
    pub(super) fn find_driver(&self) -> impl FnOnce() -> Result<Arc<Platform>> + Send + use<> {
        let (slot, library) = (self.platform.clone(), self.library.clone());
        let quarantine = self.quarantine.clone();
        move || {
            let mut platform = lock(&slot);
            if let Some(platform) = &*platform {
                return Ok(platform.clone());
            }
            let found = Platform::find(library.as_deref(), quarantine)?;
            Ok(platform.insert(Arc::new(found)).clone())
        }
    }

    /// Whether there is a driver; it is not started.
    pub(crate) fn finds_driver(&self) -> bool {
        self.find_driver()().is_ok()
    }

    /// Whether this process has the driver's library already, through us or another: only then
    /// can a thread have a current device.
    pub(super) fn has_driver(&self) -> bool {
        lock(&self.platform).is_some() || Platform::is_loaded(self.library.as_deref())
    }

    /// Gives back the staging memory that no load uses and the contexts that no tensor needs.
    pub(crate) fn release(&self) {
        self.staging.release();
        if let Some(platform) = &*lock(&self.platform) {
            platform.release();
        }
    }

    pub(crate) fn quarantined(&self) -> Quarantined {
        Quarantined { bytes: self.quarantine.bytes(), handles: self.quarantine.handles() }
    }
}

fn lock(platform: &Mutex<Option<Arc<Platform>>>) -> MutexGuard<'_, Option<Arc<Platform>>> {
    platform.lock().unwrap_or_else(PoisonError::into_inner)
}
