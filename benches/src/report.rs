//! Rows of a report, as the benchmarks make them. [`bmi_report::output`] has the options that all
//! programs share.
//!
//! **Rounds.** Rows of a report with the same round were measured side by side. A program that
//! measures its rows one after the other gives the rounds of each row numbers of their own
//! ([`steps`]).

use std::collections::BTreeMap;

pub use bmi_report::output::{BOTH, ReportArgs, begin};
use bmi_report::{Kind, Row, Step, Unit};

/// Seeds the bootstrap, so that the same values have the same interval.
pub const SEED: u64 = 1;

/// Returns the values as rounds, the first of which has the number `first`.
pub fn steps(first: usize, values: impl IntoIterator<Item = f64>) -> Vec<Step> {
    values.into_iter().enumerate().map(|(round, value)| Step { round: (first + round) as u32, value }).collect()
}

/// Returns a row without rounds.
pub fn row(test: &str, over: &str, kind: Kind, unit: Unit, setup: &[(&str, &str)]) -> Row {
    let setup: BTreeMap<String, String> =
        setup.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Row { test: test.to_owned(), over: over.to_owned(), kind, unit, setup, ..Row::default() }
}
