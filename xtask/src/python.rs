//! The Python of the comparison tests: found, given the pinned packages, kept outside the clone.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use xxhash_rust::xxh3::xxh3_64;

use crate::cargo;

/// The oldest Python that has all of the pinned packages.
const OLDEST: (u32, u32) = (3, 10);

/// What an environment is made of.
pub struct Packages {
    /// Files of pinned packages, with options for pip.
    requirements: &'static [(&'static str, &'static [&'static str])],
    /// A script that is run once in the environment.
    finish: Option<&'static str>,
    /// What must be there for an environment to be used again.
    imports: &'static str,
}

/// What all tests need but those that compare with PyTorch.
pub const BASE: Packages =
    Packages { requirements: &[PINNED, ALONE], finish: None, imports: "pytest, safetensors" };

/// The same and PyTorch: half a gigabyte to fetch, so it is asked for by name.
pub const TORCH: Packages = Packages {
    requirements: &[PINNED, ALONE, ("testing/python/requirements-torch.txt", &["--no-deps"])],
    finish: Some("testing/python/torch_without_cuda.py"),
    imports: "pytest, safetensors, torch",
};

const PINNED: (&str, &[&str]) = ("testing/python/requirements.txt", &[]);

/// Packages that are installed without what they ask for.
const ALONE: (&str, &[&str]) = ("testing/python/requirements-no-deps.txt", &["--no-deps"]);

/// A Python interpreter with the pinned packages, made now unless there is one from before.
///
/// The environment's name is a hash of the pins and of the interpreter, so a change of either
/// makes a new one. An environment counts only once a file that names it has been renamed into
/// place, which happens last: what an interrupted build leaves is never used.
pub fn environment(packages: &Packages) -> Result<PathBuf> {
    let (base, version) = find()?;
    let mut key = version.into_bytes();
    for (file, options) in packages.requirements {
        key.extend_from_slice(options.concat().as_bytes());
        key.extend(read(file)?);
    }
    if let Some(script) = packages.finish {
        key.extend(read(script)?);
    }
    let cache = cache_folder()?;
    std::fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let name = format!("venv-{:016x}", xxh3_64(&key));
    let pointer = cache.join(format!("{name}.ready"));
    if let Some(python) = ready(&cache, &pointer, packages.imports) {
        return Ok(python);
    }
    remove_leftovers(&cache, &name);
    eprintln!("xtask: making the tests' Python environment in {}", cache.display());
    // Removed again when a step fails.
    let folder = tempfile::Builder::new().prefix(&format!("{name}.")).tempdir_in(&cache)?;
    make(&base, folder.path(), packages)?;
    let python = interpreter(folder.path());
    let fresh = tempfile::NamedTempFile::new_in(&cache)?;
    let folder = folder.keep();
    let folder_name = folder.file_name().context("a temporary folder has a name")?;
    std::fs::write(fresh.path(), folder_name.as_encoded_bytes())?;
    fresh.persist(&pointer)?;
    Ok(python)
}

/// Builds the Python package as a wheel and unpacks it into a folder, for PYTHONPATH. With a Python
/// for which there is none the folder is empty, and its tests say so.
pub fn package(python: &Path) -> Result<PathBuf> {
    let target = cargo::target_directory()?.join("python");
    let (wheels, folder) = (target.join("wheels"), target.join("package"));
    for old in [&wheels, &folder] {
        match std::fs::remove_dir_all(old) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", old.display()));
            }
            _ => std::fs::create_dir_all(old)?,
        }
    }
    let new_enough = Command::new(python)
        .args(["-c", "import sys; sys.exit(sys.version_info < (3, 11))"])
        .status()
        .context("cannot run Python")?;
    if !new_enough.success() {
        return Ok(folder);
    }
    // What `pip install .` does, but with the workspace's own target folder and for debugging.
    run(
        Command::new(python)
            .args(["-m", "maturin", "build", "--locked", "--profile", "dev", "--quiet"])
            .args(["--compatibility", "linux", "--out"])
            .arg(&wheels)
            .arg("--interpreter")
            .arg(python)
            .current_dir(cargo::root()),
        "maturin build",
    )?;
    let wheel = std::fs::read_dir(&wheels)?.next().context("maturin built no wheel")??.path();
    run(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(["--no-deps", "--no-index", "--target"])
            .args([&folder, &wheel]),
        "pip install of the wheel",
    )?;
    Ok(folder)
}

fn read(file: &str) -> Result<Vec<u8>> {
    std::fs::read(cargo::root().join(file)).with_context(|| format!("cannot read {file}"))
}

