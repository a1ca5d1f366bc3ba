//! What samples come to: medians with their spread, and shares of what was possible.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::results::{Ceiling, CeilingKind, Cell, Outcome, Results, Taken};
use super::state::State;

/// The samples of one combination that went the same way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Series {
    #[serde(flatten)]
    pub(super) cell: Cell,
    /// The way that they went; `None` where all failed.
    pub(super) actual_route: Option<String>,
    /// Whether that is another way than the one asked for.
    pub(super) fallback: bool,
    /// From what to what and why; what failed.
    pub(super) notes: Vec<String>,
    /// How many count.
    pub(super) samples: u64,
    /// How many gave no figure.
    pub(super) failed: u64,
    /// The kernel and the driver that they ran on.
    pub(super) kernel: String,
    pub(super) driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) figures: Option<Figures>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    /// As the report defines it: without the time in which only the driver started.
    pub(super) bytes_per_second: Spread,
    /// The whole call of the library.
    pub(super) load_seconds: Spread,
    /// The whole process, from start to end.
    pub(super) process_seconds: Spread,
    pub(super) processor_seconds: Spread,
    pub(super) peak_memory_bytes: u64,
    pub(super) staging_bytes_peak: u64,
    /// Part of the bytes read that went past the page cache.
    pub(super) direct_share: f64,
    /// What limits it, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling: Option<Limit>,
    /// Medians of the seconds of each phase of the process. These follow one another and add up.
    pub(super) phases: BTreeMap<String, f64>,
    /// Medians of what goes on beside them: the whole of the driver's start, reading (summed over all
    /// reads under way), copying.
    pub(super) beside: BTreeMap<String, f64>,
    /// Bytes a second of each sample, in the order of the rounds.
    pub(super) values: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// The slowest of what the bytes have to go through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Limit {
    /// What it is.
    pub(super) what: String,
    pub(super) bytes_per_second: f64,
    /// The median's part of it.
    pub(super) share: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Some(Self { median, min, max })
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// Whether it is a fallback, and the routes taken; `None` where there is no figure.
type Way = Option<(bool, String)>;

/// A figure of one sample.
type Value = fn(&Taken) -> f64;

/// The phases in the order in which they follow one another.
pub(super) const PHASES: [&str; 8] =
    ["start", "open", "plan", "driver_wait", "pin", "allocate", "read_and_copy", "end"];

/// Seconds of each phase of one process.
fn phases(taken: &Taken) -> [f64; PHASES.len()] {
    let (load, seconds) = (&taken.load, &taken.load.report.seconds);
    // The calling thread does these one after the other; the rest of the call is reading and copying.
    let own = [seconds.open, seconds.plan, seconds.driver_wait, seconds.pin, seconds.allocate];
    let rest = (seconds.total - own.iter().sum::<f64>()).max(0.0);
    let end = (taken.process_seconds - load.start_seconds - seconds.total).max(0.0);
    let [open, plan, driver_wait, pin, allocate] = own;
    [load.start_seconds, open, plan, driver_wait, pin, allocate, rest, end]
}

impl Results {
    /// Makes the series anew.
    pub(super) fn summarise(&mut self) {
        // By combination and the way taken: a fallback is never among what was asked for.
        let mut groups: BTreeMap<(Cell, Way), Vec<&Outcome>> = BTreeMap::new();
        for sample in self.samples.iter().filter(|sample| sample.round > 0) {
            let way = match &sample.outcome {
                Outcome::Measured { taken } => Some((false, taken.actual_route.clone())),
                Outcome::Fallback { taken, .. } => Some((true, taken.actual_route.clone())),
                Outcome::Failed { .. } => None,
            };
            groups.entry((sample.cell.clone(), way)).or_default().push(&sample.outcome);
        }
        let series = groups.into_iter().map(|((cell, way), outcomes)| {
            let mut notes: Vec<String> = Vec::new();
            let mut note = |text: &String| {
                if !notes.contains(text) {
                    notes.push(text.clone());
                }
            };
            let mut taken = Vec::new();
            for outcome in &outcomes {
                match outcome {
                    Outcome::Measured { taken: one } => taken.push(&**one),
                    Outcome::Fallback { reasons, taken: one } => {
                        reasons.iter().for_each(&mut note);
                        taken.push(&**one);
                    }
                    Outcome::Failed { error, .. } => note(error),
                }
            }
            let (fallback, actual_route) = way.unzip();
            Series {
                figures: self.figures(&cell, actual_route.as_deref(), &taken),
                cell,
                actual_route,
                fallback: fallback.unwrap_or(false),
                notes,
                samples: taken.len() as u64,
                failed: (outcomes.len() - taken.len()) as u64,
                kernel: self.machine.kernel.clone(),
                driver: self.machine.driver(),
            }
        });
        let mut series: Vec<Series> = series.collect();
        series.sort_by_cached_key(Series::order);
        self.series = series;
    }

