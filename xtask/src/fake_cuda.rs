//! `cargo xtask fake-cuda`: the driver for tests, under the name by which the real one is found.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cargo;

/// Builds the fake driver and returns the folder that holds it as `libcuda.so.1`, for use in
/// LD_LIBRARY_PATH.
pub fn build() -> Result<PathBuf> {
    let library = cargo::build("fake-cuda", "cdylib", &[])?
        .into_iter()
        .find(|file| file.extension().is_some_and(|e| e == std::env::consts::DLL_EXTENSION))
        .context("package fake-cuda built no shared library: it needs crate-type cdylib")?;
    let folder = cargo::target_directory()?.join("fake-cuda");
    std::fs::create_dir_all(&folder)?;
    // Renamed into place: a process that has the old one mapped keeps it whole.
    let fresh = tempfile::NamedTempFile::new_in(&folder)?;
    std::fs::copy(&library, fresh.path())
        .with_context(|| format!("cannot copy {}", library.display()))?;
    fresh.persist(folder.join("libcuda.so.1"))?;
    Ok(folder)
}
