//! The table of `--check`.

use bmi_report::table::Table;

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
}

/// Returns the table as text.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(5, ["what", "program", "expected", "measured", "verdict"]);
    for Row { what, program, expected, measured, is_right } in rows {
        let verdict = if *is_right { "ok" } else { "WRONG" };
        table.row([what.as_str(), program, expected, measured, verdict].map(str::to_owned));
    }
    table.render()
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
}
