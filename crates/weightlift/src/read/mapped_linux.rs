//! Reads by copying out of mappings of files. Only where that was asked for: see below.
#![allow(unsafe_code)] // maps files, and copies out of what others may write to

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

use super::access::Access;
use super::direct_linux::Trouble;
use super::positional::Positional;
use super::retry::{Attempts, Next, ended};
use super::{Completed, Kind, ReadPiece, Reader};
use crate::error::Result;
use crate::memory::Place;
use crate::source::{Direct, OpenSource};

/// Most bytes that a reader has mapped at once. A window is mapped for its copy and unmapped after
/// it, so that a limit of the address space (`ulimit -v`) is met however long the file is, and its
/// length is looked at again as often.
const WINDOW: usize = 4 << 20;

/// The reader that copies out of a mapping: shared and read-only, so that it counts neither as
/// memory that was promised nor as this process's own.
///
/// What goes wrong in a mapping is no error of a call but a signal that ends the process (SIGBUS):
/// a page that cannot be read, a file that was cut. So each window's length is compared with the
/// file's, and the kernel is asked to bring its pages in, which fails where touching them would
/// kill. What remains is a file that is cut between that and the end of the copy, a millisecond
/// later; no call closes that gap, and so nothing is read this way unasked.
///
/// Whatever a mapping fails with, the source is read by calls from then on: they work as well, or
/// tell what is wrong.
pub(crate) struct Mapped<'a> {
    access: &'a Access,
    open: Option<(usize, Box<dyn OpenSource>)>,
    cached: Positional<'a>,
    done: Option<Completed>,
    /// What tests make of a window: its bytes, or an error as a negative number.
    #[cfg(test)]
    pub(super) fault: Option<Box<dyn FnMut(i32) -> i32>>,
}

impl<'a> Mapped<'a> {
    pub(crate) fn new(access: &'a Access) -> Self {
        let cached = Positional::new(access.sources());
        Self {
            access,
            open: None,
            cached,
            done: None,
            #[cfg(test)]
            fault: None,
        }
    }

    fn read(&mut self, piece: ReadPiece, place: &mut Place) -> Result<Kind> {
        if !self.access.is_refused(piece.source) {
            match self.copy(piece, place) {
                Ok(kind) => return Ok(kind),
                Err(Trouble::Refused(why)) => self.access.refuse(piece.source, &why)?,
                Err(Trouble::Failed(error)) => return Err(error),
            }
        }
        // From its beginning: a piece is counted as one kind of read or the other.
        self.cached.read(piece, place)?;
        self.access.count(piece.source, place.len());
        Ok(Kind::Buffered)
    }

    fn copy(&mut self, piece: ReadPiece, place: &mut Place) -> Result<Kind, Trouble> {
        let number = piece.source;
        let source = self.access.source(number);
        let mut attempts = Attempts::default();
        let mut done = 0;
        while done < place.len() {
            let opened = match self.open.take().filter(|(open, _)| *open == number) {
                Some((_, opened)) => opened,
                None => source.open()?,
            };
            let (_, opened) = self.open.insert((number, opened));
            let Some(file) = opened.descriptor() else {
                if matches!(source.open_direct()?, Direct::InMemory) {
                    self.cached.read(piece, place)?;
                    return Ok(Kind::Buffered);
                }
                return Err(Trouble::Refused("its bytes are not those of a file".to_owned()));
            };
            let offset = piece.offset + done as u64;
            let copied = copy_window(file, offset, place, done);
            #[cfg(test)]
            let copied = self.distorted(copied);
            match copied {
                Ok(0) => return Err(ended(source, offset, place.len() - done).into()),
                Ok(count) => {
                    done += count;
                    attempts.progressed();
                }
                Err((what, errno)) => match attempts.after(&io::Error::from(errno)) {
                    Next::Again => {}
                    Next::Reopen => self.open = None,
                    Next::Fail => return Err(Trouble::Refused(format!("{what}: {errno}"))),
                },
            }
        }
        self.access.count_mapped(done);
        Ok(Kind::Mapped)
    }

    #[cfg(test)]
    fn distorted(&mut self, copied: Result<usize, Refused>) -> Result<usize, Refused> {
        let (Some(fault), Ok(count)) = (&mut self.fault, &copied) else { return copied };
        let result = fault(*count as i32);
        usize::try_from(result).map_err(|_| (MAPPING, Errno::from_raw_os_error(-result)))
    }
}

