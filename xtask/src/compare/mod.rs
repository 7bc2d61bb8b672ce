//! `cargo xtask compare A B`: measures two commits, or a commit and the working tree, side by side.
//!
//! **Why.** The machines that this project is built on are shared and noisy. A figure measured
//! today cannot be compared with one measured yesterday. Two builds that run in turns, within the
//! same minutes, meet the same noise, so the ratio of their figures can be trusted.
//!
//! **How.**
//! 1. [`source`] checks both revisions out into one directory, one after the other, and builds the
//!    benchmarks in release.
//! 2. [`measure`] runs rounds. In each round, every benchmark that still needs pairs runs once for
//!    A and once for B, each time as a new process and in random order. A run prints one
//!    [`Sample`](bench::Sample).
//! 3. [`ratio`] turns the pairs of a row into a ratio with a confidence interval. A benchmark is
//!    finished when the intervals of all its rows are narrow, or when the time limit is reached.
//! 4. A benchmark with a row that differs is measured once more from the start. The row counts as
//!    worse only if both measurements say so: with a hundred rows, chance alone makes one differ
//!    now and then.
//! 5. [`report`] prints the rows.
//!
//! **Invariants**
//! 1. A ratio is the cost of B divided by the cost of A. Above 1, B is worse, whether the row
//!    counts seconds or bytes a second.
//! 2. The decision to stop looks at the width of the intervals and not at their position, so it
//!    favours neither side.
//! 3. Rows that only one side has are shown and not judged.
//!
//! | module | what |
//! |---|---|
//! | `source` | from a revision to built programs |
//! | `bench` | the table of benchmarks; runs one and reads its sample |
//! | `measure` | the rounds, and the second measurement |
//! | `ratio` | ratios and verdicts, on the statistics of `bmi_report` |
//! | `report` | the table, JSON |

mod bench;
mod measure;
mod ratio;
mod report;
mod source;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bmi_report::stats;
use clap::Args;

use crate::command::Failure;
use crate::setup::{self, Need};
use bench::Bench;
use measure::Comparison;
use ratio::{Bounds, Judged};

/// Options of `cargo xtask compare`.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask compare HEAD                         the last commit against the working tree
  cargo xtask compare v0.1 main                    two commits
  cargo xtask compare HEAD --bench message_cost    instructions and system calls alone: exact, some minutes
  cargo xtask compare HEAD --bench pvfs --limit 1800 -- --tasks 4

A ratio is the cost of B divided by the cost of A: above 1, B is worse. A row is `worse` if its whole interval is above the
bound, `better` if its whole interval is below 1/bound, `same` if its interval lies between the two, and `unclear` if the
interval contains a bound. More time (--limit) or a narrower --width make an unclear row clear. Rows that differ are
measured a second time, with the same limit, and count only if both measurements agree.

Exit status: 0 no row is worse, 1 at least one row is worse, 2 the comparison failed.")]
pub(crate) struct CompareArgs {
    /// The base: a commit, a branch or a tag; `.` is the working tree.
    #[arg(value_name = "A")]
    base: String,
    /// The revision to compare with the base.
    #[arg(value_name = "B", default_value = source::WORKING_TREE)]
    other: String,
    /// Run only this benchmark (may be given several times) [default: all].
    #[arg(long, value_name = "NAME", value_parser = bench::parse)]
    bench: Vec<&'static Bench>,
    /// How many times worse a timed row may be.
    #[arg(long, default_value_t = 1.05, value_parser = bound)]
    bound: f64,
    /// How many times worse a counted row may be: instructions, system calls.
    #[arg(long, default_value_t = 1.02, value_parser = bound)]
    exact_bound: f64,
    /// An interval is narrow if its upper end is at most this many times its lower end.
    #[arg(long, default_value_t = 1.04, value_parser = bound)]
    width: f64,
    /// Time limit for measuring, in seconds; building is not included.
    #[arg(long, value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Seed of the order of runs and of the bootstrap [default: taken from the clock, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Run timed benchmarks at real-time priority (needs root). On a busy machine the figures vary
    /// less. They differ from those without this option.
    #[arg(long)]
    realtime: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Arguments for the benchmark; needs exactly one --bench.
    #[arg(last = true)]
    args: Vec<String>,
}

fn bound(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number above 1, such as 1.05".to_owned())?;
    if value > 1.0 && value <= 100.0 { Ok(value) } else { Err("a number above 1, such as 1.05".to_owned()) }
}

/// The exit status of a comparison that failed.
const FAILED: u8 = 2;

/// `cargo xtask compare`.
pub(crate) fn main(root: &Path, args: &CompareArgs) -> ExitCode {
    match run(root, args) {
        Ok(judged) if judged.iter().any(|row| row.verdict.is_worse()) => ExitCode::FAILURE,
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
    if !args.args.is_empty() && benches.len() != 1 {
        return Err(Failure::new("arguments after -- are for one benchmark: name it with --bench"));
    }
    if args.realtime && !setup::is_root() {
        return Err(Failure::new("--realtime needs root"));
    }
    if benches.iter().any(|bench| bench.counts) {
        setup::install(root, Need::Counting)?;
    }
    let revisions = [source::resolve(root, &args.base)?, source::resolve(root, &args.other)?];
    let names: Vec<&str> = benches.iter().flat_map(|bench| bench.programs()).collect();
    let sides = source::build(root, &revisions, &names)?;
    for bench in &benches {
        sides.iter().try_for_each(|programs| bench.understands_samples(programs))?;
    }
    let seed = args.seed.unwrap_or_else(stats::seed);
    if !args.json {
        println!("A  {}\nB  {}\nseed {seed}", revisions[0].name, revisions[1].name);
    }
    let run = bench::Run { args: args.args.clone(), realtime: args.realtime };
    let bounds = Bounds { measured: args.bound, exact: args.exact_bound };
    let judged =
        Comparison::new(&sides, run, bounds, args.width, seed).judge(&benches, Duration::from_secs(args.limit))?;
    match args.json {
        true => println!("{}", report::json(&revisions, seed, &judged)?),
        false => print!("{}", report::render(&judged)),
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_above_one() {
        assert_eq!(bound("1.05"), Ok(1.05));
        for text in ["1", "0.95", "NaN", "inf", "five"] {
            assert!(bound(text).is_err(), "{text}");
        }
    }
}
