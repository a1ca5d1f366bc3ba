//! Where the time of a process goes: its phases one after the other, a row for each series.

use super::super::results::Results;
use super::super::statistics::{PHASES, Series};
use super::chart::{self, Anchor, Chart, Drawing, Part, Scale, label, shortened, text_width};

const WIDTH: f64 = 960.0;
const ROW: f64 = 20.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 40.0;

/// What people call the phases, in the order of [`PHASES`].
const NAMES: [&str; PHASES.len()] = [
    "process start",
    "open",
    "plan",
    "driver start, nothing else going on",
    "pin",
    "allocate",
    "read and copy",
    "end of the process",
];

/// A plot for each state, or several where there are many series; none where nothing was measured.
pub(super) fn charts(results: &Results) -> Vec<Chart> {
    chart::parts(&results.series).iter().filter_map(chart).collect()
}

fn chart(part: &Part<'_>) -> Option<Chart> {
    let measured = |series: &&Series| Some((label(series), series.figures.clone()?));
    let rows: Vec<_> = part.rows.iter().filter_map(measured).collect();
    if rows.is_empty() {
        return None;
    }
    // As wide in all parts of a state.
    let widths = part.all.iter().map(|series| text_width(&label(series)));
    let left = widths.fold(80.0, f64::max).min(300.0) + 10.0;
    let (right, bottom) = (WIDTH - 60.0, TOP + ROW * rows.len() as f64);
    let figures = part.all.iter().filter_map(|series| series.figures.as_ref());
    let most = figures.map(|found| found.phases.values().sum::<f64>()).fold(0.0, f64::max);
    let scale = Scale::new(most, left, right);
    let mut drawing = Drawing::new(WIDTH, bottom + BOTTOM);
    for (value, words) in scale.ticks() {
        let x = scale.at(value);
        drawing.line("grid", (x, TOP), (x, bottom));
        drawing.words("tick", Anchor::Middle, (x, bottom + 16.0), &words);
    }
    drawing.words("axis", Anchor::Middle, (f64::midpoint(left, right), bottom + 34.0), "seconds");
    for (number, (label, figures)) in rows.iter().enumerate() {
        let top = TOP + ROW * number as f64;
        drawing.words("tick", Anchor::End, (left - 8.0, top + 14.0), &shortened(label, 44));
        let mut begin = 0.0;
        for (phase, (key, name)) in PHASES.iter().zip(NAMES).enumerate() {
            let seconds = figures.phases.get(*key).copied().unwrap_or(0.0);
            let (x, end) = (scale.at(begin), scale.at(begin + seconds));
            if seconds > 0.0 {
                let said = format!("{label}: {name} {seconds:.4} s");
                let size = (end - x, ROW - 6.0);
                drawing.bar(&format!("p{phase}"), (x, top + 3.0), size, &said);
            }
            begin += seconds;
        }
        let x = scale.at(begin) + 5.0;
        drawing.words("tick", Anchor::Start, (x, top + 14.0), &format!("{begin:.3}"));
    }
    let legend = NAMES.iter().enumerate();
    Some(Chart {
        title: part.title.clone(),
        svg: drawing.finish(&format!("Seconds by phase. {}", part.title)),
        legend: legend.map(|(phase, name)| (format!("box p{phase}"), (*name).to_owned())).collect(),
        note: "Medians of each phase. The driver's start goes on beside opening, planning and \
               reading; only what was left of it when nothing else was to be done is a phase here. \
               Digests of the comparison are left out. No inference engine takes part.",
    })
}