/// What was tried, and what the kernel said to it.
type Refused = (&'static str, Errno);

const MAPPING: &str = "mapping it";
/// EINVAL is a kernel before 5.14, which does not know the call; EFAULT says that touching the
/// pages would have ended the process.
const BRINGING_IN: &str = "bringing its pages in";

/// Copies what `file` holds from `offset` on to behind the first `done` bytes of the place, at
/// most a window; how many bytes, 0 at the file's end.
fn copy_window(
    file: BorrowedFd<'_>,
    offset: u64,
    place: &mut Place,
    done: usize,
) -> Result<usize, Refused> {
    // Now, not at opening: what lies behind the end of a mapped file kills whoever touches it.
    let length = fstat(file).map_err(|errno| ("finding its length", errno))?.st_size as u64;
    copy_within(file, length, offset, place, done)
}

/// The same of a file of `length` bytes.
fn copy_within(
    file: BorrowedFd<'_>,
    length: u64,
    offset: u64,
    place: &mut Place,
    done: usize,
) -> Result<usize, Refused> {
    let left = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX);
    let count = left.min(place.len() - done).min(WINDOW);
    if count == 0 {
        return Ok(0);
    }
    let skip = (offset % page_size() as u64) as usize;
    let window = Window::new(file, offset - skip as u64, skip + count)?;
    let mut from = skip;
    for mut buffer in place.buffers(done, count, usize::MAX) {
        // SAFETY: the buffers have `count` bytes in all, so that this stays within the window's
        // `skip + count`, which are mapped, and readable pages when they were brought in. No
        // reference to them is made: others may write to the file, which shows in its identity
        // when the load ends. The buffer is memory of ours that a mapping just made cannot
        // overlap.
        unsafe {
            let start = window.start.as_ptr().add(from);
            ptr::copy_nonoverlapping(start, buffer.as_mut_ptr(), buffer.len());
        }
        from += buffer.len();
    }
    Ok(from - skip)
}

/// A part of a file, mapped, with its pages there.
struct Window {
    start: NonNull<u8>,
    length: usize,
}

impl Window {
    fn new(file: BorrowedFd<'_>, offset: u64, length: usize) -> Result<Self, Refused> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
        let start = unsafe {
            mm::mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, offset)
        };
        let start = start.map_err(|errno| (MAPPING, errno))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or((MAPPING, Errno::NOMEM))?;
        let window = Self { start, length };
        // Reads of the window's length instead of the 128 KiB around each page that is missing. A
        // file system that takes no advice reads those.
        let _ = window.advise(Advice::WillNeed);
        window.advise(Advice::LinuxPopulateRead).map_err(|errno| (BRINGING_IN, errno))?;
        Ok(window)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: our own mapping, and neither advice changes what it holds.
        unsafe { mm::madvise(self.address(), self.length, advice) }
    }

    fn address(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        let unmapped = unsafe { mm::munmap(self.address(), self.length) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own could not be unmapped");
    }
}

impl Reader for Mapped<'_> {
    fn depth(&self) -> usize {
        1
    }

    fn submit(&mut self, piece: ReadPiece, mut place: Place) {
        debug_assert!(self.done.is_none(), "one read at a time");
        let result = self.read(piece, &mut place);
        self.done = Some(Completed { piece: piece.piece, place, result });
    }

    fn complete(&mut self) -> Option<Completed> {
        self.done.take()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::Scratch;

    /// FS-15: without the question this would end the process, tests and all.
    #[test]
    fn pages_that_are_not_there_are_an_error_and_no_signal() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let mut scratch = Scratch::new(3 * 8192);
        let mut place = scratch.place(&[(0, 8192)]);
        match copy_within(file.as_fd(), 8192, 0, &mut place, 0) {
            Err((BRINGING_IN, Errno::INVAL)) => {
                let test = "pages_that_are_not_there_are_an_error_and_no_signal";
                return testkit::skipped(test, "this kernel is older than 5.14");
            }
            copied => assert_eq!(copied, Ok(8192)),
        }
        // As if it were cut after its length was asked for.
        for cut in [4096, 0] {
            file.set_len(cut).unwrap();
            let copied = copy_within(file.as_fd(), 8192, 0, &mut place, 0);
            assert_eq!(copied, Err((BRINGING_IN, Errno::FAULT)), "{cut}");
        }
        assert_eq!(copy_window(file.as_fd(), 0, &mut place, 0), Ok(0));
    }
}
