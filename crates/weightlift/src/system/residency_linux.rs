//! Which pages of a file are in the page cache: truthfully or not at all.
#![allow(unsafe_code)] // cachestat and mincore have no safe wrapper

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::fs::Advice;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::param::page_size;

use super::residency::Resident;
use super::storage::{StorageFacts, StorageKind};

/// Tells which ranges of one file are in the page cache. It may be asked from many threads at
/// once; the file need not stay open.
///
/// How it asks is settled once, because each way lies somewhere:
///
/// - `memory`: the file system has no disk below it.
/// - `cachestat` (Linux 6.5), on disks and networks: about 1 us per MiB. It looks at the file's own
///   cache, which on overlayfs and where FUSE passes files through is empty, whatever the file
///   below has: there it is not used. For files that are neither ours nor writable newer kernels
///   refuse it.
/// - `mincore`, over a mapping that nobody can read: about 30 us per MiB. It knows the file below.
///   For files that are neither ours nor writable, and in some sandboxes, it says that everything
///   is there. So it is always asked about a page behind the file's end too, which cannot be.
/// - `unknown`: for files of others, and on file systems that keep a cache of their own.
///
/// Samples by `preadv2(RWF_NOWAIT)` would answer for files of others. They change what they ask
/// about: on Linux 6.18 and ext4 every page that was missing had been read 0.3 s later, after
/// `POSIX_FADV_RANDOM` as well, and the next sample said that it was there.
#[derive(Debug)]
pub(crate) struct Residency(Method);

#[derive(Debug)]
enum Method {
    Memory,
    Cachestat(File),
    Mincore(Map),
    Unknown,
}

impl Residency {
    /// Settles how to ask about `file`, which lies on what `facts` say.
    pub(crate) fn of(file: &File, facts: &StorageFacts) -> Self {
        // Their cache is not the page cache, which would look empty.
        const OWN_CACHE: [&str; 2] = ["zfs", "gpfs"];
        if facts.kind == StorageKind::Memory {
            return Self(Method::Memory);
        }
        if OWN_CACHE.contains(&facts.file_system.as_str()) {
            return Self(Method::Unknown);
        }
        let method = match facts.kind {
            StorageKind::Disk | StorageKind::Network => cachestat_of(file),
            _ => None,
        };
        let method = method.or_else(|| Map::new(file).filter(Map::is_true).map(Method::Mincore));
        Self(method.unwrap_or(Method::Unknown))
    }

    /// How it asks, for reports: `memory`, `cachestat`, `mincore` or `unknown`.
    pub(crate) fn method(&self) -> &'static str {
        match self.0 {
            Method::Memory => "memory",
            Method::Cachestat(_) => "cachestat",
            Method::Mincore(_) => "mincore",
            Method::Unknown => "unknown",
        }
    }

    /// How much of a range is there, now. What lies behind the file's end is not.
    ///
    /// By `cachestat`, pages count that are still being read.
    pub(crate) fn range(&self, offset: u64, length: u64) -> Resident {
        let Some((first, pages)) = touched(offset, length) else { return Resident::All };
        let found = match &self.0 {
            Method::Memory => return Resident::All,
            Method::Unknown => return Resident::Unknown,
            Method::Cachestat(file) => cachestat(file, offset, length),
            Method::Mincore(map) => map.resident(first, pages),
        };
        found.map_or(Resident::Unknown, |found| Resident::of(found, pages))
    }
}

/// Drops what the page cache holds of a range, in whole pages: a page that lies only partly in
/// the range stays, unless all that the file has of it does lie there. So do pages that were
/// written and are not on the disk yet, and those that somebody has mapped.
pub(crate) fn drop_from_cache(file: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let page = page_size() as u64;
    let file_length = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
    let end = offset.saturating_add(length);
    let end = if end >= file_length { file_length } else { end / page * page };
    let start = offset.checked_next_multiple_of(page).unwrap_or(end);
    // A length of 0 would mean everything from there on.
    let Some(length) = NonZeroU64::new(end.saturating_sub(start)) else { return Ok(()) };
    Ok(rustix::fs::fadvise(file, start, Some(length), Advice::DontNeed)?)
}

