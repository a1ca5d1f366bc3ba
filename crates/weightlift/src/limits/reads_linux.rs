//! How fast files can be read by nothing but `pread`.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::memory::Region;
use crate::system::PAGE;

/// How [`plain_reads`] reads.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("model.safetensors");
/// # std::fs::write(&path, vec![0; 100_000]).unwrap();
/// use weightlift::{PlainReads, plain_reads};
/// let how = PlainReads { direct: false, threads: 2, size: 64 << 10, ..PlainReads::default() };
/// let took = plain_reads(&[path], &how, &|| Ok(()))?;
/// println!("{:.1} GB/s", 100_000.0 / took.as_secs_f64() / 1e9);
/// # Ok::<(), weightlift::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainReads {
    /// Past the page cache (`O_DIRECT`), or through it.
    pub direct: bool,
    /// How many threads read, the calling one among them. As many as can be had, if fewer.
    pub threads: usize,
    /// Bytes of a read: a multiple of 4 KiB, which suits direct reads nearly everywhere.
    pub size: usize,
    /// Into new memory, as long as the files and in huge pages where the kernel gives them: what a
    /// load to the host has to fill. Otherwise each thread reads into `size` bytes of its own again
    /// and again: what the disk or the page cache can deliver.
    pub new_memory: bool,
    /// Only about so many bytes from the beginning of the files on.
    pub most: u64,
}

impl Default for PlainReads {
    fn default() -> Self {
        Self { direct: false, threads: 1, size: 1 << 20, new_memory: false, most: u64::MAX }
    }
}

impl PlainReads {
    /// Bytes that are read of files of these lengths.
    pub fn bytes(&self, lengths: impl IntoIterator<Item = u64>) -> u64 {
        let mut left = self.most;
        lengths.into_iter().map(|length| self.part(length, &mut left)).sum()
    }

    /// What is read of a file when `left` bytes may still be. A part of a file is cut behind whole
    /// reads, which direct ones have to be.
    fn part(&self, length: u64, left: &mut u64) -> u64 {
        let size = self.size as u64;
        let part = if length > *left { *left / size * size } else { length };
        *left -= part;
        part
    }
}

/// A file, its length, and what it is called in errors.
struct Opened<'a> {
    path: &'a Path,
    file: File,
    length: u64,
}

/// What one reader takes next: of which file, from where, how many bytes, and in new memory to
/// where.
struct Piece<'a> {
    file: &'a Opened<'a>,
    offset: u64,
    length: usize,
    place: Option<&'a mut [u8]>,
}

/// Reads files once, from the first to the last, and tells how long that took from opening them to
/// the last byte. The readers take pieces from one counter. `check` is called before each piece; its
/// error ends the reading.
///
/// # Errors
///
/// [`ErrorKind::InvalidOption`] for a size that is no multiple of 4 KiB or 0;
/// [`ErrorKind::DirectIoUnavailable`] where direct reads are asked for and refused;
/// [`ErrorKind::OutOfHostMemory`]; those of opening and reading files, with the path; `check`'s.
pub fn plain_reads(
    files: &[impl AsRef<Path>],
    how: &PlainReads,
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Duration> {
    if how.size == 0 || !how.size.is_multiple_of(PAGE) {
        return Err(Error::new(ErrorKind::InvalidOption, "this is no size of plain reads")
            .with("value", how.size)
            .with("wanted", "a multiple of 4 KiB"));
    }
    let started = Instant::now();
    let mut opened = Vec::with_capacity(files.len());
    let mut left = how.most;
    for path in files.iter().map(AsRef::as_ref) {
        let (file, length) = open(path, how.direct)?;
        opened.push(Opened { path, file, length: how.part(length, &mut left) });
    }
    let page = PAGE as u64;
    let room: u64 = opened.iter().map(|file| file.length.next_multiple_of(page)).sum();
    let mut memory = Region::new(if how.new_memory { room } else { page })?;
    // A thread that is stopped by an error has the others stop too.
    let pieces = Mutex::new(pieces(&opened, how, memory.bytes()).into_iter());
    let failed = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut own = Region::new(how.size as u64)?;
        while failed.load(Ordering::Relaxed) == 0 {
            check()?;
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(piece) = next else { return Ok(()) };
            let into = piece.place.unwrap_or_else(|| own.bytes());
            read(piece.file, piece.offset, piece.length, into)?;
        }
        Ok(())
    };
    let work = || work().inspect_err(|_| failed.store(1, Ordering::Relaxed));
    std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..how.threads).map_while(spawn).collect();
        let mut result = work();
        for thread in others {
            let died = |_| Err(Error::new(ErrorKind::Internal, "a reading thread died"));
            result = result.and(thread.join().unwrap_or_else(died));
        }
        result
    })?;
    // Before the memory is given back, which takes its time.
    Ok(started.elapsed())
}

