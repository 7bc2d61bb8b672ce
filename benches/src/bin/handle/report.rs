//! Rows of the report.

use std::collections::BTreeMap;

use benches::report::{self, steps};
use bmi_report::stats::middle;
use bmi_report::{Cost, Kind, Row, Unit};

use crate::phase::{Mode, Via, What};
use crate::ways::{Outcome, RATE_SIZE, Way};

/// The role of the measuring process. The peer is the same for all ways, and is not measured.
const CLIENT: &str = "client";

/// A measurement by several ways.
#[derive(Debug)]
pub(crate) struct Measured {
    via: Via,
    what: What,
    mode: Mode,
    ways: BTreeMap<Way, Vec<Outcome>>,
}

impl Measured {
    pub(crate) fn new(via: Via, what: What, mode: Mode) -> Measured {
        Measured { via, what, mode, ways: BTreeMap::new() }
    }

    /// Adds a round.
    pub(crate) fn add(&mut self, way: Way, outcome: Outcome) {
        self.ways.entry(way).or_default().push(outcome);
    }

    /// Returns the name that a row has in a sample.
    pub(crate) fn name(&self, way: &str) -> String {
        format!("{} {}, {} by {way}", self.via, self.what, self.mode)
    }

    /// Returns the row of each way, the baseline first. The ways were measured side by side.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.ways.iter().map(|(way, outcomes)| self.row(*way, outcomes)).collect()
    }

    fn row(&self, way: Way, outcomes: &[Outcome]) -> Row {
        let median = |of: fn(&Outcome) -> f64| middle(&mut outcomes.iter().map(of).collect::<Vec<_>>());
        let cost = Cost { cpu: median(|one| one.cpu), switches: median(|one| one.switches), calls: None };
        let (via, mode) = (self.via.to_string(), self.mode.to_string());
        let (test, size, under_way) = match self.what {
            What::Latency(size) => ("latency", Some(size as u64), None),
            What::Calls(1) => ("call", None, None),
            What::Calls(in_flight) => ("call", None, Some(("depth", format!("{in_flight} in flight")))),
            What::Rate(tasks) => ("rate", Some(RATE_SIZE as u64), Some(("tasks", format!("{tasks} tasks")))),
        };
        let mut setup = vec![("transport", &*via), ("waiting", &*mode)];
        setup.extend(under_way.iter().map(|(name, value)| (*name, &**value)));
        Row {
            size,
            rounds: steps(0, outcomes.iter().map(|one| one.seconds)),
            cost: BTreeMap::from([(CLIENT.to_owned(), cost)]),
            ..report::row(test, &way.to_string(), Kind::Library, Unit::Seconds, &setup)
        }
    }
}

#[cfg(test)]
mod tests {
    use benches::lines;
    use bmi_report::Report;

    use super::*;

    #[test]
    fn ways_are_compared_with_the_single_threaded_interface() {
        let outcome = |seconds| Outcome { seconds, cpu: 1e-6, switches: 2.0 };
        let mut measured = Measured::new(Via::Shm, What::Calls(64), Mode::Sleeping);
        for seconds in [3e-6, 1e-6, 2e-6] {
            measured.add(Way::Tokio, outcome(2.0 * seconds));
            measured.add(Way::Single, outcome(seconds));
        }
        let rows = measured.rows();
        let names: Vec<String> = rows.iter().map(Row::name).collect();
        assert_eq!(names, ["single", "tokio"].map(|way| format!("{way} call, 64 in flight, shm, sleeping")));
        assert_eq!(measured.name(&rows[1].over), "shm call, 64 in flight, sleeping by tokio");
        assert_eq!(rows[1].values(), [6e-6, 2e-6, 4e-6]);
        assert_eq!(rows[0].cost[CLIENT], Cost { cpu: 1e-6, switches: 2.0, calls: None });
        let text = lines::render(&Report { rows, ..Report::new("", "") });
        assert!(text.lines().nth(3).is_some_and(|line| line.contains("x 2.00  2.00 to 2.00")), "{text}");
    }
}