/// The first page that a range touches, and how many; `None` if it has no bytes.
fn touched(offset: u64, length: u64) -> Option<(u64, u64)> {
    let page = page_size() as u64;
    let last = offset.saturating_add(length.checked_sub(1)?);
    Some((offset / page, last / page - offset / page + 1))
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn mincore(address: *mut c_void, length: usize, pages: *mut u8) -> c_int;
}

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat`: numbers of pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn cachestat_of(file: &File) -> Option<Method> {
    // Refused: too old, a sandbox, or somebody else's file.
    cachestat(file, 0, 1)?;
    Some(Method::Cachestat(file.try_clone().ok()?))
}

/// Pages of a range that are in the file's cache. `length` is not 0, which would mean the rest.
fn cachestat(file: &File, offset: u64, length: u64) -> Option<u64> {
    use std::os::fd::AsRawFd;
    // The number is not the same everywhere, and weightlift was not tried elsewhere.
    const NUMBER: c_long = 451;
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return None;
    }
    let range = Range { offset, length: length.min(u64::MAX - offset) };
    let mut counts = Counts::default();
    let (range, into): (*const Range, *mut Counts) = (&range, &mut counts);
    let no_flags: c_uint = 0;
    // SAFETY: the call has these four arguments; both structures are laid out as the kernel's,
    // live until it returns, and it writes the second only.
    let status = unsafe { syscall(NUMBER, file.as_raw_fd(), range, into, no_flags) };
    (status == 0).then_some(counts.cached)
}

/// A mapping of a whole file that cannot be accessed, so that the file may shrink below it. It
/// goes on behind the file's end.
#[derive(Debug)]
struct Map {
    start: NonNull<c_void>,
    length: usize,
    /// A page of the mapping that no file page can be in.
    nothing: usize,
}

// SAFETY: the mapping is only ever asked about, by its address; nothing of it is bound to a thread.
unsafe impl Send for Map {}
// SAFETY: asking changes nothing.
unsafe impl Sync for Map {}

impl Map {
    /// `None` where the file system maps no files, or there is no room.
    fn new(file: &File) -> Option<Self> {
        // The file's last page may be part of a larger one, as long as 2 MiB, that is there whole.
        const GAP: usize = 2 << 20;
        let page = page_size();
        let end = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let nothing = end.checked_next_multiple_of(page)?.checked_add(GAP)?;
        let length = nothing.checked_add(page)?;
        let (access, flags) = (ProtFlags::empty(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of anybody,
        // and nobody can read what is in it.
        let start = unsafe { mm::mmap(ptr::null_mut(), length, access, flags, file, 0) }.ok()?;
        Some(Self { start: NonNull::new(start)?, length, nothing })
    }

    /// Whether the kernel tells us the truth, now: a process can lose the right to hear it.
    fn is_true(&self) -> bool {
        self.count(self.nothing, 1) == Some(0)
    }

    /// Pages that are there, of `pages` from page `first` of the file; `None` if that is not told.
    /// A file that has grown since it was mapped has nothing there.
    fn resident(&self, first: u64, pages: u64) -> Option<u64> {
        let page = page_size() as u64;
        let end = (self.nothing as u64 / page).min(first.saturating_add(pages));
        if first >= end {
            return Some(0);
        }
        let found = self.count(usize::try_from(first * page).ok()?, (end - first) as usize)?;
        (found == 0 || self.is_true()).then_some(found)
    }

    /// Pages that are there, as the kernel says, of `pages` from the mapping's byte `offset` on.
    fn count(&self, mut offset: usize, mut pages: usize) -> Option<u64> {
        // 4 MiB a question.
        let mut answers = [0_u8; 1024];
        let mut found = 0;
        while pages > 0 {
            let some = pages.min(answers.len());
            let length = some * page_size();
            assert!(offset + length <= self.length, "asked about what is not the mapping's");
            let address = self.start.as_ptr().wrapping_byte_add(offset);
            // SAFETY: the pages are the mapping's, as was just checked; nothing at the address is
            // touched, and there is room for an answer of a byte for each.
            if unsafe { mincore(address, length, answers.as_mut_ptr()) } != 0 {
                return None;
            }
            // The other bits may mean something one day.
            found += answers[..some].iter().map(|answer| u64::from(answer & 1)).sum::<u64>();
            offset += length;
            pages -= some;
        }
        Some(found)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has its address. Should it fail, it stays, which
        // costs room for addresses only.
        let _ = unsafe { mm::munmap(self.start.as_ptr(), self.length) };
    }
}

/// Mounts that the calling thread makes from now on are its own, and end with it. `false` where
/// it may not.
#[cfg(test)]
fn have_own_mounts() -> bool {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the thread's view of the file system parts from the other threads'; file
    // descriptors, for which it would matter, stay shared.
    (unsafe { unshare_unsafe(UnshareFlags::NEWNS) }).is_ok()
        && rustix::mount::mount_change(
            "/",
            rustix::mount::MountPropagationFlags::PRIVATE
                | rustix::mount::MountPropagationFlags::REC,
        )
        .is_ok()
}

#[cfg(test)]
mod tests;