fn open(path: &Path, direct: bool) -> Result<(File, u64)> {
    let flags = if direct { rustix::fs::OFlags::DIRECT.bits() as i32 } else { 0 };
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| refused(error, direct, path))?;
    let length = file.metadata().map_err(|error| refused(error, false, path))?.len();
    Ok((file, length))
}

fn pieces<'a>(
    files: &'a [Opened<'a>],
    how: &PlainReads,
    mut memory: &'a mut [u8],
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    for file in files {
        for offset in (0..file.length).step_by(how.size) {
            let length = (how.size as u64).min(file.length - offset) as usize;
            let mut place = None;
            if how.new_memory {
                // Each file begins at a page of its own, and its last page is whole.
                let (first, rest) = memory.split_at_mut(length.next_multiple_of(PAGE));
                (place, memory) = (Some(first), rest);
            }
            pieces.push(Piece { file, offset, length, place });
        }
    }
    pieces
}

/// Reads `length` bytes into a place that has room for the whole page of the last one: a direct read
/// has to ask for all of it.
fn read(file: &Opened<'_>, offset: u64, length: usize, into: &mut [u8]) -> Result<()> {
    let into = &mut into[..length.next_multiple_of(PAGE)];
    let mut done = 0;
    while done < length {
        match file.file.read_at(&mut into[done..], offset + done as u64) {
            Ok(0) => {
                return Err(Error::new(ErrorKind::Changed, "the file ended early")
                    .with("path", file.path.display())
                    .with("expected", file.length));
            }
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(refused(error, true, file.path)),
        }
    }
    Ok(())
}

fn refused(error: std::io::Error, direct: bool, path: &Path) -> Error {
    match crate::source::no_direct(&error) {
        Some(why) if direct => {
            Error::new(ErrorKind::DirectIoUnavailable, "the file has no direct reads")
                .with("path", path.display())
                .with("reason", why)
        }
        _ => Error::io(error, "read a file", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once_whatever_the_size() {
        let folder = tempfile::tempdir().unwrap();
        let lengths = [0, 1, 4096, 10_000, (1 << 20) + 7];
        let files: Vec<_> = lengths
            .iter()
            .map(|length| {
                let path = folder.path().join(length.to_string());
                std::fs::write(&path, vec![7; *length]).unwrap();
                path
            })
            .collect();
        for new_memory in [false, true] {
            for (threads, size) in [(1, 4096), (3, 8192), (2, 4 << 20)] {
                let how = PlainReads { threads, size, new_memory, ..PlainReads::default() };
                let asked = AtomicUsize::new(0);
                let count = || {
                    asked.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                };
                plain_reads(&files, &how, &count).unwrap();
                let pieces: usize = lengths.iter().map(|length| length.div_ceil(size)).sum();
                // Once more for each thread, which finds nothing left.
                assert_eq!(asked.into_inner(), pieces + threads, "{threads} {size}");
            }
        }
        let part = PlainReads { most: 5000, size: 4096, ..PlainReads::default() };
        plain_reads(&files, &part, &|| Ok(())).unwrap();
        // All of the short ones, then whole reads as long as there are any.
        assert_eq!(part.bytes([0, 1, 4096, 10_000, 1 << 20]), 4097);
        assert_eq!(PlainReads { most: 9000, ..part }.bytes([1, 10_000]), 1 + 8192);
    }

    #[test]
    fn pieces_have_places_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let (file, length) = open(&path, false).unwrap();
        let files = [Opened { path: &path, file, length }];
        let how = PlainReads { size: 8192, new_memory: true, ..PlainReads::default() };
        let mut memory = Region::new(length).unwrap();
        for piece in pieces(&files, &how, memory.bytes()) {
            read(piece.file, piece.offset, piece.length, piece.place.unwrap()).unwrap();
        }
        assert_eq!(memory.bytes()[..bytes.len()], bytes);
    }

    #[test]
    fn a_size_that_is_none_and_a_stop_are_errors() {
        let how = |size| PlainReads { size, ..PlainReads::default() };
        for size in [0, 1000] {
            let error = plain_reads(&["/dev/null"], &how(size), &|| Ok(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidOption);
        }
        let stop = || Err(Error::new(ErrorKind::Cancelled, "stopped"));
        let file = std::env::current_exe().unwrap();
        let error = plain_reads(&[&file], &how(4096), &stop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let error = plain_reads(&["/no/such/file"], &how(4096), &|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileNotFound);
    }
}
