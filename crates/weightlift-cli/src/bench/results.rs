//! The results of a run, as they are printed, kept in a file, and taken up again.

use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use weightlift::{Error, ErrorKind, StorageFacts};

use super::part;
use super::statistics::Series;

/// The version of the results' structure.
const SCHEMA: u32 = 1;

/// All of a run. Fields are only ever added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) schema: u32,
    /// The version of weightlift.
    pub(super) weightlift: String,
    /// When the run was started first, in seconds since 1970, UTC.
    pub(super) started: u64,
    /// Whether it was stopped before all samples were taken.
    pub(super) interrupted: bool,
    pub(super) model: ModelFacts,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    /// What disk, page cache and bus did at best, in the same run.
    pub(super) ceilings: Vec<Ceiling>,
    /// Combinations that are none.
    pub(super) left_out: Vec<LeftOut>,
    /// In the order in which they were taken.
    pub(super) samples: Vec<Sample>,
    /// What the samples come to; made from them.
    pub(super) series: Vec<Series>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ModelFacts {
    pub(super) path: String,
    pub(super) format: String,
    pub(super) tensors: u64,
    /// Bytes that a load reads and delivers, shared ones once.
    pub(super) bytes: u64,
    pub(super) files: Vec<FileFacts>,
    /// XXH3-64 of all tensors' names and digests, by an independent read.
    pub(super) digest: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) path: String,
    pub(super) length: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// Name and release, as `uname` has them.
    pub(super) kernel: String,
    pub(super) architecture: String,
    pub(super) processor: String,
    /// Processors that the run may use.
    pub(super) processors: u64,
    pub(super) memory_bytes: u64,
    /// What the first file lies on.
    pub(super) storage: StorageFacts,
    /// How it is asked what the page cache holds of it.
    pub(super) residency: String,
    pub(super) cuda: Option<Cuda>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Cuda {
    pub(super) ordinal: u32,
    pub(super) device: String,
    /// The newest CUDA that the driver knows.
    pub(super) cuda: String,
    /// The version of the kernel's module, where there is one.
    pub(super) driver: Option<String>,
}

impl Machine {
    /// The driver and its version, for people.
    pub(super) fn driver(&self) -> Option<String> {
        let cuda = self.cuda.as_ref()?;
        Some(match &cuda.driver {
            Some(driver) => format!("{driver} ({})", cuda.cuda),
            None => cuda.cuda.clone(),
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) routes: Vec<String>,
    pub(super) states: Vec<String>,
    pub(super) reading_threads: Vec<String>,
    /// Samples of each combination.
    pub(super) samples: u32,
    /// The library's options that all samples share.
    pub(super) options: String,
    /// What was asked for, as a command line.
    pub(super) command: String,
}

/// What is sampled: one combination.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) state: String,
    pub(super) route: String,
    /// `auto` or a number.
    pub(super) reading_threads: String,
}

impl Cell {
    /// For people: `pinned, cold, 4 threads`.
    pub(super) fn name(&self) -> String {
        format!("{}, {}, {}", self.route, self.state, self.threads())
    }

