//! Rows of the result.

use std::collections::BTreeMap;

use benches::{stats, units};
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
            let ratios: Vec<f64> = rounds.seconds.iter().zip(&single.seconds).map(|(ours, base)| ours / base).collect();
            let bounds =
                (ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max));
            println!(
                "  {:<7} {:>10}  ratio {:>5.2} ({:.2}..{:.2})  switches {:.2}",
                way.to_string(),
                units::time(median(&rounds.seconds)),
                median(&ratios),
                bounds.0,
                bounds.1,
                median(&rounds.switches),
            );
        }
    }
}

fn median(values: &[f64]) -> f64 {
    stats::median(&mut values.to_vec())
}
