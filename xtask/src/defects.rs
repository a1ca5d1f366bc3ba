//! `cargo xtask defects`: plants each known defect and expects the tests to find it.
//!
//! A test that cannot fail proves nothing, and of a test that guards memory nobody sees that it
//! can. So each rule of docs/safety.md has a patch in `testing/defects` that breaks it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo;

const FOLDER: &str = "testing/defects";

/// The tests that have to find the defects.
const TESTS: [&str; 6] = ["test", "--package", "weightlift", "--lib", "--test", "engine"];

/// The test that takes longer than all others together, since it has the driver fail at every
/// call. It runs where no other test has found the defect: that is a third of the time.
const SLOWEST: &str = "faults::every_function_of_the_driver_may_fail_at_any_call";

/// Several times what the tests take without a defect: some defects make them wait for ever.
const PATIENCE: Duration = Duration::from_secs(300);

/// A patch, and what its first line says of it.
struct Defect {
    name: String,
    patch: PathBuf,
    story: String,
}

/// Whether every patch still applies to the sources as they are.
pub fn check() -> Result<ExitCode> {
    let defects = defects()?;
    for defect in &defects {
        defect.apply(cargo::root(), &["--check"])?;
    }
    println!("defects: {} can be planted", defects.len());
    Ok(ExitCode::SUCCESS)
}

/// Plants those whose names contain `part`, one after the other, and says which tests found them.
pub fn run(part: &str) -> Result<ExitCode> {
    let mut defects = defects()?;
    defects.retain(|defect| defect.name.contains(part));
    ensure!(!defects.is_empty(), "no defect's name contains `{part}`");
    let folder = cargo::target_directory()?.join("defects");
    fs::create_dir_all(&folder)?;
    let copy = tempfile::tempdir()?;
    copy_tracked_files(copy.path())?;
    let place = Place { sources: copy.path(), target: &folder.join("target"), folder: &folder };

    // A test that fails by itself would pass for one that has found something.
    let mut healthy = Vec::new();
    for program in place.build("without a defect")? {
        healthy.extend(program.run(&place, &[])?);
    }
    ensure!(healthy.is_empty(), "the tests fail without a defect: {}", healthy.join(", "));
    println!("without a defect: all tests pass\n");
    let mut missed = 0;
    for defect in &defects {
        println!("{}: {}", defect.name, defect.story);
        // The same copy for all: cargo builds anew only what a patch changes.
        defect.apply(copy.path(), &[])?;
        let found = place.test(&defect.name)?;
        defect.apply(copy.path(), &["--reverse"])?;
        found.iter().for_each(|test| println!("    {test}"));
        missed += usize::from(found.is_empty());
        println!("    {}\n", if found.is_empty() { "NOT FOUND" } else { "found" });
    }
    println!("defects: {} planted, {missed} not found", defects.len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn defects() -> Result<Vec<Defect>> {
    let mut defects = Vec::new();
    for entry in fs::read_dir(cargo::root().join(FOLDER)).context(FOLDER)? {
        let patch = entry?.path();
        let name = patch.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(patch.extension().is_some_and(|e| e == "patch"), "{FOLDER}/{name} is not a .patch");
        let text = fs::read_to_string(&patch)?;
        let story = text.lines().next().and_then(|line| line.strip_prefix("# "));
        let story = story.with_context(|| format!("{name}: the first line does not say what"))?;
        defects.push(Defect { name, story: story.to_owned(), patch });
    }
    ensure!(!defects.is_empty(), "no defects in {FOLDER}");
    defects.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(defects)
}

impl Defect {
    fn apply(&self, to: &Path, how: &[&str]) -> Result<()> {
        let output = Command::new("git")
            .arg("apply")
            .args(how)
            .arg(&self.patch)
            .current_dir(to)
            // Below another repository git would take the paths for that one's, and skip them.
            .env("GIT_CEILING_DIRECTORIES", to.parent().unwrap_or(to))
            .output()
            .context("cannot run git")?;
        ensure!(
            output.status.success(),
            "{} does not apply: {}",
            self.name,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// Copies what git tracks, as it is now: what is being worked on counts.
fn copy_tracked_files(to: &Path) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(cargo::root())
        .output()
        .context("cannot run git")?;
    ensure!(output.status.success(), "git does not list the files");
    for name in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let (from, to) = (cargo::root().join(name), to.join(name));
        // One that was removed and not committed yet is still listed.
        if from.is_file() {
            fs::create_dir_all(to.parent().context("a file has a folder")?)?;
            fs::copy(&from, &to).with_context(|| format!("cannot copy {name}"))?;
        }
    }
    Ok(())
}

/// Where the copy is built and tested.
struct Place<'a> {
    sources: &'a Path,
    target: &'a Path,
    folder: &'a Path,
}

/// A program of tests, and the name of its target.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    target: String,
    path: PathBuf,
}

impl Place<'_> {
    /// The tests that fail.
    fn test(&self, name: &str) -> Result<Vec<String>> {
        let programs = self.build(name)?;
        let mut found = Vec::new();
        for filter in [["--skip", SLOWEST], ["--exact", SLOWEST]] {
            for program in &programs {
                found.extend(program.run(self, &filter)?);
            }
            if !found.is_empty() {
                break;
            }
        }
        Ok(found)
    }

    /// Builds the copy's tests. An error if it does not compile: then it is the compiler that has
    /// found the defect, or the patch is a bad one.
    fn build(&self, name: &str) -> Result<Vec<Program>> {
        let output = cargo::command()
            .args(TESTS)
            .args(["--no-run", "--message-format=json-render-diagnostics"])
            .current_dir(self.sources)
            .env("CARGO_TARGET_DIR", self.target)
            .stderr(File::create(self.folder.join("build.log"))?)
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            let log = fs::read_to_string(self.folder.join("build.log"))?;
            bail!("{name}: does not compile\n{log}");
        }
        let messages = String::from_utf8(output.stdout)?;
        let programs = programs(&messages);
        ensure!(programs.len() == 2, "cargo built {} test programs, not 2", programs.len());
        Ok(programs)
    }
}

