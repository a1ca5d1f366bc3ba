//! The command line: its words, and what they mean to the library.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use weightlift::index::Format;
use weightlift::{Error, ErrorKind, OpenOptions, Options, parse_size};

use crate::bench::{Bench, HIDDEN, Part};
use crate::doctor::Doctor;

const EXAMPLES: &str = "\
Examples:
  weightlift inspect models/llama                 what is in a model
  weightlift load models/llama                    load it, tell how fast
  weightlift load models/llama --device host --tensors 'model.layers.0.*' --digest
  weightlift load models/llama --device cuda:1 --route pinned --json
  weightlift plan models/llama --block-size 8MiB  what a load would read and copy
  weightlift doctor models/llama                  what stands in a load's way
  weightlift verify models/llama --write          note what its tensors are
  weightlift load models/llama --verify models/llama/weightlift-manifest.json
  weightlift demo                                 what this machine can do
  weightlift bench models/llama --reading-threads 0-6,8 --html bench.html

Sizes: 4096, 64KiB, 16MiB, 1GiB, 100MB. GB in what is printed are 10^9 bytes.

Exit status: 0 done, 1 failed, 2 wrong command line, 130 stopped by Ctrl-C, SIGTERM or SIGHUP.

Environment: WEIGHTLIFT_LOG=info (or debug, or weightlift=trace) logs to stderr.";

/// Loads model weights from storage into GPU or host memory, and tells how every byte
/// travelled.
#[derive(Debug, Parser)]
#[command(name = "weightlift", version, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Load a model into memory and report how it went.
    Load(Load),
    /// List the tensors of a model; reads headers only.
    Inspect(Inspect),
    /// Print the blocks, reads and copies of a load without doing it.
    Plan(Plan),
    /// Make a model, load it by every route of this machine, and check every byte.
    Demo(Demo),
    /// Tell what this machine and a path can do, what a load will take, and what to do about it.
    Doctor(Doctor),
    /// Measure a model's routes, cold and warm, each sample in a process of its own.
    Bench(Bench),
    /// A sample of `bench`.
    #[command(name = HIDDEN, hide = true, subcommand)]
    BenchPart(Part),
    /// Compare a model with its manifest of digests and with what its publisher says, or write one.
    Verify(Verify),
    /// Print a script that completes weightlift's commands in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Load {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// The way that bytes take: auto, host, pageable or pinned.
    #[arg(long, value_name = "ROUTE", allow_negative_numbers = true)]
    pub(crate) route: Option<String>,
    /// Pin the host memory that tensors go to, so that an engine copies from it at bus speed;
    /// needs a CUDA driver, and --device host.
    #[arg(long)]
    pub(crate) pin_host: bool,
    /// Copy out of mappings of the files instead of reading them; needs --device host. A file that
    /// is cut meanwhile may end the process.
    #[arg(long)]
    pub(crate) map_files: bool,
    /// Compare every tensor with this manifest while it is read; see `weightlift verify`.
    #[arg(long, value_name = "MANIFEST")]
    pub(crate) verify: Option<PathBuf>,
    /// Print the XXH3-64 of every tensor as it lies in its memory.
    #[arg(long)]
    pub(crate) digest: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing on success, but for what --json asks for.
    #[arg(long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Write the manifest instead of comparing with it.
    #[arg(long)]
    pub(crate) write: bool,
    /// Where the manifest is: weightlift-manifest.json in the model's folder, or beside a file
    /// NAME as NAME.weightlift-manifest.json, unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Print the metadata too, lists and all.
    #[arg(long)]
    pub(crate) metadata: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// About how many bytes the model is to have, at least 64KiB.
    #[arg(long, default_value = "1GiB", allow_negative_numbers = true)]
    size: String,
    /// Keep the model and print where it is.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Which model, and how it is opened.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// A model file, a shard index, or a folder that holds one of these.
    pub(crate) path: PathBuf,
    /// auto, safetensors, gguf, onnx, openvino, pytorch or raw (any file as one tensor of bytes).
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,
    /// Take all shards that are there, whatever the index file says.
    #[arg(long)]
    ignore_index: bool,
    /// Allow links that lead out of the model's folder.
    #[arg(long)]
    follow_links: bool,
    /// A folder to look into for files that the model names and its own folder lacks; may be given
    /// more than once.
    #[arg(long, value_name = "DIR")]
    search_dir: Vec<PathBuf>,
    /// Longest header that is read, 100MB unless set.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    header_limit: Option<String>,
}

