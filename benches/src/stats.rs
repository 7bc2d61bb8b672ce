//! Medians and other quantiles of a small number of samples.

/// Returns the sample at `rank` (0 is the least, 1 the greatest) by the nearest-rank rule, or 0 if
/// there are none.
pub fn quantile(samples: &mut [f64], rank: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    samples.get((rank * last as f64).round() as usize).copied().unwrap_or(0.0)
}

/// Returns the middle sample, or the mean of the two in the middle, or 0 if there are none.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    match (samples.len() / 2, samples.len() % 2) {
        (0, 0) => 0.0,
        (middle, 1) => samples[middle],
        (middle, _) => f64::midpoint(samples[middle - 1], samples[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_few_samples() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        let mut hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut hundred, 0.99), 99.0);
        assert_eq!(quantile(&mut hundred, 0.0), 0.0);
    }
}
