//! Times and errors of operations.

use std::collections::BTreeMap;

use bmi_report::stats;

/// What was measured of operations of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    times_us: Vec<f64>,
    /// How often an operation failed for each reason.
    pub(crate) reasons: BTreeMap<String, u64>,
}

impl Measured {
    /// Adds an operation that succeeded, or the reason why it failed.
    pub(crate) fn add(&mut self, result: Result<u64, String>) {
        match result {
            Ok(took_us) => self.times_us.push(took_us as f64),
            Err(why) => *self.reasons.entry(why).or_default() += 1,
        }
    }

    /// Returns the number of operations that succeeded.
    pub(crate) fn succeeded(&self) -> u64 {
        self.times_us.len() as u64
    }

    /// Returns the number of operations that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.reasons.values().sum()
    }

    /// Returns times of operations that succeeded, in microseconds, by their ranks from 0 to 1.
    pub(crate) fn quantiles_us<const N: usize>(&self, ranks: [f64; N]) -> [u64; N] {
        let mut times = self.times_us.clone();
        ranks.map(|rank| stats::quantile(&mut times, rank) as u64)
    }
}
