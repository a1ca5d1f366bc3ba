//! Which crate of the workspace may depend on which, read from what cargo says of the manifests.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::Violation;
use super::table::{self, Crate};

/// The packages that hold a program and nothing for others.
const NOT_LIBRARIES: &[&str] = &["weightlift-cli", "xtask"];

/// Holds the packages of `cargo metadata --no-deps` against the table of crates.
pub fn check(root: &Path, metadata: &Value) -> Result<Vec<Violation>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let names: Vec<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let mut violations = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has no name")?;
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap_or_default());
        let wrong = |dependency: &str, what: String, rule: String| Violation {
            line: line_of(&manifest, dependency),
            file: manifest.strip_prefix(root).unwrap_or(&manifest).to_owned(),
            what,
            rule,
        };
        let Some(entry) = find(name) else {
            violations.push(wrong(
                name,
                format!("crate `{name}` is unknown"),
                "every crate of the workspace stands in the table of crates".into(),
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let other = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"] == "dev";
            if names.contains(&other) && !allowed(entry, other, for_tests) {
                let kind = if for_tests { "tests depend" } else { "depends" };
                violations.push(wrong(
                    other,
                    format!("crate `{name}` {kind} on `{other}`"),
                    match entry.imports {
                        [] => format!("`{name}` depends on no other crate of the workspace"),
                        imports => format!("`{name}` depends on {} only", imports.join(", ")),
                    },
                ));
            }
        }
    }
    Ok(violations)
}

fn find(name: &str) -> Option<&'static Crate> {
    table::CRATES.iter().find(|c| c.name == name)
}

fn allowed(entry: &Crate, other: &str, in_tests: bool) -> bool {
    // A dev-dependency on itself (to switch a feature on for its tests) says nothing.
    let for_tests = || {
        other == entry.name
            || find(other).is_some_and(|c| c.for_tests)
            || entry.for_tests && !NOT_LIBRARIES.contains(&other)
    };
    entry.imports.contains(&other) || in_tests && for_tests()
}

/// The line of a manifest that begins with this name, else 1.
fn line_of(manifest: &Path, dependency: &str) -> usize {
    std::fs::read_to_string(manifest)
        .unwrap_or_default()
        .lines()
        .position(|line| {
            line.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
        })
        .map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is wrong with packages given as (name, dependency, kind).
    fn wrongs(packages: &[(&str, &str, Option<&str>)]) -> Vec<String> {
        let packages: Vec<Value> = packages
            .iter()
            .map(|(name, dependency, kind)| {
                json!({
                    "name": name,
                    "manifest_path": format!("/nowhere/{name}/Cargo.toml"),
                    "dependencies": [{"name": dependency, "kind": kind}, {"name": "serde", "kind": null}],
                })
            })
            .chain(table::CRATES.iter().map(|c| json!({"name": c.name, "dependencies": []})))
            .collect();
        check(Path::new("/nowhere"), &json!({"packages": packages}))
            .unwrap()
            .into_iter()
            .map(|v| format!("{}: {}", v.file.display(), v.what))
            .collect()
    }

    #[test]
    fn crates_depend_only_on_what_the_table_gives_them() {
        for package in [
            ("weightlift", "weightlift-index", None),
            ("weightlift-cli", "weightlift", None),
            ("weightlift-cli", "fake-cuda", Some("dev")),
            ("weightlift-index", "testkit", Some("dev")),
            ("fake-cuda", "weightlift-cuda-sys", Some("dev")),
        ] {
            assert_eq!(wrongs(&[package]), Vec::<String>::new(), "{package:?}");
        }
        for (name, dependency, kind) in [
            ("weightlift-cli", "weightlift-index", None),
            ("weightlift-cli", "weightlift-cuda-sys", None),
            ("weightlift-index", "weightlift-cuda-sys", None),
            ("weightlift-cuda-sys", "weightlift-index", Some("build")),
            ("weightlift", "testkit", None),
            ("testkit", "weightlift-cli", None),
            ("testkit", "weightlift-cli", Some("dev")),
            ("fake-cuda", "weightlift-cuda-sys", None),
            ("weightlift", "weightlift-cli", Some("dev")),
            ("xtask", "weightlift", None),
        ] {
            let wrongs = wrongs(&[(name, dependency, kind)]);
            assert_eq!(wrongs.len(), 1, "{name} -> {dependency}");
            assert!(wrongs[0].contains(&format!("`{dependency}`")), "{}", wrongs[0]);
            assert!(wrongs[0].starts_with(&format!("{name}/Cargo.toml: ")), "{}", wrongs[0]);
        }
    }

    #[test]
    fn an_unknown_crate_is_told() {
        assert_eq!(
            wrongs(&[("weightlift-attic", "weightlift", None)]),
            ["weightlift-attic/Cargo.toml: crate `weightlift-attic` is unknown"]
        );
    }

    #[test]
    fn the_line_of_a_dependency_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        std::fs::write(
            &manifest,
            "[dependencies]\nweightlift-index = \"1\"\nweightlift.workspace = true\n",
        )
        .unwrap();
        assert_eq!(line_of(&manifest, "weightlift"), 3);
        assert_eq!(line_of(&manifest, "absent"), 1);
    }
}
