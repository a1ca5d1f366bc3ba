//! `Stream`: a file that is read in parallel and ahead, for Python's file objects.
#![allow(unsafe_code)] // writes into the buffers of Python's objects

use std::io::{Read, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use weightlift::StreamOptions;

use crate::error::{exception, guarded};

/// A file, or a range of one. One read at a time: others wait for it.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Stream {
    open: Mutex<Option<Open>>,
    path: PathBuf,
    options: StreamOptions,
}

/// A stream, and the number of the process that has its threads.
struct Open {
    stream: ManuallyDrop<weightlift::Stream>,
    process: u32,
}

impl Open {
    fn new(path: &Path, options: &StreamOptions) -> weightlift::Result<Self> {
        let stream = ManuallyDrop::new(weightlift::Stream::open(path, options)?);
        Ok(Self { stream, process: std::process::id() })
    }

    /// In a forked child, which has none of the threads: opened again, at the same position.
    fn here(&mut self, path: &Path, options: &StreamOptions) -> std::io::Result<()> {
        if self.process != std::process::id() {
            let position = self.stream.stream_position()?;
            let mut again = Self::new(path, options)?;
            again.stream.seek(SeekFrom::Start(position))?;
            *self = again;
        }
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // A stream waits for its threads, which a forked child would do for ever.
        if self.process == std::process::id() {
            // SAFETY: taken once, here.
            drop(unsafe { ManuallyDrop::take(&mut self.stream) });
        }
    }
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (path, threads="auto", window=None))]
    fn open(py: Python<'_>, path: PathBuf, threads: &str, window: Option<u64>) -> PyResult<Self> {
        let mut options = StreamOptions::default();
        options.threads = threads.parse().map_err(|error| exception(py, &error))?;
        options.window = window.unwrap_or(options.window);
        guarded(py, || {
            let open = Mutex::new(Some(Open::new(&path, &options)?));
            Ok(Self { open, path, options })
        })
    }

    /// Reads into a writable buffer; how many bytes, 0 at the end.
    fn readinto(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer cannot be written, or has gaps"));
        }
        let (address, length) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        let read = self.with(py, |stream| {
            // SAFETY: the buffer's memory is there as long as `buffer`, which is until after this,
            // and writable. That nobody else uses it meanwhile is what every reader of Python's
            // asks of its caller.
            let bytes = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, length) };
            stream.read(if length == 0 { &mut [] } else { bytes })
        });
        drop(buffer);
        read
    }

    /// Moves the position: `whence` 0 from the start, 1 from the position, 2 from the end.
    fn seek(&self, py: Python<'_>, offset: i64, whence: u8) -> PyResult<u64> {
        let to = match (whence, u64::try_from(offset)) {
            (0, Ok(offset)) => SeekFrom::Start(offset),
            (0, Err(_)) => return Err(PyValueError::new_err("negative seek position")),
            (1, _) => SeekFrom::Current(offset),
            (2, _) => SeekFrom::End(offset),
            _ => return Err(PyValueError::new_err("whence must be 0, 1 or 2")),
        };
        self.with(py, |stream| stream.seek(to))
    }

    /// The position.
    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |stream| stream.stream_position())
    }

    /// Bytes in all.
    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |stream| Ok(stream.len()))
    }

    /// Ends its threads. What is read afterwards is an error.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || {
            *self.lock() = None;
            Ok(())
        })
    }
}

impl Stream {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut weightlift::Stream) -> std::io::Result<T> + Send,
    ) -> PyResult<T> {
        let done = guarded(py, || {
            Ok(self.lock().as_mut().map(|open| {
                open.here(&self.path, &self.options)?;
                work(&mut open.stream)
            }))
        })?;
        match done {
            Some(Ok(done)) => Ok(done),
            Some(Err(error)) => {
                let carried = error.get_ref().and_then(|e| e.downcast_ref::<weightlift::Error>());
                Err(match carried {
                    Some(carried) => exception(py, carried),
                    None => error.into(),
                })
            }
            None => Err(PyValueError::new_err("I/O operation on closed file")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
