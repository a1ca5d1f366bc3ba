//! The caller's memory: what is registered, and how it is read without trusting it.
//!
//! A source may be gone when its copy runs; that is one of the mistakes to be found. So bytes move
//! through `/proc/self/mem`, where an unmapped page is an error and not the end of the process.

// Asking the kernel about a range of addresses is an unsafe call in rustix, whatever the range.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use rustix::mm::{Advice, MsyncFlags, madvise, msync};

use crate::world::{Status, World, status};

/// A registered range of the caller's memory.
pub(crate) struct Registration {
    pub id: u64,
    pub start: usize,
    pub len: usize,
    pub device: usize,
    /// Its pages carry our mark, see [`mark`].
    marked: bool,
    /// Found unmapped and recorded; once is enough.
    told: bool,
}

impl Registration {
    /// The pages that it pins.
    fn pages(&self) -> (usize, usize) {
        page_range(self.start, self.len)
    }
}

impl World {
    pub fn register(
        &mut self,
        device: usize,
        start: usize,
        len: usize,
        flags: u32,
    ) -> Result<(), Status> {
        // Portable, device map, input/output memory, read only.
        if start == 0 || len == 0 || start.checked_add(len).is_none() || flags & !15 != 0 {
            return Err(status::INVALID_VALUE);
        }
        // Bytes count, not pages: two registrations may meet within a page.
        let overlaps = |r: &Registration| start < r.start + r.len && r.start < start + len;
        if self.registrations.iter().any(overlaps) {
            return Err(status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if !is_mapped(start, len) {
            self.violation(format!("{start:#x}+{len} is not mapped"));
            return Err(status::INVALID_VALUE);
        }
        if is_file_mapping(start, len) {
            self.violation(format!("{start:#x}+{len} is a mapping of a file"));
        }
        let total = self.counts.registered_bytes + len as u64;
        if len as u64 > self.config.register_max || total > self.config.register_limit {
            return Err(status::OUT_OF_MEMORY);
        }
        self.counts.registered_bytes = total;
        self.counts.registered_peak = self.counts.registered_peak.max(total);
        let id = self.next_id();
        self.registrations.push(Registration {
            id,
            start,
            len,
            device,
            marked: mark(start, len),
            told: false,
        });
        Ok(())
    }

    pub fn unregister(&mut self, start: usize) -> Result<(), Status> {
        self.check_mappings(true);
        let Some(place) = self.registrations.iter().position(|r| r.start == start) else {
            self.violation(format!("no registration starts at {start:#x}"));
            return Err(match self.registration_of(start, 1)? {
                None if start != 0 => status::HOST_MEMORY_NOT_REGISTERED,
                _ => status::INVALID_VALUE,
            });
        };
        let gone = self.registrations.remove(place);
        self.counts.registered_bytes -= gone.len as u64;
        if self.pending(|work| work.registration() == Some(gone.id)) {
            self.violation(format!("{start:#x}+{} unregistered under a running copy", gone.len));
        }
        Ok(())
    }

    /// The registration that holds a range: none if the range is ordinary memory, an error if it
    /// is partly registered, or by more than one registration.
    pub fn registration_of(&mut self, start: usize, len: usize) -> Result<Option<u64>, Status> {
        let end = start.checked_add(len).ok_or(status::INVALID_VALUE)?;
        let touched = self.registrations.iter().find(|r| start < r.start + r.len && r.start < end);
        match touched {
            None => Ok(None),
            Some(r) if r.start <= start && end <= r.start + r.len => Ok(Some(r.id)),
            Some(r) => {
                let text = format!(
                    "{start:#x}+{len} does not lie within one registration ({:#x}+{})",
                    r.start, r.len
                );
                self.violation(text);
                Err(status::INVALID_VALUE)
            }
        }
    }

    /// Records registered ranges that are no longer mapped. Holes are found at once; a look for
    /// marks that are gone takes longer, and is for when it is `thorough`.
    pub fn check_mappings(&mut self, thorough: bool) {
        let marks = thorough.then(marked_ranges).flatten();
        let is_gone = |r: &Registration| {
            let (from, to) = r.pages();
            let unmarked = |marks: &Vec<_>| r.marked && overlap(marks, from, to) < to - from;
            !is_mapped(r.start, r.len) || marks.as_ref().is_some_and(unmarked)
        };
        let mut found = Vec::new();
        for r in self.registrations.iter_mut().filter(|r| !r.told) {
            r.told = is_gone(r);
            if r.told {
                found.push(format!("{:#x}+{} unmapped while registered", r.start, r.len));
            }
        }
        for text in found {
            self.violation(text);
        }
    }
}

/// Fills `into` from `address` of this process.
pub(crate) fn read(address: usize, into: &mut [u8]) -> io::Result<()> {
    SELF.read_exact_at(into, address as u64)
}

/// Writes `bytes` to `address` of this process.
pub(crate) fn write(address: usize, bytes: &[u8]) -> io::Result<()> {
    SELF.write_all_at(bytes, address as u64)
}

static SELF: LazyLock<File> = LazyLock::new(|| {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .expect("the fake driver needs /proc/self/mem")
});

fn page_range(start: usize, len: usize) -> (usize, usize) {
    let page = rustix::param::page_size();
    (start / page * page, (start + len).next_multiple_of(page))
}

/// Whether every page of the range is mapped to something, perhaps anew.
fn is_mapped(start: usize, len: usize) -> bool {
    let (from, to) = page_range(start, len);
    // SAFETY: an asynchronous msync changes nothing (since Linux 2.6.19 it does not even start
    // writing); it walks the mappings and fails where there is none.
    unsafe { msync(from as *mut _, to - from, MsyncFlags::ASYNC) }.is_ok()
}

/// Marks a range, so that a new mapping at the same place is told from it: the space of a ring
/// that was unmapped is soon taken by some thread's stack. The mark is the advice to leave the
/// range out of core dumps, which does no harm, is rarely given and can be read back.
fn mark(start: usize, len: usize) -> bool {
    let (from, to) = page_range(start, len);
    // SAFETY: the advice changes neither the contents nor the access to the memory.
    unsafe { madvise(from as *mut _, to - from, Advice::LinuxDontDump) }.is_ok()
}

/// The ranges with the mark of [`mark`]; nothing if the kernel does not tell.
fn marked_ranges() -> Option<Vec<(usize, usize)>> {
    let text = fs::read_to_string("/proc/self/smaps").ok()?;
    let mut marked = Vec::new();
    let mut range = None;
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            marked.extend(range.filter(|_| flags.split_whitespace().any(|flag| flag == "dd")));
        } else {
            range = parse_range(line).or(range);
        }
    }
    Some(marked)
}

/// How many bytes of a range lie in `ranges`.
fn overlap(ranges: &[(usize, usize)], from: usize, to: usize) -> usize {
    let within = ranges.iter().map(|&(start, end)| end.min(to).saturating_sub(start.max(from)));
    within.sum()
}

fn is_file_mapping(start: usize, len: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        // from-to permissions offset device inode path
        let inode = line.split_whitespace().nth(4);
        parse_range(line)
            .is_some_and(|(from, to)| start < to && from < start + len && inode != Some("0"))
    })
}

/// The range that begins a line of `/proc/self/maps`.
fn parse_range(line: &str) -> Option<(usize, usize)> {
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    let parse = |text| usize::from_str_radix(text, 16).ok();
    Some((parse(from)?, parse(to)?))
}