impl Program {
    /// Runs the program's tests and returns those that failed.
    fn run(&self, place: &Place<'_>, filter: &[&str]) -> Result<Vec<String>> {
        let log = place.folder.join("test.log");
        // Into a file: a test's own child may keep a pipe open after the test was ended.
        let mut child = Command::new(&self.path)
            .args(filter)
            .current_dir(place.sources.join("crates/weightlift"))
            .stdin(Stdio::null())
            .stdout(File::create(&log)?)
            .stderr(File::create(place.folder.join("test.err"))?)
            // The shortest failing case is not needed, and takes minutes to find.
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .spawn()
            .with_context(|| format!("cannot start {}", self.path.display()))?;
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if started.elapsed() > PATIENCE {
                child.kill()?;
                child.wait()?;
                break None;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let text = fs::read(&log)?;
        let mut failed = failed_tests(&String::from_utf8_lossy(&text));
        match status {
            None => println!("    (did not end by itself)"),
            // A crash takes the harness along, and with it the names.
            Some(status) if !status.success() && failed.is_empty() => {
                failed.push(format!("the test program died: {status}"));
            }
            Some(_) => {}
        }
        Ok(failed.into_iter().map(|test| format!("{}: {test}", self.target)).collect())
    }
}

/// The test programs that cargo's JSON messages name.
fn programs(messages: &str) -> Vec<Program> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = |message: Value| {
        let target = message["target"]["name"].as_str()?.to_owned();
        Some(Program { target, path: message["executable"].as_str()?.into() })
    };
    messages.filter(|message| message["profile"]["test"] == true).filter_map(program).collect()
}

/// The names in a test program's lines `test <name> ... FAILED`.
fn failed_tests(output: &str) -> Vec<String> {
    let name = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.into());
    let mut names: Vec<String> = output.lines().filter_map(name).collect();
    names.sort();
    // A test that runs itself in a process of its own shows that one's lines too.
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_read_from_the_harness() {
        let output = "running 3 tests\ntest b::x ... FAILED\ntest a ... ok\ntest a::y ... FAILED\n\
            test c has been running for over 60 seconds\nfailures:\n    b::x\n\
            test b::x ... FAILED\n\
            test result: FAILED. 1 passed; 2 failed; 0 ignored\n";
        assert_eq!(failed_tests(output), ["a::y", "b::x"]);
    }

    #[test]
    fn only_test_programs_are_run() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"weightlift"},"profile":{"test":false},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"engine"},"profile":{"test":true},"executable":"/t/engine-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        let engine = Program { target: "engine".to_owned(), path: "/t/engine-1".into() };
        assert_eq!(programs(messages), [engine]);
    }
}
