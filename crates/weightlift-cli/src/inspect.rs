//! `weightlift inspect`: what is in a model.

use std::io;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use weightlift::Model;
use weightlift::index::{Format, Index, TensorInfo};

use crate::args::Inspect;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::Stop;
use crate::text::{self, OneLine};

pub(crate) fn run(options: &Inspect, stop: &Stop) -> Result<(), Failure> {
    let mut open = options.model.open_options()?;
    open.metadata_lists = options.metadata;
    let model = Model::open(&options.model.path, &open)?;
    let mut output = Output::stdout(stop)?;
    if options.json {
        print_json(&mut output, &model, options.metadata)?;
    } else {
        print_text(&mut output, &model, options.metadata)?;
    }
    output.finish()?;
    // The process ends: taking apart a hundred thousand names would only take time.
    std::mem::forget(model);
    Ok(())
}

/// A tensor, borrowed from the index.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    strides: Option<&'a [i64]>,
    file: &'a str,
    /// `None` where the file has the bytes only in another form.
    offset: Option<u64>,
    length: u64,
    storage: u32,
}

impl<'a> Row<'a> {
    fn new(model: &'a Model, tensor: &'a TensorInfo) -> Self {
        let storage = &model.index().storages[tensor.storage.0 as usize];
        let source = &model.index().sources[storage.source.0 as usize];
        Self {
            name: &tensor.name,
            dtype: tensor.dtype.name(),
            shape: &tensor.shape,
            strides: tensor.strides.as_deref(),
            file: &source.name,
            // Both lie in the file, which the index has checked.
            offset: source.decoded.is_none().then(|| storage.offset.saturating_add(tensor.offset)),
            length: tensor.length,
            storage: tensor.storage.0,
        }
    }
}

/// A line a tensor: `grep` and `head` work on it as `jq` does.
fn print_json(output: &mut Output, model: &Model, metadata: bool) -> Result<(), Failure> {
    output.text("{\"format\": ")?;
    output.json(&model.index().format.map(Format::name))?;
    if metadata {
        output.text(",\n\"metadata\": ")?;
        output.json(&model.index().metadata)?;
    }
    output.text(",\n\"tensors\": [")?;
    for (number, tensor) in model.index().tensors.iter().enumerate() {
        output.text(if number == 0 { "\n" } else { ",\n" })?;
        output.json(&Row::new(model, tensor))?;
    }
    output.line("\n]}")
}

fn print_text(output: &mut Output, model: &Model, metadata: bool) -> Result<(), Failure> {
    let index = model.index();
    if metadata {
        for (key, value) in &index.metadata {
            output.line(format_args!("{}: {}", OneLine(key), OneLine(&value.to_string())))?;
        }
        output.line("")?;
    }
    let rows = || index.tensors.iter().map(|tensor| Row::new(model, tensor));
    match terminal_width() {
        Some(width) => output.line(wrapped(rows(), width))?,
        None => print_aligned(output, rows)?,
    }
    let bytes = index.tensors.iter().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.length));
    let mut totals = format!(
        "{}, {}, in {}",
        text::count(index.tensors.len() as u64, "tensor"),
        text::bytes(bytes),
        text::count(files(index), "file"),
    );
    if let Some(format) = index.format {
        totals.push_str(&format!(" ({format})"));
    }
    if index.skipped_tensors > 0 {
        totals.push_str(&format!("; {} left out by the model's index", index.skipped_tensors));
    }
    output.line(totals)
}

/// A file counts once, however its bytes are read.
fn files(index: &Index) -> u64 {
    let mut names: Vec<&str> = index.sources.iter().map(|source| &*source.name).collect();
    names.sort_unstable();
    names.dedup();
    names.len() as u64
}

const TITLES: [&str; 6] = ["name", "dtype", "shape", "file", "offset", "bytes"];

fn cells(row: &Row<'_>) -> [String; 6] {
    [
        OneLine(row.name).to_string(),
        OneLine(row.dtype).to_string(),
        text::shape(row.shape),
        OneLine(row.file).to_string(),
        row.offset.map_or("decoded".to_owned(), |offset| offset.to_string()),
        row.length.to_string(),
    ]
}

/// For a terminal: cells wrap where the table would be wider.
fn wrapped<'a>(rows: impl Iterator<Item = Row<'a>>, width: u16) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(width)
        .set_header(TITLES)
        .add_rows(rows.map(|row| cells(&row)));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    for column in [4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// A cell that is longer than this puts its own line out of line rather than all of them.
const WIDEST: usize = 200;

/// For a pipe or a file: a line a tensor, however long, written as it is made, which takes a
/// hundred thousand of them where a table would lay them all out first.
fn print_aligned<'a, I>(output: &mut Output, rows: impl Fn() -> I) -> Result<(), Failure>
where
    I: Iterator<Item = Row<'a>>,
{
    let mut widths = TITLES.map(str::len);
    let width = |cell: &String| cell.chars().count();
    for row in rows() {
        for (widest, cell) in widths.iter_mut().zip(&cells(&row)) {
            *widest = width(cell).min(WIDEST).max(*widest);
        }
    }
    let mut line = |cells: [String; 6]| {
        let [name, dtype, shape, file, offset, bytes] = cells;
        let [n, d, s, f, o, b] = widths;
        output.line(format_args!(
            "{name:n$}  {dtype:d$}  {shape:s$}  {file:f$}  {offset:>o$}  {bytes:>b$}"
        ))
    };
    line(TITLES.map(str::to_owned))?;
    rows().try_for_each(|row| line(cells(&row)))
}

fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    // A terminal that knows no width says 0.
    Some(if size.ws_col == 0 { 80 } else { size.ws_col })
}
