//! One sample: the state of the page cache, a process, and whether it did what was asked.

use std::ffi::OsString;
use std::path::PathBuf;

use weightlift::{Model, Report};

use super::cells::Asked;
use super::expected;
use super::part::Load;
use super::process::{self, Failed};
use super::results::{Outcome, Sample, Taken};
use super::state;
use crate::signal::Stop;

/// How often a sample is taken whose files lost pages of the page cache meanwhile. Kernels that look
/// for huge pages throw out some here and there, a sample in a few hundred on a busy machine.
const TRIES: u32 = 5;

/// What all samples need.
pub(super) struct Sampler<'a> {
    pub(super) program: &'a [OsString],
    /// The model and the settings that all share.
    pub(super) words: Vec<OsString>,
    pub(super) model: &'a Model,
    pub(super) files: &'a [PathBuf],
    pub(super) digests: &'a [u64],
    pub(super) stop: &'a Stop,
}

impl Sampler<'_> {
    /// Takes a sample. What goes wrong is told in it, unless the run is to stop.
    pub(super) fn take(&self, asked: &Asked, round: u32) -> Result<Sample, Failed> {
        let outcome = match self.measure(asked) {
            Ok(outcome) => outcome,
            Err(Failed::Stopped) => return Err(Failed::Stopped),
            Err(Failed::Error { kind, text }) => Outcome::Failed { kind, error: text },
        };
        Ok(Sample { cell: asked.cell(), round, outcome })
    }

    fn measure(&self, asked: &Asked) -> Result<Outcome, Failed> {
        let mut words: Vec<OsString> = vec!["load".into(), "--json".into()];
        words.push(format!("--device={}", asked.device).into());
        words.push(format!("--route={}", asked.route).into());
        words.push(format!("--reading-threads={}", asked.threads).into());
        words.extend(self.words.iter().cloned());
        let mut tries = 1;
        let (held, answer) = loop {
            let held = state::bring(self.files, asked.state, self.stop)?;
            let answer = process::run::<Load>(self.program, &words, self.stop)?;
            match state::check_kept(self.files, asked.state) {
                Ok(()) => break (held, answer),
                // Whatever it was like: a load of another state is not what was asked for.
                Err(_) if tries < TRIES => tries += 1,
                Err(error) => return Err(error.into()),
            }
        };
        let mut load = answer.value;
        expected::compare(self.model, self.digests, &load.digests)
            .map_err(|text| Failed::Error { kind: "WrongBytes".to_owned(), text })?;
        load.digests.clear();
        let reasons = otherwise(&load.report, asked);
        let taken = Box::new(Taken {
            actual_route: load.report.route(),
            process_seconds: answer.seconds - load.verify_seconds,
            cached_bytes: held.cached,
            tries,
            load,
        });
        Ok(if reasons.is_empty() {
            Outcome::Measured { taken }
        } else {
            Outcome::Fallback { reasons, taken }
        })
    }
}

/// In what a load went another way than the one asked for, and why.
fn otherwise(report: &Report, asked: &Asked) -> Vec<String> {
    let mut reasons: Vec<String> = report
        .fallbacks
        .iter()
        .map(|fallback| format!("{} to {}: {}", fallback.from, fallback.to, fallback.reason))
        .collect();
    let (wanted, actual) = (asked.expected.name(), report.route());
    // A model without bytes takes no route.
    if actual != wanted && report.bytes.planned > 0 && reasons.is_empty() {
        let why = report.decisions.iter().find(|decision| decision.what == "route");
        let why = why.map_or("the report does not say why", |decision| &decision.reason);
        reasons.push(format!("{wanted} to {actual}: {why}"));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use weightlift::{DeviceChoice, Fallback, ReadingThreads, Route, RouteChoice};

    use super::super::state::State;
    use super::*;

    #[test]
    fn every_other_way_is_a_fallback() {
        let asked = Asked {
            route: RouteChoice::Auto,
            state: State::Warm,
            threads: ReadingThreads::AUTO,
            device: DeviceChoice::Auto,
            expected: Route::Pinned,
        };
        let report = |routes: &[(&str, u64)]| {
            let mut report = Report::default();
            report.bytes.planned = routes.iter().map(|(_, bytes)| bytes).sum();
            report.routes =
                routes.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
            report
        };
        assert!(otherwise(&report(&[("pinned", 5)]), &asked).is_empty());
        assert!(otherwise(&report(&[]), &asked).is_empty());
        assert_eq!(otherwise(&report(&[("pageable", 5)]), &asked).len(), 1);
        assert_eq!(otherwise(&report(&[("pinned", 5), ("pageable", 1)]), &asked).len(), 1);
        // Also of how bytes are read, on the route that was asked for.
        let mut direct = report(&[("pinned", 5)]);
        let (from, to) = ("direct".to_owned(), "buffered".to_owned());
        direct.fallbacks.push(Fallback { from, to, reason: "EINVAL".to_owned(), bytes: 5 });
        assert_eq!(otherwise(&direct, &asked), ["direct to buffered: EINVAL"]);
    }
}
