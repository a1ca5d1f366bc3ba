//! What all plots share: a chart as inline SVG, axes, and colours that go with routes.

use std::fmt::Write;

use super::super::statistics::Series;
use super::Text;

/// A plot with what belongs to it.
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) svg: String,
    /// Classes of the page's style, and what they stand for.
    pub(super) legend: Vec<(String, String)>,
    pub(super) note: &'static str,
}

/// SVG being drawn, in units that are pixels when the page is as wide as the plot.
pub(super) struct Drawing {
    text: String,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Where a text's given point is.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { text: String::new(), width, height }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.text,
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        );
    }

    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(self.text, r#"<polyline class="{class}" points="{}"/>"#, points.join(" "));
    }

    /// A rectangle, and what is said when somebody points at it.
    pub(super) fn bar(&mut self, class: &str, from: (f64, f64), size: (f64, f64), said: &str) {
        let ((x, y), (width, height)) = (from, size);
        let _ = writeln!(
            self.text,
            r#"<rect class="{class}" x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{height:.1}"><title>{}</title></rect>"#,
            Text(said)
        );
    }

    /// A sample: its shape goes with its class, so that it can be told without its colour.
    pub(super) fn mark(&mut self, class: &str, shape: usize, at: (f64, f64), said: &str) {
        let (x, y) = at;
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<String> = corners
                .iter()
                .map(|(right, down)| format!("{:.1},{:.1}", x + right, y + down))
                .collect();
            format!(r#"<polygon class="{class}" points="{}">"#, corners.join(" "))
        };
        let (element, end) = match shape {
            0 => (format!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="3.6">"#), "circle"),
            1 => (polygon(&[(-3.4, -3.4), (3.4, -3.4), (3.4, 3.4), (-3.4, 3.4)]), "polygon"),
            2 => (polygon(&[(0.0, -4.6), (4.4, 3.4), (-4.4, 3.4)]), "polygon"),
            _ => (polygon(&[(0.0, -4.8), (4.8, 0.0), (0.0, 4.8), (-4.8, 0.0)]), "polygon"),
        };
        let _ = writeln!(self.text, "{element}<title>{}</title></{end}>", Text(said));
    }

    pub(super) fn words(&mut self, class: &str, anchor: Anchor, at: (f64, f64), words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = at;
        let _ = writeln!(
            self.text,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            Text(words)
        );
    }

    /// As an element of the page; `what` is for those who do not see it.
    pub(super) fn finish(self, what: &str) -> String {
        format!(
            "<svg viewBox=\"0 0 {} {}\" width=\"{}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            self.width,
            self.height,
            self.width,
            Text(what),
            self.text
        )
    }
}

/// A scale from 0 on, with round numbers at its ticks.
pub(super) struct Scale {
    end: f64,
    step: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// Values up to `most` on the way between two places of a drawing.
    pub(super) fn new(most: f64, from: f64, to: f64) -> Self {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        // About five steps of 1, 2 or 5 times a power of ten.
        let rough = most / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|times| times * power)
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(rough);
        Self { end: (most / step).ceil() * step, step, from, to }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * value / self.end
    }

    /// The values at its ticks, and how they are written.
    pub(super) fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        let count = (self.end / self.step).round() as usize;
        (0..=count).map(move |number| {
            let value = number as f64 * self.step;
            (value, format!("{value:.digits$}"))
        })
    }
}

/// Most rows of a plot: it is not to be longer than a sheet of paper.
const ROWS: usize = 30;

/// A plot's title, its rows, and all rows that it shares its scale with.
pub(super) struct Part<'a> {
    pub(super) title: String,
    pub(super) rows: Vec<&'a Series>,
    pub(super) all: Vec<&'a Series>,
}

/// The series in parts: each state of the page cache has a scale of its own.
pub(super) fn parts(series: &[Series]) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    for all in series.chunk_by(|one, other| one.cell.state == other.cell.state) {
        let count = all.len().div_ceil(ROWS);
        // As many rows in each, rather than a last one of a few.
        for (number, rows) in all.chunks(all.len().div_ceil(count)).enumerate() {
            let mut title = format!("Page cache: {}", all[0].cell.state);
            if count > 1 {
                title.push_str(&format!(", part {} of {count}", number + 1));
            }
            parts.push(Part { title, rows: rows.iter().collect(), all: all.iter().collect() });
        }
    }
    parts
}

/// What a series is called within its state, and its way where that is another.
pub(super) fn label(series: &Series) -> String {
    let name = format!("{}, {}", series.cell.route, series.cell.threads());
    match (&series.actual_route, series.fallback) {
        (Some(actual), true) => format!("{name} (fell back: {actual})"),
        _ => name,
    }
}

/// The routes in the order of their colours and shapes.
const ROUTES: [&str; 4] = ["pinned", "host", "pageable", "auto"];

/// The number of a route's colour and shape.
pub(super) fn route(name: &str) -> usize {
    ROUTES.iter().position(|known| *known == name).unwrap_or(ROUTES.len() - 1)
}

/// About how wide a text of the plots' size is.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.6
}

/// A text of at most so many characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let cut: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}