/// What is loaded, where to, and in which portions.
#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// Where tensors go: auto, host, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", allow_negative_numbers = true)]
    device: Option<String>,
    /// How many threads read: auto (one a processor, at most 12) or 0 to 64; 0 pins no memory.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    reading_threads: Option<String>,
    /// Whether files are read past the page cache: auto (what it does not hold), on or off.
    #[arg(long, value_name = "WHEN", allow_negative_numbers = true)]
    direct_io: Option<String>,
    /// Bytes of a block, the unit of copying; 16MiB unless given.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    block_size: Option<String>,
    /// Bytes of a piece, the unit of reading; auto is 1MiB for a GPU and 4MiB for the host.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    piece_size: Option<String>,
    /// Most bytes of staging memory; 48MiB unless given.
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    staging_budget: Option<String>,
    /// Only tensors whose names match this pattern; may be given more than once.
    #[arg(long, value_name = "GLOB")]
    pub(crate) tensors: Vec<String>,
}

impl ModelArgs {
    /// For the library.
    pub(crate) fn open_options(&self) -> Result<OpenOptions, Error> {
        let mut options = OpenOptions::default();
        options.ignore_index = self.ignore_index;
        options.follow_links = self.follow_links;
        options.search_dirs.clone_from(&self.search_dir);
        options.format = match self.format.as_deref() {
            None | Some("auto") => None,
            Some(format) => Some(format.parse().map_err(|_| format_refused(format))?),
        };
        if let Some(limit) = &self.header_limit {
            let bytes = parse_size(limit).ok_or_else(|| size_refused("header_limit", limit))?;
            options.limits = options.limits.with_header_bytes(bytes);
        }
        Ok(options)
    }
}

impl ModelArgs {
    /// The same words once more, for another process.
    pub(crate) fn again(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: &dyn AsRef<std::ffi::OsStr>| {
            words.push(name.into());
            words.push(value.as_ref().to_owned());
        };
        if let Some(format) = &self.format {
            option("--format", format);
        }
        self.search_dir.iter().for_each(|folder| option("--search-dir", folder));
        if let Some(limit) = &self.header_limit {
            option("--header-limit", limit);
        }
        let flags = [("--ignore-index", self.ignore_index), ("--follow-links", self.follow_links)];
        words.extend(flags.iter().filter(|(_, given)| *given).map(|(name, _)| name.into()));
        // Absolute, so that it is never taken for an option.
        words.push(std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone()).into());
        words
    }
}

impl Settings {
    /// For the library, which refuses what it does not take in its own words.
    pub(crate) fn options(&self, route: Option<&str>) -> Result<Options, Error> {
        let mut options = Options::default();
        let values = [
            ("device", self.device.as_deref()),
            ("route", route),
            ("reading_threads", self.reading_threads.as_deref()),
            ("direct_io", self.direct_io.as_deref()),
            ("block_size", self.block_size.as_deref()),
            ("piece_size", self.piece_size.as_deref()),
            ("staging_budget", self.staging_budget.as_deref()),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                options.set(name, value)?;
            }
        }
        Ok(options)
    }
}

impl Demo {
    /// Bytes of the model.
    pub(crate) fn bytes(&self) -> Result<u64, Error> {
        parse_size(&self.size)
            .filter(|bytes| *bytes >= 64 << 10)
            .ok_or_else(|| size_refused("size", &self.size).with("least", "64KiB"))
    }
}

/// In the words of [`Options::set`], as below.
fn format_refused(value: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, "a value is refused for format")
        .with("option", "format")
        .with("value", value)
        .with("wanted", format!("auto, {}", Format::ALL.map(Format::name).join(", ")))
}

/// In the words of [`Options::set`].
fn size_refused(option: &str, value: &str) -> Error {
    Error::new(ErrorKind::InvalidOption, format!("a value is refused for {option}"))
        .with("option", option)
        .with("value", value)
        .with("wanted", "a size such as 4096, 64KiB, 16MiB, 1GiB or 100MB")
}
