//! A row while it is measured.

use std::time::Duration;

use bmi_report::{Cost, Row, Step};

use super::count::Count;
use crate::case::{Case, MOST_MESSAGES, Over, Test};
use crate::measured::Measured;
use crate::usage::Usage;

/// A round with fewer messages than this part of the most is left out. The processors of a virtual
/// machine change their distance, and the time of a message over shared memory with it, by a factor
/// of five.
const SHORT: u64 = 8;

/// A case, and what is known of it.
pub(super) struct Measurement {
    pub(super) case: Case,
    pub(super) row: Row,
    /// Messages of a round on each connection.
    pub(super) count: Count,
    /// The messages of each round so far.
    counts: Vec<u64>,
    missed: u64,
    /// Whether its calls took other paths than they should.
    pub(super) is_elsewhere: bool,
    usage: [Usage; 2],
    messages: u64,
    /// System calls of the client and the server for a message.
    pub(super) calls: [Option<f64>; 2],
}

impl Measurement {
    /// Begins. `round` is how long a round takes, unless the number of messages is `fixed`.
    pub(super) fn new(case: Case, round: Duration, fixed: Option<u64>) -> Measurement {
        Measurement {
            case,
            row: case.row(),
            count: count_of(&case, round, fixed),
            counts: Vec::new(),
            missed: 0,
            is_elsewhere: false,
            usage: [Usage::default(); 2],
            messages: 0,
            calls: [None; 2],
        }
    }

    /// Returns the case, and the messages of its next round on each connection.
    pub(super) fn next(&self) -> (Case, u64) {
        (self.case, self.count.now())
    }

    /// Adds a round.
    pub(super) fn add(&mut self, round: u32, measured: Measured, usage: [Usage; 2]) {
        let bytes = measured.messages as f64 * self.case.size as f64;
        let value = match (self.case.test, &measured.histogram) {
            (test, _) if test.unit() == bmi_report::Unit::PerSecond => measured.messages as f64 / measured.seconds,
            (test, _) if test.unit() == bmi_report::Unit::BytesPerSecond => bytes / measured.seconds,
            (test, Some(trips)) => share_of(test) * trips.quantile(0.5) as f64 / 1e9,
            (_, None) => measured.seconds / measured.messages as f64,
        };
        self.row.rounds.push(Step { round, value });
        self.counts.push(self.count.now());
        self.count.add(measured.seconds);
        if let Some(trips) = &measured.histogram {
            self.row.histogram.get_or_insert_default().add(&trips.scaled(share_of(self.case.test)));
        }
        self.missed += measured.missed;
        self.messages += measured.messages;
        for (sum, part) in self.usage.iter_mut().zip(usage) {
            *sum = sum.plus(part);
        }
    }

    /// Leaves out rounds from before the number of messages was corrected. They show how a round
    /// begins. Of the processor time and the durations, so few messages are a negligible part.
    fn leave_out_the_short(&mut self) {
        let most = self.counts.iter().copied().max().unwrap_or_default();
        let (before, mut counts) = (self.row.rounds.len(), self.counts.iter());
        self.row.rounds.retain(|_| counts.next().is_none_or(|count| count * SHORT >= most));
        if before > self.row.rounds.len() {
            let (left_out, of) = (before - self.row.rounds.len(), before);
            self.row.notes.push(format!("{left_out} of {of} rounds had too few messages, and are left out"));
        }
    }

    /// Returns the row.
    pub(super) fn finished(mut self) -> Row {
        self.leave_out_the_short();
        let warm_up = bmi_report::stats::warm_up(&self.row.values());
        if warm_up > 0 && self.row.rounds.len() - warm_up >= bmi_report::stats::LEAST_ROUNDS {
            self.row.rounds.drain(..warm_up);
            self.row.notes.push(format!("the first {warm_up} rounds were warm-up, and are left out"));
        }
        if self.missed > 0 {
            self.row.notes.push(format!("{} of {} calls took another path", self.missed, self.messages));
        }
        let messages = self.messages.max(1) as f64;
        for ((role, usage), calls) in ["client", "server"].into_iter().zip(self.usage).zip(self.calls) {
            if role == "server" && self.case.station.over == Over::Memory {
                continue; // it has nothing to do
            }
            let cost = Cost { cpu: usage.cpu / messages, switches: usage.switches as f64 / messages, calls };
            self.row.cost.insert(role.to_owned(), cost);
        }
        self.row
    }
}

/// Returns the part of a round trip that a test counts.
fn share_of(test: Test) -> f64 {
    if test.is_half_trip() { 0.5 } else { 1.0 }
}

/// Returns how many messages the rounds of a case have.
fn count_of(case: &Case, round: Duration, fixed: Option<u64>) -> Count {
    let wanted = round.as_secs_f64();
    match (fixed, case.test) {
        (Some(count), _) => Count::fixed(count),
        (None, Test::LatencyAtRate) => {
            let each = f64::from(case.rate) / f64::from(case.station.connections);
            Count::fixed(((wanted * each) as u64).clamp(10, MOST_MESSAGES))
        }
        (None, _) => {
            let least = if case.test.streams() { 2 * u64::from(case.depth) } else { 2 };
            Count::new(least, MOST_MESSAGES.min((16 << 30) / case.size), wanted)
        }
    }
}
