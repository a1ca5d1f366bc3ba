//! `weightlift demo`: what this machine can do, every byte checked.
//!
//! Makes a model, loads it by every route, compares each tensor with what was written, and
//! reads the same files without weightlift beside it. A route that this machine does not have
//! stands in the table with the reason.

mod ceiling;
mod model;

use std::io::{self, IsTerminal, Write};

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use weightlift::{
    DeviceChoice, Error, ErrorKind, Loaded, Loader, Report, Request, Route, RouteChoice,
    format_size,
};

use crate::args::Demo;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::{Grace, Stop};
use crate::text::{self, OneLine};

use ceiling::Ceiling;
use model::Made;

/// Every route, and the device that it leads to.
const ROUTES: [(Route, DeviceChoice); 3] = [
    (Route::Host, DeviceChoice::Host),
    (Route::Pageable, DeviceChoice::CurrentCuda),
    (Route::Pinned, DeviceChoice::CurrentCuda),
];

pub(crate) fn run(options: &Demo, stop: &Stop) -> Result<(), Failure> {
    let size = options.bytes()?;
    // From here on there may be files to remove.
    stop.allow(Grace::AsLongAsNeeded);
    say(format_args!("writing a model of {} …", text::bytes(size)));
    let made = model::make(size, stop)?;
    let measured = measure(&made, stop);
    // Before anything is printed: a reader that goes away must not leave files behind.
    let kept = made.end(options.keep && measured.is_ok())?;
    let measured = measured?;

    let mut output = Output::stdout(stop)?;
    output.line(format_args!(
        "{}, {}, in {}, written just before: the page cache is warm",
        text::count(measured.tensors as u64, "tensor"),
        text::bytes(measured.bytes),
        text::count(measured.files as u64, "file"),
    ))?;
    output.line(format_args!(
        "best of {ROUNDS} rounds; plain pread is the same files read without weightlift, by {}",
        text::count(measured.readers as u64, "thread"),
    ))?;
    output.line(table(&measured))?;
    for row in &measured.rows {
        if let Outcome::Failed(error) = &row.outcome {
            output.line(format_args!("{}: failed: {}", row.name, OneLine(&error.to_string())))?;
        }
    }
    for (reason, routes) in measured.missing() {
        let routes = routes.join(", ");
        output.line(format_args!("{routes}: not available here: {}", OneLine(reason)))?;
    }
    if let Some(folder) = kept {
        output.line(format_args!("kept in {}", text::path(&folder)))?;
    }
    output.finish()?;
    measured.verdict()?;
    Ok(())
}

/// All that the table shows.
struct Measured {
    tensors: usize,
    bytes: u64,
    files: usize,
    readers: usize,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    outcome: Outcome,
}

enum Outcome {
    /// The fastest load's report; the fewest tensors of any load that were right.
    Loaded { report: Box<Report>, verified: usize, driver: f64 },
    /// No route of this machine, and why.
    Missing(String),
    /// A route that does not work here, though it should.
    Failed(Error),
    /// Not by weightlift: the seconds that it took.
    Read(f64),
}

/// The best of several rounds counts: the first one pays for memory that the system has to
/// find, and neighbours on the machine slow down one round more than another.
const ROUNDS: usize = 3;

