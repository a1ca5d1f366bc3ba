//! The page of results made up: one series, fifty, and such with failures in them.

use weightlift::{Report, storage_facts};

use super::super::part::Load;
use super::super::results::{
    Ceiling, CeilingKind, Cell, Cuda, Machine, ModelFacts, Outcome, Results, Sample, Settings,
    Taken,
};
use super::*;

/// So many series of so many samples, summarised. Nothing of it was measured.
pub(in super::super) fn results(series: u32, rounds: u32) -> Results {
    let machine = Machine {
        kernel: "Linux 6.12".to_owned(),
        architecture: "x86_64".to_owned(),
        processor: "made up".to_owned(),
        processors: 16,
        memory_bytes: 128 << 30,
        storage: storage_facts("/").expect("facts of the root"),
        residency: "cachestat".to_owned(),
        cuda: Some(Cuda {
            ordinal: 0,
            device: "a device <that> is none".to_owned(),
            cuda: "CUDA 13.0".to_owned(),
            driver: Some("580.1".to_owned()),
        }),
    };
    let model = ModelFacts {
        path: "/models/\"llama\" & <b>co".to_owned(),
        format: "safetensors".to_owned(),
        tensors: 3,
        bytes: 8 << 30,
        files: Vec::new(),
        digest: "0123456789abcdef".to_owned(),
    };
    let settings = Settings {
        routes: Vec::new(),
        states: Vec::new(),
        reading_threads: Vec::new(),
        samples: rounds,
        options: "direct_io=auto".to_owned(),
        command: "weightlift bench 'llama'".to_owned(),
    };
    let mut results = Results::new(model, machine, settings);
    let ceiling = |kind, rate: f64| Ceiling {
        kind,
        threads: Some(8),
        read_bytes: Some(1 << 20),
        samples: vec![rate, rate * 1.02],
        unavailable: None,
    };
    results.ceilings = vec![
        ceiling(CeilingKind::DiskDirect, 6.1e9),
        ceiling(CeilingKind::PageCache, 70e9),
        ceiling(CeilingKind::Bus, 54e9),
    ];
    for number in 0..series {
        let routes = ["pinned", "host", "pageable", "auto"];
        let cell = Cell {
            state: ["warm", "cold"][(number / 4 % 2) as usize].to_owned(),
            route: routes[(number % 4) as usize].to_owned(),
            reading_threads: (number / 8 + 1).to_string(),
        };
        for round in 1..=rounds {
            let wave = 1.0 - 0.05 * f64::from((number * 7 + round * 3) % 5) / 4.0;
            let top = if cell.state == "cold" { 5.8e9 } else { 50e9 };
            let threads = f64::from(number / 8 + 1);
            let rate = top * wave * (threads / (threads + 1.0));
            let outcome = Outcome::Measured { taken: Box::new(taken(rate, &cell.route)) };
            results.samples.push(Sample { cell: cell.clone(), round, outcome });
        }
    }
    results.summarise();
    results
}

fn taken(rate: f64, route: &str) -> Taken {
    let mut report = Report::default();
    let bytes = 8_u64 << 30;
    report.bytes.planned = bytes;
    report.bytes_per_second = rate;
    report.reads.insert("direct".to_owned(), bytes);
    let seconds = &mut report.seconds;
    (seconds.open, seconds.plan, seconds.pin, seconds.allocate) = (0.012, 0.004, 0.02, 0.03);
    seconds.driver_wait = 0.05;
    seconds.driver = 0.28;
    seconds.total = bytes as f64 / rate + 0.05;
    report.staging_bytes_peak = 48 << 20;
    let total = report.seconds.total;
    Taken {
        actual_route: if route == "auto" { "pinned" } else { route }.to_owned(),
        process_seconds: total + 0.04,
        cached_bytes: 0,
        tries: 1,
        load: Load {
            report,
            start_seconds: 0.01,
            verify_seconds: 1.0,
            processor_seconds: 2.0,
            peak_memory_bytes: 200 << 20,
            disk_bytes: Some(bytes),
            digests: Vec::new(),
        },
    }
}

