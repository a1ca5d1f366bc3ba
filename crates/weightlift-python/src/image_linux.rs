//! `Image`: a whole file as memory, for engines that take files so and look at parts of them.
//!
//! It begins as a private mapping of the file, of which nothing is read before it is looked at.
//! Ranges that will be looked at for long become memory of our own (`keep`): from then on nothing
//! that happens to the file changes them. What was looked at so far, the page tables tell
//! (`looked_at`).
#![allow(unsafe_code)] // maps a file, and hands out the mapping as a buffer of Python's

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use weightlift::{Error, ErrorKind, OpenSource, Source};

use crate::error::{guarded, panicked};
use crate::model::Model;

/// Bytes that are read at once.
const READ: usize = 8 << 20;

/// How many reads are worth a thread.
const READS_A_THREAD: usize = 4;

/// A file's bytes, at their offsets, as read-only memory.
#[pyclass(frozen, module = "weightlift._native")]
pub(crate) struct Image {
    source: Arc<dyn Source>,
    replacing: Mutex<()>,
    mapping: Mapping,
}

/// Pages of the file or of our own, given back when dropped.
struct Mapping {
    start: *mut c_void,
    /// Whole pages; at least one.
    length: usize,
}

// SAFETY: the mapping is owned, and nothing about it is bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: pages are replaced under the lock `Image::replacing`, by others with the same bytes.
unsafe impl Sync for Mapping {}

#[pymethods]
impl Image {
    /// The file that `model` calls `name`, as it was when the model was opened: an error of kind
    /// `Changed` otherwise.
    #[new]
    fn new(py: Python<'_>, model: &Model, name: &str) -> PyResult<Self> {
        let sources = model.0.sources().clone();
        guarded(py, || {
            for source in sources.iter().filter(|source| source.name() == name) {
                let open = source.open()?;
                let Some(descriptor) = open.descriptor() else { continue };
                let length = usize::try_from(source.length()).unwrap_or(usize::MAX);
                let length = length.max(1).checked_next_multiple_of(page()).unwrap_or(usize::MAX);
                let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
                let start = if source.length() == 0 {
                    // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
                    unsafe { mm::mmap_anonymous(ptr::null_mut(), length, read, private) }
                } else {
                    // SAFETY: as above. That the file may be cut, and its pages be gone, is why
                    // what is used for long is kept, and why nothing of ours reads the mapping.
                    unsafe { mm::mmap(ptr::null_mut(), length, read, private, descriptor, 0) }
                };
                let start = start.map_err(|error| refused(name, error))?;
                let mapping = Mapping { start, length };
                return Ok(Self { source: source.clone(), replacing: Mutex::default(), mapping });
            }
            Err(Error::new(ErrorKind::Internal, "the model has no such file").with("file", name))
        })
    }

