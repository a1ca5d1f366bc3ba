//! `cargo xtask layers`: holds the sources to the import table.

mod crates;
mod scan;
pub mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cargo;
use scan::{Found, Scan, Thing};

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    file: PathBuf,
    line: usize,
    what: String,
    rule: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, line) = (self.file.display(), self.line);
        write!(f, "{file}:{line}: {}\n    rule: {}", self.what, self.rule)
    }
}

/// Checks this workspace.
pub fn run() -> Result<ExitCode> {
    let (files, mut violations) = check_sources(cargo::root())?;
    violations.extend(crates::check(cargo::root(), &cargo::metadata()?)?);
    for violation in &violations {
        println!("{violation}");
    }
    match violations.len() {
        0 => {
            println!("layers: {files} files keep the rules");
            Ok(ExitCode::SUCCESS)
        }
        count => {
            println!("layers: {count} places break them (xtask/src/layers/table.rs)");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Checks every Rust file under `crates` and `xtask`; returns how many there were.
fn check_sources(root: &Path) -> Result<(usize, Vec<Violation>)> {
    let mut files = Vec::new();
    for folder in ["crates", "xtask"] {
        collect(&root.join(folder), &mut files)?;
    }
    files.sort();
    let count = files.len();
    let mut scans = Vec::new();
    let mut violations = Vec::new();
    let mut test_modules = BTreeSet::new();
    for path in files {
        let file = File::new(path.strip_prefix(root).expect("collected below root"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        match scan::scan(&text, &file.module) {
            Ok(Scan { found, test_modules: more }) => {
                test_modules
                    .extend(more.into_iter().map(|module| (file.source_root.clone(), module)));
                scans.push((file, found));
            }
            Err(error) => violations.push(Violation {
                line: error.span().start().line,
                what: "is not Rust".into(),
                rule: "a source can be read".into(),
                file: file.path,
            }),
        }
    }
    for (file, found) in &scans {
        let in_test_module = (1..=file.module.len())
            .any(|n| test_modules.contains(&(file.source_root.clone(), file.module[..n].to_vec())));
        if let Some(violation) = file.without_room() {
            violations.push(violation);
        }
        violations.extend(found.iter().filter_map(|f| file.judge(f, in_test_module)));
    }
    Ok((count, violations))
}

/// Collects the `.rs` files below `folder`, build outputs aside.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// A source file and its place.
struct File {
    /// From the workspace's root.
    path: PathBuf,
    /// The folder `src` it lies in, or its own folder (tests, benches).
    source_root: PathBuf,
    /// Its module's path from the crate's root.
    module: Vec<String>,
}

impl File {
    fn new(path: &Path) -> Self {
        let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
        let (source_root, inside) = match parts.iter().position(|p| *p == "src") {
            Some(at) => (parts[..=at].iter().collect(), &parts[at + 1..]),
            None => (path.parent().unwrap_or(path).to_owned(), &parts[parts.len() - 1..]),
        };
        let mut module: Vec<String> =
            inside.iter().map(|p| p.trim_end_matches(".rs").to_owned()).collect();
        if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            module.pop();
        }
        Self { path: path.to_owned(), source_root, module }
    }

    /// The name of the room that this file lies in, if it is one of crate `weightlift`.
    fn room(&self) -> Option<&str> {
        (self.source_root == Path::new("crates/weightlift/src"))
            .then(|| self.module.first().map_or("lib", String::as_str))
    }

    fn without_room(&self) -> Option<Violation> {
        let name = self.room()?;
        table::find(name).is_none().then(|| {
            self.violation(
                1,
                format!("`{name}` is not a room"),
                "every file and folder under src stands in the table of rooms".into(),
            )
        })
    }

    fn violation(&self, line: usize, what: String, rule: String) -> Violation {
        Violation { file: self.path.clone(), line, what, rule }
    }

    fn is_under(&self, places: &[&str]) -> bool {
        let path = self.path.iter().filter_map(|p| p.to_str()).collect::<Vec<_>>().join("/");
        places.iter().any(|place| match path.strip_prefix(place) {
            // A file, all that lies in a folder, or a module as file or folder.
            Some(rest) => {
                rest.is_empty() || place.ends_with('/') || rest == ".rs" || rest.starts_with('/')
            }
            None => false,
        })
    }

    /// Holds one thing against the rules. What is compiled for tests only may import what it
    /// likes and ask for the platform; it may not be unsafe elsewhere.
    fn judge(&self, found: &Found, in_test_module: bool) -> Option<Violation> {
        let test = found.test || in_test_module;
        let violation = |what, rule| Some(self.violation(found.line, what, rule));
        match &found.thing {
            Thing::Unsafe if !self.is_under(table::UNSAFE) => violation(
                "`unsafe`".into(),
                format!("unsafe stands only in {}", table::UNSAFE.join(", ")),
            ),
            Thing::Platform(word)
                if !test && self.is_below_src() && !self.may_ask_for_platform() =>
            {
                violation(
                    format!("cfg asks for `{word}`"),
                    "only mod.rs, lib.rs and files that end in _linux.rs, _windows.rs or _unix.rs \
                     choose by platform"
                        .into(),
                )
            }
            Thing::Crate(name) if !test => self.judge_crate(name, found.line),
            Thing::Root(name) if !test => self.judge_import(name, found.line),
            _ => None,
        }
    }

    fn is_below_src(&self) -> bool {
        self.path.starts_with("crates") && self.source_root.ends_with("src")
    }

    fn may_ask_for_platform(&self) -> bool {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(table::may_ask_for_platform)
    }

    fn judge_crate(&self, name: &str, line: usize) -> Option<Violation> {
        let room = table::find(self.room()?)?;
        let (allowed, rule) = match name {
            "weightlift-cuda-sys" => (
                self.is_under(table::CUDA_SYS_USERS),
                format!("only {} uses it", table::CUDA_SYS_USERS.join(", ")),
            ),
            _ => (room.index, format!("room `{}` does not use crate {name}", room.name)),
        };
        (!allowed).then(|| self.violation(line, format!("uses crate `{name}`"), rule))
    }

    fn judge_import(&self, name: &str, line: usize) -> Option<Violation> {
        let room = table::find(self.room()?)?;
        let name = name.trim_start_matches("r#");
        if room.name == "lib" || name == room.name || room.imports.contains(&name) {
            return None;
        }
        let (what, rule) = if table::find(name).is_some() {
            let allowed = match room.imports {
                [] => "no other room".to_owned(),
                imports => format!("only {}", imports.join(", ")),
            };
            (
                format!("imports `crate::{name}`"),
                format!("room `{}` may import {allowed}", room.name),
            )
        } else {
            (
                format!("`crate::{name}` hides the room it is from"),
                "rooms name each other's things by their room, not through lib.rs".into(),
            )
        };
        Some(self.violation(line, what, rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `text` to `path` in an otherwise empty tree and returns what is wrong with it, as
    /// `line: what`.
    fn wrongs(files: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let (seen, violations) = check_sources(root.path()).unwrap();
        assert!(seen > 0);
        violations.iter().map(|v| format!("{}: {}", v.line, v.what)).collect()
    }

    #[track_caller]
    fn assert_wrong(path: &str, text: &str, expected: &str) {
        assert_eq!(wrongs(&[(path, text)]), [expected], "{path}: {text}");
    }

    #[track_caller]
    fn assert_right(path: &str, text: &str) {
        assert_eq!(wrongs(&[(path, text)]), Vec::<String>::new(), "{path}: {text}");
    }

    #[test]
    fn a_room_imports_only_what_the_table_gives_it() {
        let src = "crates/weightlift/src";
        for (file, text) in [
            ("error.rs", "use crate::error::Kind;"),
            ("plan/blocks.rs", "use crate::error::Error; use weightlift_index::Index;"),
            ("read/mod.rs", "use crate::{memory::Place, plan::Piece, source::Source};"),
            ("read/positional.rs", "use super::Reader;"),
            ("route/pipeline.rs", "use crate::{device::Device, read::Reader};"),
            ("loader.rs", "use crate::{load, route, tensor};"),
            ("lib.rs", "mod read; pub use crate::loader::Loader; pub use read::X;"),
        ] {
            assert_right(&format!("{src}/{file}"), text);
        }
        for (file, text, expected) in [
            ("error.rs", "use crate::options::Options;", "1: imports `crate::options`"),
            ("plan/mod.rs", "\nuse crate::source::Source;", "2: imports `crate::source`"),
            ("read/mod.rs", "use crate::device::Device;", "1: imports `crate::device`"),
            ("read/direct_linux.rs", "use super::super::route::R;", "1: imports `crate::route`"),
            ("device/host.rs", "fn f(r: &crate::read::Reader) {}", "1: imports `crate::read`"),
            ("memory/ring.rs", "use crate::{sync, plan};", "1: imports `crate::plan`"),
            ("memory/ring.rs", "use weightlift_index::Index;", "1: uses crate `weightlift-index`"),
            ("load/mod.rs", "use crate::loader::Loader;", "1: imports `crate::loader`"),
            ("load/mod.rs", "use crate::Error;", "1: `crate::Error` hides the room it is from"),
            ("load/mod.rs", "use crate::*;", "1: `crate::*` hides the room it is from"),
            ("kitchen.rs", "", "1: `kitchen` is not a room"),
        ] {
            assert_wrong(&format!("{src}/{file}"), text, expected);
        }
    }

    #[test]
    fn only_device_cuda_speaks_to_the_driver() {
        let text = "use weightlift_cuda_sys::Driver;";
        assert_right("crates/weightlift/src/device/cuda/mod.rs", text);
        assert_right("crates/weightlift/src/device/cuda/stream.rs", text);
        for file in ["device/mod.rs", "device/cuda_other.rs", "loader.rs", "lib.rs"] {
            assert_wrong(
                &format!("crates/weightlift/src/{file}"),
                text,
                "1: uses crate `weightlift-cuda-sys`",
            );
        }
    }

    #[test]
    fn unsafe_stands_only_in_its_rooms() {
        let text = "fn f() { unsafe { g() } }";
        for path in [
            "crates/weightlift-cuda-sys/src/driver.rs",
            "crates/weightlift/src/memory/region.rs",
            "crates/weightlift/src/load/destination.rs",
            "crates/weightlift/src/device/cuda/stream.rs",
        ] {
            assert_right(path, text);
        }
        for path in [
            "crates/weightlift/src/load/mod.rs",
            "crates/weightlift/src/device/host.rs",
            "crates/weightlift/benches/load.rs",
            "crates/weightlift-index/src/lib.rs",
            "crates/weightlift-cli/src/main.rs",
            "xtask/src/main.rs",
        ] {
            assert_wrong(path, text, "1: `unsafe`");
        }
        // Not even in a unit test.
        assert_wrong(
            "crates/weightlift/src/load/mod.rs",
            "#[cfg(test)] mod tests { fn f() { unsafe {} } }",
            "1: `unsafe`",
        );
    }

    #[test]
    fn only_files_named_for_it_choose_by_platform() {
        let text = "#[cfg(target_os = \"linux\")]\nfn f() {}";
        for path in [
            "crates/weightlift/src/read/mod.rs",
            "crates/weightlift/src/lib.rs",
            "crates/weightlift/src/system/residency_linux.rs",
            "crates/weightlift/tests/load.rs",
        ] {
            assert_right(path, text);
        }
        for path in [
            "crates/weightlift/src/read/positional.rs",
            "crates/weightlift-cuda-sys/src/find.rs",
            "crates/weightlift-cli/src/main.rs",
        ] {
            assert_wrong(path, text, "1: cfg asks for `target_os`");
        }
    }

    #[test]
    fn tests_import_what_they_like_also_from_files_of_their_own() {
        let import = "use crate::device::Device;\n#[cfg(unix)] fn f() {}";
        assert_right(
            "crates/weightlift/src/read/positional.rs",
            &format!("#[cfg(test)] mod tests {{ {import} }}"),
        );
        let declaration = ("crates/weightlift/src/read/mod.rs", "#[cfg(test)]\nmod tests;");
        let file = ("crates/weightlift/src/read/tests.rs", import);
        let deeper = ("crates/weightlift/src/read/tests/more.rs", import);
        assert_eq!(wrongs(&[declaration, file, deeper]), Vec::<String>::new());
        assert_eq!(wrongs(&[file]).len(), 2);
    }

    #[test]
    fn what_is_not_rust_is_told() {
        assert_wrong("crates/weightlift/src/error.rs", "fn f( {", "1: is not Rust");
    }
}
