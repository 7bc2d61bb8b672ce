//! The table of `--check`.

use std::fmt::Write;

/// A thing that is known, and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    what: String,
    program: &'static str,
    expected: String,
    measured: String,
    is_right: bool,
}

impl Row {
    /// A measured value must be within a part of the known one.
    pub(super) fn within(
        what: impl Into<String>,
        program: &'static str,
        unit: &str,
        known: f64,
        part: f64,
        measured: f64,
    ) -> Row {
        let off = 100.0 * (measured / known - 1.0);
        Row {
            what: what.into(),
            program,
            expected: format!("{known:.1} {unit} ± {:.0} %", 100.0 * part),
            measured: format!("{measured:.1} {unit} ({off:+.1} %)"),
            is_right: (measured - known).abs() <= part * known,
        }
    }

    /// A fact.
    pub(super) fn fact(
        what: impl Into<String>,
        program: &'static str,
        expected: impl Into<String>,
        measured: Result<bool, String>,
    ) -> Row {
        let is_right = measured == Ok(true);
        let said = measured.map(|is| if is { "yes" } else { "no" }.to_owned());
        Row {
            what: what.into(),
            program,
            expected: expected.into(),
            measured: said.unwrap_or_else(|why| why),
            is_right,
        }
    }

    /// A measurement that could not be made is not right.
    pub(super) fn broken(what: impl Into<String>, program: &'static str, why: String) -> Row {
        Row { what: what.into(), program, expected: String::new(), measured: why, is_right: false }
    }

    pub(super) fn is_right(&self) -> bool {
        self.is_right
    }

    fn cells(&self) -> [&str; 5] {
        let verdict = if self.is_right { "ok" } else { "WRONG" };
        [&self.what, self.program, &self.expected, &self.measured, verdict]
    }
}

/// Returns the table as text.
pub(super) fn table(rows: &[Row]) -> String {
    let head = ["what", "program", "expected", "measured", "verdict"];
    let lines: Vec<[&str; 5]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(out, "{cell:<width$}  ");
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// Returns the middle of some values, which is 0 for none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_right_up_to_its_bound() {
        let right = |measured| Row::within("rate", "iperf3", "Mb/s", 1000.0, 0.03, measured).is_right();
        assert!(right(970.0) && right(1030.0) && right(1000.0));
        assert!(!right(969.9) && !right(1030.1) && !right(f64::NAN));
        assert!(Row::fact("ends", "xtask", "yes", Ok(true)).is_right());
        assert!(!Row::fact("ends", "xtask", "yes", Ok(false)).is_right());
        assert!(!Row::broken("rate", "iperf3", "no route".into()).is_right());
    }

    #[test]
    fn the_table_has_columns() {
        let rows = [
            Row::within("rate", "iperf3", "Mb/s", 1000.0, 0.03, 990.0),
            Row::broken("a longer one", "sockperf", "no route".into()),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "rate          iperf3    1000.0 Mb/s ± 3 %  990.0 Mb/s (-1.0 %)  ok");
        assert_eq!(lines[2], "a longer one  sockperf                     no route             WRONG");
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!([median(&[3.0, 1.0, 2.0]), median(&[])], [2.0, 0.0]);
    }
}
