//! What was measured of a pattern: a row of the table, and rows of a report.

use std::time::Duration;

use bmi::paths::Direction;
use bmi_report::stats::middle;
use bmi_report::table::Table;
use bmi_report::{Kind, Report, Row, Unit, units};

use super::super::workload::Target;
use crate::report::{self, steps};
use crate::workload::noncontiguous::{Done, Took, Way};
use crate::workload::{Setup, slowest};

/// A pattern by one way in one place.
pub(super) struct Measured {
    pattern: &'static str,
    parameters: String,
    over: String,
    kind: Kind,
    way: Way,
    /// True if the next one was measured in rounds of its own.
    pub(super) is_last: bool,
    clients: usize,
    servers: usize,
    /// The mean bytes of a piece that is contiguous on both sides.
    piece: u64,
    /// Writing and reading.
    directions: [Of; 2],
}

/// One direction.
struct Of {
    direction: Direction,
    /// Bytes per second of each round.
    rates: Vec<f64>,
    /// Bytes on the wire for each byte of data.
    wire: f64,
    /// Processor time of the clients and of the servers, in seconds for each byte of data.
    clients: f64,
    servers: f64,
}

/// Returns what all ranks have done by each way.
pub(super) fn measured(
    pattern: &'static str,
    parameters: &str,
    over: &Target,
    setup: &Setup,
    ranks: &[Vec<Done>],
) -> Vec<Measured> {
    let ways = ranks.first().map_or(0, Vec::len);
    let one = |number: usize| {
        let done = || ranks.iter().map(move |rank| &rank[number]);
        let (bytes, pieces) = done().fold((0, 0), |sum, one| (sum.0 + one.bytes, sum.1 + one.pieces));
        let write: fn(&Done) -> &Took = |done| &done.write;
        let of = |(direction, of): (Direction, fn(&Done) -> &Took)| Of::new(direction, bytes, done().map(of).collect());
        Measured {
            pattern,
            parameters: parameters.to_owned(),
            over: over.name.clone(),
            kind: over.kind(),
            way: ranks[0][number].way,
            is_last: number + 1 == ways,
            clients: setup.clients,
            servers: setup.servers,
            piece: bytes / pieces.max(1),
            directions: [(Direction::Write, write), (Direction::Read, |done| &done.read)].map(of),
        }
    };
    (0..ways).map(one).collect()
}

impl Of {
    /// Returns the figures of a direction, in each round of which all ranks moved `bytes` bytes.
    fn new(direction: Direction, bytes: u64, ranks: Vec<&Took>) -> Of {
        let times = slowest(ranks.iter().map(|took| took.spans.iter().map(|span| span.time)));
        let all = (bytes * times.len() as u64).max(1) as f64;
        let busy: Duration = ranks.iter().flat_map(|took| &took.spans).map(|span| span.busy).sum();
        let servers: Duration = ranks.iter().map(|took| took.servers).sum();
        Of {
            direction,
            // In the simulator an operation may take no time at all.
            rates: times.iter().map(|time| bytes as f64 / time.as_secs_f64().max(1e-12)).collect(),
            wire: ranks.iter().map(|took| took.wire).sum::<u64>() as f64 / all,
            clients: busy.as_secs_f64() / all,
            servers: servers.as_secs_f64() / all,
        }
    }
}

impl Measured {
    /// Adds the rows of both directions, whose first round has the number `first`. What a row has
    /// no field for is in the summary, under the row's name.
    pub(super) fn record(&self, report: &mut Report, first: usize) {
        let (clients, servers) = (self.clients.to_string(), self.servers.to_string());
        let setup =
            [("clients", &*clients), ("servers", &*servers), ("way", self.way.as_str()), ("layout", &*self.parameters)];
        for of in &self.directions {
            let test = format!("{} {}", self.pattern, of.direction);
            let row = Row {
                size: Some(self.piece),
                rounds: steps(first, of.rates.iter().copied()),
                ..report::row(&test, &self.over, self.kind, Unit::BytesPerSecond, &setup)
            };
            let name = row.name();
            let figures =
                [("wire", of.wire, "B/B"), ("client cpu", of.clients, "s/B"), ("server cpu", of.servers, "s/B")];
            report.summary.extend(figures.map(|(what, value, unit)| (format!("{name}, {what}"), value, unit.into())));
            report.rows.push(row);
        }
    }
}

/// Returns a row for each cursor.
pub(super) fn cursors(rows: &[Row]) -> Table {
    let mut table = Table::new(1, ["pieces or places", "a second"]);
    for row in rows {
        table.row([row.test.clone(), units::rate(middle(&mut row.values()))]);
    }
    table
}

/// Returns a row for each pattern and way.
pub(super) fn patterns(rows: &[Measured]) -> Table {
    let heading = ["write", "read"].iter().flat_map(|verb| [*verb, "wire", "client cpu", "server cpu"]);
    let mut table = Table::new(3, ["pattern", "over", "way", "piece"].into_iter().chain(heading));
    for row in rows {
        let mut cells =
            vec![row.pattern.to_owned(), row.over.clone(), row.way.to_string(), units::size(row.piece as usize)];
        for of in &row.directions {
            let cpu = |seconds: f64| units::time(seconds * 1024.0);
            cells.push(rate(middle(&mut of.rates.clone())));
            cells.extend([format!("{:.3}", of.wire), cpu(of.clients), cpu(of.servers)]);
        }
        table.row(cells);
    }
    table
}

/// Formats bytes per second. Elements that are moved one by one are far below a megabyte.
fn rate(bytes_per_s: f64) -> String {
    if bytes_per_s < 1e6 { format!("{:.1} kB/s", bytes_per_s / 1e3) } else { units::bandwidth(bytes_per_s) }
}

#[cfg(test)]
mod tests {
    use bmi_sim::Profile;

    use super::*;
    use crate::workload::{Bed, Span};

    /// Two ranks moved 1000 bytes each, in 1 and 2 ms, and in 4 and 3 ms.
    #[test]
    fn the_slowest_rank_counts_and_costs_are_those_of_all() {
        let ms = Duration::from_millis;
        let took = |times: [u64; 2], servers| Took {
            spans: times.map(|time| Span { time: ms(time), busy: ms(1), ..Span::default() }).to_vec(),
            wire: 3000,
            servers: ms(servers),
        };
        let done = |write, read| vec![Done { way: Way::View, bytes: 1000, pieces: 10, write, read }];
        let ranks = [done(took([1, 4], 8), Took::default()), done(took([2, 3], 0), Took::default())];
        let over = Target { name: "sim".into(), bed: Bed::sim(Profile::default()) };
        let all = measured("tile", "10 rows", &over, &Setup::new(2, 1), &ranks);
        let [write, read] = &all[0].directions;
        assert_eq!((write.rates.clone(), read.rates.len()), (vec![1e6, 5e5], 0));
        assert_eq!((write.wire, write.clients, write.servers), (1.5, 1e-6, 2e-6));
        let mut report = Report::default();
        all[0].record(&mut report, 7);
        let row = &report.rows[0];
        assert_eq!(row.name(), "sim tile write 100 B, clients 2, 10 rows, servers 1, view");
        assert_eq!((row.rounds[0].round, row.kind, report.rows.len()), (7, Kind::Model, 2));
        let (name, value, unit) = &report.summary[0];
        assert_eq!((name.as_str(), *value, unit.as_str()), (&*(row.name() + ", wire"), 1.5, "B/B"));
    }
}
