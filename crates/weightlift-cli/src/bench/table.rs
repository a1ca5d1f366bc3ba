//! The results as text.

use comfy_table::{CellAlignment, ColumnConstraint, Table, presets};
use weightlift::format_size;

use super::results::{Ceiling, Cell, Results};
use super::statistics::{Series, Spread};
use crate::error::Failure;
use crate::output::Output;
use crate::text::{self, OneLine};

/// Prints what was measured, on what, and what went wrong.
pub(super) fn print(output: &mut Output, results: &Results) -> Result<(), Failure> {
    for line in facts(results) {
        output.line(OneLine(&line))?;
    }
    output.line("")?;
    output.line(series(&results.series))?;
    let phases: Vec<_> =
        results.series.iter().map(phases_row).filter(|row| !row.is_empty()).collect();
    if !phases.is_empty() {
        output.line("")?;
        output.line(
            "seconds by phase; from start to end they follow one another, the rest goes on beside",
        )?;
        output.line(table(&PHASES.map(|(_, name)| name), phases.into_iter(), 2))?;
    }
    if !results.ceilings.is_empty() {
        output.line("")?;
        output.line(ceilings(&results.ceilings))?;
    }
    for (number, note) in notes(results).iter().enumerate() {
        if number == 0 {
            output.line("")?;
        }
        output.line(OneLine(note))?;
    }
    Ok(())
}

/// What was measured on what, as lines for people.
pub(super) fn facts(results: &Results) -> Vec<String> {
    let (model, machine) = (&results.model, &results.machine);
    let storage =
        format!("{}; what the page cache holds is asked by {}", machine.storage, machine.residency);
    let mut facts = vec![
        format!(
            "{}: {}, {}, in {} ({})",
            model.path,
            text::count(model.tensors, "tensor"),
            text::bytes(model.bytes),
            text::count(model.files.len() as u64, "file"),
            model.format,
        ),
        format!(
            "{} {}, {}, {} processors, {} of memory",
            machine.kernel,
            machine.architecture,
            machine.processor,
            machine.processors,
            text::bytes(machine.memory_bytes),
        ),
        storage,
    ];
    if let Some(cuda) = &machine.cuda {
        let driver = machine.driver().unwrap_or_default();
        facts.push(format!("cuda:{}, {}, driver {driver}", cuda.ordinal, cuda.device));
    }
    facts.push(format!("weightlift {}, {}", results.weightlift, results.settings.options));
    facts.push(results.settings.command.clone());
    facts
}

/// What stands in one row of the table of series, under [`HEAD`].
pub(super) fn row(series: &Series) -> Vec<String> {
    let dash = || "-".to_owned();
    let cell = &series.cell;
    let route = match (&series.actual_route, series.fallback) {
        (Some(actual), true) => format!("{}, fell back: {actual}", cell.route),
        (Some(actual), false) if *actual != cell.route => format!("{}: {actual}", cell.route),
        _ => cell.route.clone(),
    };
    let count = match series.failed {
        0 => series.samples.to_string(),
        failed => format!("{failed} failed"),
    };
    let mut row = vec![cell.state.clone(), route, cell.reading_threads.clone(), count];
    let Some(figures) = &series.figures else {
        row.resize_with(HEAD.len(), dash);
        return row;
    };
    let share = figures
        .ceiling
        .as_ref()
        .map_or_else(dash, |limit| format!("{:.0} % of {}", 100.0 * limit.share, limit.what));
    let spread = |spread: Spread, digits: usize| format!("{:.digits$}", spread.median);
    row.extend([
        gigabytes(figures.bytes_per_second.median),
        gigabytes(figures.bytes_per_second.min),
        gigabytes(figures.bytes_per_second.max),
        share,
        spread(figures.load_seconds, 3),
        spread(figures.process_seconds, 3),
        spread(figures.processor_seconds, 3),
        text::bytes(figures.peak_memory_bytes),
        match figures.staging_bytes_peak {
            0 => dash(),
            bytes => format_size(bytes),
        },
    ]);
    row
}

pub(super) const HEAD: [&str; 13] = [
    "state",
    "route",
    "threads",
    "samples",
    "GB/s",
    "min",
    "max",
    "ceiling",
    "load s",
    "process s",
    "processor s",
    "peak memory",
    "staging",
];

