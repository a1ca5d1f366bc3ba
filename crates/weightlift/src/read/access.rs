//! What all readers of a load share: the sources, what is known of them, and what was learnt.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Kind;
use super::ahead::{Ahead, Claim};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::HostRange;
use crate::options::DirectIo;
use crate::source::Source;
use crate::system::{PAGE, Resident, drop_from_cache};

/// What direct reads must be multiples of, in bytes; both are powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    /// Addresses in memory.
    pub(crate) memory: u32,
    /// Offsets in the file, and lengths.
    pub(crate) offset: u32,
}

impl DirectAlignment {
    /// What every disk and file system that we know of is content with, where nothing is known.
    pub(crate) const USUAL: Self = Self { memory: PAGE as u32, offset: PAGE as u32 };

    /// Reads that may begin and end anywhere.
    pub(super) const NONE: Self = Self { memory: 1, offset: 1 };

    /// Whether a buffer of `length` bytes that begins at a page can serve it.
    fn fits(self, length: usize) -> bool {
        let powers = self.memory.is_power_of_two() && self.offset.is_power_of_two();
        powers && self.memory as usize <= PAGE && self.offset as usize <= length
    }
}

/// What is known of a load's sources, by their numbers. Asked by several threads at once.
pub(crate) trait Facts: Send + Sync {
    /// What direct reads of the source must be multiples of; why it should have none otherwise.
    fn alignment(&self, source: usize) -> Result<DirectAlignment, String>;

    /// How much of a range is in the page cache.
    fn resident(&self, source: usize, offset: u64, length: u64) -> Resident;

    /// Why the source is read through the cache unless direct reads are forced, if it is.
    fn buffered(&self, _source: usize) -> Option<&str> {
        None
    }

    /// Whether the page cache can be made to hold it before it is read.
    fn can_be_ahead(&self, _source: usize) -> bool {
        false
    }

    /// Bytes that may be read ahead in all. Asked once.
    fn room_ahead(&self) -> u64 {
        0
    }
}

/// How a load's sources are read. One for all its readers.
pub(crate) struct Access {
    sources: Arc<[Arc<dyn Source>]>,
    mode: DirectIo,
    /// Bytes that were copied out of mappings, where that was asked for.
    mapped: Option<AtomicU64>,
    facts: Box<dyn Facts>,
    refusals: Vec<Refusal>,
    /// The reader that direct reads went through, and why not a better one.
    engine: OnceLock<(&'static str, String)>,
    /// Address and length of the memory that pieces go to again and again, if they do.
    staging: Option<(usize, usize)>,
    /// Whether memory could be registered with the first queue that came so far, or why not.
    registered: OnceLock<Result<(), String>>,
    ahead: Ahead,
}

/// A source that cannot be read as was wished.
#[derive(Default)]
struct Refusal {
    why: OnceLock<String>,
    /// Bytes that were read through the cache for that reason.
    bytes: AtomicU64,
}

/// A reader's buffer for what cannot be read in place: as long as a piece of the usual size, so
/// that a place whose address never fits takes one read and one copy a piece.
///
/// It lies in a huge page: into small ones a direct read of a MiB has 256 targets instead of one,
/// and took three times the processor time (0.09 s a GiB instead of 0.03, medians of 7 on a virtual
/// disk).
pub(super) const BUFFER: usize = 1 << 20;

/// What is mapped for one buffer, so that it lies in a huge page.
pub(super) const BUFFER_REGION: u64 = 2 << 20;

impl Access {
    pub(crate) fn new(
        sources: Arc<[Arc<dyn Source>]>,
        mode: DirectIo,
        facts: Box<dyn Facts>,
    ) -> Self {
        let refusals = sources.iter().map(|_| Refusal::default()).collect();
        Self {
            sources,
            mode,
            mapped: None,
            facts,
            refusals,
            engine: OnceLock::new(),
            staging: None,
            registered: OnceLock::new(),
            ahead: Ahead::default(),
        }
    }

    /// Copies out of mappings of the files instead.
    pub(crate) fn mapped(self) -> Self {
        Self { mode: DirectIo::Off, mapped: Some(AtomicU64::new(0)), ..self }
    }

    /// Reads into `staging`, which stays for as long as there are readers.
    pub(crate) fn staged(self, staging: HostRange) -> Self {
        let start = staging.pointer.as_ptr().expose_provenance();
        Self { staging: Some((start, staging.length)), ..self }
    }

    pub(super) fn staging(&self) -> Option<(usize, usize)> {
        self.staging
    }

    pub(crate) fn sources(&self) -> &[Arc<dyn Source>] {
        &self.sources
    }

    /// The kind of reads that is wished for where it can be had.
    pub(crate) fn wished(&self) -> Kind {
        if self.mapped.is_some() { Kind::Mapped } else { Kind::Direct }
    }

    /// Bytes that were copied out of mappings.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        self.mapped.as_ref().map_or(0, |bytes| bytes.load(Ordering::Relaxed))
    }

