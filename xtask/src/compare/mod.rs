//! `cargo xtask compare A B`: two commits, or a commit and the working tree, measured side by side.
//!
//! **Why.** The machines that this project is built on are shared and noisy. A figure measured today says nothing about one measured
//! yesterday. Two builds that run in turns, within the same minutes, meet the same noise, so their ratio can be trusted.
//!
//! **How.**
//! 1. [`source`] checks both revisions out into one folder, one after the other, and builds the benchmarks in release. The paths are
//!    the same for both, so equal sources give equal programs.
//! 2. In each round, every benchmark that is still open runs once for A and once for B, each time as a new process. Which benchmark
//!    and which side comes first is drawn anew each time. A benchmark prints one [`Sample`] a run.
//! 3. [`ratio`] turns the pairs of each line into a ratio with a confidence interval. A benchmark is closed when all of its intervals
//!    are narrow; the run ends when all are closed or the time is up.
//! 4. [`report`] prints the lines. A line is *worse* only if its whole interval lies beyond the bound.
//!
//! **Invariants**
//! 1. A ratio is the cost of B divided by the cost of A: above 1, B is worse, whether the line counts seconds or bytes a second.
//! 2. The decision to stop looks at the width of intervals, never at their place, so that stopping favours neither side.
//! 3. Lines that only one side has are shown and not judged.
//!
//! | module | what |
//! |---|---|
//! | `source` | from a revision to built programs |
//! | `bench` | the table of benchmarks; runs one and reads its sample |
//! | `ratio` | ratios, bootstrap intervals, verdicts |
//! | `report` | the table, JSON |
//! | `random` | a small seeded generator |

mod bench;
mod random;
mod ratio;
mod report;
mod source;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::command::Failure;
use crate::setup;
use bench::{Bench, Sample};
use random::Random;
use ratio::{Bounds, Judged, Pair};
use source::Programs;

/// What `cargo xtask compare` understands.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask compare HEAD                         the last commit against the working tree
  cargo xtask compare v0.1 main                    two commits
  cargo xtask compare HEAD --bench message_cost    instructions and system calls alone: exact, about two minutes
  cargo xtask compare HEAD --bench fs_bench --limit 1800 -- --only create

A ratio is the cost of B divided by the cost of A: above 1, B is worse. A line is `worse` if its whole interval is above the bound,
`better` if its whole interval is below 1/bound, `same` if its interval lies between the two, and `unclear` if the interval is too wide to tell:
give it more time with --limit.

Exit status: 0 no line is worse, 1 at least one line is worse, 2 the comparison could not be made.")]
pub(crate) struct CompareArgs {
    /// The base: a commit, a branch, a tag; `.` is the working tree.
    #[arg(value_name = "A")]
    base: String,
    /// What is compared with it.
    #[arg(value_name = "B", default_value = source::WORKING_TREE)]
    other: String,
    /// Only this benchmark (may be given several times) [default: all].
    #[arg(long, value_name = "NAME", value_parser = bench::parse)]
    bench: Vec<&'static Bench>,
    /// How many times worse a measured line may be.
    #[arg(long, default_value_t = 1.05, value_parser = bound)]
    bound: f64,
    /// The same for counted lines: instructions, system calls.
    #[arg(long, default_value_t = 1.02, value_parser = bound)]
    exact_bound: f64,
    /// A benchmark is done when the upper end of each interval is at most so many times its lower end.
    #[arg(long, default_value_t = 1.04, value_parser = bound)]
    width: f64,
    /// Seconds of measuring, builds not included. What is wide then stays wide.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Seed of the order of runs and of the bootstrap [default: drawn from the clock, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Run measured benchmarks at real-time priority (as root): steadier where other programs keep the processors busy. It is another
    /// measurement than without, so compare like with like.
    #[arg(long)]
    realtime: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Passed on to each benchmark.
    #[arg(last = true)]
    args: Vec<String>,
}

fn bound(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number above 1, such as 1.05".to_owned())?;
    if value > 1.0 && value <= 100.0 { Ok(value) } else { Err("a number above 1, such as 1.05".to_owned()) }
}

/// The comparison could not be made.
const FAILED: u8 = 2;

