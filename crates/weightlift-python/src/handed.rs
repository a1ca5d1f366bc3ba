//! `Handed`: a tensor that is handed over, and whether its new owner still has it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::dlpack::{self, Told};

/// A tensor for one consumer of DLPack. Whether that still uses it is what the deleter says, which
/// no log and no promise can.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Handed {
    tensor: Mutex<Option<(weightlift::Tensor, Told)>>,
    device: (i32, i32),
    held: Arc<AtomicBool>,
}

impl Handed {
    pub(crate) fn new(tensor: weightlift::Tensor) -> Self {
        let held = Arc::new(AtomicBool::new(true));
        let device = dlpack::device(&tensor);
        Self { tensor: Mutex::new(Some((tensor, Told(held.clone())))), device, held }
    }
}

#[pymethods]
impl Handed {
    /// Whether somebody has the tensor: nobody has taken it yet, or who took it keeps it.
    #[getter]
    fn held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// A DLPack capsule over the tensor's memory, once.
    #[pyo3(signature = (*, stream=None, max_version=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        let taken = self.tensor.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (tensor, told) =
            taken.ok_or_else(|| PyBufferError::new_err("the tensor was handed over already"))?;
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::export(py, &tensor, versioned, Some(told))
    }

    /// Where it is, as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device
    }
}
