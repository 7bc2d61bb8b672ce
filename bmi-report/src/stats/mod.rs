//! What follows from the values of some rounds: a median, a ratio, and how sure they are.
//!
//! **Median.** The middle value, and the percentile bootstrap of it.
//!
//! **Ratio.** Values of the same round were measured side by side, so each pair gives a quotient
//! that does not change with the load of the machine. The ratio is the mean of the logarithms of
//! these quotients, without the smallest and the largest quarter ([`paired_ratio`]). The trimming
//! removes pairs in which other programs disturbed one side. Values of two runs have no pairs. Then
//! the ratio is that of the trimmed means of the two ([`ratio`]).
//!
//! **Interval.** A percentile bootstrap: the rounds are drawn again [`RESAMPLES`] times, with
//! replacement, and the interval contains the middle [`CONFIDENCE`] of what results. With few
//! rounds such an interval is somewhat too narrow, so below [`LEAST_ROUNDS`] nothing is claimed.
//!
//! **Difference.** A differs from B only if the interval of their ratio excludes 1
//! ([`Interval::excludes`]).
//!
//! **Source.** Efron: Bootstrap methods: another look at the jackknife (Annals of Statistics 7,
//! 1979); for trimmed means Wilcox: Introduction to robust estimation and hypothesis testing,
//! section 4.4.

mod random;
mod resample;
mod stop;
mod warm_up;

use serde::{Deserialize, Serialize};

pub use random::{Random, seed};
pub use stop::Stop;
pub use warm_up::warm_up;

use resample::Resample;

/// The share of the resampled figures that an interval contains.
pub const CONFIDENCE: f64 = 0.99;
/// How often the rounds are drawn again.
pub const RESAMPLES: usize = 2000;
/// The number of rounds below which no difference is claimed.
pub const LEAST_ROUNDS: usize = 8;

/// A figure and the interval that contains the true one, with [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The figure.
    pub middle: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// No figure.
    pub const NONE: Interval = Interval { middle: f64::NAN, low: f64::NAN, high: f64::NAN };

    /// Returns true if the interval does not contain `value`.
    pub fn excludes(&self, value: f64) -> bool {
        self.low > value || self.high < value
    }

    /// Returns how wide the interval is: its upper end divided by its lower end.
    pub fn width(&self) -> f64 {
        self.high / self.low
    }
}

/// Returns the middle value, or the mean of the two in the middle, or 0 if there are none.
pub fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match (values.len() / 2, values.len() % 2) {
        (0, 0) => 0.0,
        (middle, 1) => values[middle],
        (middle, _) => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Returns the value at `rank` (0 is the least, 1 the greatest) by the nearest-rank rule, or 0 if
/// there are none. [`Histogram`](crate::Histogram) is for many durations.
pub fn quantile(values: &mut [f64], rank: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((rank * last as f64).round() as usize).copied().unwrap_or(0.0)
}

/// Returns the median with its interval.
pub fn median(values: &[f64], seed: u64) -> Interval {
    if values.is_empty() {
        return Interval::NONE;
    }
    bootstrap(seed, [values.to_vec()], |[values]| values.middle())
}

/// Returns the ratio `b / a` of pairs `(a, b)` with its interval.
pub fn paired_ratio(pairs: &[(f64, f64)], seed: u64) -> Interval {
    let logs: Vec<f64> = pairs.iter().map(|(a, b)| (b / a).ln()).collect();
    if logs.is_empty() {
        return Interval::NONE;
    }
    exp(bootstrap(seed, [logs], |[logs]| logs.trimmed_mean()))
}

/// Returns the ratio `b / a` of values that have no pairs, with its interval.
pub fn ratio(a: &[f64], b: &[f64], seed: u64) -> Interval {
    let logs = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let (a, b) = (logs(a), logs(b));
    if a.is_empty() || b.is_empty() {
        return Interval::NONE;
    }
    exp(bootstrap(seed, [a, b], |[a, b]| b.trimmed_mean() - a.trimmed_mean()))
}

fn exp(interval: Interval) -> Interval {
    Interval { middle: interval.middle.exp(), low: interval.low.exp(), high: interval.high.exp() }
}

/// Returns the figure of all values, and the interval of those of resampled ones.
fn bootstrap<const N: usize>(seed: u64, values: [Vec<f64>; N], figure: impl Fn(&[Resample; N]) -> f64) -> Interval {
    let mut samples = values.map(Resample::new);
    let middle = figure(&samples);
    let mut random = Random::new(seed);
    let mut again = || {
        samples.iter_mut().for_each(|sample| sample.draw(&mut random));
        figure(&samples)
    };
    let mut figures: Vec<f64> = (0..RESAMPLES).map(|_| again()).collect();
    figures.sort_by(f64::total_cmp);
    let cut = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    Interval { middle, low: figures[cut], high: figures[RESAMPLES - 1 - cut] }
}

#[cfg(test)]
mod tests;
