//! The results as one page that needs nothing else: no script, no font, no file beside it.

mod chart;
mod distribution;
mod phases;
mod threads;

#[cfg(test)]
pub(super) mod tests;

use std::fmt::{self, Write};

use super::results::Results;
use super::statistics::Series;
use super::table;

const STYLE: &str = include_str!("style.css");

/// The page.
pub(super) fn page(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write_page(&mut page, results);
    page
}

fn write_page(page: &mut String, results: &Results) -> fmt::Result {
    let path = results.model.path.trim_end_matches('/');
    let name = path.rsplit('/').next().unwrap_or(path);
    writeln!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>weightlift bench: {0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>weightlift bench: {0}</h1>\n<p class=\"quiet\">{1}</p>\n<ul class=\"facts\">",
        Text(name),
        date(results.started),
    )?;
    for line in table::facts(results) {
        writeln!(page, "<li>{}</li>", Text(&line))?;
    }
    page.push_str("</ul>\n");
    write_notes(page, results)?;

    let versions = versions(results);
    writeln!(page, "<h2>Results</h2>")?;
    let rows = results.series.iter().map(|series| (class(series), table::row(series)));
    write_table(page, &table::HEAD, rows, 2)?;
    caption(
        page,
        "GB/s: bytes delivered over the time of the whole load, less that in which only the driver \
         was starting (median, min, max; a GB is 10⁹ bytes). Ceiling: the median's share of the \
         slowest of what the bytes go through, measured in the same run. Processor seconds and peak \
         memory up to the load's end. Every sample is the first load of a new process; all its \
         tensors were compared with an independent read.",
        &versions,
    )?;

    if !results.ceilings.is_empty() {
        writeln!(page, "<h2>Ceilings</h2>")?;
        let rows = results.ceilings.iter().map(|ceiling| {
            let class = if ceiling.unavailable.is_some() { "failed" } else { "" };
            (class, table::ceiling_row(ceiling))
        });
        write_table(page, &table::CEILINGS, rows, 1)?;
        caption(
            page,
            "Plain reads of the same files and plain copies, a sample of each in every round, with \
             the number of threads and the size of reads that were best in a search before.",
            &versions,
        )?;
    }
    figure(page, "Throughput against reading threads", &threads::charts(results), &versions)?;
    figure(page, "Distribution of samples", &distribution::charts(results), &versions)?;
    let charts = phases::charts(results);
    figure(page, "Time by phase", &charts, &versions)?;
    if !charts.is_empty() {
        let rows = results.series.iter().map(table::phases_row).filter(|row| !row.is_empty());
        let head = table::PHASES.map(|(_, name)| name);
        write_table(page, &head, rows.map(|row| ("", row)), 2)?;
        caption(
            page,
            "Seconds, medians. From start to end the phases follow one another; beside them go on the \
             driver's whole start, reading (summed over all reads under way) and copying.",
            &versions,
        )?;
    }
    page.push_str("</body>\n</html>\n");
    Ok(())
}

/// Plots, each with its caption.
fn figure(page: &mut String, title: &str, charts: &[chart::Chart], versions: &str) -> fmt::Result {
    if charts.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>{title}</h2>")?;
    for chart in charts {
        writeln!(page, "<figure>\n<h3>{}</h3>\n{}", Text(&chart.title), chart.svg)?;
        if !chart.legend.is_empty() {
            page.push_str("<p class=\"legend\">");
            for (class, name) in &chart.legend {
                write!(page, "<span><i class=\"{class}\"></i>{}</span> ", Text(name))?;
            }
            page.push_str("</p>\n");
        }
        writeln!(
            page,
            "<figcaption>{} {}</figcaption>\n</figure>",
            Text(chart.note),
            Text(versions)
        )?;
    }
    Ok(())
}

/// What went wrong or another way stands before the figures.
fn write_notes(page: &mut String, results: &Results) -> fmt::Result {
    let notes = table::notes(results);
    if notes.is_empty() {
        return Ok(());
    }
    page.push_str("<ul class=\"notes\">\n");
    for note in &notes {
        writeln!(page, "<li>{}</li>", Text(note))?;
    }
    page.push_str("</ul>\n");
    Ok(())
}

fn write_table(
    page: &mut String,
    head: &[&str],
    rows: impl Iterator<Item = (&'static str, Vec<String>)>,
    words: usize,
) -> fmt::Result {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    let word = |number: usize| {
        let word = number < words || head.get(number) == Some(&"best by");
        if word { " class=\"word\"" } else { "" }
    };
    for (number, name) in head.iter().enumerate() {
        write!(page, "<th{}>{}</th>", word(number), Text(name))?;
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for (class, row) in rows {
        write!(page, "<tr class=\"{class}\">")?;
        for (number, value) in row.iter().enumerate() {
            write!(page, "<td{}>{}</td>", word(number), Text(value))?;
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

fn caption(page: &mut String, text: &str, versions: &str) -> fmt::Result {
    writeln!(page, "<p class=\"caption\">{} {}</p>", Text(text), Text(versions))
}

/// The kernel's and the driver's versions, which stand beside every figure.
fn versions(results: &Results) -> String {
    match results.machine.driver() {
        Some(driver) => format!("{}, driver {driver}.", results.machine.kernel),
        None => format!("{}, no CUDA device.", results.machine.kernel),
    }
}

/// How a series' row looks.
fn class(series: &Series) -> &'static str {
    match (series.failed, series.fallback) {
        (1.., _) => "failed",
        (0, true) => "fallback",
        (0, false) => "",
    }
}

/// `2026-12-01 13:05 UTC`.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their odd day at the end; 146,097 days are 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest % 3600 / 60)
}

/// Text in a page: names come from files and file systems.
pub(super) struct Text<'a>(pub(super) &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // Neither HTML nor people know what to do with these.
                control if control.is_control() => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