/// What stands in one row of the table of phases, under [`PHASES`]: seconds, medians. Empty for a
/// series without figures.
pub(super) fn phases_row(series: &Series) -> Vec<String> {
    let Some(figures) = &series.figures else { return Vec::new() };
    let mut row = row(series);
    row.truncate(3);
    let of = |name: &str| figures.phases.get(name).or(figures.beside.get(name)).copied();
    let names = PHASES.iter().skip(3).map(|(name, _)| *name);
    row.extend(names.map(|name| of(name).map_or_else(|| "-".to_owned(), |it| format!("{it:.4}"))));
    row
}

/// The phases' names in the results, and for people. The first ones say of what.
pub(super) const PHASES: [(&str, &str); 14] = [
    ("", "state"),
    ("", "route"),
    ("", "threads"),
    ("start", "start"),
    ("open", "open"),
    ("plan", "plan"),
    ("driver_wait", "driver alone"),
    ("pin", "pin"),
    ("allocate", "allocate"),
    ("read_and_copy", "read and copy"),
    ("end", "end"),
    ("driver", "all of driver"),
    ("read", "reads, summed"),
    ("copy", "copies"),
];

/// What stands in one row of the table of ceilings, under [`CEILINGS`].
pub(super) fn ceiling_row(ceiling: &Ceiling) -> Vec<String> {
    let spread = Spread::of(ceiling.samples.iter().copied());
    let figure = |value: fn(Spread) -> f64| {
        spread.map_or_else(|| "-".to_owned(), |spread| gigabytes(value(spread)))
    };
    let how = match (&ceiling.unavailable, ceiling.threads, ceiling.read_bytes) {
        (Some(why), ..) => format!("not to be had: {why}"),
        (_, Some(threads), Some(bytes)) => {
            format!("{} of {}", text::count(threads, "thread"), format_size(bytes))
        }
        _ => "copies of 64MiB".to_owned(),
    };
    vec![
        ceiling.kind.name().to_owned(),
        ceiling.samples.len().to_string(),
        figure(|spread| spread.median),
        figure(|spread| spread.min),
        figure(|spread| spread.max),
        OneLine(&how).to_string(),
    ]
}

pub(super) const CEILINGS: [&str; 6] = ["ceiling", "samples", "GB/s", "min", "max", "best by"];

/// Most combinations that a note names.
const CELLS: usize = 8;

/// What is to be known beside the tables.
pub(super) fn notes(results: &Results) -> Vec<String> {
    // What many have in common is said once, with where it was.
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    let mut say = |what: String, cell: &Cell| match said.iter_mut().find(|known| known.0 == what) {
        Some((_, cells)) => cells.push(cell.name()),
        None => said.push((what, vec![cell.name()])),
    };
    for series in &results.series {
        let what = if series.fallback { "fell back from" } else { "failed:" };
        series.notes.iter().for_each(|note| say(format!("{what} {note}"), &series.cell));
    }
    for left_out in &results.left_out {
        say(format!("left out: {}", left_out.reason), &left_out.cell);
    }
    let mut notes: Vec<String> = said
        .into_iter()
        .map(|(what, mut cells)| {
            let more = cells.len().saturating_sub(CELLS);
            cells.truncate(CELLS);
            if more > 0 {
                cells.push(format!("{more} more"));
            }
            format!("{what} ({})", cells.join("; "))
        })
        .collect();
    if results.interrupted {
        notes.push("stopped before all samples were taken".to_owned());
    }
    notes
}

fn series(series: &[Series]) -> String {
    table(&HEAD, series.iter().map(row), 2)
}

fn ceilings(ceilings: &[Ceiling]) -> String {
    table(&CEILINGS, ceilings.iter().map(ceiling_row), 1)
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>, words: usize) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head);
    for row in rows {
        table.add_row(row);
    }
    for (number, column) in table.column_iter_mut().enumerate() {
        column.set_constraint(ColumnConstraint::ContentWidth);
        column.set_padding((0, 2));
        let words = number < words || head.get(number) == Some(&"best by");
        let alignment = if words { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(alignment);
    }
    table.trim_fmt()
}

fn gigabytes(bytes_per_second: f64) -> String {
    let rate = bytes_per_second / 1e9;
    // Three digits that count, as far as a figure of a benchmark has them.
    let digits = if rate >= 10.0 {
        1
    } else if rate >= 0.1 {
        2
    } else {
        4
    };
    format!("{rate:.digits$}")
}
