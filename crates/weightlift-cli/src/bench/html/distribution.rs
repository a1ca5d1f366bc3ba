//! Every sample as a mark: a row for each series.

use super::super::results::Results;
use super::super::statistics::Series;
use super::chart::{Anchor, Chart, Drawing, Scale, route, shortened, text_width};

const WIDTH: f64 = 760.0;
const ROW: f64 = 20.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 40.0;

/// One plot; none where there is no series.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let rows = &results.series;
    if rows.is_empty() {
        return Vec::new();
    }
    let labels: Vec<String> = rows.iter().map(label).collect();
    let left = labels.iter().map(|label| text_width(label)).fold(80.0, f64::max).min(300.0) + 10.0;
    let (right, bottom) = (WIDTH - 14.0, TOP + ROW * rows.len() as f64);
    let values = rows.iter().filter_map(|row| row.figures.as_ref()).flat_map(|found| &found.values);
    let most = values.copied().fold(0.0, f64::max);
    let scale = Scale::new(most / 1e9, left, right);
    let mut drawing = Drawing::new(WIDTH, bottom + BOTTOM);
    for (value, words) in scale.ticks() {
        let x = scale.at(value);
        drawing.line("grid", (x, TOP), (x, bottom));
        drawing.words("tick", Anchor::Middle, (x, bottom + 16.0), &words);
    }
    drawing.words("axis", Anchor::Middle, (f64::midpoint(left, right), bottom + 34.0), "GB/s");
    for (number, (series, label)) in rows.iter().zip(&labels).enumerate() {
        let middle = TOP + ROW * (number as f64 + 0.5);
        drawing.words("tick", Anchor::End, (left - 8.0, middle + 4.0), &shortened(label, 44));
        let Some(figures) = &series.figures else {
            let note = series.notes.first().map_or("", |note| note);
            let room = ((right - left) / 6.6) as usize;
            let words = shortened(&format!("failed: {note}"), room);
            drawing.words("problem", Anchor::Start, (left + 6.0, middle + 4.0), &words);
            continue;
        };
        let (kind, rate) = (route(&series.cell.route), figures.bytes_per_second);
        let class = if series.fallback { format!("r{kind} fell") } else { format!("r{kind}") };
        let x = |rate: f64| scale.at(rate / 1e9);
        drawing.line(&format!("spread {class}"), (x(rate.min), middle), (x(rate.max), middle));
        for value in &figures.values {
            let said = format!("{label}: {:.2} GB/s", value / 1e9);
            drawing.mark(&format!("mark {class}"), kind, (x(*value), middle), &said);
        }
        let median = x(rate.median);
        drawing.line("median", (median, middle - 8.0), (median, middle + 8.0));
    }
    vec![Chart {
        title: "All samples".to_owned(),
        svg: drawing.finish("Distribution of samples by series"),
        legend: Vec::new(),
        note: "One mark a sample, a bar at the median. Hollow: samples that fell back, in rows of \
               their own.",
    }]
}

/// The series' name, and its way where that is another.
pub(super) fn label(series: &Series) -> String {
    match (&series.actual_route, series.fallback) {
        (Some(actual), true) => format!("{} (fell back: {actual})", series.cell.name()),
        _ => series.cell.name(),
    }
}