    /// Bytes of the file.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.source.length()
    }

    /// A copy of `length` bytes from `offset`, read from the file.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = guarded(py, || {
            let end = offset.checked_add(length as u64);
            if end.is_none_or(|end| end > self.source.length()) {
                return Err(Error::new(ErrorKind::Internal, "a range outside of its file"));
            }
            let mut bytes = vec![0; length];
            self.fill(&mut bytes, offset)?;
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Makes ranges, each `(offset, length)`, memory of our own, in whole pages: their bytes are read
    /// from the file now and stay. Comes back with how many bytes of memory that took.
    fn keep(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<u64> {
        guarded(py, || {
            let mut kept = 0;
            for (from, to) in self.pages_around(ranges) {
                self.replace(from, to)?;
                kept += (to - from) as u64;
            }
            Ok(kept)
        })
    }

    /// Makes ranges, each `(offset, length)`, ones of which [`looked_at`](Self::looked_at) can tell.
    ///
    /// Who looks at a page brings in what lies around it, up to a whole piece of the page cache (2 MiB),
    /// but never more than the kernel keeps as one part of the address space. So each range becomes a
    /// part of its own, by advice that is of no consequence and that its neighbours do not have.
    fn watch(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<()> {
        guarded(py, || {
            let mut ranges = ranges;
            ranges.sort_unstable();
            for ((from, to), advice) in ranges
                .into_iter()
                .map(|range| self.pages_within(range))
                .zip([Advice::LinuxDontDump, Advice::Sequential].into_iter().cycle())
            {
                let start = self.mapping.start.wrapping_byte_add(from);
                if from < to {
                    // SAFETY: whole pages of the image's mapping; the advice changes no byte.
                    unsafe { mm::madvise(start, to - from, advice) }
                        .map_err(|error| refused(self.source.name(), error))?;
                }
            }
            Ok(())
        })
    }

    /// For each range that is watched, whether more than half of the pages that are wholly its own
    /// were looked at through this memory, or `None` where the system does not tell. Who reads all of
    /// it has all pages in the page table; some of them may have been taken away since.
    fn looked_at(&self, py: Python<'_>, ranges: Vec<(u64, u64)>) -> PyResult<Option<Vec<bool>>> {
        guarded(py, || {
            let Ok(tables) = File::open("/proc/self/pagemap") else { return Ok(None) };
            let looked = |range| self.is_looked_at(&tables, self.pages_within(range));
            Ok(ranges.into_iter().map(looked).collect::<io::Result<Vec<_>>>().ok())
        })
    }

    /// An error of kind `Changed` if the file is not what it was when the model was opened.
    fn check_unchanged(&self, py: Python<'_>) -> PyResult<()> {
        guarded(py, || self.source.check_unchanged())
    }

    /// Its bytes as a buffer that is read only.
    ///
    /// # Safety
    ///
    /// Python's: `view` is to be filled.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let image = slf.get();
        let length = ffi::Py_ssize_t::try_from(image.source.length())
            .map_err(|_| PyBufferError::new_err("the file is too large"))?;
        let (object, start) = (slf.as_ptr(), image.mapping.start);
        // SAFETY: `view` is Python's to be filled. The bytes are mapped as long as the image, which
        // the view keeps, and read only.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, object, start, length, 1, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Image {
    /// Whole pages around ranges, from and to offsets in the mapping, in order, those that touch
    /// joined.
    fn pages_around(&self, ranges: Vec<(u64, u64)>) -> Vec<(usize, usize)> {
        let mut pages: Vec<(usize, usize)> = Vec::new();
        let end = self.mapping.length as u64;
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| range.1 > 0).collect();
        ranges.sort_unstable();
        for (offset, length) in ranges {
            let (from, to) = (offset.min(end) as usize, offset.saturating_add(length).min(end));
            let (from, to) = (from / page() * page(), (to as usize).next_multiple_of(page()));
            match pages.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => pages.push((from, to)),
            }
        }
        pages
    }

    /// Puts pages of our own with the file's bytes in the place of those from `from` to `to`.
    fn replace(&self, from: usize, to: usize) -> weightlift::Result<()> {
        let length = to - from;
        let failed = |error| refused(self.source.name(), error);
        let (read, write) = (ProtFlags::READ, ProtFlags::WRITE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
        let start =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), length, read | write, MapFlags::PRIVATE) };
        let fresh = Mapping { start: start.map_err(failed)?, length };
        // SAFETY: mapped just now, initialised with zeros, and nobody else's.
        let bytes = unsafe { std::slice::from_raw_parts_mut(fresh.start.cast::<u8>(), length) };
        let there = (self.source.length().saturating_sub(from as u64) as usize).min(length);
        self.fill(&mut bytes[..there], from as u64)?;
        // SAFETY: our own pages, to which nobody writes any more.
        unsafe { mm::mprotect(fresh.start, length, MprotectFlags::READ) }.map_err(failed)?;
        let _one_at_a_time = self.replacing.lock().unwrap_or_else(PoisonError::into_inner);
        let target = self.mapping.start.wrapping_byte_add(from);
        // SAFETY: the target lies in the image's mapping (`pages_around`), whose pages are replaced
        // in one step by others with the same bytes: who reads them meanwhile sees no difference.
        let moved =
            unsafe { mm::mremap_fixed(fresh.start, length, length, MremapFlags::MAYMOVE, target) };
        moved.map_err(failed)?;
        // The pages are the image's now.
        std::mem::forget(fresh);
        Ok(())
    }

    /// Whole pages inside a range, from and to offsets in the mapping.
    fn pages_within(&self, (offset, length): (u64, u64)) -> (usize, usize) {
        let end = self.mapping.length as u64;
        let (from, to) = (offset.min(end), offset.saturating_add(length).min(end));
        ((from as usize).next_multiple_of(page()), to as usize / page() * page())
    }

    fn is_looked_at(&self, tables: &File, (from, to): (usize, usize)) -> io::Result<bool> {
        // An entry of eight bytes for each page, of which the highest bit says that it is there.
        let count = to.saturating_sub(from) / page();
        let at = (self.mapping.start as usize + from) / page() * 8;
        let mut entries = vec![0; count * 8];
        tables.read_exact_at(&mut entries, at as u64)?;
        let there = entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count();
        Ok(there * 2 > count)
    }

    /// Reads from the file into `bytes`, on several threads if there are many.
    fn fill(&self, bytes: &mut [u8], offset: u64) -> weightlift::Result<()> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = bytes.len().div_ceil(READ * READS_A_THREAD).min(processors).min(8);
        let mut parts = (offset..).step_by(READ).zip(bytes.chunks_mut(READ));
        if threads <= 1 {
            let open = self.source.open()?;
            return parts.try_for_each(|(at, part)| self.read_part(&*open, part, at));
        }
        let parts = Mutex::new(parts);
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            let open = self.source.open()?;
            while let Some((at, part)) = next() {
                self.read_part(&*open, part, at)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended =
                started.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
            ended.collect()
        })
    }

    /// Reads all of a part, however short reads come.
    fn read_part(
        &self,
        open: &dyn OpenSource,
        part: &mut [u8],
        offset: u64,
    ) -> weightlift::Result<()> {
        let mut done = 0;
        while done < part.len() {
            match open.read_at(&mut [IoSliceMut::new(&mut part[done..])], offset + done as u64) {
                Ok(0) => {
                    let message = "the file's length changed while it was being read";
                    return Err(Error::new(ErrorKind::Changed, message)
                        .with("file", self.source.name())
                        .with("expected", self.source.length())
                        .with("actual", offset + done as u64));
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refused(self.source.name(), error)),
            }
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; who has the image's memory keeps the image. Should it fail, it
        // stays mapped.
        let _ = unsafe { mm::munmap(self.start, self.length) };
    }
}

fn page() -> usize {
    rustix::param::page_size()
}

fn refused(file: &str, reason: impl Into<io::Error>) -> Error {
    let reason = reason.into();
    let kind = match reason.kind() {
        io::ErrorKind::OutOfMemory => ErrorKind::OutOfHostMemory,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "cannot hold a file in memory").with("file", file).with("reason", &reason)
}
