//! Where the warm-up of a series of rounds ends.
//!
//! **Why.** The first rounds find cold caches, unregistered memory and a congestion window that is
//! still small. They say little about the rest. How many there are differs from row to row.
//!
//! **Source.** White: An effective truncation heuristic for bias reduction in simulation output
//! (Simulation 69, 1997), the marginal standard error rule (MSER): leave out as many values from
//! the beginning as makes the standard error of the mean of the others least. As there, at most
//! half of the values are left out. Here the values are logarithms, bounded to the range of the
//! later half, so that a disturbed round counts as one and not as many.

/// Returns how many values at the beginning belong to the warm-up.
pub fn warm_up(values: &[f64]) -> usize {
    let mut logs: Vec<f64> = values.iter().map(|value| value.max(f64::MIN_POSITIVE).ln()).collect();
    let later = &logs[logs.len() / 2..];
    let low = later.iter().copied().fold(f64::INFINITY, f64::min);
    let high = later.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Twice the range, so that what is only a little outside still counts as it is.
    let slack = (high - low).max(0.01);
    logs.iter_mut().for_each(|value| *value = value.clamp(low - slack, high + slack));
    let error = |from: usize| {
        let kept = &logs[from..];
        let mean = kept.iter().sum::<f64>() / kept.len() as f64;
        kept.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (kept.len() as f64).powi(2)
    };
    let candidates = 0..=logs.len() / 2;
    // The least number of those that are equal.
    candidates.filter(|from| *from < logs.len()).min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0)
}
