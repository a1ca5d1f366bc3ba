//! Runs a test runner, shows its output as it comes, and counts what it says it ran.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// How many tests ended in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that ran and held.
    pub passed: u64,
    /// Tests that ran and did not hold.
    pub failed: u64,
    /// Tests that did not run.
    pub skipped: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// What came of one runner.
pub struct Outcome {
    /// The runner's name, for messages.
    pub name: &'static str,
    /// What it counted.
    pub counts: Counts,
    /// Whether it exited with 0.
    pub exited_well: bool,
}

impl Outcome {
    /// Why this runner's result is not a success, if it is not.
    pub fn complaint(&self) -> Option<String> {
        let Counts { passed, failed, .. } = self.counts;
        let name = self.name;
        if failed > 0 {
            Some(format!("{name}: {failed} failed"))
        } else if !self.exited_well {
            Some(format!("{name}: exited with an error"))
        } else if passed == 0 {
            Some(format!("{name}: ran no test"))
        } else {
            None
        }
    }
}

/// Runs `command` and counts its tests with `count`, which is given its standard output and its
/// standard error.
pub fn run(
    name: &'static str,
    mut command: Command,
    count: impl Fn(&str, &str) -> Counts,
) -> Result<Outcome> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {name}"))?;
    let stderr = child.stderr.take().expect("standard error is piped");
    let stdout = child.stdout.take().expect("standard output is piped");
    let errors = thread::spawn(move || tee(stderr, std::io::stderr()));
    let output = tee(stdout, std::io::stdout())?;
    let errors = errors.join().expect("copying lines does not panic")?;
    let status = child.wait()?;
    Ok(Outcome { name, counts: count(&output, &errors), exited_well: status.success() })
}

/// Passes every line on and returns all of them.
fn tee(from: impl Read, mut to: impl Write) -> std::io::Result<String> {
    let mut from = BufReader::new(from);
    let mut all = Vec::new();
    loop {
        let start = all.len();
        if from.read_until(b'\n', &mut all)? == 0 {
            return Ok(String::from_utf8_lossy(&all).into_owned());
        }
        to.write_all(&all[start..])?;
        to.flush()?;
    }
}

/// Sums the closing lines of all test binaries of one `cargo test -- --show-output`.
///
/// A Rust test that finds what it needs missing returns early and so counts as passed; it says so
/// by printing a line `skipped: <why>`, which the harness shows on standard output, or which
/// stands on standard error if a thread of the test's own printed it.
pub fn count_cargo_test(stdout: &str, stderr: &str) -> Counts {
    let mut sum = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
        .map(|line| {
            // "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s"
            let (_, numbers) = line.split_once(". ").unwrap_or(("", line));
            numbers.split("; ").fold(Counts::default(), |sum, part| sum + counted(part))
        })
        .fold(Counts::default(), std::ops::Add::add);
    let skipped =
        stdout.lines().chain(stderr.lines()).filter(|line| line.starts_with("skipped: ")).count()
            as u64;
    sum.passed = sum.passed.saturating_sub(skipped);
    sum.skipped += skipped;
    sum
}

/// Reads pytest's closing line, such as `== 3 passed, 1 skipped in 0.12s ==`.
pub fn count_pytest(stdout: &str, _stderr: &str) -> Counts {
    let closing = stdout.lines().rev().map(|line| line.trim_matches(['=', ' '])).find_map(|line| {
        let (numbers, _time) = line.rsplit_once(" in ")?;
        let sum = numbers.split(", ").fold(Counts::default(), |sum, part| sum + counted(part));
        (sum != Counts::default()).then_some(sum)
    });
    closing.unwrap_or_default()
}

/// One part of a closing line: `3 passed`, `1 ignored`.
fn counted(part: &str) -> Counts {
    let mut counts = Counts::default();
    if let Some((number, word)) = part.trim().split_once(' ')
        && let Ok(number) = number.parse()
    {
        match word {
            "passed" | "xpassed" => counts.passed = number,
            "failed" | "error" | "errors" => counts.failed = number,
            "ignored" | "skipped" | "xfailed" => counts.skipped = number,
            _ => {}
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> Counts {
        Counts { passed, failed, skipped }
    }

    #[test]
    fn cargo_test_is_summed_over_its_binaries() {
        let stdout = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n\
            test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        assert_eq!(count_cargo_test(stdout, ""), counts(7, 2, 1));
    }

    #[test]
    fn a_rust_test_that_skips_itself_is_not_counted_as_passed() {
        let stdout = "successes:\n\n---- a stdout ----\nskipped: a: no io_uring here\n\n\
            test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let stderr = "skipped: b: no GPU\n   Doc-tests x\n";
        assert_eq!(count_cargo_test(stdout, stderr), counts(2, 0, 2));
    }

    #[test]
    fn pytest_closing_lines_are_read() {
        for (line, expected) in [
            ("12 passed in 0.10s", counts(12, 0, 0)),
            ("= 1 failed, 2 passed, 3 skipped, 1 warning in 61.00s (0:01:01) =", counts(2, 1, 3)),
            ("==== 2 passed, 1 error in 0.10s ====", counts(2, 1, 0)),
            ("no tests ran in 0.01s", counts(0, 0, 0)),
            ("", counts(0, 0, 0)),
        ] {
            assert_eq!(count_pytest(line, ""), expected, "{line}");
        }
    }

    #[test]
    fn only_a_clean_run_with_tests_is_a_success() {
        let outcome = |counts, exited_well| Outcome { name: "runner", counts, exited_well };
        assert_eq!(outcome(counts(1, 0, 1), true).complaint(), None);
        for (outcome, word) in [
            (outcome(counts(1, 1, 0), false), "1 failed"),
            (outcome(counts(1, 0, 0), false), "exited with an error"),
            (outcome(counts(0, 0, 3), true), "ran no test"),
        ] {
            assert!(outcome.complaint().unwrap().contains(word));
        }
    }
}