    /// The sources that could not be read as was wished, each once: number, reason, and how many
    /// bytes were read through the cache, by calls, instead.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (usize, &str, u64)> {
        self.refusals.iter().enumerate().filter_map(|(source, refusal)| {
            let bytes = refusal.bytes.load(Ordering::Relaxed);
            Some((source, refusal.why.get()?.as_str(), bytes))
        })
    }

    /// What carried direct reads, `io_uring` or `one at a time`, and why; `None` where there were
    /// none.
    pub(crate) fn engine(&self) -> Option<(&'static str, String)> {
        let (engine, why) = self.engine.get()?;
        let registered = match self.registered.get() {
            None => String::new(),
            Some(Ok(())) => ", buffers registered".to_owned(),
            Some(Err(why)) => format!(", buffers not registered: {why}"),
        };
        Some((*engine, format!("{why}{registered}")))
    }

    #[cfg(test)]
    pub(super) fn registered(&self) -> Option<bool> {
        self.registered.get().map(Result::is_ok)
    }

    pub(super) fn set_registered(&self, registered: io::Result<()>) {
        // The first speaks for all, as below.
        let _ = self.registered.set(registered.map_err(|error| error.to_string()));
    }

    pub(super) fn set_engine(&self, engine: &'static str, why: String) {
        // Readers of one load can differ if one of them finds no memory for its queues: the first
        // speaks for all.
        let _ = self.engine.set((engine, why));
    }

    pub(super) fn source(&self, number: usize) -> &dyn Source {
        &*self.sources[number]
    }

    /// Whether a range is to be read directly, as far as is known before it is tried.
    pub(super) fn wants_direct(&self, source: usize, offset: u64, length: usize) -> bool {
        match self.mode {
            DirectIo::Off => false,
            DirectIo::On => true,
            DirectIo::Auto => {
                !self.is_refused(source)
                    && self.facts.buffered(source).is_none()
                    && !self.is_ahead(source, offset)
                    && self.facts.resident(source, offset, length as u64) != Resident::All
            }
        }
    }

    /// Whether a range for which there is no place yet is to be read into the page cache. Only
    /// what the load would read through the cache anyway stays there afterwards.
    pub(crate) fn claim_ahead(&self, source: usize, offset: u64, length: u64) -> Claim {
        if self.mode == DirectIo::On {
            return Claim::NoneAnyMore;
        }
        if !self.facts.can_be_ahead(source) {
            return Claim::Not;
        }
        let resident = self.facts.resident(source, offset, length);
        // Part of it: dropping the rest afterwards would take time, and what is there with it.
        if matches!(resident, Resident::All | Resident::Part { .. }) {
            return Claim::Not;
        }
        let claim = self.ahead.claim(length, || self.facts.room_ahead());
        let direct = self.mode == DirectIo::Auto && !self.is_refused(source);
        if claim == Claim::Read && direct && resident == Resident::None {
            self.ahead.was_cold(source, offset, length);
        }
        claim
    }

    /// Bytes that were read into the page cache before there was a place for them.
    pub(crate) fn bytes_ahead(&self) -> u64 {
        self.ahead.bytes()
    }

    /// Whether a range was read ahead that the page cache is to hold no longer than needed.
    pub(super) fn is_ahead(&self, source: usize, offset: u64) -> bool {
        self.ahead.holds(source, offset)
    }

    /// Drops from the page cache what was read ahead and is still there. Nobody reads any more.
    pub(crate) fn drop_ahead(&self) {
        for (source, offset, length) in self.ahead.take_cold() {
            let Ok(open) = self.source(source).open() else { continue };
            let page = PAGE as u64;
            let start = offset / page * page;
            // The cache held nothing of the range, and so nothing of the pages at its ends.
            let end = (offset + length).next_multiple_of(page);
            if let Some(descriptor) = open.descriptor() {
                // Where it is refused the pages stay, as those of any file that was read.
                let _ = drop_from_cache(descriptor, start, end - start);
            }
        }
    }

    /// Whether what is read of the source through the cache goes on to where it was not read yet.
    pub(super) fn reads_ahead(&self, source: usize) -> bool {
        match self.mode {
            DirectIo::Off => true,
            DirectIo::On => false,
            DirectIo::Auto => self.is_refused(source) || self.facts.buffered(source).is_some(),
        }
    }

    /// Why sources that were read are read through the cache by rule, each reason once; empty
    /// unless the choice was free.
    pub(crate) fn rules(&self, read: impl Iterator<Item = usize>) -> Vec<&str> {
        let mut rules = Vec::new();
        if self.mode == DirectIo::Auto {
            rules.extend(read.filter_map(|source| self.facts.buffered(source)));
            rules.sort_unstable();
            rules.dedup();
        }
        rules
    }

    /// Whether the source is known not to be read as was wished.
    pub(super) fn is_refused(&self, source: usize) -> bool {
        self.refusals[source].why.get().is_some()
    }

    /// The alignment of the source's direct reads, if a reader's buffer can serve it.
    pub(super) fn alignment(&self, source: usize) -> Result<DirectAlignment, String> {
        let alignment = self.facts.alignment(source)?;
        if alignment.fits(BUFFER) {
            return Ok(alignment);
        }
        let DirectAlignment { memory, offset } = alignment;
        Err(format!("its alignment, {memory} bytes in memory and {offset} in the file, is too odd"))
    }

    /// The source cannot be read as was wished. What reads `length` bytes of it through the cache
    /// instead may do so, unless direct reads are forced.
    pub(super) fn refuse(&self, source: usize, why: &str) -> Result<()> {
        if self.mode == DirectIo::On {
            let message = "the file cannot be read past the page cache";
            return Err(Error::new(ErrorKind::DirectIoUnavailable, message)
                .with("file", self.sources[source].name())
                .with("reason", why)
                .hint("--direct-io auto reads such files through the cache"));
        }
        let _ = self.refusals[source].why.set(why.to_owned());
        Ok(())
    }

    /// Counts bytes that were copied out of a mapping.
    pub(super) fn count_mapped(&self, length: usize) {
        if let Some(bytes) = &self.mapped {
            bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes that were read through the cache, of a source that was refused.
    pub(super) fn count(&self, source: usize, length: usize) {
        if self.is_refused(source) {
            self.refusals[source].bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}
