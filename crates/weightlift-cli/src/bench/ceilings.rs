//! What disk, page cache and bus can do at best, measured in the same run and in the same way: each
//! sample in a process of its own, in turn with the loads.

use std::ffi::OsString;
use std::path::PathBuf;

use weightlift::StorageKind;

use super::part::{Copies, Reads};
use super::process::{self, Failed};
use super::results::{Ceiling, CeilingKind, Machine};
use super::state::{self, State};
use crate::signal::Stop;

/// The search for the best setting reads no more than this.
const SEARCHED: u64 = 2 << 30;
/// Sizes of reads that are tried.
const SIZES: [u64; 3] = [1 << 20, 4 << 20, 16 << 20];
/// Most threads that are tried on a disk; more than a processor each gains nothing in the cache.
const THREADS: u64 = 32;
/// Least and most bytes of copies; a model's are between.
const COPIED: (u64, u64) = (256 << 20, 8 << 30);

/// What all measurements of ceilings need.
pub(super) struct Measuring<'a> {
    pub(super) program: &'a [OsString],
    pub(super) files: &'a [PathBuf],
    pub(super) machine: &'a Machine,
    pub(super) bytes: u64,
    pub(super) stop: &'a Stop,
}

impl Measuring<'_> {
    /// Adds the ceilings that the states and routes of this run have, their best settings found, to
    /// those that are known.
    pub(super) fn find(
        &self,
        states: &[State],
        known: &mut Vec<Ceiling>,
        say: &dyn Fn(&str),
    ) -> Result<(), Failed> {
        let mut kinds = Vec::new();
        if states.iter().any(|state| state.cached() < 1.0) {
            kinds.extend([CeilingKind::DiskDirect, CeilingKind::DiskBuffered]);
        }
        if states.iter().any(|state| state.cached() > 0.0) {
            kinds.extend([CeilingKind::PageCache, CeilingKind::PageCacheNewMemory]);
        }
        if self.machine.cuda.is_some() {
            kinds.push(CeilingKind::Bus);
        }
        for kind in kinds {
            if !known.iter().any(|ceiling| ceiling.kind == kind) {
                say(&format!("the best way for plain reads: {}", kind.name()));
                known.push(self.best(kind)?);
            }
        }
        Ok(())
    }

    fn best(&self, kind: CeilingKind) -> Result<Ceiling, Failed> {
        let mut found = Ceiling {
            kind,
            threads: None,
            read_bytes: None,
            samples: Vec::new(),
            unavailable: None,
        };
        if kind == CeilingKind::Bus {
            return Ok(found);
        }
        if kind == CeilingKind::DiskDirect && self.machine.storage.kind == StorageKind::Memory {
            found.unavailable = Some("the files lie in memory".to_owned());
            return Ok(found);
        }
        let most = match kind {
            CeilingKind::DiskDirect | CeilingKind::DiskBuffered => THREADS,
            _ => self.machine.processors,
        };
        // Powers of two, and the processors themselves.
        let mut threads: Vec<u64> = std::iter::successors(Some(1), |count| Some(count * 2))
            .take_while(|count| *count <= most)
            .collect();
        if !threads.contains(&most) {
            threads.push(most);
        }
        let mut best = 0.0;
        for size in SIZES.into_iter().filter(|size| *size == SIZES[0] || *size <= self.bytes) {
            for &threads in &threads {
                let tried =
                    Ceiling { threads: Some(threads), read_bytes: Some(size), ..found.clone() };
                match self.sample(&tried, SEARCHED) {
                    Ok(rate) if rate > best => (best, found) = (rate, tried),
                    Ok(_) => {}
                    Err(Failed::Stopped) => return Err(Failed::Stopped),
                    Err(Failed::Error { text, .. }) => {
                        found.unavailable = Some(text);
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    /// One sample, in bytes a second.
    pub(super) fn sample(&self, ceiling: &Ceiling, most: u64) -> Result<f64, Failed> {
        let kind = ceiling.kind;
        let mut words: Vec<OsString> = Vec::new();
        if kind == CeilingKind::Bus {
            let device = self.machine.cuda.as_ref().map_or(0, |cuda| cuda.ordinal);
            let bytes = self.bytes.clamp(COPIED.0, COPIED.1).min(most.max(COPIED.0));
            words.extend(["copies".into(), format!("--device={device}").into()]);
            words.extend([format!("--bytes={bytes}").into(), "--json".into()]);
            let copies = process::run::<Copies>(self.program, &words, self.stop)?.value;
            return Ok(copies.bytes as f64 / copies.seconds);
        }
        let state = match kind {
            CeilingKind::DiskDirect | CeilingKind::DiskBuffered => State::Cold,
            _ => State::Warm,
        };
        state::bring(self.files, state, self.stop)?;
        words.extend(["reads".into(), "--json".into(), format!("--most={most}").into()]);
        words.push(format!("--threads={}", ceiling.threads.unwrap_or(1)).into());
        words.push(format!("--size={}", ceiling.read_bytes.unwrap_or(SIZES[0])).into());
        if kind == CeilingKind::DiskDirect {
            words.push("--direct".into());
        }
        if kind == CeilingKind::PageCacheNewMemory {
            words.push("--new-memory".into());
        }
        words.push("--".into());
        words.extend(self.files.iter().map(OsString::from));
        let reads = process::run::<Reads>(self.program, &words, self.stop)?;
        Ok(reads.value.bytes as f64 / reads.value.seconds.max(f64::MIN_POSITIVE))
    }
}
