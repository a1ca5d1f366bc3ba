//! Every sample as a mark: a row for each series.

use super::super::results::Results;
use super::chart::{
    self, Anchor, Chart, Drawing, Part, Scale, label, route, shortened, text_width,
};

const WIDTH: f64 = 960.0;
const ROW: f64 = 20.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 40.0;

/// A plot for each state, or several where there are many series.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    chart::parts(&results.series).iter().map(chart).collect()
}

fn chart(part: &Part<'_>) -> Chart {
    let rows = &part.rows;
    let labels: Vec<String> = rows.iter().map(|series| label(series)).collect();
    // As wide in all parts of a state.
    let widths = part.all.iter().map(|series| text_width(&label(series)));
    let left = widths.fold(80.0, f64::max).min(300.0) + 10.0;
    let (right, bottom) = (WIDTH - 14.0, TOP + ROW * rows.len() as f64);
    let figures = part.all.iter().filter_map(|series| series.figures.as_ref());
    let values = figures.flat_map(|found| &found.values);
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
    Chart {
        title: part.title.clone(),
        svg: drawing.finish(&format!("Distribution of samples. {}", part.title)),
        legend: Vec::new(),
        note: "One mark a sample, a bar at the median. Hollow: samples that fell back, in rows of \
               their own.",
    }
}