fn measure(made: &Made, stop: &Stop) -> Result<Measured, Error> {
    let loader = Loader::default();
    let mut routes: [Option<Outcome>; 3] = [None, None, None];
    let mut best = Ceiling { new_memory: f64::INFINITY, same_memory: f64::INFINITY };
    let mut readers = 1;
    for round in 1..=ROUNDS {
        for ((route, device), outcome) in ROUTES.into_iter().zip(&mut routes) {
            if matches!(outcome, Some(Outcome::Missing(_) | Outcome::Failed(_))) {
                continue;
            }
            say(format_args!("round {round} of {ROUNDS}: loading by {route} …"));
            let now = load(&loader, made, route, device, stop)?;
            if let Outcome::Loaded { report, .. } = &now {
                readers = readers.max(report.reading_threads);
            }
            *outcome = Some(better(outcome.take(), now));
        }
        say(format_args!("round {round} of {ROUNDS}: plain pread …"));
        let now = ceiling::measure(made.files(), readers, stop)?;
        best.new_memory = best.new_memory.min(now.new_memory);
        best.same_memory = best.same_memory.min(now.same_memory);
    }
    let routes = ROUTES.iter().zip(routes).filter_map(|((route, _), outcome)| {
        outcome.map(|outcome| Row { name: route.to_string(), outcome })
    });
    let read = |what: &str, seconds| Row {
        name: format!("plain pread, {what}"),
        outcome: Outcome::Read(seconds),
    };
    let plain = [read("new memory", best.new_memory), read("same memory", best.same_memory)];
    Ok(Measured {
        tensors: made.digests().len(),
        bytes: made.bytes(),
        files: made.files().len(),
        readers,
        rows: routes.chain(plain).collect(),
    })
}

fn load(
    loader: &Loader,
    made: &Made,
    route: Route,
    device: DeviceChoice,
    stop: &Stop,
) -> Result<Outcome, Error> {
    let request =
        Request::new().device(device).route(RouteChoice::Forced(route)).cancel(stop.token());
    match loader.load(made.folder(), request) {
        Ok(loaded) => {
            let verified = verified(made, &loaded, stop)?;
            let driver = loaded.report.seconds.driver;
            Ok(Outcome::Loaded { report: Box::new(loaded.report), verified, driver })
        }
        Err(error) if is_missing(error.kind()) => Ok(Outcome::Missing(error.to_string())),
        Err(error) if error.kind() == ErrorKind::Cancelled => Err(error),
        // The other routes are still worth a look.
        Err(error) => Ok(Outcome::Failed(error.with("route", route))),
    }
}

/// The faster of two loads; what was wrong in either and what only the first pays for stays.
fn better(before: Option<Outcome>, now: Outcome) -> Outcome {
    match (before, now) {
        (
            Some(Outcome::Loaded { report: a, verified: v, driver: d }),
            Outcome::Loaded { report: b, verified: w, driver: e },
        ) => {
            let report = if a.bytes_per_second >= b.bytes_per_second { a } else { b };
            Outcome::Loaded { report, verified: v.min(w), driver: d.max(e) }
        }
        (_, now) => now,
    }
}

/// What says that the machine does not have a route, not that the route does not work.
fn is_missing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NoDriver
            | ErrorKind::DriverTooOld
            | ErrorKind::NoDevice
            | ErrorKind::PinFailed
            | ErrorKind::OutOfDeviceMemory
            | ErrorKind::OutOfHostMemory
    )
}

/// How many tensors lie in their memory as they were written.
fn verified(made: &Made, loaded: &Loaded, stop: &Stop) -> Result<usize, Error> {
    let mut same = 0;
    for tensor in &loaded.tensors {
        stop.check()?;
        same += usize::from(made.digests().get(tensor.name()) == Some(&tensor.digest()?));
    }
    Ok(same)
}

impl Measured {
    /// Why routes are not there, and which for each reason.
    fn missing(&self) -> Vec<(&str, Vec<&str>)> {
        let mut missing: Vec<(&str, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            let Outcome::Missing(reason) = &row.outcome else { continue };
            match missing.iter_mut().find(|(known, _)| known == reason) {
                Some((_, routes)) => routes.push(&row.name),
                None => missing.push((reason, vec![&row.name])),
            }
        }
        missing
    }

    /// An error if a route does not work, or brought one tensor that is not what was written.
    fn verdict(self) -> Result<(), Error> {
        for row in self.rows {
            if let Outcome::Failed(error) = row.outcome {
                return Err(error);
            }
            if let Outcome::Loaded { verified, .. } = &row.outcome
                && *verified != self.tensors
            {
                let message = "tensors are not in memory as they were written";
                return Err(Error::new(ErrorKind::Internal, message)
                    .with("route", &row.name)
                    .with("expected", self.tensors)
                    .with("actual", verified)
                    .hint("please report it; --keep keeps the model's files"));
            }
        }
        Ok(())
    }
}

