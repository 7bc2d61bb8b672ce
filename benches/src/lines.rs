//! A table with one line for each row of a report.
//!
//! **Why.** [`bmi_report::text`] has several tables for each test. A program with dozens of tests
//! prints this one instead. Figures, ratios and verdicts are those of [`bmi_report::groups`], so
//! this table agrees with the text and the page of the same report.
//!
//! **Layout.** Rows that measured the same thing are next to each other. *cost* is the cost of a
//! row divided by that of the first of these: below 1 is faster. What an operation takes of each
//! host is a table of its own. Notes are last.

use bmi_report::groups::{self, Figure, Ratio, ratio_figure};
use bmi_report::stats::Interval;
use bmi_report::table::Table;
use bmi_report::{Report, Row, Unit, units};

/// Formats the rows of a report.
pub fn render(report: &Report) -> String {
    let groups = groups::groups(report);
    let figures: Vec<&Figure<'_>> = groups.iter().flat_map(|group| &group.figures).collect();
    let mut text =
        if figures.iter().any(|figure| ratio(figure).is_some()) { ratios(&figures) } else { medians(&figures) };
    if figures.iter().any(|figure| !figure.row.cost.is_empty()) {
        text += &format!("\n{}", costs(&figures));
    }
    for row in figures.iter().map(|figure| figure.row) {
        row.notes.iter().for_each(|note| text += &format!("{}: {note}\n", row.name()));
    }
    text
}

/// Returns the ratio that is shown. Rows that were not measured in the same rounds have none.
fn ratio<'a>(figure: &'a Figure<'_>) -> Option<&'a Ratio<'a>> {
    figure.to_first.as_ref().filter(|ratio| !ratio.interval.middle.is_nan())
}

fn medians(figures: &[&Figure<'_>]) -> String {
    let mut table = Table::new(1, ["", "median", "interval"]);
    for figure in figures {
        let [median, interval] = median(figure);
        table.row([figure.row.name(), median, interval]);
    }
    table.render()
}

fn ratios(figures: &[&Figure<'_>]) -> String {
    let mut table = Table::new(1, ["", "median", "interval", "cost", "interval", "that is"]);
    for figure in figures {
        let [median, interval] = median(figure);
        let [cost, range, words] = ratio(figure).map_or_else(Default::default, |ratio| {
            let Interval { middle, low, high } = ratio.interval;
            let range = format!("{} to {}", ratio_figure(low), ratio_figure(high));
            [format!("x {}", ratio_figure(middle)), range, ratio.verdict.words().to_owned()]
        });
        table.row([figure.row.name(), median, interval, cost, range, words]);
    }
    table.render()
}

/// Returns the median of a row, and its interval.
fn median(figure: &Figure<'_>) -> [String; 2] {
    let (unit, Interval { middle, low, high }): (Unit, _) = (figure.row.unit, figure.median);
    if middle.is_nan() {
        return ["-".to_owned(), "-".to_owned()];
    }
    [unit.figure(middle), format!("{} to {}", unit.figure(low), unit.figure(high))]
}

fn costs(figures: &[&Figure<'_>]) -> String {
    let mut table = Table::new(2, ["", "host", "processor time", "context switches", "system calls"]);
    for row in figures.iter().map(|figure| figure.row) {
        let mut name = row.name();
        for (role, cost) in &row.cost {
            let calls = cost.calls.map_or("-".to_owned(), |calls| format!("{calls:.2}"));
            let (cpu, switches) = (units::time(cost.cpu), format!("{:.3}", cost.switches));
            table.row([std::mem::take(&mut name), role.clone(), cpu, switches, calls]);
        }
    }
    table.render()
}

/// Returns the lines of a sample: the median of each row, under the name that it has there.
pub fn sample<'a>(rows: impl IntoIterator<Item = (String, &'a Row)>) -> Vec<crate::sample::Line> {
    let line = |(name, row): (String, &Row)| crate::sample::Line::new(name, row.median().middle, row.unit);
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bmi_report::{Cost, Kind};

    use super::*;
    use crate::report::{row, steps};

    fn report(first: usize) -> Report {
        let of = |over, first, value| Row {
            rounds: steps(first, [value; 8]),
            ..row("stat", over, Kind::Library, Unit::Seconds, &[("depth", "1 in flight")])
        };
        let rows = vec![of("tcp", 0, 2e-5), of("shm", first, 1e-5)];
        Report { rows, ..Report::new("", "") }
    }

    #[test]
    fn rows_of_the_same_rounds_have_a_ratio() {
        let rendered = render(&report(0));
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[0].ends_with("that is"), "{rendered}");
        assert_eq!(lines[2], "tcp stat, 1 in flight  20.00 us  20.00 us to 20.00 us");
        assert_eq!(lines[3], "shm stat, 1 in flight  10.00 us  10.00 us to 10.00 us  x 0.50  0.50 to 0.50   faster");
    }

    #[test]
    fn rows_of_other_rounds_have_none_and_costs_follow() {
        let mut report = report(8);
        let cost = Cost { cpu: 2e-6, switches: 0.5, calls: Some(3.0) };
        report.rows[1].cost = BTreeMap::from([("client".to_owned(), cost), ("server".to_owned(), Cost::default())]);
        report.rows[1].notes.push("a note".to_owned());
        let rendered = render(&report);
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[0].ends_with("interval") && !rendered.contains("cost"), "{rendered}");
        assert_eq!(lines[7], "shm stat, 1 in flight  client         2.00 us             0.500          3.00");
        assert_eq!(lines[8], "                       server         0.00 us             0.000             -");
        assert_eq!(lines[9], "shm stat, 1 in flight: a note");
    }
}
