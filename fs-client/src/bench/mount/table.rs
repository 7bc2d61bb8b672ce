//! The table of a run: a line for each workload, a column for each place.

use bmi_report::groups::{groups, ratio_figure};
use bmi_report::table::Table;
use bmi_report::{Report, stats};

/// The seed of the intervals: the same report has the same.
const SEED: u64 = 1;

/// Formats a report. The first place is divided by the second one.
pub(crate) fn render(report: &Report) -> String {
    let overs = report.overs();
    let [first, second, ..] = overs[..] else { return String::new() };
    let heading = ["workload"].into_iter().chain(overs.iter().copied());
    let (ratio, interval) = (format!("{first} / {second}"), "interval".to_owned());
    let mut table = Table::new(1, heading.map(str::to_owned).chain([ratio, interval]));
    for group in groups(report) {
        let of = |over: &&str| group.figures.iter().find(|figure| figure.row.over == **over);
        let value = |over| of(over).map_or("-".to_owned(), |figure| figure.row.unit.figure(figure.median.middle));
        let pairs = of(&second).zip(of(&first)).map(|(to, figure)| to.row.pairs(figure.row)).unwrap_or_default();
        let ratio = stats::paired_ratio(&pairs, SEED);
        let compared = match ratio.middle.is_nan() {
            true => ["-".to_owned(), "-".to_owned()],
            false => {
                let [middle, low, high] = [ratio.middle, ratio.low, ratio.high].map(ratio_figure);
                [middle, format!("{low} to {high}")]
            }
        };
        table.row([group.row().what()].into_iter().chain(overs.iter().map(value)).chain(compared));
    }
    let notes: String = report.notes.iter().map(|note| format!("{note}\n")).collect();
    format!("{}\n\n{}\n{notes}", report.title, table.render())
}

#[cfg(test)]
mod tests {
    use bmi_report::{Row, Step, Unit};

    use super::*;

    #[test]
    fn a_line_has_all_places_and_the_ratio_of_the_first_two() {
        let row = |test: &str, over: &str, value: f64| Row {
            test: test.to_owned(),
            over: over.to_owned(),
            unit: Unit::PerSecond,
            rounds: (0..8).map(|round| Step { round, value }).collect(),
            ..Row::default()
        };
        let mut report = Report::new("", "a title");
        report.rows = vec![
            row("stat", "mount", 1000.0),
            row("stat", "pass-through", 4000.0),
            row("stat", "tmpfs", 8000.0),
            row("create", "mount", 1000.0),
            row("create", "tmpfs", 5000.0),
        ];
        report.notes = vec!["a note".to_owned()];
        let expected = "\
a title

workload     mount  pass-through     tmpfs  mount / pass-through      interval
------------------------------------------------------------------------------
stat      1.00 k/s      4.00 k/s  8.00 k/s                  0.25  0.25 to 0.25
create    1.00 k/s             -  5.00 k/s                     -             -

a note
";
        assert_eq!(render(&report), expected);
    }
}
