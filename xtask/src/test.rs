//! `cargo xtask test`: everything, from a fresh machine on.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::runner::{self, Counts};
use crate::{cargo, engines, fake_cuda, python};

/// Sets up what the tests need, runs every runner, prints the sum and says by the exit code
/// whether all is well.
pub fn run(packages: &python::Packages) -> Result<ExitCode> {
    let python = python::environment(packages)?;
    say("building the command and the fake driver");
    let command = cargo::build("weightlift-cli", "bin", &["--release"])?
        .into_iter()
        .next()
        .context("package weightlift-cli built no binary")?;
    let fake_cuda = fake_cuda::build()?;
    say("building the examples that run engines");
    let engines = engines::build()?;

    say("cargo test --workspace");
    let mut rust = cargo::command();
    rust.args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"])
        .env("WEIGHTLIFT_FAKE_CUDA", &fake_cuda);
    let rust = runner::run("cargo test", rust, runner::count_cargo_test)?;

    say("building the Python package");
    let package = python::package(&python)?;
    say("pytest testing/python");
    let mut pytest = Command::new(python);
    pytest
        .args(["-m", "pytest", "testing/python"])
        .current_dir(cargo::root())
        .env("WEIGHTLIFT_BIN", &command)
        .env("WEIGHTLIFT_FAKE_CUDA", &fake_cuda)
        .env("WEIGHTLIFT_ENGINES", &engines)
        .env("PYTHONPATH", &package)
        // The clone stays as it was.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let pytest = runner::run("pytest", pytest, runner::count_pytest)?;

    let outcomes = [rust, pytest];
    println!();
    let mut code = ExitCode::SUCCESS;
    let mut sum = Counts::default();
    for outcome in &outcomes {
        println!("{:<12}{}", outcome.name, outcome.counts);
        sum = sum + outcome.counts;
        if let Some(complaint) = outcome.complaint() {
            eprintln!("xtask: {complaint}");
            code = ExitCode::FAILURE;
        }
    }
    println!("{sum}");
    Ok(code)
}

fn say(step: &str) {
    eprintln!("xtask: {step}");
}
