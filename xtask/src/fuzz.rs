//! `cargo xtask fuzz`: builds the fuzz targets and runs them, two at a time.
//!
//! Built on stable, without cargo-fuzz: what that adds is flags, and those are stable. Address
//! sanitizing, which is not, would find little where `unsafe` is forbidden; what is allocated is
//! counted by the targets themselves.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;

/// Counters at every branch and a record of what is compared with what, for the fuzzer to follow.
const INSTRUMENTATION: &str = "--cfg fuzzing \
    -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// How many run beside each other: CI has two cores, and more than cores would only take turns.
const BESIDE: usize = 2;

/// What a target is run with. Inputs are headers, which say all that they can in some kilobytes;
/// one that takes ten seconds or a gibibyte is a finding.
const OPTIONS: [&str; 5] =
    ["-timeout=10", "-rss_limit_mb=1024", "-max_len=16384", "-print_final_stats=1", "-verbosity=1"];

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Request<'a> {
    seconds: u64,
    targets: Vec<&'a str>,
}

impl<'a> Request<'a> {
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let mut request = Self { seconds: 60, targets: Vec::new() };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match *argument {
                "--seconds" => {
                    let value = arguments.next().context("--seconds needs a number")?;
                    request.seconds = value.parse().context("--seconds needs a number")?;
                    // The fuzzer takes 0 for no limit.
                    ensure!(request.seconds > 0, "--seconds needs a number above 0");
                }
                option if option.starts_with('-') => bail!("unknown option `{option}`"),
                target => request.targets.push(target),
            }
        }
        Ok(request)
    }
}

/// Where things are.
struct Place {
    /// Of the fuzzer's workspace.
    sources: PathBuf,
    /// Of the target folder: what is built, what the fuzzer adds to the corpus, what it finds.
    folder: PathBuf,
    programs: PathBuf,
}

/// Runs targets as the command line says and fails where one finds something.
pub fn run(arguments: &[&str]) -> Result<ExitCode> {
    let request = Request::parse(arguments)?;
    let sources = cargo::root().join("fuzz");
    let all = targets(&sources)?;
    for target in &request.targets {
        ensure!(all.iter().any(|name| name == target), "no target `{target}` of {all:?}");
    }
    let chosen: Vec<String> = all
        .into_iter()
        .filter(|name| request.targets.is_empty() || request.targets.contains(&name.as_str()))
        .collect();
    let folder = cargo::target_directory()?.join("fuzz");
    let programs = build(&sources, &folder)?;
    let place = Place { sources, folder, programs };
    let waiting = Mutex::new(VecDeque::from(chosen));
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..BESIDE {
            scope.spawn(|| {
                let next = || waiting.lock().expect("nobody panics").pop_front();
                while let Some(target) = next() {
                    let outcome = place.fuzz(&target, request.seconds);
                    outcomes.lock().expect("nobody panics").push((target, outcome));
                }
            });
        }
    });
    let mut failed = Vec::new();
    for (target, outcome) in outcomes.into_inner()? {
        if let Err(error) = outcome {
            eprintln!("xtask: {target}: {error:#}");
            failed.push(target);
        }
    }
    ensure!(failed.is_empty(), "fuzzing failed: {}", failed.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Writes the seeds anew.
pub fn write_seeds() -> Result<ExitCode> {
    let corpus = cargo::root().join("fuzz/corpus");
    if corpus.exists() {
        fs::remove_dir_all(&corpus)?;
    }
    let status = cargo::command()
        .args(["run", "--quiet", "--package", "fuzz-targets", "--example", "seeds", "--"])
        .arg(corpus)
        .status()?;
    ensure!(status.success(), "writing the seeds failed");
    Ok(ExitCode::SUCCESS)
}

/// The names of all targets, sorted.
fn targets(sources: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(sources.join("fuzz_targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().and_then(|name| name.to_str()).map(str::to_owned));
    }
    names.sort();
    ensure!(!names.is_empty(), "there are no targets in {}", sources.display());
    Ok(names)
}

/// Builds all targets and returns the folder they are in.
fn build(sources: &Path, folder: &Path) -> Result<PathBuf> {
    // With a target named, even if it is the machine's own, the flags are not those of build
    // scripts and macros, which would miss the fuzzer's functions.
    let machine = machine()?;
    let status = cargo::command()
        .current_dir(sources)
        .args(["build", "--quiet", "--locked", "--release", "--target", &machine, "--target-dir"])
        .arg(folder.join("build"))
        .env("RUSTFLAGS", INSTRUMENTATION)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("cannot run cargo build")?;
    ensure!(status.success(), "building the fuzz targets failed (libFuzzer needs a C++ compiler)");
    Ok(folder.join("build").join(machine).join("release"))
}

/// What the compiler calls this machine.
fn machine() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--version", "--verbose"]).output()?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("the compiler does not name its host")
}

impl Place {
    /// Runs a target, prints what came of it, and fails where it found something.
    fn fuzz(&self, target: &str, seconds: u64) -> Result<()> {
        // What earlier runs have found to reach more code is where this one begins.
        let grown = self.folder.join("corpus").join(target);
        let found = self.folder.join("found").join(target);
        let log = self.folder.join(format!("{target}.log"));
        fs::create_dir_all(&grown)?;
        fs::create_dir_all(&found)?;
        let program = self.programs.join(target);
        let mut command = Command::new(&program);
        command.args(OPTIONS).arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", found.display()));
        let dictionary = self.sources.join("dictionaries").join(format!("{target}.dict"));
        if dictionary.exists() {
            command.arg(format!("-dict={}", dictionary.display()));
        }
        // New inputs go to the first folder.
        command.arg(&grown);
        for seeds in ["corpus", "regressions"].map(|name| self.sources.join(name).join(target)) {
            if seeds.exists() {
                command.arg(seeds);
            }
        }
        let status = command
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .status()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let log = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        if let Some(numbers) = Numbers::of(&log).filter(|_| status.success()) {
            println!("fuzz: {target:<12} {numbers}");
            // A program that is not instrumented runs fast and finds nothing.
            ensure!(numbers.executions > 0 && numbers.coverage > 0, "it followed no branch");
            return Ok(());
        }
        // From where it says what is wrong; the traces after it are long.
        let wrong = |line: &&str| line.contains("panicked at") || line.contains("ERROR: ");
        log.lines().skip_while(|line| !wrong(line)).take(30).for_each(|line| eprintln!("  {line}"));
        let Some(input) = artifact(&log) else {
            bail!("it ended with {status} and left no input");
        };
        bail!(
            "found {input}\n\
             replay it: {} {input}\n\
             when it is mended, keep it: cp {input} fuzz/regressions/{target}/",
            program.display(),
        )
    }
}

/// Where the fuzzer left the input that it ended with.
fn artifact(log: &str) -> Option<&str> {
    log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path)
}

