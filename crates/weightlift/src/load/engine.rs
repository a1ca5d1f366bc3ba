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
    platform: Mutex<Option<Arc<Platform>>>,
}

impl Engine {
    pub(crate) fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The driver: found at the first call, which may fail again and again where there is none.
    pub(super) fn driver(&self) -> Result<Arc<Platform>> {
        let mut platform = self.platform();
        if let Some(platform) = &*platform {
            return Ok(platform.clone());
        }
        let found = Platform::find(self.library.as_deref(), self.quarantine.clone())?;
        Ok(platform.insert(Arc::new(found)).clone())
    }

    /// Gives back the staging memory that no load uses and the contexts that no tensor needs.
    pub(crate) fn release(&self) {
        self.staging.release();
        if let Some(platform) = &*self.platform() {
            platform.release();
        }
    }

    pub(crate) fn quarantined(&self) -> Quarantined {
        Quarantined { bytes: self.quarantine.bytes(), handles: self.quarantine.handles() }
    }

    fn platform(&self) -> MutexGuard<'_, Option<Arc<Platform>>> {
        self.platform.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
