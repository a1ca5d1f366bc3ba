//! The benchmark, in short; `testing/python/test_bench.py` has the rest.

use serde_json::Value;

use crate::common::{run, sharded, text};

#[test]
fn every_combination_has_its_samples() {
    let model = sharded();
    let path = text(model.folder.path());
    let words = ["--states=warm", "--reading-threads=1,auto", "--samples=2", "--device=host"];
    let results = run(["bench", path, "--json", "--no-ceilings"].into_iter().chain(words)).json();
    let series = results["series"].as_array().expect("series");
    let found: Vec<(&str, &str, u64)> = series
        .iter()
        .map(|one| {
            let word = |name: &str| one[name].as_str().expect("a word");
            (word("route"), word("reading_threads"), one["samples"].as_u64().expect("a number"))
        })
        .collect();
    assert_eq!(found, [("host", "1", 2), ("host", "auto", 2)]);
    assert!(series.iter().all(|one| one["failed"] == 0 && one["fallback"] == Value::Bool(false)));
    // In a table for people: what, on what, and how often.
    let ran = run(["bench", path, "--no-ceilings"].into_iter().chain(words));
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{ran:?}");
    let rows: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("warm   host")).collect();
    // One of figures and one of phases each.
    assert_eq!(rows.len(), 4, "{}", ran.stdout);
    assert!(ran.stdout.contains("Linux "), "{}", ran.stdout);
}

#[test]
fn files_that_cannot_be_written_are_told_before_anything_is_measured() {
    let model = sharded();
    for option in ["--html=/nonexistent/page.html", "--resume=/nonexistent/results.json"] {
        let words = ["--states=warm", "--samples=100000", "--device=host", option];
        let ran = run(["bench", text(model.folder.path())].into_iter().chain(words));
        assert_eq!(ran.status, Some(1), "{ran:?}");
        assert!(
            ran.stderr.starts_with("error: cannot write a file (path: /nonexistent"),
            "{ran:?}"
        );
    }
}
