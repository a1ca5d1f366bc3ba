//! A file, or a range of one, as an ordinary reader: large reads are done by several threads,
//! small ones come from a window that is read ahead.

mod handles;
mod parallel;
mod window;

use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::options::ReadingThreads;
use crate::source::{LocalFile, Source};
use crate::system::{self, PAGE};
use handles::{Handles, Short};
use window::Window;

/// From this size on a read goes straight into the caller's buffer, by several threads, which are
/// started for it: at 2 MiB that took longer than it saved.
const LARGE: usize = 4 << 20;

/// What `read_to_end` adds to its vector at a time.
const STEP: usize = 16 << 20;

/// Most threads that are chosen unasked; more were no faster on 16 cores (docs/benchmarks.md).
const MOST_READERS: usize = 12;

/// How a [`Stream`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOptions {
    /// How many threads read. Left to weightlift, or 0, they are as many as there are processors,
    /// 12 at the most; 1 reads on the calling thread and nothing ahead of it.
    pub threads: ReadingThreads,
    /// Most bytes of memory that the stream takes for itself, beside the caller's buffers: 8 MiB
    /// unless set, 4 KiB or more. What is read ahead is in here.
    pub window: u64,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { threads: ReadingThreads::AUTO, window: 8 << 20 }
    }
}

/// A file, or a range of one, to read and seek in: for whatever takes a reader.
///
/// Reads of 4 MiB or more go straight into the caller's buffer, in parallel. Smaller ones come from
/// a window that threads read ahead while the caller uses what is there; it begins small and grows
/// as long as the reading goes on from where it was. A seek within the window keeps it.
///
/// A read fills the buffer unless the end of the range or an error comes first. Bytes before an
/// error are delivered, and the error follows at the position where they end; the stream can be
/// used after it: the same position is read anew. The error is an [`io::Error`] that carries
/// a [`weightlift::Error`](Error), and has its kind where there is one:
///
/// ```
/// use std::io::{Read, Seek, SeekFrom};
/// use weightlift::{Stream, StreamOptions};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.bin");
/// # std::fs::write(&path, b"0123456789")?;
/// let mut stream = Stream::open(&path, &StreamOptions::default())?;
/// stream.seek(SeekFrom::End(-4))?;
/// let mut last = [0; 4];
/// stream.read_exact(&mut last)?;
/// assert_eq!(&last, b"6789");
/// stream.check()?; // nobody wrote to the file meanwhile
///
/// std::fs::write(&path, b"012")?; // now somebody does
/// let error = stream.read(&mut last).unwrap_err();
/// let carried: &weightlift::Error = error.get_ref().and_then(|e| e.downcast_ref()).unwrap();
/// assert_eq!(carried.kind(), weightlift::ErrorKind::Changed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// What the file is was noted when the stream was made. It is compared whenever a thread opens it,
/// when a read finds the end of the range or finds bytes missing, and by [`check`](Self::check). A
/// file that was truncated, replaced or written to is an error of kind `Changed` that says which.
///
/// A stream is no use in a forked child: its threads are the parent's.
pub struct Stream {
    handles: Arc<Handles>,
    /// Where position 0 is in the source.
    start: u64,
    length: u64,
    position: u64,
    /// Where the last read ended: from there on a read is sequential.
    expected: u64,
    /// What is to be told at the position, because the last read had bytes to deliver.
    pending: Option<Error>,
    readers: usize,
    window: Window,
}

impl Stream {
    /// Opens the regular file at `path`. Nothing is read yet.
    ///
    /// Errors are of kind `FileNotFound`, `PermissionDenied`, `NotRegular` or `Io`, and those of
    /// [`over`](Self::over).
    pub fn open(path: impl AsRef<Path>, options: &StreamOptions) -> Result<Self> {
        let path = path.as_ref();
        // It will be opened again by other threads, wherever the program's current folder is then.
        let place = std::path::absolute(path)
            .map_err(|error| Error::io(error, "find a file", path.display()))?;
        let (file, _) = LocalFile::open_new(place, &path.display().to_string())?;
        let length = file.length();
        Self::over(Arc::new(file), 0..length, options)
    }

    /// A stream over `range` of a source: position 0 is the range's start, and nothing outside of
    /// it is read.
    ///
    /// An error of kind `OutOfRange` if the source has no such range, and of kind `InvalidOption`
    /// if an option is refused.
    ///
    /// ```no_run
    /// # use weightlift::{Model, OpenOptions, Stream, StreamOptions};
    /// let model = Model::open("model.safetensors", &OpenOptions::default())?;
    /// let storage = &model.index().storages[0];
    /// let source = model.sources()[storage.source.0 as usize].clone();
    /// let range = storage.offset..storage.offset + storage.length;
    /// let stream = Stream::over(source, range, &StreamOptions::default())?;
    /// # Ok::<(), weightlift::Error>(())
    /// ```
    pub fn over(
        source: Arc<dyn Source>,
        range: Range<u64>,
        options: &StreamOptions,
    ) -> Result<Self> {
        if range.start > range.end || range.end > source.length() {
            return Err(out_of_range("the source has no such range", &*source)
                .with("offset", format_args!("{}..{}", range.start, range.end))
                .with("actual", source.length()));
        }
        if options.window < PAGE as u64 {
            return Err(Error::new(ErrorKind::InvalidOption, "a value is refused for window")
                .with("option", "window")
                .with("value", options.window)
                .with("wanted", "4KiB or more"));
        }
        let readers = match options.threads.get() {
            None | Some(0) => system::processors().clamp(1, MOST_READERS),
            Some(count) => usize::from(count),
        };
        let handles = Arc::new(Handles::new(source));
        let bounds = (range.start, range.end);
        Ok(Self {
            window: Window::new(handles.clone(), bounds, options.window, readers),
            handles,
            start: range.start,
            length: range.end - range.start,
            position: 0,
            expected: 0,
            pending: None,
            readers,
        })
    }

