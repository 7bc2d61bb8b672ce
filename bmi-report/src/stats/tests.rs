//! Tests of the statistics on numbers whose truth is known.

use super::*;

/// Returns values with the noise of a busy machine: up to 10 percent, and in one of ten cases up to
/// three times the value. `factor` is the true cost.
fn noisy(random: &mut Random, rounds: usize, factor: f64) -> Vec<f64> {
    let mut value = || {
        let percent = random.below(1000) as f64 / 10_000.0;
        let pause = if random.below(10) == 0 { 1.0 + random.below(200) as f64 / 100.0 } else { 1.0 };
        1e-6 * factor * (1.0 + percent) * pause
    };
    (0..rounds).map(|_| value()).collect()
}

fn pairs(random: &mut Random, rounds: usize, factor: f64) -> Vec<(f64, f64)> {
    let (a, b) = (noisy(random, rounds, 1.0), noisy(random, rounds, factor));
    a.into_iter().zip(b).collect()
}

#[test]
fn an_interval_holds_the_truth_nearly_always() {
    let mut random = Random::new(2);
    for factor in [1.0, 1.1] {
        let held = (0..300).filter(|_| {
            let ratio = paired_ratio(&pairs(&mut random, 16, factor), 1);
            ratio.low <= factor && factor <= ratio.high
        });
        let held = held.count();
        assert!(held >= 288, "{factor}: {held} of 300");
        let held = (0..300).filter(|_| {
            let ratio = ratio(&noisy(&mut random, 16, 1.0), &noisy(&mut random, 16, factor), 1);
            ratio.low <= factor && factor <= ratio.high
        });
        let held = held.count();
        assert!(held >= 288, "{factor} without pairs: {held} of 300");
    }
}

#[test]
fn slow_changes_of_the_machine_do_not_widen_a_paired_ratio() {
    let mut random = Random::new(3);
    let drift = |(round, (a, b)): (usize, (f64, f64))| (a * (1.0 + round as f64), b * (1.0 + round as f64));
    let drifting: Vec<(f64, f64)> = pairs(&mut random, 32, 1.2).into_iter().enumerate().map(drift).collect();
    let (a, b): (Vec<f64>, Vec<f64>) = drifting.iter().copied().unzip();
    let (paired, alone) = (paired_ratio(&drifting, 1), ratio(&a, &b, 1));
    assert!(paired.excludes(1.0) && (paired.middle - 1.2).abs() < 0.03, "{paired:?}");
    assert!(!alone.excludes(1.0) && alone.width() > paired.width(), "{alone:?}");
}

#[test]
fn medians_have_intervals_and_few_values_none() {
    let mut random = Random::new(4);
    let median = median(&noisy(&mut random, 101, 1.0), 1);
    assert!(median.low < median.middle && median.middle < median.high, "{median:?}");
    assert!((1.04e-6..1.07e-6).contains(&median.middle), "{median:?}");
    assert!(super::median(&[], 1).middle.is_nan() && paired_ratio(&[], 1).middle.is_nan());
    assert_eq!(super::median(&[2.0], 1), Interval { middle: 2.0, low: 2.0, high: 2.0 });
    assert_eq!(middle(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(!Interval::NONE.excludes(1.0));
}

#[test]
fn ranks_of_few_values() {
    assert_eq!((middle(&mut []), quantile(&mut [], 0.5)), (0.0, 0.0));
    assert_eq!(middle(&mut [3.0, 1.0, 2.0]), 2.0);
    let mut hundred: Vec<f64> = (0..=100).rev().map(f64::from).collect();
    assert_eq!((quantile(&mut hundred, 0.99), quantile(&mut hundred, 0.0)), (99.0, 0.0));
}

#[test]
fn a_warm_up_is_found_and_a_steady_series_has_none() {
    let mut random = Random::new(6);
    let mut found = Vec::new();
    for _ in 0..100 {
        let mut values = noisy(&mut random, 40, 1.0);
        for (round, value) in values.iter_mut().take(5).enumerate() {
            *value *= 6.0 - round as f64;
        }
        found.push(warm_up(&values));
    }
    // All of it is found. What is left out besides, where noise looks like it, does no harm.
    found.sort_unstable();
    assert!(found[0] >= 4 && found[50] <= 6 && found[99] <= 20, "{found:?}");
    assert_eq!(warm_up(&[1.0; 20]), 0);
    assert_eq!((warm_up(&[]), warm_up(&[1.0]), warm_up(&[5.0, 1.0])), (0, 0, 1));
    // One disturbed round in the middle is no warm-up.
    let mut values = vec![1.0; 20];
    values[7] = 100.0;
    assert!(warm_up(&values) <= 8);
}