/// What a run ended with.
#[derive(Debug, Default, PartialEq, Eq)]
struct Numbers {
    executions: u64,
    per_second: u64,
    /// Branches that were reached.
    coverage: u64,
    /// Those, and how often each was passed in one execution.
    features: u64,
    /// Inputs that are kept.
    corpus: u64,
    memory: u64,
}

impl Numbers {
    /// Of the fuzzer's output: statistics at the end, and in the last line about its progress
    /// `#1234 DONE cov: 12 ft: 34 corp: 5/67b ...`.
    fn of(log: &str) -> Option<Self> {
        let statistic = |name: &str| {
            let line = log.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name));
            line.and_then(|value| value.trim_start_matches(':').trim().parse().ok())
        };
        let progress =
            log.lines().rfind(|line| line.starts_with('#') && line.contains(" cov: "))?;
        let after = |name: &str| {
            let mut words = progress.split_whitespace().skip_while(|word| *word != name).skip(1);
            words.next().and_then(|word| word.split('/').next()?.parse().ok())
        };
        Some(Self {
            executions: statistic("number_of_executed_units")?,
            per_second: statistic("average_exec_per_sec")?,
            coverage: after("cov:")?,
            features: after("ft:")?,
            corpus: after("corp:")?,
            memory: statistic("peak_rss_mb")?,
        })
    }
}

impl std::fmt::Display for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { executions, per_second, coverage, features, corpus, memory } = self;
        write!(
            f,
            "{executions:>10} executions, {per_second:>6} a second, {coverage:>5} branches, \
             {features:>5} features, {corpus:>4} inputs kept, {memory:>4} MiB"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_names_seconds_and_targets() {
        let request =
            |seconds, targets: &[&'static str]| Request { seconds, targets: targets.into() };
        assert_eq!(Request::parse(&[]).unwrap(), request(60, &[]));
        let arguments = ["a", "--seconds", "5", "b"];
        assert_eq!(Request::parse(&arguments).unwrap(), request(5, &["a", "b"]));
        for wrong in [&["--seconds"][..], &["--seconds", "0"], &["--seconds", "x"], &["-x"]] {
            assert!(Request::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_numbers_are_those_of_the_end() {
        let log = "#4\tINITED cov: 3 ft: 4 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                   #2000\tNEW    cov: 7 ft: 9 corp: 3/12b lim: 4 exec/s: 0 rss: 31Mb L: 4/4 MS: 1\n\
                   #4096\tDONE   cov: 8 ft: 11 corp: 4/1Kb lim: 4 exec/s: 2048 rss: 31Mb\n\
                   stat::number_of_executed_units: 4096\n\
                   stat::average_exec_per_sec:     2048\n\
                   stat::peak_rss_mb:              31\n";
        let numbers = Numbers {
            executions: 4096,
            per_second: 2048,
            coverage: 8,
            features: 11,
            corpus: 4,
            memory: 31,
        };
        assert_eq!(Numbers::of(log), Some(numbers));
        assert_eq!(Numbers::of("thread panicked"), None);
    }

    #[test]
    fn the_input_of_a_finding_is_named() {
        let log = "==1== ERROR: libFuzzer: deadly signal\nartifact_prefix='/t/'; \
                   Test unit written to /t/crash-da39\nBase64: AA==\n";
        assert_eq!(artifact(log), Some("/t/crash-da39"));
        assert_eq!(artifact("nothing"), None);
    }
}
