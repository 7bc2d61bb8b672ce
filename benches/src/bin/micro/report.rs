//! Sums up the rounds of each row beside its aim, for people and in a report.

use std::collections::BTreeMap;

use benches::report::{self, BOTH, SEED};
use bmi_report::stats::{self, Interval, middle};
use bmi_report::table::Table;
use bmi_report::{Cost, Histogram, Kind, Row, units};
use serde::Serialize;

use crate::phase::{Mode, Outcome, What};

/// A line: a measurement of both, its ratio, and the aim.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    mode: Mode,
    what: What,
    size: usize,
    /// Seconds, bytes per second or messages per second. It is the median of the rounds.
    plain: f64,
    ours: f64,
    /// The ratio ours to plain, with its interval.
    ratio: f64,
    ratio_low: f64,
    ratio_high: f64,
    /// The processor time of both processes, ours to plain, for the same number of messages.
    cpu_ratio: f64,
    aim: String,
    met: Option<bool>,
}

/// The rounds of one side of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    /// Seconds, bytes per second or messages per second, in each round.
    pub(crate) figures: Vec<f64>,
    /// The processor time of both processes for a message, in each round, in seconds.
    cpu: Vec<f64>,
    /// The context switches of both processes for a message, in each round.
    switches: Vec<f64>,
    /// The system calls of both processes for a message, counted in a round of their own.
    calls: Option<f64>,
    /// The durations of single messages, for latency.
    each: Histogram,
}

impl Side {
    /// Adds a round of `count` messages.
    pub(crate) fn add(&mut self, figure: f64, outcome: &Outcome, count: u64) {
        self.figures.push(figure);
        self.cpu.push(outcome.cpu / count as f64);
        self.switches.push(outcome.switches as f64 / count as f64);
        self.each.add(&outcome.each);
    }

    /// Takes the system calls, and nothing else, from a round of `count` messages.
    pub(crate) fn set_calls(&mut self, outcome: &Outcome, count: u64) {
        self.calls = outcome.calls.map(|calls| calls as f64 / count as f64);
    }

    /// Returns the row of a report.
    fn row(self, line: &Line, over: &str, kind: Kind, first: usize) -> Row {
        let median = |mut values: Vec<f64>| middle(&mut values);
        let cost = Cost { cpu: median(self.cpu), switches: median(self.switches), calls: self.calls };
        Row {
            size: Some(line.size as u64),
            rounds: report::steps(first, self.figures),
            histogram: (!self.each.is_empty()).then_some(self.each),
            cost: BTreeMap::from([(BOTH.to_owned(), cost)]),
            ..report::row(line.test(), over, kind, line.what.unit(), &[("waiting", line.waiting())])
        }
    }
}

/// Returns the ratio b to a of figures that were measured in the same rounds.
fn ratio(a: &[f64], b: &[f64]) -> Interval {
    stats::paired_ratio(&a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>(), SEED)
}

impl Line {
    /// Sums up the rounds of both sides.
    pub(crate) fn new(mode: Mode, what: What, size: usize, plain: &Side, ours: &Side) -> Line {
        let Interval { middle: ratio, low, high } = ratio(&plain.figures, &ours.figures);
        let cpu = self::ratio(&plain.cpu, &ours.cpu);
        let (plain, ours) = (middle(&mut plain.figures.clone()), middle(&mut ours.figures.clone()));
        let (aim, met) = match what {
            What::Latency => ("<= 1.25", Some(ratio <= 1.25)),
            What::Send => (">= 0.95", Some(ratio >= 0.95)),
            What::Write | What::Read => (">= 0.85", Some(ratio >= 0.85)),
            What::Rate => (">= 1.00 M/s", Some(ours >= 1e6)),
            What::RateEach => ("", None),
        };
        let (ratio_low, ratio_high, cpu_ratio) = (low, high, cpu.middle);
        Line { mode, what, size, plain, ours, ratio, ratio_low, ratio_high, cpu_ratio, aim: aim.to_owned(), met }
    }

    /// Returns the rows of a report, whose first round has the number `first`.
    pub(crate) fn rows(&self, plain: Side, ours: Side, first: usize) -> [Row; 2] {
        let mut ours = ours.row(self, "tcp", Kind::Library, first);
        if !self.aim.is_empty() {
            ours.notes.push(format!("aim: {}", self.aim));
        }
        [ours, plain.row(self, "sockets", Kind::Baseline, first)]
    }

    /// Returns the name of the test in a report.
    fn test(&self) -> &'static str {
        match self.what {
            What::Latency => "latency",
            What::Send => "send",
            What::Write => "write",
            What::Read => "read",
            What::Rate => "rate",
            What::RateEach => "rate, sockets with a write for each",
        }
    }

    fn waiting(&self) -> &'static str {
        if self.mode == Mode::Polling { "polling" } else { "sleeping" }
    }

    fn name(&self) -> &'static str {
        match self.what {
            What::Latency => "latency, one way",
            What::Send => "send/receive",
            What::Write => "RDMA write (push)",
            What::Read => "RDMA read (pull)",
            What::Rate => "rate; plain: 64 a write",
            What::RateEach => "rate; plain: one a write",
        }
    }
}

/// Formats the lines as a table.
pub(crate) fn render(lines: &[Line]) -> String {
    let mut table = Table::new(2, ["mode", "test", "size", "plain", "bmi", "ratio", "interval", "cpu", "aim", "met"]);
    for line in lines {
        let figure = |value| line.what.unit().figure(value);
        table.row([
            line.waiting().to_owned(),
            line.name().to_owned(),
            units::size(line.size),
            figure(line.plain),
            figure(line.ours),
            format!("{:.2}", line.ratio),
            format!("{:.2}..{:.2}", line.ratio_low, line.ratio_high),
            format!("{:.2}", line.cpu_ratio),
            line.aim.clone(),
            line.met.map_or("", |met| if met { "yes" } else { "no" }).to_owned(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_rows_of_the_same_rounds() {
        let outcome = Outcome { cpu: 4e-6, switches: 2, ..Outcome::default() };
        let side = |figures: [f64; 2]| {
            let mut side = Side::default();
            figures.iter().for_each(|figure| side.add(*figure, &outcome, 2));
            side.set_calls(&Outcome { cpu: 1.0, calls: Some(6), ..Outcome::default() }, 4);
            side
        };
        let (plain, ours) = (side([1e-6, 2e-6]), side([2e-6, 4e-6]));
        let line = Line::new(Mode::Polling, What::Latency, 4, &plain, &ours);
        assert!((line.ratio - 2.0).abs() < 1e-9 && line.met == Some(false), "{line:?}");
        let [ours, plain] = line.rows(plain, ours, 9);
        assert_eq!(ours.pairs(&plain), [(2e-6, 1e-6), (4e-6, 2e-6)]);
        assert!(ours.is_beside(&plain) && plain.kind == Kind::Baseline);
        assert_eq!((ours.rounds[0].round, ours.name().as_str()), (9, "tcp latency 4 B, polling"));
        assert_eq!(ours.cost[BOTH], Cost { cpu: 2e-6, switches: 1.0, calls: Some(1.5) });
    }
}
