//! The rounds of a comparison: when each benchmark runs, for which side, and how often.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use bmi_report::stats::Random;

use super::bench::{self, BENCHES, Bench, Sample};
use super::ratio::{self, Bounds, Judged, Pair};
use super::report;
use super::source::Programs;
use crate::command::Failure;

/// A benchmark and its pairs of samples. The first sample of a pair is of A, the second one of B.
struct Series {
    bench: &'static Bench,
    pairs: Vec<[Sample; 2]>,
}

impl Series {
    fn new(bench: &'static Bench) -> Series {
        Series { bench, pairs: Vec::new() }
    }

    /// Returns the pairs of each row. A row that only one side has, or that the sides measure in
    /// different units, has values for that side only.
    fn rows(&self) -> BTreeMap<&str, Vec<Pair<'_>>> {
        let mut rows: BTreeMap<&str, Vec<Pair<'_>>> = BTreeMap::new();
        for [a, b] in &self.pairs {
            for row in a {
                let other = b.iter().find(|other| other.name == row.name && other.unit == row.unit);
                rows.entry(&row.name).or_default().push(Pair { a: Some(row), b: other });
            }
            for row in b.iter().filter(|row| !a.iter().any(|other| other.name == row.name)) {
                rows.entry(&row.name).or_default().push(Pair { a: None, b: Some(row) });
            }
        }
        rows
    }
}

/// A comparison of two sets of programs.
pub(super) struct Comparison<'a> {
    /// The programs of A and of B.
    sides: &'a [Programs; 2],
    run: bench::Run,
    bounds: Bounds,
    width: f64,
    /// Draws the order of runs.
    random: Random,
    /// Seeds the bootstrap of each row, so that an interval depends on the row's samples alone.
    seed: u64,
}

impl Comparison<'_> {
    pub(super) fn new<'a>(
        sides: &'a [Programs; 2],
        run: bench::Run,
        bounds: Bounds,
        width: f64,
        seed: u64,
    ) -> Comparison<'a> {
        Comparison { sides, run, bounds, width, random: Random::new(seed), seed }
    }

    /// Measures the benchmarks and judges all rows, in the order of the table of benchmarks.
    ///
    /// If a timed row differs, its benchmark is measured again. Each of the two measurements takes
    /// at most `limit`.
    pub(super) fn judge(&mut self, benches: &[&'static Bench], limit: Duration) -> Result<Vec<Judged>, Failure> {
        let first = self.measure(benches, limit)?;
        let mut judged = self.judged(&first);
        let again: Vec<&'static Bench> = benches
            .iter()
            .filter(|bench| judged.iter().any(|row| row.bench == bench.name && row.needs_confirmation()))
            .copied()
            .collect();
        if !again.is_empty() {
            let rows = judged.iter().filter(|row| row.needs_confirmation()).count();
            eprintln!("{rows} of {} rows differ: measuring their benchmarks again", judged.len());
            let second = self.measure(&again, limit)?;
            let second = self.judged(&second);
            for row in judged.iter_mut().filter(|row| row.needs_confirmation()) {
                let other = second.iter().find(|other| other.bench == row.bench && other.line == row.line);
                *row = row.confirmed_by(other);
            }
        }
        Ok(judged)
    }

    /// Runs rounds until all benchmarks are finished or the time limit is reached, but at least
    /// one.
    #[expect(clippy::disallowed_methods, reason = "a time limit on real processes")]
    fn measure(&mut self, benches: &[&'static Bench], limit: Duration) -> Result<Vec<Series>, Failure> {
        let begin = Instant::now();
        let mut open: Vec<Series> = benches.iter().map(|bench| Series::new(bench)).collect();
        let mut finished = Vec::new();
        let mut round = 0;
        while !open.is_empty() && (round == 0 || begin.elapsed() < limit) {
            round += 1;
            self.random.shuffle(&mut open);
            let count = open.len();
            for series in &mut open {
                if round > 1 && begin.elapsed() >= limit {
                    break;
                }
                show_progress(series.bench.name, round, count, limit.saturating_sub(begin.elapsed()));
                series.pairs.push(self.pair(series.bench)?);
            }
            finished.extend(open.extract_if(.., |series| self.is_finished(series)));
        }
        finished.append(&mut open);
        if std::io::stderr().is_terminal() {
            eprint!("\r{:79}\r", "");
        }
        Ok(finished)
    }

    /// Takes one sample of each side, in random order.
    fn pair(&mut self, bench: &'static Bench) -> Result<[Sample; 2], Failure> {
        let [a, b] = self.sides;
        if self.random.below(2) == 0 {
            let first = bench.sample(a, &self.run)?;
            Ok([first, bench.sample(b, &self.run)?])
        } else {
            let first = bench.sample(b, &self.run)?;
            Ok([bench.sample(a, &self.run)?, first])
        }
    }

    fn is_finished(&self, series: &Series) -> bool {
        let rows = series.rows();
        rows.iter().all(|(name, pairs)| self.judge_row(series.bench, name, pairs).is_done(self.width))
    }

    fn judge_row(&self, bench: &Bench, name: &str, pairs: &[Pair<'_>]) -> Judged {
        ratio::judge(bench.name, name, pairs, self.bounds, self.seed)
    }

    fn judged(&self, measured: &[Series]) -> Vec<Judged> {
        let mut judged: Vec<Judged> = Vec::new();
        for series in BENCHES.iter().filter_map(|bench| measured.iter().find(|one| one.bench.name == bench.name)) {
            let rows = series.rows();
            let printed = series.pairs.first().map_or(&[][..], |pair| &pair[1]);
            judged.extend(
                report::in_order(printed, &rows).iter().map(|name| self.judge_row(series.bench, name, &rows[*name])),
            );
        }
        judged
    }
}

fn show_progress(bench: &str, round: usize, open: usize, left: Duration) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{:79}\rround {round}, {bench}; {open} benchmarks, at most {} s left ", "", left.as_secs());
    }
}

#[cfg(test)]
mod tests {
    use bmi_report::Unit;

    use super::super::bench::Line;
    use super::*;

    #[test]
    fn rows_of_both_sides_are_paired_by_name_and_unit() {
        let row = |name: &str, value, unit| Line { name: name.into(), value, unit };
        let a = vec![row("both", 1.0, Unit::Seconds), row("old", 2.0, Unit::Seconds), row("unit", 5.0, Unit::Seconds)];
        let b = vec![row("new", 3.0, Unit::Seconds), row("both", 4.0, Unit::Seconds), row("unit", 6.0, Unit::Calls)];
        let series = Series { bench: &BENCHES[0], pairs: vec![[a, b]] };
        let rows = series.rows();
        let values = |name: &str| {
            rows[name].iter().map(|pair| [pair.a, pair.b].map(|of| of.map(|row| row.value))).collect::<Vec<_>>()
        };
        assert_eq!(values("both"), [[Some(1.0), Some(4.0)]]);
        assert_eq!(values("old"), [[Some(2.0), None]]);
        assert_eq!(values("new"), [[None, Some(3.0)]]);
        assert_eq!(values("unit"), [[Some(5.0), None]]);
    }
}