/// `cargo xtask compare`.
pub(crate) fn main(root: &Path, args: &CompareArgs) -> ExitCode {
    match run(root, args) {
        Ok(judged) if judged.iter().any(|line| line.verdict.is_worse()) => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(root: &Path, args: &CompareArgs) -> Result<Vec<Judged>, Failure> {
    let benches: Vec<&'static Bench> = match args.bench.is_empty() {
        true => bench::BENCHES.iter().collect(),
        false => args.bench.clone(),
    };
    if benches.iter().any(|bench| bench.counts) {
        setup::set_up_compare(root)?;
    }
    let revisions = [source::resolve(root, &args.base)?, source::resolve(root, &args.other)?];
    let sides = [source::build(root, &revisions[0], &benches)?, source::build(root, &revisions[1], &benches)?];
    let seed = args.seed.unwrap_or_else(random::seed);
    if !args.json {
        println!("A  {}\nB  {}\nseed {seed}", revisions[0], revisions[1]);
    }
    let mut comparison = Comparison {
        sides: &sides,
        run: bench::Run { args: args.args.clone(), realtime: args.realtime },
        bounds: Bounds { measured: args.bound, exact: args.exact_bound },
        width: args.width,
        random: Random::new(seed),
        seed,
        open: benches.iter().map(|bench| Open { bench, pairs: Vec::new() }).collect(),
        closed: Vec::new(),
    };
    comparison.measure(Duration::from_secs(args.limit))?;
    let judged = comparison.judged();
    match args.json {
        true => println!("{}", report::json(&revisions, seed, &judged)?),
        false => print!("{}", report::render(&judged)),
    }
    Ok(judged)
}

/// A benchmark and the samples that were taken: of A, of B.
struct Open {
    bench: &'static Bench,
    pairs: Vec<[Sample; 2]>,
}

impl Open {
    /// The pairs of each line that both sides have, and the lines of one side only.
    fn lines(&self) -> BTreeMap<&str, Vec<Pair<'_>>> {
        let mut lines: BTreeMap<&str, Vec<Pair<'_>>> = BTreeMap::new();
        for [a, b] in &self.pairs {
            let other = |sample: &Sample, name: &str| sample.iter().position(|line| line.name == name);
            for line in a {
                let pair = Pair { a: Some(line), b: other(b, &line.name).map(|at| &b[at]) };
                lines.entry(&line.name).or_default().push(pair);
            }
            for line in b.iter().filter(|line| other(a, &line.name).is_none()) {
                lines.entry(&line.name).or_default().push(Pair { a: None, b: Some(line) });
            }
        }
        lines
    }
}

/// A comparison under way.
struct Comparison<'a> {
    /// Of A, of B.
    sides: &'a [Programs; 2],
    run: bench::Run,
    bounds: Bounds,
    width: f64,
    /// Draws the order.
    random: Random,
    /// What the bootstrap of each line begins with, so that a line's interval depends on its samples alone.
    seed: u64,
    open: Vec<Open>,
    closed: Vec<Open>,
}

impl Comparison<'_> {
    /// Runs rounds until every benchmark is closed or the time is up. Each benchmark runs at least [`ratio::LEAST_PAIRS`] times unless the
    /// time is up after the first round.
    #[expect(clippy::disallowed_methods, reason = "a time limit on real processes")]
    fn measure(&mut self, limit: Duration) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut rounds = 0;
        while !self.open.is_empty() && (rounds == 0 || begin.elapsed() < limit) {
            rounds += 1;
            self.random.shuffle(&mut self.open);
            for at in 0..self.open.len() {
                if rounds > 1 && begin.elapsed() >= limit {
                    break;
                }
                self.progress(at, rounds, limit.saturating_sub(begin.elapsed()));
                let pair = self.pair(self.open[at].bench)?;
                self.open[at].pairs.push(pair);
            }
            let (bounds, width, seed) = (self.bounds, self.width, self.seed);
            let is_done = |open: &mut Open| {
                let lines = open.lines();
                lines
                    .iter()
                    .all(|(name, pairs)| ratio::judge(open.bench.name, name, pairs, bounds, seed).is_done(width))
            };
            self.closed.extend(self.open.extract_if(.., is_done));
        }
        self.closed.append(&mut self.open);
        if std::io::stderr().is_terminal() {
            eprint!("\r{:79}\r", "");
        }
        Ok(())
    }

    /// One sample of each side, in a drawn order.
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

    fn progress(&self, at: usize, round: usize, left: Duration) {
        if std::io::stderr().is_terminal() {
            let (name, open, left) = (self.open[at].bench.name, self.open.len(), left.as_secs());
            eprint!("\r{:79}\rround {round}, {name}; {open} benchmarks open, at most {left} s left ", "");
        }
    }

    /// All lines, in the order of the benchmarks' table.
    fn judged(&self) -> Vec<Judged> {
        let order = |name: &str| bench::BENCHES.iter().position(|bench| bench.name == name);
        let mut judged: Vec<Judged> = self
            .closed
            .iter()
            .flat_map(|of| {
                let lines = of.lines();
                let names = report::in_order(of.pairs.first().map_or(&[][..], |pair| &pair[1]), &lines);
                let judge = |name: &&str| ratio::judge(of.bench.name, name, &lines[*name], self.bounds, self.seed);
                names.iter().map(judge).collect::<Vec<_>>()
            })
            .collect();
        judged.sort_by_key(|line| order(line.bench));
        judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_sides_are_paired_by_name() {
        let line = |name: &str, value| bench::Line { name: name.into(), value, unit: bench::Unit::Seconds };
        let bench = &bench::BENCHES[0];
        let pair = [vec![line("both", 1.0), line("old", 2.0)], vec![line("new", 3.0), line("both", 4.0)]];
        let open = Open { bench, pairs: vec![pair] };
        let lines = open.lines();
        let values = |name: &str| {
            lines[name].iter().map(|pair| [pair.a, pair.b].map(|of| of.map(|line| line.value))).collect::<Vec<_>>()
        };
        assert_eq!(values("both"), [[Some(1.0), Some(4.0)]]);
        assert_eq!(values("old"), [[Some(2.0), None]]);
        assert_eq!(values("new"), [[None, Some(3.0)]]);
    }

    #[test]
    fn bounds_are_above_one() {
        assert_eq!(bound("1.05"), Ok(1.05));
        for text in ["1", "0.95", "NaN", "inf", "five"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