fn table(measured: &Measured) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "route",
        "GB/s",
        "seconds",
        "driver start",
        "staging peak",
        "verified",
    ]);
    let rate = |seconds: f64| {
        format!("{:.2}", measured.bytes as f64 / 1e9 / seconds.max(f64::MIN_POSITIVE))
    };
    for row in &measured.rows {
        let dash = || "-".to_owned();
        let (mut driver, mut staging, mut verified_of) = (dash(), dash(), dash());
        let (rate, seconds) = match &row.outcome {
            Outcome::Missing(_) | Outcome::Failed(_) => (dash(), dash()),
            Outcome::Read(seconds) => (rate(*seconds), format!("{seconds:.3}")),
            Outcome::Loaded { report, verified, driver: start } => {
                if *start > 0.0 {
                    driver = format!("{start:.3}");
                }
                staging = format_size(report.staging_bytes_peak);
                verified_of = format!("{verified}/{}", measured.tensors);
                (
                    format!("{:.2}", report.bytes_per_second / 1e9),
                    format!("{:.3}", report.seconds.total),
                )
            }
        };
        table.add_row([row.name.clone(), rate, seconds, driver, staging, verified_of]);
    }
    for column in table.column_iter_mut() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        column.set_cell_alignment(CellAlignment::Right);
        column.set_padding((0, 2));
    }
    if let Some(first) = table.column_mut(0) {
        first.set_cell_alignment(CellAlignment::Left);
    }
    table.trim_fmt()
}

/// What is going on, for whoever sits before the terminal.
fn say(what: std::fmt::Arguments<'_>) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(bytes_per_second: f64, verified: usize, driver: f64) -> Outcome {
        let mut report = Report::default();
        report.bytes_per_second = bytes_per_second;
        Outcome::Loaded { report: Box::new(report), verified, driver }
    }

    fn measured(outcomes: Vec<Outcome>) -> Measured {
        let row = |(number, outcome)| Row { name: format!("route {number}"), outcome };
        let rows = outcomes.into_iter().enumerate().map(row).collect();
        Measured { tensors: 5, bytes: 100, files: 1, readers: 1, rows }
    }

    #[test]
    fn one_wrong_tensor_of_one_round_is_a_failure() {
        let right = || loaded(1.0, 5, 0.0);
        assert!(measured(vec![right(), Outcome::Read(1.0)]).verdict().is_ok());
        assert!(measured(vec![Outcome::Missing("no driver".to_owned())]).verdict().is_ok());
        let error = measured(vec![right(), loaded(9.0, 4, 0.0)]).verdict().unwrap_err();
        assert_eq!(error.value("route"), Some("route 1"));
        let failed = Outcome::Failed(Error::new(ErrorKind::Cuda, "the driver is broken"));
        assert_eq!(measured(vec![failed]).verdict().unwrap_err().kind(), ErrorKind::Cuda);
        // The faster round hides neither the slower one's error nor the driver's start.
        let both = better(Some(loaded(1.0, 4, 0.3)), loaded(2.0, 5, 0.0));
        let Outcome::Loaded { report, verified, driver } = both else { panic!("a load") };
        assert_eq!((report.bytes_per_second, verified, driver), (2.0, 4, 0.3));
    }

    #[test]
    fn every_route_has_a_row_and_a_shared_reason_one_line() {
        let none = || Outcome::Missing("no driver".to_owned());
        let measured = measured(vec![loaded(1e9, 5, 0.0), none(), none(), Outcome::Read(0.5)]);
        assert_eq!(measured.missing(), [("no driver", vec!["route 1", "route 2"])]);
        let table = table(&measured);
        assert_eq!(table.lines().count(), 5);
        assert!(table.contains("5/5"), "{table}");
    }
}
