//! Latencies with three significant digits, from a nanosecond to an hour.
//!
//! **Why.** The far end of the distribution is what a storage system notices. An average hides it,
//! and keeping every sample takes memory without bound. A histogram of fixed precision does
//! neither, and those of several rounds, threads and hosts can be added.
//!
//! **Layout.** In JSON: pairs of a value in nanoseconds and how often it occurred, in ascending
//! order. A value stands for all that agree with it in the first three digits.
//!
//! **Source.** G. Tene: HdrHistogram; the crate of this name.

use serde::{Deserialize, Serialize};

/// The longest duration that is told from others, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;
/// The most different values that a histogram has.
const MOST_VALUES: usize = 100_000;

/// Durations in nanoseconds.
#[derive(Clone, Debug)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl PartialEq for Histogram {
    fn eq(&self, other: &Histogram) -> bool {
        self.0 == other.0
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// Creates an empty histogram. Its memory is allocated here, and not by [`Histogram::record`].
    pub fn new() -> Histogram {
        let bounds = hdrhistogram::Histogram::new_with_bounds(1, LONGEST, 3);
        Histogram(bounds.expect("the bounds are valid"))
    }

    /// Records a duration in nanoseconds. What is longer than an hour counts as an hour.
    pub fn record(&mut self, nanos: u64) {
        self.0.saturating_record(nanos.clamp(1, LONGEST));
    }

    /// Adds all of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (value, count) in other.values() {
            self.0.saturating_record_n(value, count);
        }
    }

    /// Returns the durations multiplied by `factor`: 0.5 makes round trips one-way times.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Histogram {
        let mut scaled = Histogram::new();
        for (value, count) in self.values() {
            let value = (value as f64 * factor).round() as u64;
            scaled.0.saturating_record_n(value.clamp(1, LONGEST), count);
        }
        scaled
    }

    /// Returns the number of durations.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns true if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the duration, in nanoseconds, that `share` of all do not exceed: 0.5 is the median,
    /// 0.9999 what one in ten thousand exceeds. Returns 0 if nothing was recorded.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// Returns true if enough was recorded for a quantile to mean anything: ten durations beyond
    /// it.
    pub fn reaches(&self, share: f64) -> bool {
        self.len() as f64 * (1.0 - share) >= 10.0 - 1e-6
    }

    /// Returns the least and the greatest duration in nanoseconds.
    pub fn range(&self) -> (u64, u64) {
        (self.0.min(), self.0.max())
    }

    /// Returns each value that occurred, in nanoseconds, and how often.
    pub fn values(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()))
    }
}

impl Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.values())
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        let values = Vec::<(u64, u64)>::deserialize(deserializer)?;
        if values.len() > MOST_VALUES {
            return Err(serde::de::Error::custom("a histogram with too many values"));
        }
        let mut histogram = Histogram::new();
        for (value, count) in values {
            histogram.0.saturating_record_n(value.clamp(1, LONGEST), count);
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_have_three_digits_and_survive_json() {
        let mut histogram = Histogram::new();
        (1..=100_000).for_each(|nanos| histogram.record(nanos * 1000));
        for (share, expected) in [(0.5, 50_000_000.0), (0.99, 99_000_000.0), (0.9999, 99_990_000.0)] {
            let error: f64 = histogram.quantile(share) as f64 / expected - 1.0;
            assert!(error.abs() < 0.001, "{share}: {error}");
        }
        assert!(histogram.reaches(0.9999) && !histogram.reaches(0.99999));
        let text = serde_json::to_string(&histogram).unwrap();
        let again: Histogram = serde_json::from_str(&text).unwrap();
        assert_eq!((again.len(), again.quantile(0.999)), (100_000, histogram.quantile(0.999)));
        let half = again.scaled(0.5);
        let error: f64 = half.quantile(0.5) as f64 / 25_000_000.0 - 1.0;
        assert!(half.len() == 100_000 && error.abs() < 0.001, "{error}");
        let mut twice = again.clone();
        twice.add(&histogram);
        assert_eq!((twice.len(), twice.quantile(0.5)), (200_000, histogram.quantile(0.5)));
    }

    #[test]
    fn odd_values_are_kept_within_the_bounds() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(0.5), histogram.is_empty()), (0, true));
        [0, u64::MAX].into_iter().for_each(|nanos| histogram.record(nanos));
        assert_eq!(histogram.range().0, 1);
        assert!(serde_json::from_str::<Histogram>("[[0,18446744073709551615],[1,3]]").is_ok());
        assert!(serde_json::from_str::<Histogram>("[[1]]").is_err());
    }
}
