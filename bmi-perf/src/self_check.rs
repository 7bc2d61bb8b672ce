//! Whether the verdicts of a run are right, where the truth is known because it was made
//! (`--self-check`).
//!
//! **Why.** How many rounds an answer takes, and whether there is one, depends on what else the
//! hosts do. Two builds are worth comparing on hosts that tell A from A slowed by 5 %, and do not
//! tell A from A.
//!
//! **How.** Every case is measured three times in each round, in random order and over the same
//! connections: as it is, once more, and with operations that the client makes 5 % longer
//! ([`SLOWED`]). An interval contains the truth in 99 of 100 cases, so a wrong verdict now and then
//! is no proof of a fault.

use std::fmt;

use bmi_report::groups::{Ratio, Verdict, groups};
use bmi_report::{Report, Row};

use crate::case::SLOWED;

/// The verdicts on rows whose truth is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Numbers of the rows that were measured again: those without a difference, and all.
    same: (usize, usize),
    /// Numbers of the rows that were slowed: those that are called slower, and all.
    found: (usize, usize),
    /// What is wrong, a line for each row.
    wrong: Vec<String>,
}

impl Checked {
    /// Judges the verdicts of a report.
    pub(crate) fn of(report: &Report) -> Checked {
        let mut checked = Checked::default();
        for group in groups(report) {
            let Some(first) = group.figures.first().map(|figure| figure.row) else { continue };
            for row in group.figures.iter().map(|figure| figure.row) {
                checked.add(first, row);
            }
        }
        checked
    }

    fn add(&mut self, first: &Row, row: &Row) {
        let (count, expected) = match row.over.strip_prefix(&first.over) {
            Some(" again") => (&mut self.same, Verdict::NoDifference),
            Some(" slowed") => (&mut self.found, Verdict::Slower),
            _ => return,
        };
        let ratio = Ratio::of(row, first);
        let is_right = ratio.verdict == expected;
        *count = (count.0 + usize::from(is_right), count.1 + 1);
        if !is_right {
            let (interval, rounds) = (ratio.interval, ratio.rounds);
            self.wrong.push(format!(
                "{}: {} in {rounds} rounds, x {:.3} ({:.3} to {:.3})",
                row.name(),
                ratio.verdict.words(),
                interval.middle,
                interval.low,
                interval.high
            ));
        }
    }

    /// Returns true if all verdicts are right.
    pub(crate) fn is_right(&self) -> bool {
        self.wrong.is_empty()
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((same, again), (found, slowed)) = (self.same, self.found);
        let percent = 100.0 * SLOWED;
        write!(f, "self-check: no difference in {same} of {again} rows measured again; ")?;
        write!(f, "slowed by {percent:.0} % found in {found} of {slowed} rows")?;
        self.wrong.iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

#[cfg(test)]
mod tests {
    use bmi_report::Step;

    use super::*;
    use crate::case::tests::case;
    use crate::case::{Case, Repeat};

    fn report(again: f64, slowed: f64) -> Report {
        let row = |repeat, factor: f64| {
            // Bytes per second: what is slowed has less of them.
            let value = |round: u32| (1.0 + f64::from(round % 3) / 1000.0) / factor;
            let rounds = (0..24).map(|round| Step { round, value: value(round) }).collect();
            Row { rounds, ..Case { repeat, ..case() }.row() }
        };
        let rows = vec![row(Repeat::First, 1.0), row(Repeat::Again, again), row(Repeat::Slowed, slowed)];
        Report { rows, ..Report::new("", "") }
    }

    #[test]
    fn verdicts_are_compared_with_the_truth() {
        let right = Checked::of(&report(1.0, 1.05));
        assert!(right.is_right(), "{right}");
        assert_eq!((right.same, right.found), ((1, 1), (1, 1)));
        let missed = Checked::of(&report(1.0, 1.0));
        assert!(!missed.is_right() && missed.found == (0, 1));
        assert!(missed.to_string().contains("tcp slowed bandwidth 64 KiB, depth 16, polling: no difference"));
        let invented = Checked::of(&report(1.02, 1.05));
        assert_eq!((invented.same, invented.found), ((0, 1), (1, 1)));
        // Nothing was measured: nothing is wrong, and the numbers say it.
        assert!(Checked::of(&Report::new("", "")).to_string().contains("0 of 0 rows"));
    }
}
