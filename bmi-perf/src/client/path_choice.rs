//! Whether the library chooses the fastest path for the data of calls.

use bmi_report::{Report, Row, stats};

/// The name of the result in the summary of a report.
const NAME: &str = "another path faster than the plan's, most";

/// Adds to the summary by how much a path was faster at most than the one that the library chose,
/// in percent. Without rows of both there is nothing to add.
pub(super) fn add(report: &mut Report) {
    let calls = || report.rows.iter().filter(|row| row.setup.contains_key("path"));
    let chosen = calls().filter(|row| path(row) == "chosen");
    let others = |row: &Row| calls().filter(move |other| is_other_path(row, other)).collect::<Vec<_>>();
    let gains = chosen.flat_map(|row| others(row).into_iter().map(|other| gain(row, other)).collect::<Vec<_>>());
    if let Some(most) = gains.reduce(f64::max) {
        report.summary.push((NAME.to_owned(), most.max(0.0), "%".to_owned()));
    }
}

fn path(row: &Row) -> &str {
    row.setup.get("path").map_or("", String::as_str)
}

/// Returns true if two rows differ in nothing but the path.
fn is_other_path(row: &Row, other: &Row) -> bool {
    let mut setup = row.setup.clone();
    setup.insert("path".to_owned(), path(other).to_owned());
    path(other) != path(row)
        && (&row.over, &row.test, row.size, &setup) == (&other.over, &other.test, other.size, &other.setup)
}

/// Returns by how many percent `other` was faster, in the rounds that both have.
fn gain(row: &Row, other: &Row) -> f64 {
    100.0 * (stats::paired_ratio(&other.pairs(row), 1).middle - 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bmi_report::Step;

    use super::*;

    #[test]
    fn the_fastest_other_path_counts() {
        let row = |size, path: &str, value| Row {
            size: Some(size),
            setup: BTreeMap::from([("path".to_owned(), path.to_owned())]),
            rounds: (0..8).map(|round| Step { round, value }).collect(),
            ..Row::default()
        };
        let most = |rows| {
            let mut report = Report { rows, ..Report::default() };
            add(&mut report);
            report.summary.first().map(|(_, most, _)| most.round())
        };
        let slow = vec![row(8, "chosen", 1.0), row(8, "inline", 1.5), row(64, "chosen", 3.0)];
        assert_eq!(most(slow.clone()), Some(0.0));
        let fast = [slow, vec![row(64, "inline", 2.0), row(64, "fast-rdma", 2.5)]].concat();
        assert_eq!(most(fast), Some(50.0));
        assert_eq!(most(vec![row(8, "chosen", 1.0)]), None);
    }
}
