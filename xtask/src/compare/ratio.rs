//! Computes the ratio of a row, its interval and a verdict from pairs of samples.
//!
//! **Ratio.** Each pair gives the cost of B divided by the cost of A, whatever the row counts. The
//! ratio of a row and its interval are those of [`bmi_report::stats::paired_ratio`]. With few pairs
//! such an interval is somewhat too narrow. Therefore a row that differs is measured twice
//! ([`Judged::confirmed_by`]).
//!
//! **Counted rows** hardly vary, so their interval is the range of all pairs.

use bmi_report::Unit;
use bmi_report::stats::{self, Interval, LEAST_ROUNDS as LEAST_PAIRS};
use serde::Serialize;

use super::bench::Line;

/// The number of pairs below which a counted row has no verdict. The second pair shows whether the
/// counts repeat.
const LEAST_COUNTED_PAIRS: usize = 2;
/// The number of pairs of a counted row whose pairs differ.
const MOST_COUNTED_PAIRS: usize = 4;
/// Counts that differ by less than this are equal. It is one system call in hundreds of operations.
const NEGLIGIBLE: f64 = 0.005;

/// The values of a row in one round, for A and for B. `None` if a side does not have the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) a: Option<&'a Line>,
    pub(super) b: Option<&'a Line>,
}

/// How many times worse a row may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) measured: f64,
    pub(super) exact: f64,
}

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// The whole interval is above the bound.
    Worse,
    /// The whole interval is below the inverse of the bound.
    Better,
    /// The whole interval is between the inverse of the bound and the bound.
    Same,
    /// The interval contains a bound, there are too few pairs, or the second measurement disagrees.
    Unclear,
    /// Only A has the row.
    OnlyInA,
    /// Only B has the row.
    OnlyInB,
}

impl Verdict {
    pub(super) fn is_worse(self) -> bool {
        self == Verdict::Worse
    }
}

/// A row with its verdict.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Judged {
    /// The name of the benchmark.
    pub(super) bench: &'static str,
    /// The name of the row.
    pub(super) line: String,
    /// The unit of `a` and `b`.
    pub(super) unit: Unit,
    /// The medians of A and B.
    pub(super) a: Option<f64>,
    pub(super) b: Option<f64>,
    /// The cost of B divided by the cost of A, and its interval.
    pub(super) ratio: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// The number of pairs.
    pub(super) pairs: usize,
    pub(super) verdict: Verdict,
}

impl Judged {
    /// Returns true if no more pairs are needed, because the interval is narrow or there is nothing
    /// to judge.
    pub(super) fn is_done(&self, width: f64) -> bool {
        match self.verdict {
            Verdict::OnlyInA | Verdict::OnlyInB => true,
            _ if self.unit.is_counted() => {
                let repeats = self.low == self.high && self.pairs >= LEAST_COUNTED_PAIRS;
                repeats || self.pairs >= MOST_COUNTED_PAIRS
            }
            _ => self.pairs >= LEAST_PAIRS && self.high <= self.low * width,
        }
    }

    /// Returns true if the row differs and was timed. Then chance may have made it differ.
    pub(super) fn needs_confirmation(&self) -> bool {
        matches!(self.verdict, Verdict::Worse | Verdict::Better) && !self.unit.is_counted()
    }

    /// Returns the result of a row that differed, after a second measurement. It has the figures of
    /// the second measurement, because those of the first were selected for their difference.
    pub(super) fn confirmed_by(&self, second: Option<&Judged>) -> Judged {
        let Some(second) = second else { return Judged { verdict: Verdict::Unclear, ..self.clone() } };
        let disagrees = second.needs_confirmation() && second.verdict != self.verdict;
        Judged { verdict: if disagrees { Verdict::Unclear } else { second.verdict }, ..second.clone() }
    }
}

/// Judges a row by its pairs, of which there must be at least one.
pub(super) fn judge(bench: &'static str, name: &str, pairs: &[Pair<'_>], bounds: Bounds, seed: u64) -> Judged {
    let of = |pick: fn(&Pair<'_>) -> Option<f64>| {
        let mut values: Vec<f64> = pairs.iter().filter_map(pick).collect();
        (!values.is_empty()).then(|| stats::middle(&mut values))
    };
    let unit = pairs.iter().find_map(|pair| pair.a.or(pair.b)).map_or(Unit::Seconds, |line| line.unit);
    let costs: Vec<(f64, f64)> = pairs.iter().filter_map(costs).collect();
    let (a, b) = (of(|pair| pair.a.map(|line| line.value)), of(|pair| pair.b.map(|line| line.value)));
    let Interval { middle: ratio, low, high } = match unit.is_counted() {
        true => span(&costs),
        false => stats::paired_ratio(&costs, seed),
    };
    let (bound, least) = match unit.is_counted() {
        true => (bounds.exact, LEAST_COUNTED_PAIRS),
        false => (bounds.measured, LEAST_PAIRS),
    };
    let verdict = match (a, b) {
        (None, _) => Verdict::OnlyInB,
        (_, None) => Verdict::OnlyInA,
        _ if costs.len() < least => Verdict::Unclear,
        _ if low > bound => Verdict::Worse,
        _ if high < 1.0 / bound => Verdict::Better,
        _ if low >= 1.0 / bound && high <= bound => Verdict::Same,
        _ => Verdict::Unclear,
    };
    Judged { bench, line: name.to_owned(), unit, a, b, ratio, low, high, pairs: costs.len(), verdict }
}

