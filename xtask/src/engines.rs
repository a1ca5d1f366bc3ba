//! `examples/engines`: programs that run inference engines, in a workspace of their own.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::cargo;

/// Builds them and returns the folder that they are in.
pub fn build() -> Result<PathBuf> {
    let target = cargo::target_directory()?.join("engines");
    let status = cargo::command()
        .args(["build", "--locked", "--manifest-path", "examples/engines/Cargo.toml"])
        .arg("--target-dir")
        .arg(&target)
        .status()
        .context("cannot run cargo build")?;
    ensure!(status.success(), "building examples/engines failed");
    Ok(target.join("debug"))
}