    /// Bytes from the first position to the end.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Fills `buffer` with the bytes at `offset`, wherever the position is, which stays. Large
    /// buffers are filled in parallel; several threads may call this at once.
    ///
    /// An error of kind `OutOfRange` if there are not so many bytes. After an error the contents of
    /// `buffer` are unspecified.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(out_of_range("the stream ends before these bytes", self.handles.source())
                .with("offset", offset)
                .with("bytes", buffer.len())
                .with("actual", self.length));
        }
        self.read_straight(buffer, self.start + offset).map_err(|short| short.error)
    }

    /// Compares what the source is now with what it was when the stream was made: an error of kind
    /// `Changed` says in what it differs. What was read before is not to be trusted then.
    pub fn check(&self) -> Result<()> {
        self.handles.source().check_unchanged()
    }

    fn read_straight(&self, buffer: &mut [u8], at: u64) -> Result<(), Short> {
        let readers = if buffer.len() < LARGE { 1 } else { self.readers };
        parallel::read(&self.handles, readers, buffer, at)
    }

    /// Bytes from the position to the end.
    fn rest(&self) -> u64 {
        self.length.saturating_sub(self.position)
    }

    /// Reads some of `buffer`, which ends before the stream does.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if let Some(error) = self.pending.take() {
            return Err(error);
        }
        let at = self.start + self.position;
        let sequential = self.position == self.expected;
        let large = buffer.len() >= LARGE;
        // Random reads that are not small, and those where nothing is read ahead, gain nothing
        // from passing through the window.
        let straight =
            buffer.len() >= self.window.smallest() && !(sequential && self.window.reads_ahead());
        let count = if !self.window.covers(at) && (large || straight) {
            self.window.clear();
            match self.read_straight(buffer, at) {
                Ok(()) => buffer.len(),
                Err(Short { done: 0, error }) => return Err(error),
                Err(Short { done, error }) => {
                    self.pending = Some(error);
                    done
                }
            }
        } else {
            let bytes = self.window.bytes(at, buffer.len(), sequential, !large)?;
            let count = bytes.len().min(buffer.len());
            buffer[..count].copy_from_slice(&bytes[..count]);
            count
        };
        self.advance(count as u64);
        Ok(count)
    }

    fn advance(&mut self, count: u64) {
        self.position += count;
        self.expected = self.position;
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = self.rest().min(buffer.len() as u64) as usize;
        if want == 0 && !buffer.is_empty() {
            self.check()?;
        }
        let mut done = 0;
        while done < want {
            match self.read_some(&mut buffer[done..want]) {
                Ok(count) => done += count,
                Err(error) if done == 0 => return Err(error.into()),
                Err(error) => {
                    self.pending = Some(error);
                    break;
                }
            }
        }
        Ok(done)
    }

    /// As std's, but memory that is not there is an error of kind `OutOfMemory`.
    fn read_to_end(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let before = buffer.len();
        let rest = usize::try_from(self.rest()).unwrap_or(usize::MAX);
        buffer
            .try_reserve_exact(rest)
            .map_err(|error| window::out_of_memory(rest as u64, error))?;
        // In steps: memory that is new is written twice, with zeros first, and is still in the
        // processor's cache the second time.
        while self.rest() > 0 {
            let filled = buffer.len();
            let step = self.rest().min(STEP as u64) as usize;
            buffer.resize(filled + step, 0);
            let read = self.read(&mut buffer[filled..]);
            buffer.truncate(filled + *read.as_ref().unwrap_or(&0));
            read?;
        }
        self.check()?;
        Ok(buffer.len() - before)
    }

    fn read_to_string(&mut self, text: &mut String) -> io::Result<usize> {
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)?;
        let read = String::from_utf8(bytes)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let count = read.len();
        if text.is_empty() {
            *text = read;
        } else {
            text.push_str(&read);
        }
        Ok(count)
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if let Some(error) = self.pending.take() {
            return Err(error.into());
        }
        if self.rest() == 0 {
            self.check()?;
            return Ok(&[]);
        }
        let sequential = self.position == self.expected;
        Ok(self.window.bytes(self.start + self.position, 0, sequential, true)?)
    }

    fn consume(&mut self, count: usize) {
        self.advance((count as u64).min(self.rest()));
    }
}

impl Seek for Stream {
    /// As in a file, the position may lie behind the end, where nothing is read; before the start
    /// is an error of kind `InvalidInput`, and leaves it.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
        };
        let Some(position) = position else {
            let message = "a seek to before the start, or beyond 64 bits";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        self.position = position;
        self.pending = None;
        Ok(position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("source", &self.handles.source().name())
            .field("start", &self.start)
            .field("length", &self.length)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

fn out_of_range(message: &str, source: &dyn Source) -> Error {
    let kind = ErrorKind::Format(weightlift_index::ErrorKind::OutOfRange);
    Error::new(kind, message).with("file", source.name())
}
