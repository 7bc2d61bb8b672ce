//! Formats the results as a table or as JSON, and shows a progress bar on a terminal.

use std::io::{IsTerminal, stderr};

use benches::report::SEED;
use bmi_report::Unit;
use bmi_report::stats::{self, Interval, middle, quantile};
use bmi_report::table::Table;
use bmi_report::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::clients::{Figure, Row};
use crate::line::Line;

/// A line with the figures of all rounds.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) line: Line,
    pub(crate) values: Vec<f64>,
}

/// A line for JSON.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    unit: Unit,
    median: f64,
    least: f64,
    greatest: f64,
    rounds: &'a [f64],
}

impl Series {
    pub(crate) fn new(line: Line) -> Series {
        Series { line, values: Vec::new() }
    }

    pub(crate) fn median(&self) -> f64 {
        middle(&mut self.values.clone())
    }

    fn least(&self) -> f64 {
        quantile(&mut self.values.clone(), 0.0)
    }

    fn greatest(&self) -> f64 {
        quantile(&mut self.values.clone(), 1.0)
    }
}

/// Formats the table.
pub(crate) fn render(series: &[Series]) -> String {
    let mut table = Table::new(1, ["", "median", "interval"]);
    for one in series {
        let show = |value| one.line.what.unit().figure(value);
        let median = stats::median(&one.values, SEED);
        let interval = format!("{} .. {}", show(median.low), show(median.high));
        table.row([one.line.name.clone(), show(median.middle), interval]);
    }
    table.render()
}

/// Formats the figures of all rounds as JSON.
///
/// # Errors
/// None occur with plain data.
pub(crate) fn json<'a>(series: &'a [Series]) -> serde_json::Result<String> {
    let entry = |one: &'a Series| Entry {
        name: &one.line.name,
        unit: one.line.what.unit(),
        median: one.median(),
        least: one.least(),
        greatest: one.greatest(),
        rounds: &one.values,
    };
    serde_json::to_string_pretty(&series.iter().map(entry).collect::<Vec<_>>())
}

/// A line with many clients, for JSON. The last four are for a call: seconds, and how often.
#[derive(Serialize)]
struct ClientsEntry<'a> {
    #[serde(flatten)]
    rates: Entry<'a>,
    /// To the first number of loops.
    ratio: f64,
    server: f64,
    clients: f64,
    queued: f64,
    sleeps: f64,
}

fn medians(row: &Row, figure: impl Fn(&Figure) -> f64) -> f64 {
    middle(&mut row.figures.iter().map(figure).collect::<Vec<_>>())
}

/// Returns the calls per second of a line with many clients.
pub(crate) fn median_rate(row: &Row) -> f64 {
    medians(row, |figure| figure.rate)
}

/// Returns the ratio of a line's rounds to those of the line with the first number of loops.
fn ratio(rows: &[Row], row: &Row) -> Interval {
    let first = rows.iter().find(|other| other.is_beside(row)).unwrap_or(row);
    let pair = |(figure, first): (&Figure, &Figure)| (first.rate, figure.rate);
    stats::paired_ratio(&row.figures.iter().zip(&first.figures).map(pair).collect::<Vec<_>>(), SEED)
}

fn queued(figure: &Figure) -> f64 {
    figure.server.queued + figure.client.queued
}

/// Formats the table of the lines with many clients.
pub(crate) fn render_clients(rows: &[Row]) -> String {
    let heading = ["", "rate", "ratio", "interval", "server", "clients", "queued", "sleeps"];
    let mut table = Table::new(1, heading);
    for row in rows {
        let found = ratio(rows, row);
        let is_first = rows.iter().find(|other| other.is_beside(row)).is_none_or(|first| std::ptr::eq(first, row));
        let (ratio, range) = match is_first {
            true => (String::new(), String::new()),
            false => (format!("{:.2}", found.middle), format!("{:.2}..{:.2}", found.low, found.high)),
        };
        table.row([
            row.name.clone(),
            units::rate(median_rate(row)),
            ratio,
            range,
            units::time(medians(row, |figure| figure.server.ran)),
            units::time(medians(row, |figure| figure.client.ran)),
            units::time(medians(row, queued)),
            format!("{:.2}", medians(row, |figure| figure.server.sleeps)),
        ]);
    }
    table.render()
}

/// Formats the lines with many clients as JSON.
///
/// # Errors
/// None occur with plain data.
pub(crate) fn json_of_clients(rows: &[Row]) -> serde_json::Result<String> {
    let rates: Vec<Vec<f64>> = rows.iter().map(|row| row.figures.iter().map(|figure| figure.rate).collect()).collect();
    let entry = |(row, rates): (&'_ Row, &'_ Vec<f64>)| {
        let at = |rank| quantile(&mut rates.clone(), rank);
        let unit = Unit::PerSecond;
        serde_json::to_value(ClientsEntry {
            rates: Entry {
                name: &row.name,
                unit,
                median: median_rate(row),
                least: at(0.0),
                greatest: at(1.0),
                rounds: rates,
            },
            ratio: ratio(rows, row).middle,
            server: medians(row, |figure| figure.server.ran),
            clients: medians(row, |figure| figure.client.ran),
            queued: medians(row, queued),
            sleeps: medians(row, |figure| figure.server.sleeps),
        })
    };
    let entries = rows.iter().zip(&rates).map(entry).collect::<serde_json::Result<Vec<_>>>()?;
    serde_json::to_string_pretty(&entries)
}

/// The progress of a run, in lines.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts the progress of a run of this many lines, in all rounds.
    pub(crate) fn new(lines: u64) -> Progress {
        let show = stderr().is_terminal();
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(lines), target);
        let style = ProgressStyle::with_template("{msg:40} [{bar:30}] {pos}/{len}");
        Progress(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Shows what is being done now.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Adds a line to those that are done.
    pub(crate) fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::Scheme;

    use super::*;
    use crate::line::What;

    fn series() -> [Series; 2] {
        let line = |what| Line::new(Scheme::Shm, what, 64 << 20);
        [
            Series { line: line(What::Stat(1)), values: vec![3e-5, 1e-5, 2e-5] },
            Series { line: line(What::Put), values: vec![2e9, 1e9, 3e9] },
        ]
    }

    #[test]
    fn the_table_has_median_and_interval() {
        let table = render(&series());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[2], "shm stat, 1 in flight   20.00 us    10.00 us .. 30.00 us");
        assert_eq!(lines[3], "shm put 64 MiB         2.00 GB/s  1.00 GB/s .. 3.00 GB/s");
    }

    #[test]
    fn json_has_the_figures_of_all_rounds_in_order() {
        let value: serde_json::Value = serde_json::from_str(&json(&series()).unwrap()).unwrap();
        let expected = serde_json::json!({
            "name": "shm put 64 MiB", "unit": "B/s", "median": 2e9, "least": 1e9, "greatest": 3e9, "rounds": [2e9, 1e9, 3e9]
        });
        assert_eq!(value[1], expected);
    }
}
