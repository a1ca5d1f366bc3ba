//! `Loader`, and a load on the calling thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use weightlift::{CancelToken, Error, ErrorKind, Event, Options, Request};

use crate::destination::{Given, Place};
use crate::error::{exception, from_json, guarded};
use crate::job::Job;
use crate::model::{Model, fields};
use crate::tensor::Tensor;

/// How often the calling thread looks at signals, and tells of progress.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Owns what outlives one load: the driver's contexts, the staging memory, the settings.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Loader(Arc<weightlift::Loader>);

#[pymethods]
impl Loader {
    #[new]
    #[pyo3(signature = (options, driver=None))]
    fn new(
        py: Python<'_>,
        options: Vec<(String, String)>,
        driver: Option<std::path::PathBuf>,
    ) -> PyResult<Self> {
        let mut settings = Options::default();
        for (name, value) in options {
            settings.set(&name, &value).map_err(|error| exception(py, &error))?;
        }
        let loader = weightlift::Loader::new(settings);
        Ok(Self(Arc::new(match driver {
            Some(driver) => loader.with_driver(driver),
            None => loader,
        })))
    }

    /// The settings, as text.
    fn options(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let options = PyDict::new(py);
        for name in Options::NAMES {
            let value = self.0.options().get(name).map_err(|error| exception(py, &error))?;
            options.set_item(name, value)?;
        }
        Ok(options.unbind())
    }

    /// Gives back staging memory and contexts that no tensor needs.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || {
            self.0.release();
            Ok(())
        })
    }

    /// Bytes and handles given up because they could not be proved idle.
    fn quarantined(&self) -> (u64, u64) {
        let quarantined = self.0.quarantined();
        (quarantined.bytes, quarantined.handles)
    }

    /// Loads tensors of `model`; returns them and the report.
    ///
    /// `settings` are those of a request: `device`, `route`, `reading_threads`, `pin_host`.
    /// `provide(storage, nbytes, tensors, device)` gives memory, `(address, nbytes, keep, event)`, for
    /// tensors as `Model.tensors` has them.
    /// `landed(bytes, total)` and `ready(name)` are told; all of them on this thread. Tensors that
    /// lie `apart` free their memory one by one. `verify` is a manifest to compare with.
    #[pyo3(signature = (model, settings, names=None, provide=None, landed=None, ready=None, apart=false, verify=None))]
    #[allow(clippy::too_many_arguments)] // called by the package alone, by name
    fn load(
        &self,
        py: Python<'_>,
        model: &Model,
        settings: Vec<(String, String)>,
        names: Option<Vec<String>>,
        provide: Option<Py<PyAny>>,
        landed: Option<Py<PyAny>>,
        ready: Option<Py<PyAny>>,
        apart: bool,
        verify: Option<std::path::PathBuf>,
    ) -> PyResult<(Vec<Tensor>, Py<PyAny>)> {
        let options = self.with_settings(py, settings)?;
        let told = Told { token: CancelToken::new(), failure: Mutex::default() };
        let loaded = guarded(py, || {
            let manifest = verify.map(weightlift::Manifest::read).transpose()?;
            let mut looked = Instant::now();
            let mut request = Request::new()
                .device(options.device)
                .route(options.route)
                .reading_threads(options.reading_threads)
                .pin_host(options.pin_host)
                .tensors(names.unwrap_or_default())
                .apart(apart)
                .cancel(&told.token);
            if let Some(manifest) = manifest {
                request = request.verify(std::sync::Arc::new(manifest));
            }
            request = request.on_event(|event| {
                let due = looked.elapsed() >= LOOK;
                let last = matches!(event, Event::Landed { bytes, total } if bytes == total);
                let wanted = match event {
                    Event::Landed { .. } => landed.is_some() && (due || last),
                    Event::Ready { .. } => ready.is_some(),
                    _ => false,
                };
                if !due && !wanted {
                    return;
                }
                looked = Instant::now();
                told.tell(|py| {
                    py.check_signals()?;
                    match (event, &landed, &ready) {
                        (Event::Landed { bytes, total }, Some(landed), _) if wanted => {
                            landed.call1(py, (bytes, total)).map(drop)
                        }
                        (Event::Ready { tensor }, _, Some(ready)) => {
                            ready.call1(py, (&*tensor.name,)).map(drop)
                        }
                        _ => Ok(()),
                    }
                });
            });
            if let Some(provide) = &provide {
                request = request.destinations(|wanted| {
                    let device = wanted.device.to_string();
                    let given = told.tell(|py| {
                        let index = model.0.index();
                        let tensors = wanted.tensors.iter().map(|tensor| fields(py, index, tensor));
                        let tensors = PyList::new(py, tensors.collect::<PyResult<Vec<_>>>()?)?;
                        let wanted = (wanted.storage.0, wanted.length, tensors, device);
                        provide.call1(py, wanted)?.extract(py)
                    });
                    let given = given.ok_or_else(|| {
                        Error::new(ErrorKind::Cancelled, "no memory was provided")
                    })?;
                    Ok(Place::new(given).on(wanted.device))
                });
            }
            self.0.load_model(&model.0, request)
        });
        // What was raised in between is why the load was cancelled.
        let failure = told.failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(failure) = failure {
            return Err(failure);
        }
        let loaded = loaded?;
        let report = serde_json::to_value(&loaded.report).unwrap_or_default();
        let report = from_json(py, &report)?;
        Ok((loaded.tensors.into_iter().map(Tensor).collect(), report))
    }

    /// Begins to load tensors of `model`, to a device that is named, and returns at once.
    ///
    /// `settings` and `names` are those of `load`; `places` has by the number of each storage
    /// `(address, nbytes, keep, event)`, memory as `provide` gives it.
    #[pyo3(signature = (model, settings, names, places=None))]
    fn start(
        &self,
        py: Python<'_>,
        model: &Model,
        settings: Vec<(String, String)>,
        names: Vec<String>,
        places: Option<HashMap<u32, Given>>,
    ) -> PyResult<Job> {
        let options = self.with_settings(py, settings)?;
        let places = places.map(|places| {
            places.into_iter().map(|(storage, given)| (storage, Place::new(given))).collect()
        });
        Job::start(self.0.clone(), model.0.clone(), options, names, places)
    }
}

impl Loader {
    /// The loader's options with those of one load, parsed as a loader's, so that errors have the
    /// same words.
    fn with_settings(
        &self,
        py: Python<'_>,
        settings: Vec<(String, String)>,
    ) -> PyResult<weightlift::Options> {
        let mut options = self.0.options().clone();
        for (name, value) in settings {
            if !["device", "route", "reading_threads", "pin_host"].contains(&name.as_str()) {
                let message = "this is a setting of a loader, not of one load";
                let error = Error::new(ErrorKind::InvalidOption, message);
                return Err(exception(py, &error.with("option", name)));
            }
            options.set(&name, &value).map_err(|error| exception(py, &error))?;
        }
        Ok(options)
    }
}

/// What Python's functions raised, which ends the load.
struct Told {
    token: CancelToken,
    failure: Mutex<Option<PyErr>>,
}

impl Told {
    /// Calls into Python; the first exception is kept and cancels the load.
    fn tell<T>(&self, call: impl FnOnce(Python<'_>) -> PyResult<T>) -> Option<T> {
        match Python::attach(call) {
            Ok(value) => Some(value),
            Err(raised) => {
                self.token.cancel();
                let mut failure =
                    self.failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                failure.get_or_insert(raised);
                None
            }
        }
    }
}
