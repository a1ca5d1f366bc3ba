//! The command line of `bench`, and of the hidden command that it starts for each sample.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use weightlift::{DeviceChoice, Error, ErrorKind, Options, ReadingThreads, RouteChoice};

use super::state::State;
use crate::args::{ModelArgs, Settings};

#[derive(Debug, Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Routes: of host, pinned, pageable and auto, with commas between them. Unless given, host, and
    /// where there is a CUDA device pinned and pageable.
    #[arg(long, value_name = "LIST")]
    pub(super) routes: Option<String>,
    /// States of the page cache: of cold, warm, half (the first half of each file is there) and
    /// EVERY:OF:BYTES (so many of so many stretches of that length are), with commas.
    #[arg(long, value_name = "LIST", default_value = "warm,cold")]
    pub(super) states: String,
    /// Numbers of reading threads: auto, 0 to 64, and ranges: 0-6,8,12.
    #[arg(long, value_name = "LIST", default_value = "auto")]
    pub(super) reading_threads: String,
    /// Samples of each combination.
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub(super) samples: u32,
    /// Where tensors go, but for the route host: auto, host, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Whether files are read past the page cache: auto (what it does not hold), on or off.
    #[arg(long, value_name = "WHEN")]
    direct_io: Option<String>,
    /// Bytes of a block, as for load.
    #[arg(long, value_name = "SIZE")]
    block_size: Option<String>,
    /// Bytes of a piece, as for load.
    #[arg(long, value_name = "SIZE")]
    piece_size: Option<String>,
    /// Most bytes of staging memory, as for load.
    #[arg(long, value_name = "SIZE")]
    staging_budget: Option<String>,
    /// Do not measure what disk, page cache and bus can do at best.
    #[arg(long)]
    pub(super) no_ceilings: bool,
    /// Keep every sample in FILE as it is taken, and do not take again those that are there.
    #[arg(long, value_name = "FILE")]
    pub(super) resume: Option<PathBuf>,
    /// Write a page with tables and plots.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Bench {
    /// The library's settings that all samples share.
    pub(super) fn options(&self) -> Result<Options, Error> {
        let mut options = Options::default();
        for (name, value) in self.shared() {
            options.set(name, value)?;
        }
        if self.samples == 0 {
            return Err(refused("samples", "0", "a number from 1 on"));
        }
        Ok(options)
    }

    /// The same as words for the hidden command, but for the device.
    pub(super) fn again(&self) -> Vec<OsString> {
        let shared = self.shared().into_iter().filter(|(name, _)| *name != "device");
        let option = |(name, value): (&str, &str)| {
            OsString::from(format!("--{}={value}", name.replace('_', "-")))
        };
        self.model.again().into_iter().chain(shared.map(option)).collect()
    }

    /// What was asked for, as a command line that asks for it again.
    pub(super) fn command(&self) -> String {
        let mut words = vec!["weightlift".to_owned(), "bench".to_owned()];
        words.extend(self.again().iter().map(|word| quoted(&word.to_string_lossy())));
        let mut option =
            |name: &str, value: &str| words.push(format!("--{name}={}", quoted(value)));
        if let Some(routes) = &self.routes {
            option("routes", routes);
        }
        option("states", &self.states);
        option("reading-threads", &self.reading_threads);
        option("samples", &self.samples.to_string());
        option("device", &self.device);
        if self.no_ceilings {
            words.push("--no-ceilings".to_owned());
        }
        words.join(" ")
    }

    fn shared(&self) -> Vec<(&'static str, &str)> {
        let values = [
            ("device", Some(&*self.device)),
            ("direct_io", self.direct_io.as_deref()),
            ("block_size", self.block_size.as_deref()),
            ("piece_size", self.piece_size.as_deref()),
            ("staging_budget", self.staging_budget.as_deref()),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The routes that are asked for; `None` leaves them to the machine.
    pub(super) fn routes(&self) -> Result<Option<Vec<RouteChoice>>, Error> {
        self.routes
            .as_deref()
            .map(|list| once(list, |word| word.parse().map(|one| vec![one])))
            .transpose()
    }

    pub(super) fn states(&self) -> Result<Vec<State>, Error> {
        once(&self.states, |word| Ok(vec![word.parse()?]))
    }

    pub(super) fn threads(&self) -> Result<Vec<ReadingThreads>, Error> {
        once(&self.reading_threads, threads)
    }
}

/// What the words of a list mean, each once, in their order.
fn once<T: PartialEq>(
    list: &str,
    parse: impl Fn(&str) -> Result<Vec<T>, Error>,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::new();
    for word in list.split(',') {
        for one in parse(word.trim())? {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    Ok(found)
}

/// `auto`, `4`, or `0-6`, which may be written `0..6` too.
fn threads(word: &str) -> Result<Vec<ReadingThreads>, Error> {
    let Some((first, last)) = word.split_once("..").or_else(|| word.split_once('-')) else {
        return Ok(vec![word.parse()?]);
    };
    let wrong = || refused("reading_threads", word, "a range such as 0-6, of numbers from 0 to 64");
    let number = |word: &str| word.parse::<ReadingThreads>().ok().and_then(ReadingThreads::get);
    let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
    if first > last {
        return Err(wrong());
    }
    (first..=last).map(ReadingThreads::new).collect()
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-=:,+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// In the words of [`Options::set`].
pub(super) fn refused(option: &'static str, value: &str, wanted: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("a value is refused for {option}"))
        .with("option", option)
        .with("value", value)
        .with("wanted", wanted)
}

/// What the hidden command does, in a process of its own. Each prints a line of JSON.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    /// Load a model; what it took, and a digest of every tensor.
    Load(Box<LoadPart>),
    /// Read files by plain reads; the seconds.
    Reads {
        #[arg(long)]
        direct: bool,
        #[arg(long)]
        new_memory: bool,
        #[arg(long, default_value_t = 1)]
        threads: usize,
        #[arg(long, default_value_t = 1 << 20)]
        size: usize,
        #[arg(long, default_value_t = u64::MAX)]
        most: u64,
        #[arg(long)]
        json: bool,
        files: Vec<PathBuf>,
    },
    /// Copy from pinned memory to a CUDA device; bytes and seconds.
    Copies {
        #[arg(long, default_value_t = 0)]
        device: u32,
        #[arg(long, default_value_t = 8 << 30)]
        bytes: u64,
        #[arg(long)]
        json: bool,
    },
    /// Bring files into a state of the page cache, and say what it holds.
    Cache {
        /// cold, warm, half or EVERY:OF:BYTES; none leaves them as they are.
        #[arg(long)]
        state: Option<String>,
        #[arg(long)]
        json: bool,
        files: Vec<PathBuf>,
    },
}

/// The load of a sample.
#[derive(Debug, Args)]
pub(crate) struct LoadPart {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) settings: Settings,
    #[arg(long)]
    pub(super) route: Option<String>,
    /// When this process was started, on the kernel's monotonic clock, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    pub(super) spawned: u64,
    /// For errors.
    #[arg(long)]
    json: bool,
}

/// The CUDA device that `device` means, by its number.
pub(super) fn ordinal(device: DeviceChoice) -> u32 {
    match device {
        DeviceChoice::Cuda(ordinal) => ordinal,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_threads_may_have_ranges() {
        let numbers = |list: &str| {
            let found = once(list, threads)?;
            Ok::<_, Error>(
                found.iter().map(ReadingThreads::to_string).collect::<Vec<_>>().join(" "),
            )
        };
        assert_eq!(numbers("0-6, 8,12,auto").unwrap(), "0 1 2 3 4 5 6 8 12 auto");
        assert_eq!(numbers("2..4,3").unwrap(), "2 3 4");
        for wrong in ["", "6-0", "0-65", "-1", "1-", "auto-4", "1,,2", "x"] {
            assert_eq!(numbers(wrong).unwrap_err().kind(), ErrorKind::InvalidOption, "{wrong}");
        }
    }
}
