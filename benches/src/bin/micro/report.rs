//! Formats the results, beside the aims.

use benches::stats::median;
use benches::table::Table;
use benches::units;
use serde::Serialize;

use crate::phase::{Mode, What};

/// A line: a measurement of both, its ratio, and the aim.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    mode: Mode,
    what: What,
    size: usize,
    /// Seconds, bytes per second or messages per second. It is the median of the rounds.
    plain: f64,
    ours: f64,
    /// The median of the rounds' ratios, ours to plain, with the least and the greatest.
    ratio: f64,
    ratio_least: f64,
    ratio_greatest: f64,
    /// The processor time of both processes, ours to plain, for the same number of messages.
    cpu_ratio: f64,
    aim: String,
    met: Option<bool>,
}

/// One round of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Seconds, bytes per second or messages per second.
    pub(crate) plain: f64,
    /// As `socket_side`.
    pub(crate) ours: f64,
    /// The processor time per message of both processes, in seconds.
    pub(crate) plain_cpu: f64,
    /// As `plain_cpu`.
    pub(crate) ours_cpu: f64,
}

impl Line {
    /// Sums up the rounds.
    pub(crate) fn new(mode: Mode, what: What, size: usize, rounds: &[Round]) -> Line {
        let of = |pick: fn(&Round) -> f64| rounds.iter().map(pick).collect::<Vec<f64>>();
        // `median` leaves the ratios sorted.
        let mut ratios = of(|round| round.ours / round.plain);
        let ratio = median(&mut ratios);
        let ours = median(&mut of(|round| round.ours));
        let (aim, met) = match what {
            What::Latency => ("<= 1.25", Some(ratio <= 1.25)),
            What::Send => (">= 0.95", Some(ratio >= 0.95)),
            What::Write | What::Read => (">= 0.85", Some(ratio >= 0.85)),
            What::Rate => (">= 1.00 M/s", Some(ours >= 1e6)),
            What::RateEach => ("", None),
        };
        Line {
            mode,
            what,
            size,
            plain: median(&mut of(|round| round.plain)),
            ours,
            ratio,
            ratio_least: ratios.first().copied().unwrap_or(0.0),
            ratio_greatest: ratios.last().copied().unwrap_or(0.0),
            cpu_ratio: median(&mut of(|round| round.ours_cpu / round.plain_cpu)),
            aim: aim.to_owned(),
            met,
        }
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

    fn figure(&self, value: f64) -> String {
        match self.what {
            What::Latency => units::time(value),
            What::Send | What::Write | What::Read => units::bandwidth(value),
            What::Rate | What::RateEach => units::rate(value),
        }
    }
}

/// Formats the lines as a table.
pub(crate) fn render(lines: &[Line]) -> String {
    let mut table =
        Table::new(2, ["mode", "test", "size", "plain", "bmi", "ratio", "least..greatest", "cpu", "aim", "met"]);
    for line in lines {
        let mode = if line.mode == Mode::Polling { "polling" } else { "sleeping" };
        table.row([
            mode.to_owned(),
            line.name().to_owned(),
            units::size(line.size),
            line.figure(line.plain),
            line.figure(line.ours),
            format!("{:.2}", line.ratio),
            format!("{:.2}..{:.2}", line.ratio_least, line.ratio_greatest),
            format!("{:.2}", line.cpu_ratio),
            line.aim.clone(),
            line.met.map_or("", |met| if met { "yes" } else { "no" }).to_owned(),
        ]);
    }
    table.render()
}
