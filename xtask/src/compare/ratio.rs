//! From pairs of samples to a ratio, its interval and a verdict.
//!
//! **Ratio.** Each pair gives the cost of B divided by the cost of A, whatever the line counts. A line's ratio is the mean of the middle
//! half of the logarithms of its pairs' ratios: rounds in which the machine was busy for one side fall out at both ends.
//!
//! **Interval.** The pairs are drawn anew, with replacement, [`RESAMPLES`] times; the interval holds the middle [`CONFIDENCE`] of what
//! the resamples give. It is wide on purpose: a run judges some hundred lines, and one in twenty of them would lie outside of a
//! usual interval by chance.
//!
//! **Counted lines** are exact up to what the machine does to a process (a page more, a short read). Their interval spans all pairs.
//!
//! **Source** Efron: Bootstrap methods: another look at the jackknife (Annals of Statistics 7, 1979); for trimmed means Wilcox:
//! Introduction to robust estimation and hypothesis testing, section 4.4.

use serde::Serialize;

use super::bench::{Line, Unit};
use super::random::Random;

/// The least number of pairs that an interval is believed from.
pub(super) const LEAST_PAIRS: usize = 8;
/// Of a counted line: one pair, and one more to see whether it is exact.
const LEAST_COUNTED_PAIRS: usize = 2;
/// What an interval holds of the resamples.
const CONFIDENCE: f64 = 0.99;
const RESAMPLES: usize = 2000;
/// What is cut off at each end.
const TRIMMED: f64 = 0.25;

/// A line of one round: of A, of B. A side that does not have the line is `None`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) a: Option<&'a Line>,
    pub(super) b: Option<&'a Line>,
}

/// How many times worse a line may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) measured: f64,
    pub(super) exact: f64,
}

/// What became of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The whole interval is above the bound.
    Worse,
    /// The whole interval is below its inverse.
    Better,
    /// The whole interval is between the two.
    Same,
    /// The interval holds a bound, or there were too few pairs.
    Unclear,
    /// Only A has the line.
    OnlyInA,
    /// Only B has the line.
    OnlyInB,
}

impl Verdict {
    pub(super) fn is_worse(self) -> bool {
        self == Verdict::Worse
    }
}

/// A line with its verdict.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    /// The benchmark.
    pub(super) bench: &'static str,
    /// The line's name.
    pub(super) line: String,
    /// What A and B count.
    pub(super) unit: Unit,
    /// The medians.
    pub(super) a: Option<f64>,
    pub(super) b: Option<f64>,
    /// The cost of B divided by the cost of A, and its interval.
    pub(super) ratio: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Pairs.
    pub(super) pairs: usize,
    pub(super) verdict: Verdict,
}

impl Judged {
    /// Whether no more pairs are needed: the interval is narrow, or nothing can be judged.
    pub(super) fn is_done(&self, width: f64) -> bool {
        match self.verdict {
            Verdict::OnlyInA | Verdict::OnlyInB => true,
            _ if self.unit.is_counted() => self.pairs >= LEAST_COUNTED_PAIRS,
            _ => self.pairs >= LEAST_PAIRS && self.high <= self.low * width,
        }
    }
}

/// Judges a line by its pairs, of which there is at least one.
pub(super) fn judge(bench: &'static str, name: &str, pairs: &[Pair<'_>], bounds: Bounds, seed: u64) -> Judged {
    let of = |pick: fn(&Pair<'_>) -> Option<f64>| {
        let mut values: Vec<f64> = pairs.iter().filter_map(pick).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let unit = pairs.iter().find_map(|pair| pair.a.or(pair.b)).map_or(Unit::Seconds, |line| line.unit);
    let ratios: Vec<f64> = pairs.iter().filter_map(ratio).collect();
    let (a, b) = (of(|pair| pair.a.map(|line| line.value)), of(|pair| pair.b.map(|line| line.value)));
    let (ratio, low, high) = match (ratios.is_empty(), unit.is_counted()) {
        (true, _) => (f64::NAN, f64::NAN, f64::NAN),
        (false, true) => span(&ratios),
        (false, false) => interval(&ratios, seed),
    };
    let (bound, least) = match unit.is_counted() {
        true => (bounds.exact, 1),
        false => (bounds.measured, LEAST_PAIRS),
    };
    let verdict = match (a, b) {
        (None, _) => Verdict::OnlyInB,
        (_, None) => Verdict::OnlyInA,
        _ if ratios.len() < least => Verdict::Unclear,
        _ if low > bound => Verdict::Worse,
        _ if high < 1.0 / bound => Verdict::Better,
        _ if low >= 1.0 / bound && high <= bound => Verdict::Same,
        _ => Verdict::Unclear,
    };
    Judged { bench, line: name.to_owned(), unit, a, b, ratio, low, high, pairs: ratios.len(), verdict }
}

/// The cost of B divided by the cost of A. Nothing divided by nothing is 1: neither side makes a system call.
fn ratio(pair: &Pair<'_>) -> Option<f64> {
    let (a, b) = (pair.a?, pair.b?);
    let (cost, base) = if a.unit.less_is_better() { (b.value, a.value) } else { (a.value, b.value) };
    Some(if cost == base { 1.0 } else { cost / base })
}

/// The median, the least and the greatest.
fn span(ratios: &[f64]) -> (f64, f64, f64) {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() / 2], sorted[0], sorted[sorted.len() - 1])
}

/// The middle of the ratios, and what the bootstrap says of it.
fn interval(ratios: &[f64], seed: u64) -> (f64, f64, f64) {
    let mut logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let middle = trimmed_mean(&mut logs).exp();
    let mut random = Random::new(seed);
    let mut drawn = vec![0.0; logs.len()];
    let mut means = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        drawn.fill_with(|| logs[random.below(logs.len())]);
        means.push(trimmed_mean(&mut drawn));
    }
    means.sort_by(f64::total_cmp);
    let cut = ((1.0 - CONFIDENCE) / 2.0 * RESAMPLES as f64) as usize;
    (middle, means[cut].exp(), means[RESAMPLES - 1 - cut].exp())
}

