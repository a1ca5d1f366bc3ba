//! `Job`: a load beside the receiver of other tensors. Its threads call nothing of Python's.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use weightlift::{CancelToken, Error, ErrorKind, Event, Loaded, Options, Request};

use crate::destination::Place;
use crate::error::{exception, from_json, panicked};
use crate::loader::LOOK;
use crate::tensor::Tensor;

/// A load that runs on a thread of its own, begun by `Loader.start`.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Job {
    running: Mutex<Option<Running>>,
    /// The number of the process that has the thread: a forked child has not.
    process: u32,
}

struct Running {
    thread: JoinHandle<weightlift::Result<Loaded>>,
    /// Nothing is ever sent: it is closed when the thread is done.
    ended: Receiver<()>,
    token: CancelToken,
    landed: Arc<Landed>,
    /// One reference to each object of Python's that the load keeps, so that the last is never let
    /// go of by a thread of the load.
    _places: Arc<HashMap<u32, Place>>,
}

#[derive(Default)]
struct Landed {
    bytes: AtomicU64,
    total: AtomicU64,
}

impl Job {
    /// Begins to load the tensors of these names to the device that `options` name. `places` has
    /// the memory for each storage, by its number; without, it is weightlift's own.
    pub(crate) fn start(
        loader: Arc<weightlift::Loader>,
        model: Arc<weightlift::Model>,
        options: Options,
        names: Vec<String>,
        places: Option<HashMap<u32, Place>>,
    ) -> PyResult<Self> {
        let given = places.is_some();
        let places = Arc::new(places.unwrap_or_default());
        let (token, landed) = (CancelToken::new(), Arc::new(Landed::default()));
        let work = {
            let (places, token, landed) = (places.clone(), token.clone(), landed.clone());
            move || {
                let mut request = Request::new()
                    .device(options.device)
                    .route(options.route)
                    .reading_threads(options.reading_threads)
                    .pin_host(options.pin_host)
                    .tensors(names)
                    .cancel(&token)
                    .on_event(|event| {
                        if let Event::Landed { bytes, total } = event {
                            landed.total.store(total, Ordering::Relaxed);
                            landed.bytes.store(bytes, Ordering::Relaxed);
                        }
                    });
                if given {
                    request = request.destinations(|wanted| match places.get(&wanted.storage.0) {
                        Some(place) => Ok(place.on(wanted.device)),
                        None => Err(Error::new(ErrorKind::Internal, "no memory was provided")
                            .with("storage", wanted.storage.0)),
                    });
                }
                loader.load_model(&model, request)
            }
        };
        Self::spawn(token, landed, places, work)
    }

    /// A job whose thread does `work`.
    fn spawn(
        token: CancelToken,
        landed: Arc<Landed>,
        places: Arc<HashMap<u32, Place>>,
        work: impl FnOnce() -> weightlift::Result<Loaded> + Send + 'static,
    ) -> PyResult<Self> {
        let (open, ended) = channel::<()>();
        let work = move || {
            let _open = open;
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()))
        };
        let thread = Builder::new().name("weightlift-job".to_owned()).spawn(work)?;
        let running = Running { thread, ended, token, landed, _places: places };
        Ok(Self { running: Mutex::new(Some(running)), process: std::process::id() })
    }

    /// A job that panics, for a test of what becomes of it.
    #[cfg(debug_assertions)]
    pub(crate) fn that_panics() -> PyResult<Self> {
        Self::spawn(CancelToken::new(), Arc::default(), Arc::default(), || panic!("planted"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether this process has the thread.
    fn is_here(&self) -> bool {
        std::process::id() == self.process
    }

    /// Waits for the end of what was taken, and lets go of its tensors.
    fn stop(running: Running) {
        running.token.cancel();
        drop(running.thread.join());
    }
}

#[pymethods]
impl Job {
    /// Waits for the load: its tensors and the report, or its error. `landed(bytes, total)` is told
    /// meanwhile, on this thread. A signal whose handler raises ends the load.
    ///
    /// `None` in a forked child of the process that began it: there is no load there.
    #[pyo3(signature = (landed=None))]
    fn result(
        &self,
        py: Python<'_>,
        landed: Option<Py<PyAny>>,
    ) -> PyResult<Option<(Vec<Tensor>, Py<PyAny>)>> {
        if !self.is_here() {
            return Ok(None);
        }
        // Taken, so that whatever happens here, the end of this function is the end of the load.
        let Some(mut running) = py.detach(|| self.lock().take()) else {
            return Err(PyValueError::new_err(
                "the load was cancelled, or its result taken before",
            ));
        };
        let mut told = None;
        loop {
            let ended = &mut running.ended;
            if py.detach(move || ended.recv_timeout(LOOK)) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            let looked = py.check_signals().and_then(|()| match &landed {
                Some(landed) => running.landed.tell(py, landed, told).map(Some),
                None => Ok(None),
            });
            match looked {
                Ok(bytes) => told = bytes,
                Err(raised) => {
                    py.detach(|| Self::stop(running));
                    return Err(raised);
                }
            }
        }
        let done = running.landed.clone();
        let loaded = py.detach(|| running.thread.join().unwrap_or_else(|_| Err(panicked())));
        let loaded = loaded.map_err(|error| exception(py, &error))?;
        if let Some(landed) = &landed {
            done.tell(py, landed, told)?;
        }
        let report = serde_json::to_value(&loaded.report).unwrap_or_default();
        let report = from_json(py, &report)?;
        Ok(Some((loaded.tensors.into_iter().map(Tensor).collect(), report)))
    }

    /// Ends the load and waits until what is under way is over. Nothing is left of it then.
    fn cancel(&self, py: Python<'_>) {
        if self.is_here() {
            py.detach(|| self.lock().take().map(Self::stop));
        }
    }
}

impl Landed {
    /// Tells what has landed, unless that was told before.
    fn tell(&self, py: Python<'_>, landed: &Py<PyAny>, told: Option<u64>) -> PyResult<u64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        if told != Some(bytes) {
            landed.call1(py, (bytes, self.total.load(Ordering::Relaxed)))?;
        }
        Ok(bytes)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(running) = running.take() else { return };
        // In a forked child there is no thread to wait for, and what it had is not ours to free. A
        // process that ends takes both with it.
        let running = ManuallyDrop::new(running);
        if std::process::id() == self.process {
            running.token.cancel();
            let _ = Python::try_attach(|py| {
                py.detach(|| Self::stop(ManuallyDrop::into_inner(running)));
            });
        }
    }
}