/// Fallbacks and failures among them, as a run on a bad day has them.
pub(in super::super) fn troubled(series: u32) -> Results {
    let mut results = results(series, 5);
    let count = results.samples.len();
    for (number, sample) in results.samples.iter_mut().enumerate() {
        let Outcome::Measured { taken } = &sample.outcome else { continue };
        if sample.cell.route == "auto" && number % 3 == 0 {
            let mut taken = taken.clone();
            taken.actual_route = "pageable".to_owned();
            taken.load.report.bytes_per_second /= 4.0;
            let reasons = vec!["pinned to pageable: the driver says <no>".to_owned()];
            sample.outcome = Outcome::Fallback { reasons, taken };
        } else if number > count - 6 {
            let error = "the page cache cannot be brought into the state cold (cached: 4096)";
            sample.outcome = Outcome::Failed { kind: "Io".to_owned(), error: error.to_owned() };
        }
    }
    results.summarise();
    results
}

/// Nothing came of anything.
fn hopeless() -> Results {
    let mut results = results(6, 2);
    for sample in &mut results.samples {
        let error = "no device <at all>".to_owned();
        sample.outcome = Outcome::Failed { kind: "NoDevice".to_owned(), error };
    }
    results.summarise();
    results
}

#[test]
fn pages_need_nothing_else_and_are_well_formed() {
    for results in [results(1, 1), results(50, 5), troubled(50), hopeless(), results(0, 0)] {
        let page = page(&results);
        for outside in ["http:", "https:", "src=", "@import", "url(", "<script", "<link"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_balanced(&page);
        assert!(!page.contains("NaN") && !page.contains("inf\""), "a figure that is none");
        // What names a file or an error says must not become part of the page's structure.
        assert!(!page.contains("<b>co") && !page.contains("<that>") && !page.contains("<no>"));
        assert!(!page.contains("<at all>"));
        // Versions beside each of the three plots and the two tables.
        let beside = page.matches("Linux 6.12, driver 580.1 (CUDA 13.0).").count();
        assert!(beside >= 2, "{beside}");
    }
}

#[test]
fn fallbacks_and_failures_are_told_and_never_mixed_in() {
    let results = troubled(50);
    let (fell, rest): (Vec<_>, Vec<_>) =
        results.series.iter().filter(|s| s.figures.is_some()).partition(|series| series.fallback);
    assert!(!fell.is_empty());
    for series in &fell {
        assert_eq!(
            (&*series.cell.route, series.actual_route.as_deref()),
            ("auto", Some("pageable"))
        );
        assert_eq!(series.notes, ["pinned to pageable: the driver says <no>"]);
    }
    // A quarter of the rate would show in the minimum.
    for series in rest {
        let rate = series.figures.as_ref().expect("figures").bytes_per_second;
        assert!(rate.min > rate.max / 2.0, "{series:?}");
    }
    let page = page(&results);
    assert!(page.contains("fell back: pageable") && page.contains("failed: the page cache"));
    assert!(page.contains("class=\"failed\"") && page.contains("class=\"fallback\""));
}

/// Writes the pages for people to look at.
#[test]
#[ignore = "writes files: WEIGHTLIFT_PAGES=FOLDER"]
fn write_pages() {
    let folder = std::path::PathBuf::from(std::env::var_os("WEIGHTLIFT_PAGES").expect("a folder"));
    let pages = [
        ("one", results(1, 7)),
        ("fifty", results(50, 7)),
        ("troubled", troubled(50)),
        ("few", troubled(8)),
        ("hopeless", hopeless()),
    ];
    for (name, results) in pages {
        std::fs::write(folder.join(format!("{name}.html")), page(&results)).expect("a page");
    }
}

#[test]
fn dates_are_right() {
    assert_eq!(date(0), "1970-01-01 00:00 UTC");
    assert_eq!(date(951_826_500), "2000-02-29 12:15 UTC");
    assert_eq!(date(1_767_225_599), "2025-12-31 23:59 UTC");
    assert_eq!(date(1_767_225_600), "2026-01-01 00:00 UTC");
}

/// Every element that is opened is closed, in the right order.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in page.split('<').skip(1) {
        let tag = part.split('>').next().expect("a tag");
        let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or_default();
        if tag.starts_with('!') || tag.ends_with('/') || name == "meta" {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{part}");
        } else {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}
