//! Rows of the result.

use std::collections::BTreeMap;

use benches::report::SEED;
use bmi_report::{stats, units};
use serde::Serialize;

use crate::ways::{Outcome, Way};

/// A measurement by several ways.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    ways: BTreeMap<Way, Rounds>,
}

/// The rounds of one way: times in seconds, and context switches, for one exchange.
#[derive(Debug, Default, Serialize)]
struct Rounds {
    seconds: Vec<f64>,
    switches: Vec<f64>,
}

impl Row {
    pub(crate) fn new(name: String, ways: &[Way]) -> Row {
        Row { name, ways: ways.iter().map(|way| (*way, Rounds::default())).collect() }
    }

    pub(crate) fn add(&mut self, way: Way, outcome: Outcome) {
        let rounds = self.ways.entry(way).or_default();
        rounds.seconds.push(outcome.seconds);
        rounds.switches.push(outcome.switches);
    }

    /// Returns the lines of a sample.
    pub(crate) fn sample(&self) -> impl Iterator<Item = (String, f64)> {
        self.ways.iter().map(|(way, rounds)| (format!("{} by {way}", self.name), median(&rounds.seconds)))
    }

    /// Prints the row.
    pub(crate) fn print(&self) {
        println!("{}", self.name);
        let Some(single) = self.ways.get(&Way::Single) else { return };
        for (way, rounds) in &self.ways {
            let pairs: Vec<(f64, f64)> = single.seconds.iter().copied().zip(rounds.seconds.iter().copied()).collect();
            let ratio = stats::paired_ratio(&pairs, SEED);
            println!(
                "  {:<7} {:>10}  ratio {:>5.2} ({:.2}..{:.2})  switches {:.2}",
                way.to_string(),
                units::time(median(&rounds.seconds)),
                ratio.middle,
                ratio.low,
                ratio.high,
                median(&rounds.switches),
            );
        }
    }
}

fn median(values: &[f64]) -> f64 {
    stats::middle(&mut values.to_vec())
}
