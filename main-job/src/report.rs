//! The A/B table, and the rows of the report.

use std::collections::BTreeMap;

use bmi::Scheme;
use bmi::paths::{Plan, Rule};
use bmi_report::table::Table;
use bmi_report::{Cost, Kind, Row, Step, Unit, units};

use crate::job::Tallies;
use crate::tally::{CLASSES, Line};

/// Whose processor time is counted, with the work of its driver. That of servers is not, be they
/// threads or processes.
const CLIENT: &str = "client";

/// The results over one transport.
pub(crate) struct Measured {
    pub(crate) transport: String,
    /// The path that data of each size takes, and the reason.
    pub(crate) plan: Plan,
    pub(crate) put: Tallies,
    pub(crate) get: Tallies,
    /// The differences between what was stored and what was read back.
    pub(crate) wrong: Vec<String>,
}

/// Returns all lines, ordered by size class, direction and transport, so that lines to compare are
/// adjacent.
pub(crate) fn lines(measured: &[Measured]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, (_, class)) in CLASSES.iter().enumerate() {
        for direction in ["put", "get"] {
            lines.extend(measured.iter().filter_map(|one| {
                let tallies = if direction == "put" { &one.put } else { &one.get };
                tallies[index].line(class, direction, &one.transport)
            }));
        }
    }
    lines
}

/// Returns the report's rows: a bandwidth for each line, with the latencies of its files.
pub(crate) fn rows(measured: &[Measured]) -> Vec<Row> {
    let mut rows = Vec::new();
    for one in measured {
        let kind = if one.transport == Scheme::Sim.as_str() { Kind::Model } else { Kind::Library };
        for (tallies, direction) in [(&one.put, "put"), (&one.get, "get")] {
            for (tally, (_, class)) in tallies.iter().zip(CLASSES) {
                let Some(line) = tally.line(class, direction, &one.transport) else { continue };
                let cost = Cost { cpu: line.cpu_seconds, ..Cost::default() };
                rows.push(Row {
                    test: direction.to_owned(),
                    over: one.transport.clone(),
                    kind,
                    unit: Unit::BytesPerSecond,
                    setup: BTreeMap::from([("files".to_owned(), (*class).to_owned())]),
                    rounds: vec![Step { round: 0, value: line.bytes_per_second }],
                    histogram: Some(tally.latency().clone()),
                    cost: BTreeMap::from([(CLIENT.to_owned(), cost)]),
                    notes: vec![format!("{} files; path: {}", line.operations, line.path())],
                    ..Row::default()
                });
            }
        }
    }
    rows
}

/// Returns the plan of a report: a line for each size at which the path changes.
pub(crate) fn plans(one: &Measured) -> Vec<bmi_report::Plan> {
    let row = |rule: &Rule| bmi_report::Plan {
        over: one.transport.clone(),
        direction: format!("{}, {} memory", rule.direction, if rule.registered { "registered" } else { "new" }),
        size: rule.from,
        path: rule.path.as_str().to_owned(),
        why: rule.why.clone(),
    };
    one.plan.rules.iter().map(row).collect()
}

/// Formats the lines for people.
pub(crate) fn render(lines: &[Line]) -> String {
    let heading = ["file size", "", "over", "path", "files", "bytes", "bandwidth", "median", "p99", "client CPU"];
    let mut table = Table::new(4, heading);
    for line in lines {
        table.row([
            line.class.to_owned(),
            line.direction.to_owned(),
            line.transport.to_owned(),
            line.path(),
            line.operations.to_string(),
            units::amount(line.bytes),
            units::bandwidth(line.bytes_per_second),
            units::time(line.median_seconds),
            units::time(line.p99_seconds),
            units::time(line.cpu_seconds),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bmi::stats::PathCounters;

    use super::*;

    #[test]
    fn a_report_has_a_row_for_each_class_and_knows_the_simulator() {
        let mut put = Tallies::default();
        let (second, none) = (Duration::from_secs(1), PathCounters::default());
        put[1].add(5000, 2 * second, second, none, none);
        let measured = ["tcp", "sim"].map(|transport| Measured {
            transport: transport.to_owned(),
            plan: Plan { rules: Vec::new(), thresholds: "", ways: Vec::new() },
            put: put.clone(),
            get: Tallies::default(),
            wrong: Vec::new(),
        });
        let rows = rows(&measured);
        let found: Vec<(String, Kind, f64)> =
            rows.iter().map(|row| (row.name(), row.kind, row.rounds[0].value)).collect();
        let name = |over: &str| format!("{over} put, <= 64 KiB");
        assert_eq!(found, [(name("tcp"), Kind::Library, 2500.0), (name("sim"), Kind::Model, 2500.0)]);
        assert!(rows[0].is_beside(&rows[1]));
        // The time of the client. The report had it as that of client and server.
        assert_eq!(rows[0].cost.keys().collect::<Vec<_>>(), ["client"]);
        assert_eq!((rows[0].cost["client"].cpu, rows[0].histogram.as_ref().map(|each| each.len())), (1.0, Some(1)));
    }
}