    /// `1 thread`, `auto threads`.
    pub(super) fn threads(&self) -> String {
        let one = self.reading_threads == "1";
        format!("{} thread{}", self.reading_threads, if one { "" } else { "s" })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LeftOut {
    #[serde(flatten)]
    pub(super) cell: Cell,
    pub(super) reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    #[serde(flatten)]
    pub(super) cell: Cell,
    /// From 1 on; 0 for a warm-up, which counts in no statistics.
    pub(super) round: u32,
    /// What became of it.
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// It went as asked for, and every tensor is right.
    Measured {
        #[serde(flatten)]
        taken: Box<Taken>,
    },
    /// It went another way than the one asked for; every tensor is right.
    Fallback {
        /// From what to what, and why.
        reasons: Vec<String>,
        #[serde(flatten)]
        taken: Box<Taken>,
    },
    /// There is no figure.
    Failed { kind: String, error: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Taken {
    /// The routes that carried bytes: `pinned`, `pinned+pageable`.
    pub(super) actual_route: String,
    /// Seconds from the process's start to its end, without the digests.
    pub(super) process_seconds: f64,
    /// Bytes of the model's files that were in the page cache when the process was started.
    pub(super) cached_bytes: u64,
    /// How often it was taken until what should have been cached had stayed so.
    pub(super) tries: u32,
    #[serde(flatten)]
    pub(super) load: part::Load,
}

/// What is measured without the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Ceiling {
    pub(super) kind: CeilingKind,
    /// The best number of reading threads that was found, and the best size of a read; none of the
    /// bus.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) threads: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) read_bytes: Option<u64>,
    /// Bytes a second, one sample a round.
    pub(super) samples: Vec<f64>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unavailable: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CeilingKind {
    /// Cold files, past the page cache.
    DiskDirect,
    /// Cold files, through the page cache.
    DiskBuffered,
    /// Cached files, into the same memory again and again.
    PageCache,
    /// Cached files, into new memory as long as they are.
    PageCacheNewMemory,
    /// Pinned memory to the device.
    Bus,
}

impl CeilingKind {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DiskDirect => "disk, direct reads",
            Self::DiskBuffered => "disk, buffered reads",
            Self::PageCache => "page cache, same memory",
            Self::PageCacheNewMemory => "page cache, new memory",
            Self::Bus => "bus, pinned copies",
        }
    }
}

impl Results {
    pub(super) fn new(model: ModelFacts, machine: Machine, settings: Settings) -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            schema: SCHEMA,
            weightlift: env!("CARGO_PKG_VERSION").to_owned(),
            started: since.map_or(0, |since| since.as_secs()),
            interrupted: false,
            model,
            machine,
            settings,
            ceilings: Vec::new(),
            left_out: Vec::new(),
            samples: Vec::new(),
            series: Vec::new(),
        }
    }

    /// Whether the sample is there. A failed one is to be taken again.
    pub(super) fn has(&self, cell: &Cell, round: u32) -> bool {
        self.samples.iter().any(|sample| {
            sample.round == round
                && sample.cell == *cell
                && !matches!(sample.outcome, Outcome::Failed { .. })
        })
    }

    /// Adds a sample, in place of an earlier one that failed.
    pub(super) fn add(&mut self, sample: Sample) {
        self.samples
            .retain(|earlier| (earlier.round, &earlier.cell) != (sample.round, &sample.cell));
        self.samples.push(sample);
    }

    /// Samples without a figure, and why. A warm-up that failed is not missed.
    pub(super) fn failed(&self) -> impl Iterator<Item = (&Cell, &str)> {
        self.samples.iter().filter(|sample| sample.round > 0).filter_map(|sample| {
            match &sample.outcome {
                Outcome::Failed { error, .. } => Some((&sample.cell, &**error)),
                _ => None,
            }
        })
    }

    /// What an earlier run kept, if there is one and it is of the same model, machine and settings.
    pub(super) fn take_up(self, path: &Path) -> Result<Self, Error> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(self),
            Err(error) => return Err(cannot("read", path, error)),
        };
        let refused = |what: &str| {
            Error::new(ErrorKind::InvalidOption, format!("the results in the file are {what}"))
                .with("option", "resume")
                .with("path", path.display())
                .hint("name a file that does not exist, and it is made")
        };
        let earlier: Self = serde_json::from_slice(&text)
            .map_err(|error| refused("no results of bench").with("reason", error))?;
        let same: [(&str, bool); 4] = [
            (
                "of another version",
                (earlier.schema, &*earlier.weightlift) == (SCHEMA, &*self.weightlift),
            ),
            ("of another model", earlier.model == self.model),
            ("of another machine, kernel or driver", earlier.machine == self.machine),
            ("of other settings", earlier.settings.options == self.settings.options),
        ];
        for (what, same) in same {
            if !same {
                return Err(refused(what));
            }
        }
        // Samples of combinations that are not asked for any more stay: they were measured.
        Ok(Self { settings: self.settings, interrupted: false, ..earlier })
    }

    /// Keeps them in the file, or leaves it as it was.
    pub(super) fn save(&self, path: &Path) -> Result<(), Error> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let write = || {
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            serde_json::to_writer(&mut file, self)?;
            file.write_all(b"\n")?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|error| cannot("write", path, error))
    }
}

pub(super) fn cannot(what: &str, path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {what} a file"))
        .with("path", path.display())
        .with("reason", &error)
        .because(error)
}