/// Returns the costs of A and of B. They are equal if they differ by a negligible count.
fn costs(pair: &Pair<'_>) -> Option<(f64, f64)> {
    let (a, b) = (pair.a?, pair.b?);
    let is_equal = a.value == b.value || (a.unit.is_counted() && (a.value - b.value).abs() < NEGLIGIBLE);
    Some(if is_equal { (1.0, 1.0) } else { (a.unit.cost(a.value), b.unit.cost(b.value)) })
}

/// Returns the median of the ratios, the least and the greatest.
fn span(costs: &[(f64, f64)]) -> Interval {
    let mut ratios: Vec<f64> = costs.iter().map(|(a, b)| b / a).collect();
    let middle = stats::middle(&mut ratios);
    // `middle` sorts.
    match ratios[..] {
        [] => Interval::NONE,
        [low, ..] => Interval { middle, low, high: ratios[ratios.len() - 1] },
    }
}

#[cfg(test)]
mod tests {
    use bmi_report::stats::Random;

    use super::*;

    const BOUNDS: Bounds = Bounds { measured: 1.05, exact: 1.02 };

    /// Judges a row with these values of A and B, one pair each.
    fn judged(unit: Unit, values: &[(f64, f64)]) -> Judged {
        let line = |value| Line { name: "line".into(), value, unit };
        let lines: Vec<(Line, Line)> = values.iter().map(|(a, b)| (line(*a), line(*b))).collect();
        let pairs: Vec<Pair<'_>> = lines.iter().map(|(a, b)| Pair { a: Some(a), b: Some(b) }).collect();
        judge("bmi-perf", "line", &pairs, BOUNDS, 1)
    }

    /// Returns values with the noise of a busy machine: up to 10 percent, and in one of ten cases
    /// up to three times the value. `factor` is the true cost of B.
    fn noisy(random: &mut Random, pairs: usize, factor: f64) -> Vec<(f64, f64)> {
        let mut value = |factor: f64| {
            let percent = random.below(1000) as f64 / 10_000.0;
            let pause = if random.below(10) == 0 { 1.0 + random.below(200) as f64 / 100.0 } else { 1.0 };
            1e-6 * factor * (1.0 + percent) * pause
        };
        (0..pairs).map(|_| (value(1.0), value(factor))).collect()
    }

    /// Compares a program with itself sixty times, with fifty rows each, on a very noisy machine.
    /// At most one comparison in twenty may report a difference.
    #[test]
    fn a_program_compared_with_itself_differs_in_fewer_than_one_of_twenty_runs() {
        let mut random = Random::new(1);
        let mut row = || judged(Unit::Seconds, &noisy(&mut random, LEAST_PAIRS, 1.0));
        let mut differs = || {
            let first = row();
            first.needs_confirmation() && first.confirmed_by(Some(&row())).needs_confirmation()
        };
        let wrong = (0..60).filter(|_| (0..50).filter(|_| differs()).count() > 0).count();
        assert!(wrong <= 3, "{wrong} of 60");
    }

    #[test]
    fn a_difference_counts_only_if_the_second_measurement_shows_it_too() {
        let [worse, better, same] = [2.0, 0.5, 1.0].map(|cost| judged(Unit::Seconds, &[(1.0, cost); LEAST_PAIRS]));
        assert_eq!(worse.confirmed_by(Some(&worse)).verdict, Verdict::Worse);
        assert_eq!(worse.confirmed_by(Some(&better)).verdict, Verdict::Unclear);
        assert_eq!(worse.confirmed_by(Some(&same)).verdict, Verdict::Same);
        assert_eq!(worse.confirmed_by(None).verdict, Verdict::Unclear);
        assert!(!same.needs_confirmation());
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
        // One pair is below the bound, and the other one is above it.
        let pairs = [(1000.0, 1000.0), (1000.0, 1100.0)];
        let spread = judged(Unit::Instructions, &pairs);
        assert_eq!(spread.verdict, Verdict::Unclear);
        assert!(!spread.is_done(1.04), "more pairs are needed");
        assert!(judged(Unit::Instructions, &pairs.repeat(2)).is_done(1.04));
        assert_eq!(judged(Unit::Instructions, &[(1000.0, 2000.0)]).verdict, Verdict::Unclear, "one pair");
    }

    #[test]
    fn no_system_call_at_all_is_no_difference_and_the_first_one_is() {
        let calls = |a: f64, b: f64| judged(Unit::Calls, &[(a, b), (a, b)]);
        assert_eq!(calls(0.0, 0.0).verdict, Verdict::Same);
        assert_eq!(calls(0.0, 1.0).verdict, Verdict::Worse);
        assert_eq!(calls(1.0, 0.0).verdict, Verdict::Better);
        assert_eq!(calls(0.0, 0.004).verdict, Verdict::Same, "one call in 256 operations");
    }

    #[test]
    fn a_row_of_one_side_is_not_judged() {
        let line = Line { name: "line".into(), value: 1.0, unit: Unit::Seconds };
        let only = judge("bmi-perf", "line", &[Pair { a: None, b: Some(&line) }], BOUNDS, 1);
        assert_eq!((only.verdict, only.a, only.b, only.is_done(1.04)), (Verdict::OnlyInB, None, Some(1.0), true));
    }
}
