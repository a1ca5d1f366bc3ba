//! Throughput against the number of reading threads, a plot for each state of the page cache.

use std::collections::BTreeMap;

use super::super::results::Results;
use super::super::statistics::{Figures, Series};
use super::chart::{Anchor, Chart, Drawing, Scale, route};

const SIZE: (f64, f64) = (960.0, 340.0);
const LEFT: f64 = 52.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 44.0;

/// A plot for each state in which a route was measured; none where nothing was.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    let mut states: Vec<&str> = Vec::new();
    for series in results.series.iter().filter(|series| series.figures.is_some()) {
        if !states.contains(&&*series.cell.state) {
            states.push(&series.cell.state);
        }
    }
    states.into_iter().map(|state| chart(results, state)).collect()
}

fn chart(results: &Results, state: &str) -> Chart {
    let measured: Vec<(&Series, &Figures)> = results
        .series
        .iter()
        .filter(|series| series.cell.state == state)
        .filter_map(|series| Some((series, series.figures.as_ref()?)))
        .collect();
    // Numbers stand at equal distances: 0 to 6 and 64 would else be a heap and a point.
    let mut threads: Vec<&str> = Vec::new();
    for (series, _) in &measured {
        if !threads.contains(&&*series.cell.reading_threads) {
            threads.push(&series.cell.reading_threads);
        }
    }
    threads.sort_by_key(|number| number.parse::<u32>().unwrap_or(u32::MAX));
    let ceilings = limits(results, &measured);
    let most = measured
        .iter()
        .map(|(_, figures)| figures.bytes_per_second.max)
        .chain(ceilings.iter().map(|(_, limit)| *limit))
        .fold(0.0, f64::max);

    let (width, height) = SIZE;
    let mut drawing = Drawing::new(width, height);
    let (left, right, bottom) = (LEFT, width - RIGHT, height - BOTTOM);
    let scale = Scale::new(most / 1e9, bottom, TOP);
    for (value, words) in scale.ticks() {
        let y = scale.at(value);
        drawing.line("grid", (left, y), (right, y));
        drawing.words("tick", Anchor::End, (left - 6.0, y + 4.0), &words);
    }
    drawing.words("axis", Anchor::Start, (LEFT - 34.0, 12.0), "GB/s");
    let step = (right - left) / threads.len().max(1) as f64;
    let place = |number: &str| {
        let at = threads.iter().position(|known| *known == number).unwrap_or(0);
        left + step * (at as f64 + 0.5)
    };
    for number in &threads {
        drawing.words("tick", Anchor::Middle, (place(number), bottom + 16.0), number);
    }
    let middle = f64::midpoint(left, right);
    drawing.words("axis", Anchor::Middle, (middle, bottom + 34.0), "reading threads");
    let mut free = f64::NEG_INFINITY;
    for (what, limit) in &ceilings {
        let y = scale.at(limit / 1e9);
        drawing.line("ceiling", (left, y), (right, y));
        // From the fastest down; two that are close must not be written over one another.
        free = (y + 4.0).max(free + 13.0);
        drawing.words("tick", Anchor::Start, (right + 6.0, free), what);
    }

    // Routes side by side where they were measured with the same number of threads.
    let mut lines: BTreeMap<(usize, bool), Vec<(&Series, &Figures)>> = BTreeMap::new();
    for (series, figures) in measured {
        lines
            .entry((route(&series.cell.route), series.fallback))
            .or_default()
            .push((series, figures));
    }
    let count = lines.len() as f64;
    let apart = (step / (count + 1.0)).min(9.0);
    let mut legend = Vec::new();
    for (number, ((route, fallback), points)) in lines.into_iter().enumerate() {
        let offset = apart * (number as f64 - (count - 1.0) / 2.0);
        let class = if fallback { format!("r{route} fell") } else { format!("r{route}") };
        let name = &points[0].0.cell.route;
        let name = if fallback { format!("{name}, fallbacks") } else { name.clone() };
        legend.push((format!("mark {class}"), name));
        let x = |series: &Series| place(&series.cell.reading_threads) + offset;
        let y = |rate: f64| scale.at(rate / 1e9);
        // `auto` is no number: no line leads there.
        let line: Vec<(f64, f64)> = points
            .iter()
            .filter(|(series, _)| series.cell.reading_threads != "auto")
            .map(|(series, figures)| (x(series), y(figures.bytes_per_second.median)))
            .collect();
        if line.len() > 1 && !fallback {
            drawing.path(&format!("line {class}"), &line);
        }
        for (series, figures) in points {
            let rate = figures.bytes_per_second;
            let x = x(series);
            drawing.line(&format!("spread {class}"), (x, y(rate.min)), (x, y(rate.max)));
            let said = format!(
                "{}: {:.2} GB/s ({:.2} to {:.2})",
                series.cell.name(),
                rate.median / 1e9,
                rate.min / 1e9,
                rate.max / 1e9
            );
            drawing.mark(&format!("mark {class}"), route, (x, y(rate.median)), &said);
        }
    }
    Chart {
        title: format!("Page cache: {state}"),
        svg: drawing.finish(&format!("Throughput against reading threads, {state}")),
        legend,
        note: "Medians, with lines from the slowest to the fastest sample; dashed: the ceilings of \
               this run. Hollow: samples that fell back to another way.",
    }
}

/// The ceilings of what was measured, the fastest first.
fn limits(results: &Results, measured: &[(&Series, &Figures)]) -> Vec<(String, f64)> {
    let mut limits: Vec<(String, f64)> = Vec::new();
    for (series, _) in measured {
        let found = results.limit(&series.cell, series.actual_route.as_deref().unwrap_or_default());
        if let Some(limit) = found
            && !limits.contains(&limit)
        {
            limits.push(limit);
        }
    }
    limits.sort_by(|one, other| other.1.total_cmp(&one.1));
    limits
}
