//! `Tensor`: bytes in their destination, for whoever takes them over.
#![allow(unsafe_code)] // Python's buffer protocol is one of pointers

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use weightlift::DeviceId;

use crate::dlpack;
use crate::error::guarded;
use crate::handed::Handed;

/// A tensor in host or device memory, which it keeps alive with the other tensors of its load.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Tensor(pub(crate) weightlift::Tensor);

#[pymethods]
impl Tensor {
    /// Its name in the model.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The name of its data type.
    #[getter]
    fn dtype(&self) -> &str {
        self.0.dtype().name()
    }

    /// Elements along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// Elements to step over along each dimension; `None` if it is dense and row-major.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.0.strides().map(|strides| PyTuple::new(py, strides)).transpose()
    }

    /// Bytes of memory that it covers.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes()
    }

    /// Where it is: `host` or `cuda:N`.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// Where its first byte is.
    #[getter]
    fn address(&self) -> u64 {
        self.0.address()
    }

    /// The XXH3-64 of its elements, copied back from a device.
    fn digest(&self, py: Python<'_>) -> PyResult<u64> {
        guarded(py, || self.0.digest())
    }

    /// A copy of its elements, dense and row-major.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = guarded(py, || self.0.to_vec())?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// A DLPack capsule over the same memory, which it keeps alive. All bytes are in place: there
    /// is no stream to wait for.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = stream;
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != dlpack::device(&self.0)) {
            return Err(PyBufferError::new_err("weightlift neither copies nor moves by DLPack"));
        }
        dlpack::export(py, &self.0, max_version.is_some_and(|(major, _)| major >= 1), None)
    }

    /// Where it is, as DLPack numbers it.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device(&self.0)
    }

    /// The tensor for one consumer, with word of when that lets go of it.
    fn hand_over(&self) -> Handed {
        Handed::new(self.0.clone())
    }

    fn __repr__(&self) -> String {
        let shape: Vec<String> = self.0.shape().iter().map(u64::to_string).collect();
        format!(
            "<weightlift.Tensor {:?}: {}[{}] on {}>",
            self.0.name(),
            self.0.dtype().name(),
            shape.join(", "),
            self.0.device()
        )
    }

    /// Its bytes as a writable buffer, if they are in host memory.
    ///
    /// # Safety
    ///
    /// Python's: `view` is to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let tensor = &slf.get().0;
        if tensor.device() != DeviceId::Host {
            return Err(PyBufferError::new_err("the tensor is not in host memory"));
        }
        let length = ffi::Py_ssize_t::try_from(tensor.nbytes())
            .map_err(|_| PyBufferError::new_err("the tensor is too large"))?;
        // SAFETY: `view` is Python's to be filled. The bytes are host memory that is read and
        // written by whoever has the tensors of a load, and mapped as long as the tensor, which the
        // view keeps. None of our own code holds a reference into it.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), tensor.address() as *mut _, length, 0, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
