//! The face of the library: a loader, and what can be asked of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::load::{self, Engine, From, Loaded, Request};
use crate::options::{DeviceChoice, Options};
use crate::plan::{self, Plan};
use crate::report::Quarantined;
use crate::source::Model;

/// Owns what outlives one load: the driver and its contexts, the ring of staging memory with
/// its budget, and what it remembers of failures. One is enough for a process; loads from
/// several threads share it.
///
/// ```no_run
/// use weightlift::{Loader, Request};
/// let loader = Loader::default();
/// let loaded = loader.load("models/llama", Request::new())?;
/// for tensor in &loaded.tensors {
///     println!("{} at {:#x}", tensor.name(), tensor.address());
/// }
/// println!("{:.1} GB/s by {}", loaded.report.bytes_per_second / 1e9, loaded.report.route());
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Loader(Engine);

impl Loader {
    /// A loader with these settings. Touches neither the driver nor memory before a load does.
    pub fn new(options: Options) -> Self {
        Self(Engine::new(options))
    }

    /// Takes the CUDA driver from this library instead of looking for it.
    pub fn with_driver(mut self, library: impl Into<PathBuf>) -> Self {
        self.0.library = Some(library.into());
        self
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Opens the model at `path` and loads what `request` asks for.
    ///
    /// All or nothing: after an error no tensor is handed out and what the load took is given
    /// back. The report stands in [`Loaded`].
    ///
    /// # Errors
    ///
    /// Those of [`Model::open`], of the device and of the sources; `NotFound` if a pattern
    /// of the request matches no tensor; `Changed` if a file changed meanwhile; `Cancelled`.
    pub fn load(&self, path: impl AsRef<Path>, request: Request<'_>) -> Result<Loaded> {
        let path = path.as_ref();
        // A path that leads nowhere is not worth starting a driver for.
        std::fs::metadata(path)
            .map_err(|error| Error::io(error, "find the model", path.display()))?;
        load::load(&self.0, From::Path(path), request)
    }

    /// Loads from a model that is open. `seconds.open` and `total` count its opening too.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn load_model(&self, model: &Arc<Model>, request: Request<'_>) -> Result<Loaded> {
        load::load(&self.0, From::Opened(model), request)
    }

    /// The plan that a load of these tensors would follow, without loading: with staging memory
    /// for a CUDA device, in place for the host, which `auto` takes where no driver is found.
    ///
    /// # Errors
    ///
    /// `NotFound` if a pattern matches no tensor, `InvalidOption` for a budget too small.
    pub fn plan(&self, model: &Model, request: &Request<'_>) -> Result<Plan> {
        let wanted = load::select(model, request.patterns())?;
        let threads = request.reading_threads_or(self.options());
        let readers = crate::route::readers(threads, crate::system::processors());
        let few = load::readers_of_its_disk(model, &wanted, threads, readers);
        let readers = few.unwrap_or(readers);
        let bytes = load::bytes_of(model, &wanted);
        let to_host = match request.device_or(self.options()) {
            DeviceChoice::Host => true,
            DeviceChoice::Auto => !self.0.finds_driver(),
            DeviceChoice::CurrentCuda | DeviceChoice::Cuda(_) => false,
        };
        let geometry = if to_host {
            plan::Geometry::for_host(self.options(), readers)
        } else {
            let budget = self.options().staging_budget();
            plan::Geometry::new(self.options(), budget, bytes, readers)?
        };
        Ok(plan::build(
            model.index(),
            &load::storages_of(model, &wanted),
            geometry.block_size,
            geometry.piece_size,
        ))
    }

    /// Gives back the staging memory and the contexts that no tensor needs. The next load
    /// takes them again. Loads that are under way keep what they use.
    pub fn release(&self) {
        self.0.release();
    }

    /// Memory given up because it could not be proved idle, and handles that could not be
    /// destroyed, so far.
    pub fn quarantined(&self) -> Quarantined {
        self.0.quarantined()
    }
}

/// Loads with the process's default loader: default options, driver looked for.
///
/// # Errors
///
/// Those of [`Loader::load`].
pub fn load(path: impl AsRef<Path>, request: Request<'_>) -> Result<Loaded> {
    default_loader().load(path, request)
}

/// Which tensors of `model` a load by this request would take: their numbers in its index, ascending.
/// Nothing is read.
///
/// # Errors
///
/// `NotFound` if a pattern matches no tensor, `InvalidOption` for one that is no pattern.
pub fn select(model: &Model, request: &Request<'_>) -> Result<Vec<usize>> {
    load::select(model, request.patterns())
}

/// The loader behind [`load`]. It lives as long as the process;
/// [`release`](Loader::release) gives back what it holds.
pub fn default_loader() -> &'static Loader {
    static DEFAULT: std::sync::LazyLock<Loader> = std::sync::LazyLock::new(Loader::default);
    &DEFAULT
}