    fn figures(&self, cell: &Cell, route: Option<&str>, taken: &[&Taken]) -> Option<Figures> {
        let spread = |value: Value| Spread::of(taken.iter().map(|taken| value(taken)));
        let bytes_per_second = spread(|taken| taken.load.report.bytes_per_second)?;
        let direct = |taken: &Taken| {
            let reads = &taken.load.report.reads;
            let all: u64 = reads.values().sum();
            reads.get("direct").copied().unwrap_or(0) as f64 / all.max(1) as f64
        };
        let most = |value: fn(&Taken) -> u64| taken.iter().map(|taken| value(taken)).max();
        let phases = PHASES.iter().enumerate().map(|(number, name)| {
            let seconds = taken.iter().map(|taken| phases(taken)[number]);
            ((*name).to_owned(), median(seconds))
        });
        let beside: [(&str, Value); 3] = [
            ("driver", |taken| taken.load.report.seconds.driver),
            ("read", |taken| taken.load.report.seconds.read),
            ("copy", |taken| taken.load.report.seconds.copy),
        ];
        let beside = beside
            .into_iter()
            .map(|(name, value)| (name.to_owned(), median(taken.iter().map(|taken| value(taken)))));
        let ceiling = self.limit(cell, route?).map(|(what, limit)| Limit {
            what,
            bytes_per_second: limit,
            share: bytes_per_second.median / limit,
        });
        Some(Figures {
            bytes_per_second,
            load_seconds: spread(|taken| taken.load.report.seconds.total)?,
            process_seconds: spread(|taken| taken.process_seconds)?,
            processor_seconds: spread(|taken| taken.load.processor_seconds)?,
            peak_memory_bytes: most(|taken| taken.load.peak_memory_bytes)?,
            staging_bytes_peak: most(|taken| taken.load.report.staging_bytes_peak)?,
            direct_share: median(taken.iter().map(|taken| direct(taken))),
            ceiling,
            phases: phases.collect(),
            beside: beside.collect(),
            values: taken.iter().map(|taken| taken.load.report.bytes_per_second).collect(),
        })
    }

    /// What a load in this state by this route cannot be faster than, in bytes a second.
    pub(super) fn limit(&self, cell: &Cell, route: &str) -> Option<(String, f64)> {
        let rate = |kind| self.ceilings.iter().find(|ceiling| ceiling.kind == kind)?.median();
        let (direct, buffered) = (rate(CeilingKind::DiskDirect), rate(CeilingKind::DiskBuffered));
        let disk = match (direct, buffered) {
            (Some(direct), Some(buffered)) => Some(direct.max(buffered)),
            (one, other) => one.or(other),
        };
        let cache = rate(CeilingKind::PageCache);
        let cached = cell.state.parse::<State>().ok()?.cached();
        let (what, storage) = if cached >= 1.0 {
            ("page cache", cache?)
        } else if cached <= 0.0 {
            ("disk", disk?)
        } else {
            // Both are read at the same time.
            let (disk, cache) = (disk? / (1.0 - cached), cache? / cached);
            if disk < cache { ("disk", disk) } else { ("page cache", cache) }
        };
        match rate(CeilingKind::Bus) {
            Some(bus) if route != "host" && bus < storage => Some(("bus".to_owned(), bus)),
            _ => Some((what.to_owned(), storage)),
        }
    }
}

impl Series {
    /// By state, then route, then number of threads.
    fn order(&self) -> (String, String, u32, bool, bool) {
        let threads = self.cell.reading_threads.parse().unwrap_or(u32::MAX);
        let (state, route) = (self.cell.state.clone(), self.cell.route.clone());
        (state, route, threads, self.figures.is_none(), self.fallback)
    }
}

impl Ceiling {
    /// Of its samples.
    pub(super) fn median(&self) -> Option<f64> {
        Spread::of(self.samples.iter().copied()).map(|spread| spread.median)
    }
}