/// The interpreter of the environment that `pointer` names, if it is there and has `imports`.
fn ready(cache: &Path, pointer: &Path, imports: &str) -> Option<PathBuf> {
    let folder = std::fs::read_to_string(pointer).ok()?;
    let python = interpreter(&cache.join(folder));
    let starts = Command::new(&python)
        .args(["-c", &format!("import {imports}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    starts.then_some(python)
}

/// Removes what builds of this environment left that were interrupted. One that may still be
/// running in another clone is spared: none takes an hour.
fn remove_leftovers(cache: &Path, name: &str) {
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    let Ok(entries) = std::fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let ours = file_name.to_str().is_some_and(|n| n.starts_with(&format!("{name}.")));
        let old = entry.metadata().and_then(|m| m.modified()).is_ok_and(|time| time < long_ago);
        if ours && old {
            // What cannot be removed only takes space.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn make(base: &Path, folder: &Path, packages: &Packages) -> Result<()> {
    ensure_venv_module(base)?;
    run(Command::new(base).args(["-m", "venv"]).arg(folder), "python3 -m venv")?;
    for (file, options) in packages.requirements {
        run(
            Command::new(interpreter(folder))
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(*options)
                .args(["--requirement", file])
                .current_dir(cargo::root()),
            &format!("pip install --requirement {file}"),
        )?;
    }
    if let Some(script) = packages.finish {
        run(Command::new(interpreter(folder)).arg(script).current_dir(cargo::root()), script)?;
    }
    Ok(())
}

/// Debian's python3 comes without `ensurepip`; its package python3-venv brings it.
fn ensure_venv_module(base: &Path) -> Result<()> {
    let has = |base: &Path| {
        Command::new(base)
            .args(["-c", "import venv, ensurepip"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if has(base) {
        return Ok(());
    }
    if is_root() && Path::new("/usr/bin/apt-get").exists() {
        eprintln!("xtask: python3 has no ensurepip: installing python3-venv");
        let apt = |arguments: &[&str]| {
            run(
                Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"),
                &format!("apt-get {}", arguments.join(" ")),
            )
        };
        apt(&["update", "--quiet"])?;
        apt(&["install", "--yes", "--quiet", "python3-venv"])?;
        if has(base) {
            return Ok(());
        }
    }
    bail!(
        "{} cannot make virtual environments: it lacks ensurepip. On Debian and Ubuntu install \
         python3-venv (apt-get install python3-venv)",
        base.display()
    )
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn run(command: &mut Command, name: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {name}"))?;
    ensure!(status.success(), "{name} failed");
    Ok(())
}

/// The first Python on the path that is new enough, with what tells it from others.
fn find() -> Result<(PathBuf, String)> {
    let mut seen = Vec::new();
    for name in ["python3", "python"] {
        let output = Command::new(name)
            .args(["-c", "import sys; print(sys.executable); print(*sys.version_info[:2]); print(sys.version)"])
            .output();
        let Ok(output) = output else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines = text.lines();
        let (Some(path), Some(numbers)) = (lines.next(), lines.next()) else {
            continue;
        };
        match new_enough(numbers) {
            Some(true) => return Ok((PathBuf::from(path), text)),
            _ => seen.push(format!("{path} is {}", numbers.replace(' ', "."))),
        }
    }
    let (major, minor) = OLDEST;
    let seen = if seen.is_empty() { "there is none".to_owned() } else { seen.join(", ") };
    bail!(
        "the tests need Python {major}.{minor} or newer on the path as python3; {seen}. On Debian \
         and Ubuntu install python3 and python3-venv"
    )
}

/// Whether `3 12` is at least the oldest that will do.
fn new_enough(numbers: &str) -> Option<bool> {
    let (major, minor) = numbers.split_once(' ')?;
    Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?) >= OLDEST)
}

fn interpreter(folder: &Path) -> PathBuf {
    if std::env::consts::FAMILY == "windows" {
        folder.join("Scripts").join("python.exe")
    } else {
        folder.join("bin").join("python")
    }
}

/// Where the environments are kept, outside the clone: a clean clone needs no second download.
fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("LOCALAPPDATA"))
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .context(
            "neither XDG_CACHE_HOME nor HOME says where to keep the tests' Python environment",
        )?;
    Ok(base.join("weightlift"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (numbers, expected) in [
            ("3 9", Some(false)),
            ("3 10", Some(true)),
            ("3 14", Some(true)),
            ("2 70", Some(false)),
            ("three", None),
        ] {
            assert_eq!(new_enough(numbers), expected, "{numbers}");
        }
    }

    #[test]
    fn an_environment_without_its_pointer_is_not_used() {
        let cache = tempfile::tempdir().unwrap();
        let python = interpreter(&cache.path().join("venv-1.abc"));
        std::fs::create_dir_all(python.parent().unwrap()).unwrap();
        std::fs::write(&python, "half an interpreter").unwrap();
        let pointer = cache.path().join("venv-1.ready");
        assert_eq!(ready(cache.path(), &pointer, "sys"), None);
        // Nor is one that is named and broken.
        std::fs::write(&pointer, "venv-1.abc").unwrap();
        assert_eq!(ready(cache.path(), &pointer, "sys"), None);
    }

    #[test]
    fn young_folders_of_others_are_spared_and_old_leftovers_removed() {
        let cache = tempfile::tempdir().unwrap();
        for name in ["venv-1.young", "venv-1.old", "venv-2.old"] {
            std::fs::create_dir(cache.path().join(name)).unwrap();
        }
        let old = SystemTime::now() - Duration::from_secs(7200);
        for name in ["venv-1.old", "venv-2.old"] {
            std::fs::File::open(cache.path().join(name)).unwrap().set_modified(old).unwrap();
        }
        remove_leftovers(cache.path(), "venv-1");
        let left: Vec<bool> = ["venv-1.young", "venv-1.old", "venv-2.old"]
            .iter()
            .map(|name| cache.path().join(name).exists())
            .collect();
        assert_eq!(left, [true, false, true]);
    }
}