/// The mean without the least and the greatest quarter; sorts.
fn trimmed_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 * TRIMMED) as usize;
    let kept = &values[cut..values.len() - cut];
    kept.iter().sum::<f64>() / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { measured: 1.05, exact: 1.02 };

    /// Judges a line whose values are A's and B's, pair by pair.
    fn judged(unit: Unit, values: &[(f64, f64)]) -> Judged {
        let line = |value| Line { name: "line".into(), value, unit };
        let lines: Vec<(Line, Line)> = values.iter().map(|(a, b)| (line(*a), line(*b))).collect();
        let pairs: Vec<Pair<'_>> = lines.iter().map(|(a, b)| Pair { a: Some(a), b: Some(b) }).collect();
        judge("micro", "line", &pairs, BOUNDS, 1)
    }

    /// Values with the noise of a busy machine: a few percent, and now and then several times as much. `factor` is B's true cost.
    fn noisy(random: &mut Random, pairs: usize, factor: f64) -> Vec<(f64, f64)> {
        let mut value = |factor: f64| {
            let percent = random.below(1000) as f64 / 10_000.0;
            let pause = if random.below(10) == 0 { 1.0 + random.below(200) as f64 / 100.0 } else { 1.0 };
            1e-6 * factor * (1.0 + percent) * pause
        };
        (0..pairs).map(|_| (value(1.0), value(factor))).collect()
    }

    #[test]
    fn a_line_compared_with_itself_is_hardly_ever_worse_or_better() {
        let mut random = Random::new(1);
        let lines = (0..400).map(|_| judged(Unit::Seconds, &noisy(&mut random, 12, 1.0)).verdict);
        let wrong = lines.filter(|verdict| matches!(verdict, Verdict::Worse | Verdict::Better)).count();
        assert!(wrong <= 2, "{wrong} of 400");
    }

    #[test]
    fn an_interval_holds_the_truth_nearly_always() {
        let mut random = Random::new(2);
        for factor in [1.0, 1.1] {
            let held = (0..300).filter(|_| {
                let judged = judged(Unit::Seconds, &noisy(&mut random, 16, factor));
                judged.low <= factor && factor <= judged.high
            });
            let held = held.count();
            assert!(held >= 288, "{factor}: {held} of 300");
        }
    }

    #[test]
    fn what_costs_a_fifth_more_is_found_to_be_worse_in_either_direction() {
        let mut random = Random::new(3);
        let times = noisy(&mut random, 24, 1.2);
        let rates: Vec<(f64, f64)> = times.iter().map(|(a, b)| (1.0 / a, 1.0 / b)).collect();
        let (slower, fewer) = (judged(Unit::Seconds, &times), judged(Unit::PerSecond, &rates));
        assert_eq!((slower.verdict, fewer.verdict), (Verdict::Worse, Verdict::Worse));
        assert!((slower.ratio - 1.2).abs() < 0.03 && (fewer.ratio - slower.ratio).abs() < 1e-9, "{slower:?} {fewer:?}");
        let turned: Vec<(f64, f64)> = times.iter().map(|(a, b)| (*b, *a)).collect();
        assert_eq!(judged(Unit::Seconds, &turned).verdict, Verdict::Better);
    }

    #[test]
    fn few_pairs_judge_nothing_and_are_not_enough() {
        let same = vec![(1.0, 2.0); LEAST_PAIRS - 1];
        let few = judged(Unit::Seconds, &same);
        assert_eq!(few.verdict, Verdict::Unclear);
        assert!(!few.is_done(1.04));
        let enough = judged(Unit::Seconds, &[same.as_slice(), &[(1.0, 2.0)]].concat());
        assert_eq!(enough.verdict, Verdict::Worse);
        assert!(enough.is_done(1.04));
    }

    #[test]
    fn counted_lines_have_a_bound_of_their_own() {
        let verdict = |a: f64, b: f64| judged(Unit::Instructions, &[(a, b), (a, b)]).verdict;
        assert_eq!(verdict(1000.0, 1000.0), Verdict::Same);
        assert_eq!(verdict(1000.0, 1019.0), Verdict::Same);
        assert_eq!(verdict(1000.0, 1021.0), Verdict::Worse);
        assert_eq!(verdict(1000.0, 970.0), Verdict::Better);
        // The pairs do not agree on which side of the bound it is.
        let spread = judged(Unit::Instructions, &[(1000.0, 1000.0), (1000.0, 1100.0)]);
        assert_eq!(spread.verdict, Verdict::Unclear);
        assert!(spread.is_done(1.04));
    }

    #[test]
    fn no_system_call_at_all_is_no_difference_and_the_first_one_is() {
        let calls = |a: f64, b: f64| judged(Unit::Calls, &[(a, b), (a, b)]);
        assert_eq!(calls(0.0, 0.0).verdict, Verdict::Same);
        assert_eq!(calls(0.0, 1.0).verdict, Verdict::Worse);
        assert_eq!(calls(1.0, 0.0).verdict, Verdict::Better);
    }

    #[test]
    fn a_line_of_one_side_is_not_judged() {
        let line = Line { name: "line".into(), value: 1.0, unit: Unit::Seconds };
        let only = judge("micro", "line", &[Pair { a: None, b: Some(&line) }], BOUNDS, 1);
        assert_eq!((only.verdict, only.a, only.b, only.is_done(1.04)), (Verdict::OnlyInB, None, Some(1.0), true));
    }
}
