//! A report as comma-separated values, for spreadsheets and other programs: one line for each row.
//!
//! **Layout.** RFC 4180: lines end with CR LF, and a cell with a comma, a quote or a line break is
//! between quotes. The first line has the names of the columns. Times are in seconds. `median`,
//! `low` and `high` are in the unit of the column `unit`. Each setting in which rows may differ has
//! a column `setup …`, each host three of its role. A cell without a figure is empty.

use std::collections::BTreeSet;

use crate::groups::{PERCENTILES, percentiles};
use crate::report::{Kind, Report, Row};

/// Formats a report.
pub fn render(report: &Report) -> String {
    let columns = Columns::of(report);
    let mut text = line(columns.names());
    for row in &report.rows {
        text += &line(columns.cells(row));
    }
    text
}

/// The columns that only some reports have.
struct Columns<'a> {
    settings: BTreeSet<&'a str>,
    roles: BTreeSet<&'a str>,
}

impl Columns<'_> {
    fn of(report: &Report) -> Columns<'_> {
        let settings = report.rows.iter().flat_map(|row| row.setup.keys().map(String::as_str)).collect();
        let roles = report.rows.iter().flat_map(|row| row.cost.keys().map(String::as_str)).collect();
        Columns { settings, roles }
    }

    fn names(&self) -> Vec<String> {
        let mut names = ["test", "over", "kind", "size"].map(str::to_owned).to_vec();
        names.extend(self.settings.iter().map(|name| format!("setup {name}")));
        names.extend(["unit", "median", "low", "high", "rounds"].map(str::to_owned));
        names.extend(PERCENTILES.map(|(name, _)| name.to_owned()));
        for role in &self.roles {
            names.extend(["cpu", "switches", "calls"].map(|what| format!("{role} {what}")));
        }
        names
    }

    fn cells(&self, row: &Row) -> Vec<String> {
        let median = row.median();
        let size = row.size.map(|size| size.to_string()).unwrap_or_default();
        let mut cells = vec![row.test.clone(), row.over.clone(), kind(row.kind).to_owned(), size];
        cells.extend(self.settings.iter().map(|name| row.setup.get(*name).cloned().unwrap_or_default()));
        cells.push(unit(row));
        cells.extend([median.middle, median.low, median.high].map(|value| figure(Some(value))));
        cells.push(row.rounds.len().to_string());
        cells.extend(percentiles(row).map(figure));
        for role in &self.roles {
            let cost = row.cost.get(*role);
            cells.push(figure(cost.map(|cost| cost.cpu)));
            cells.push(figure(cost.map(|cost| cost.switches)));
            cells.push(figure(cost.and_then(|cost| cost.calls)));
        }
        cells
    }
}

/// Returns the name of a kind, as it is in a report.
pub(crate) fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Library => "library",
        Kind::Baseline => "baseline",
        Kind::Model => "model",
    }
}

/// Returns the unit as it is in a report.
fn unit(row: &Row) -> String {
    let value = serde_json::to_value(row.unit).expect("a unit is text");
    value.as_str().unwrap_or_default().to_owned()
}

fn figure(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map(|value| value.to_string()).unwrap_or_default()
}

fn line(cells: Vec<String>) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
    cells.join(",") + "\r\n"
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::histogram::Histogram;
    use crate::report::{Cost, Step, Unit};

    #[test]
    fn each_row_is_one_line_with_all_its_figures() {
        let mut histogram = Histogram::new();
        (0..1000).for_each(|_| histogram.record(2000));
        let mut report = Report::new("", "");
        report.rows = vec![
            Row {
                test: "latency".into(),
                over: "tcp".into(),
                size: Some(8),
                setup: BTreeMap::from([("depth".into(), "1".into())]),
                rounds: vec![Step { round: 0, value: 0.5 }],
                histogram: Some(histogram),
                cost: BTreeMap::from([("client".into(), Cost { cpu: 0.25, switches: 2.0, calls: None })]),
                ..Row::default()
            },
            Row { test: "rate".into(), kind: Kind::Model, unit: Unit::PerSecond, ..Row::default() },
        ];
        let expected = "test,over,kind,size,setup depth,unit,median,low,high,rounds,p50,p99,p99.9,p99.99,\
            client cpu,client switches,client calls\r\n\
            latency,tcp,library,8,1,s,0.5,0.5,0.5,1,0.000002,0.000002,,,0.25,2,\r\n\
            rate,,model,,,1/s,,,,0,,,,,,,\r\n";
        assert_eq!(render(&report), expected);
    }

    #[test]
    fn cells_that_would_end_early_are_quoted() {
        assert_eq!(
            [quoted("a b"), quoted("a,b"), quoted("a\"b"), quoted("a\nb")],
            ["a b", "\"a,b\"", "\"a\"\"b\"", "\"a\nb\""]
        );
        let mut report = Report::new("", "");
        report.rows = vec![Row { test: "a,\"b\"\r\nc".into(), ..Row::default() }];
        assert!(render(&report).contains("\r\n\"a,\"\"b\"\"\r\nc\",,library"));
    }
}
