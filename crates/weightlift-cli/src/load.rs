//! `weightlift load`: loads, and tells how it went.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use weightlift::{Event, Loaded, Loader, Manifest, Report, Request, Tensor, format_size};

use crate::args::Load;
use crate::error::Failure;
use crate::output::Output;
use crate::signal::{Grace, Stop};
use crate::text::{self, OneLine};

pub(crate) fn run(options: &Load, stop: &Stop) -> Result<(), Failure> {
    let mut settings = options.settings.options(options.route.as_deref())?;
    settings.pin_host = options.pin_host;
    settings.map_files = options.map_files;
    let loader = Loader::new(settings);
    let progress = Progress::new(!options.quiet && !options.json);
    let manifest = options.verify.as_ref().map(Manifest::read).transpose()?;
    let request = Request::new()
        .open_options(options.model.open_options()?)
        .tensors(&options.settings.tensors)
        .cancel(stop.token())
        .on_event(|event| progress.tell(event));
    let request = match manifest {
        Some(manifest) => request.verify(Arc::new(manifest)),
        None => request,
    };
    stop.allow(Grace::Short);
    let loaded = loader.load(&options.model.path, request);
    progress.end();
    let loaded = loaded?;
    let digests = if options.digest { Some(digests(&loaded, stop)?) } else { None };
    if options.quiet && !options.json {
        return Ok(());
    }
    let mut output = Output::stdout(stop)?;
    if options.json {
        print_json(&mut output, &loaded, digests.as_deref())?;
    } else {
        print_text(&mut output, options, &loader, &loaded, digests.as_deref())?;
    }
    output.finish()
}

fn digests(loaded: &Loaded, stop: &Stop) -> Result<Vec<String>, Failure> {
    let digest = |tensor: &Tensor| {
        stop.check()?;
        Ok(format!("{:016x}", tensor.digest()?))
    };
    loaded.tensors.iter().map(digest).collect()
}

/// The report's fields, and the tensors beside them.
#[derive(Serialize)]
struct LoadJson<'a> {
    #[serde(flatten)]
    report: &'a Report,
    tensors: Vec<TensorJson<'a>>,
}

#[derive(Serialize)]
struct TensorJson<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    length: u64,
    device: String,
    /// In hexadecimal: JSON's numbers end at 2^53 in many readers.
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'a str>,
}

fn print_json(
    output: &mut Output,
    loaded: &Loaded,
    digests: Option<&[String]>,
) -> Result<(), Failure> {
    let digest = |number: usize| digests.and_then(|digests| digests.get(number));
    let tensors = loaded.tensors.iter().enumerate();
    let tensors = tensors.map(|(number, tensor)| TensorJson {
        name: tensor.name(),
        dtype: tensor.dtype().name(),
        shape: tensor.shape(),
        length: tensor.nbytes(),
        device: tensor.device().to_string(),
        address: format!("{:#x}", tensor.address()),
        digest: digest(number).map(String::as_str),
    });
    let tensors = tensors.collect();
    output.json(&LoadJson { report: &loaded.report, tensors })?;
    output.line("")
}

fn print_text(
    output: &mut Output,
    options: &Load,
    loader: &Loader,
    loaded: &Loaded,
    digests: Option<&[String]>,
) -> Result<(), Failure> {
    let report = &loaded.report;
    output.line(format_args!(
        "loaded {}, {}, from {} into {}",
        text::count(loaded.tensors.len() as u64, "tensor"),
        text::bytes(report.bytes.delivered),
        text::path(&options.model.path),
        report.devices.join(", "),
    ))?;
    output.line(how(report))?;
    if report.staging_bytes_peak > 0 {
        let pinned = match report.pinned_bytes {
            0 => "none of it pinned".to_owned(),
            bytes => format!("{} pinned", format_size(bytes)),
        };
        output.line(format_args!(
            "staging: at most {} of {} in use, {pinned}",
            format_size(report.staging_bytes_peak),
            format_size(loader.options().staging_budget()),
        ))?;
    }
    if report.pinned_destination_bytes > 0 {
        let pinned = format_size(report.pinned_destination_bytes);
        output.line(format_args!("destination: {pinned} of host memory stay pinned"))?;
    }
    if report.read_ahead_bytes > 0 {
        let ahead = text::bytes(report.read_ahead_bytes);
        output.line(format_args!("read ahead: {ahead} while the driver started"))?;
    }
    if report.verified_tensors > 0 {
        output.line(format_args!(
            "verified: {} while reading, for {} of the reading threads' time together",
            text::count(report.verified_tensors, "tensor"),
            text::seconds(report.seconds.verify),
        ))?;
    }
    if report.skipped_tensors > 0 {
        let skipped = text::count(report.skipped_tensors, "tensor");
        output.line(format_args!("skipped: {skipped} that the model's index does not name"))?;
    }
    for decision in &report.decisions {
        let (what, chosen) = (OneLine(&decision.what), OneLine(&decision.chosen));
        output.line(format_args!("{what}: {chosen} ({})", OneLine(&decision.reason)))?;
    }
    for fallback in &report.fallbacks {
        output.line(format_args!(
            "fallback: from {} to {} for {} ({})",
            fallback.from,
            fallback.to,
            text::bytes(fallback.bytes),
            OneLine(&fallback.reason),
        ))?;
    }
    for (tensor, digest) in loaded.tensors.iter().zip(digests.unwrap_or_default()) {
        output.line(format_args!("{digest}  {}", OneLine(tensor.name())))?;
    }
    Ok(())
}

/// `by pinned at 53.1 GB/s in 0.312 s with 12 reading threads; the driver's start, 0.301 s, is
/// not in the rate`.
fn how(report: &Report) -> String {
    let seconds = &report.seconds;
    let mut line = format!(
        "by {} at {} in {} with {}",
        report.route(),
        text::rate(report.bytes_per_second),
        text::seconds(seconds.total),
        text::count(report.reading_threads as u64, "reading thread"),
    );
    if seconds.driver > 0.0 {
        line.push_str(&format!(
            "; driver start {}, waited for {}, which the rate leaves out",
            text::seconds(seconds.driver),
            text::seconds(seconds.driver_wait),
        ));
    }
    line
}

/// A bar on stderr while bytes land; nothing where nobody looks.
struct Progress(Option<RefCell<ProgressBar>>);

impl Progress {
    fn new(wanted: bool) -> Self {
        if !wanted || !io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new_spinner();
        bar.set_message("opening the model and the device");
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(Some(RefCell::new(bar)))
    }

    fn tell(&self, event: Event<'_>) {
        let (Some(bar), Event::Landed { bytes, total }) = (&self.0, event) else { return };
        let bar = bar.borrow();
        if bar.length() != Some(total) {
            bar.disable_steady_tick();
            bar.set_message("");
            bar.set_length(total);
            bar.set_style(style());
        }
        bar.set_position(bytes);
    }

    /// Leaves the terminal as it was.
    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.borrow().finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    const TEMPLATE: &str = "{wide_bar} {decimal_bytes} of {decimal_total_bytes}, \
                            {decimal_bytes_per_sec}, {eta} left";
    ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar())
}
