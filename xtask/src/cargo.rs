//! Calls of cargo: where the workspace is, what it holds, what a build made.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// A command of the cargo that runs us, in the workspace's root.
pub fn command() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// The root of the workspace that cargo runs us for.
///
/// Not the one we were compiled in: clones that share a target folder share this program too, and
/// each must check itself.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        package.parent().expect("xtask lies in the workspace's root").to_owned()
    });
    &ROOT
}

/// What `cargo metadata --no-deps` says of the workspace.
pub fn metadata() -> Result<Value> {
    let output = command()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The folder that cargo builds into, wherever CARGO_TARGET_DIR or a configuration puts it.
pub fn target_directory() -> Result<PathBuf> {
    metadata()?["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target directory")
}

/// Runs `cargo build` with `arguments` and returns the files it made (or found fresh) for the
/// target of that kind (`bin`, `cdylib`) in that package.
pub fn build(package: &str, kind: &str, arguments: &[&str]) -> Result<Vec<PathBuf>> {
    let output = command()
        .args(["build", "--package", package])
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot run cargo build")?;
    if !output.status.success() {
        bail!("cargo build --package {package} failed");
    }
    Ok(artifacts(&String::from_utf8(output.stdout)?, package, kind))
}

/// The files that cargo's JSON messages report for that package and kind of target.
fn artifacts(messages: &str, package: &str, kind: &str) -> Vec<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter(|message| {
            message["manifest_path"]
                .as_str()
                .is_some_and(|path| Path::new(path).parent().is_some_and(|p| p.ends_with(package)))
        })
        .filter(|message| {
            message["target"]["kind"]
                .as_array()
                .is_some_and(|kinds| kinds.iter().any(|k| k == kind))
        })
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|name| name.as_str().map(PathBuf::from))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_of_the_asked_package_and_kind_are_found() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","manifest_path":"/a/other/Cargo.toml","target":{"kind":["cdylib"]},"filenames":["/t/libother.so"]}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/a/fake-cuda/Cargo.toml","target":{"kind":["bin"]},"filenames":["/t/bin"]}"#,
            "\n",
            r#"{"reason":"compiler-artifact","manifest_path":"/a/fake-cuda/Cargo.toml","target":{"kind":["rlib","cdylib"]},"filenames":["/t/libfake_cuda.rlib","/t/libfake_cuda.so"]}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(
            artifacts(messages, "fake-cuda", "cdylib"),
            [PathBuf::from("/t/libfake_cuda.rlib"), PathBuf::from("/t/libfake_cuda.so")]
        );
    }
}
