//! What a load did: plain data, printed, returned and logged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The truth about one load. Fields are only ever added; `schema` says from which version on.
///
/// Bytes are bytes, seconds are seconds, and GB in printed text are 10^9 bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of this structure: 1.
    pub schema: u32,
    /// Bytes planned, read and delivered, over all sources; and read for nothing, where a ring
    /// turned out too large to be pinned, or a device not to be there.
    pub bytes: Bytes,
    /// Bytes delivered by each route. They add up to `bytes.planned` after a good load.
    pub routes: BTreeMap<String, u64>,
    /// Bytes read by each kind of read: `buffered` went through the page cache, `direct` past it,
    /// `mapped` was copied out of mappings; `decoded` are made from what was read when the model
    /// was opened.
    pub reads: BTreeMap<String, u64>,
    /// Per source, in the order of the plan; without what was read for nothing.
    pub sources: Vec<SourceReport>,
    /// What was chosen, and why: device and route always, staging where it is smaller than the
    /// budget allows, readers where a disk that rotates has few, what carries direct reads where
    /// there are any.
    pub decisions: Vec<Decision>,
    /// What `auto` tried first and could not have.
    pub fallbacks: Vec<Fallback>,
    /// Where the time went.
    pub seconds: Seconds,
    /// `bytes.delivered` over `seconds.total` less `seconds.driver_wait`.
    pub bytes_per_second: f64,
    /// Most bytes of staging memory in use at one time, in whole blocks, by all loads that
    /// shared it. Never above the budget.
    pub staging_bytes_peak: u64,
    /// Bytes of pinned staging memory that the load used, kept from an earlier one or new.
    pub pinned_bytes: u64,
    /// Bytes of host memory that tensors lie in and that stay pinned with them, where that was
    /// asked for; no part of `pinned_bytes`.
    #[serde(default)]
    pub pinned_destination_bytes: u64,
    /// Bytes that were read into the page cache while the device started, beyond what the staging
    /// memory holds, to be read from there. They are no part of `bytes`.
    #[serde(default)]
    pub read_ahead_bytes: u64,
    /// Memory given up because it could not be proved idle, and handles that could not be
    /// destroyed, since the loader was made.
    pub quarantined: Quarantined,
    /// Where tensors are: `host`, `cuda:0`.
    pub devices: Vec<String>,
    /// Threads that read, the calling thread included where it did.
    pub reading_threads: usize,
    /// Bytes of a block and of a piece, as planned.
    pub block_size: u64,
    /// Bytes of a piece, as planned.
    pub piece_size: u64,
    /// Calls of the driver that copy, single and batched.
    pub copy_calls: u64,
    /// Tensors that were compared with a manifest while they were read: all or none.
    #[serde(default)]
    pub verified_tensors: u64,
    /// Tensors that files hold but the model's index maps elsewhere; they were not read.
    pub skipped_tensors: u64,
}

/// Bytes of a load or of one source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// What the storages of the tensors asked for hold, shared storages once.
    pub planned: u64,
    /// What came from the sources.
    pub read: u64,
    /// What arrived in its destination.
    pub delivered: u64,
}

/// One source's part of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source as the model names it.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A choice and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What was chosen: `device`, `route`, `staging`, `readers`, `reads`, `direct_reads`.
    pub what: String,
    /// What it became.
    pub chosen: String,
    /// Why.
    pub reason: String,
}

/// From what to what, why, and for how many bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fallback {
    /// What was tried.
    pub from: String,
    /// What was taken instead.
    pub to: String,
    /// Why.
    pub reason: String,
    /// Bytes that went the other way.
    pub bytes: u64,
}

/// Seconds by phase, wall time unless it says otherwise. Phases overlap: they do not add up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Finding the files, reading and checking their headers.
    pub open: f64,
    /// Making the plan.
    pub plan: f64,
    /// From the start of the driver's initialisation to its end; 0 where it was up.
    pub driver: f64,
    /// The part of `driver` in which nothing else was running.
    pub driver_wait: f64,
    /// Pinning the staging memory, or the tensors' host memory.
    pub pin: f64,
    /// Allocating the destinations.
    pub allocate: f64,
    /// From the start of the load to the first block in its destination.
    pub first_byte: f64,
    /// Time in reads, added up over the reader threads.
    pub read: f64,
    /// Comparing tensors with a manifest, added up over the reader threads; no part of `read`.
    #[serde(default)]
    pub verify: f64,
    /// From the first copy's submission to the last block's arrival; 0 on the host route.
    pub copy: f64,
    /// Time in which no copy was under way because nothing was read yet.
    pub waiting_for_disk: f64,
    /// Time that readers waited for a free block, added up over the reader threads.
    pub waiting_for_bus: f64,
    /// From the call until all bytes were visible, `open` included.
    pub total: f64,
}

/// What was given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Bytes of host and device memory.
    pub bytes: u64,
    /// Streams, events and contexts.
    pub handles: u64,
}

impl Report {
    /// Notes a choice; an earlier one of the same thing is no more.
    pub(crate) fn decide(&mut self, what: &str, chosen: impl ToString, reason: impl ToString) {
        self.decisions.retain(|earlier| earlier.what != what);
        self.decisions.push(Decision {
            what: what.to_owned(),
            chosen: chosen.to_string(),
            reason: reason.to_string(),
        });
    }

    /// Adds bytes that were read past the page cache.
    pub(crate) fn count_direct(&mut self, bytes: u64) {
        if bytes > 0 {
            *self.reads.entry("direct".to_owned()).or_default() += bytes;
        }
    }

    /// Takes over what was noted while the device started.
    pub(crate) fn take_start(&mut self, noted: Self) {
        let (own, new) = (&mut self.seconds, &noted.seconds);
        own.driver += new.driver;
        own.driver_wait += new.driver_wait;
        own.pin += new.pin;
        own.allocate += new.allocate;
        for decision in noted.decisions {
            self.decide(&decision.what, decision.chosen, decision.reason);
        }
        self.fallbacks.extend(noted.fallbacks);
    }

    /// The routes that carried bytes, most bytes first: `pinned` or `pinned+pageable`.
    pub fn route(&self) -> String {
        let mut routes: Vec<_> = self.routes.iter().filter(|(_, bytes)| **bytes > 0).collect();
        routes.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let names: Vec<&str> = routes.iter().map(|(name, _)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join("+") }
    }
}
