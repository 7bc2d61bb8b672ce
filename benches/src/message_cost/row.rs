//! What was counted of a line, for people, for reports and for samples.

use std::collections::BTreeMap;

use bmi_report::table::Table;
use bmi_report::{Kind, Unit};
use serde::Serialize;

use super::callgrind::{Count, WINDOWS};
use super::line::Line;
use crate::report::{self, steps};
use crate::sample;

/// A line that was counted. Figures are for one thing, of both sides together.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    #[serde(skip)]
    line: Line,
    name: String,
    /// The name of the thing that the figures are for.
    of: &'static str,
    instructions: f64,
    system_calls: f64,
    /// The system calls by their names.
    kinds: BTreeMap<String, f64>,
    /// Calls that wait until something comes.
    sleeps: f64,
    /// Misses of simulated caches, of the first level and of the last.
    misses: f64,
    last_misses: f64,
    /// In seconds, without valgrind.
    pub(super) processor_time: Option<f64>,
    /// The instructions of each repetition; `instructions` is the least of them.
    repetitions: [f64; WINDOWS],
}

impl Row {
    pub(super) fn new(line: Line, count: usize, counts: &[Count; WINDOWS]) -> Row {
        let things = (count * line.play.things()) as u64;
        let each = |total: u64| total as f64 / things as f64;
        let beside_copies = |count: &Count| {
            let copied = line.copied() * things;
            each(count.instructions.checked_sub(copied).unwrap_or(count.instructions))
        };
        let repetitions = counts.each_ref().map(beside_copies);
        let least = |of: fn(&Count) -> u64| each(counts.iter().map(of).min().unwrap_or_default());
        let quietest = counts.iter().min_by_key(|count| count.system_calls);
        let kinds = quietest.into_iter().flat_map(|count| &count.kinds);
        Row {
            line,
            name: line.name(),
            of: line.play.counts(),
            instructions: repetitions.iter().copied().fold(f64::INFINITY, f64::min),
            system_calls: least(|count| count.system_calls),
            kinds: kinds.map(|(name, count)| (name.clone(), each(*count))).collect(),
            sleeps: least(|count| count.sleeps),
            misses: least(|count| count.misses),
            last_misses: least(|count| count.last_misses),
            processor_time: None,
            repetitions,
        }
    }

    /// Returns the figures that are compared, with their units.
    fn figures(&self) -> [(Unit, f64); 4] {
        [
            (Unit::Instructions, self.instructions),
            (Unit::Calls, self.system_calls),
            (Unit::WakeUps, self.sleeps),
            (Unit::Misses, self.misses),
        ]
    }

    /// Returns the rows of a report.
    pub(super) fn recorded(&self) -> Vec<bmi_report::Row> {
        let Line { over, play, len, mode } = self.line;
        let kind = if over.is_plain() { Kind::Baseline } else { Kind::Library };
        let time = self.processor_time.map(|time| (Unit::Seconds, time));
        let row = |(unit, value)| bmi_report::Row {
            size: (len > 0).then_some(len as u64),
            rounds: steps(0, [value]),
            ..report::row(play.name(), over.name(), kind, unit, &[("waiting", &mode.name())])
        };
        self.figures().into_iter().chain(time).map(row).collect()
    }

    pub(super) fn sampled(&self) -> [sample::Line; 2] {
        let calls = format!("{}, system calls", self.name);
        [
            sample::Line::new(&self.name, self.instructions, Unit::Instructions),
            sample::Line::new(calls, self.system_calls, Unit::Calls),
        ]
    }

    /// Returns the row of plain sockets beside this one.
    fn partner<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        let partner = self.line.partner()?;
        rows.iter().find(|row| row.line == partner)
    }
}

/// Returns the ratios of the lines of drivers to plain sockets. A report pairs only rows that wait
/// alike.
pub(super) fn ratios_of_drivers(rows: &[Row]) -> Vec<(String, f64, String)> {
    let mut ratios = Vec::new();
    for row in rows.iter().filter(|row| row.line.mode.is_driven()) {
        let Some(plain) = row.partner(rows) else { continue };
        for ((unit, ours), (_, theirs)) in row.figures().into_iter().zip(plain.figures()) {
            if theirs > 0.0 {
                let name = format!("{}, {} / sockets", row.name, unit.counted().unwrap_or_default());
                ratios.push((name, ours / theirs, "times".to_owned()));
            }
        }
    }
    ratios
}

/// Returns the table: the library, plain sockets, and the ratio of the two. Below it are the system
/// calls by their names.
pub(super) fn render(rows: &[Row]) -> String {
    let mut table = Table::new(
        2,
        [
            "line",
            "for each",
            "instructions",
            "plain",
            "ratio",
            "system calls",
            "plain",
            "ratio",
            "sleeps",
            "plain",
            "L1 misses",
            "plain",
            "LL misses",
            "plain",
            "processor",
        ],
    );
    let mut kinds = Table::new(3, ["line", "system calls", "plain"]);
    let is_partner = |line: Line| rows.iter().any(|row| row.line.partner() == Some(line));
    for row in rows.iter().filter(|row| !is_partner(row.line)) {
        let (ours, plain) = if row.line.over.is_plain() { (None, Some(row)) } else { (Some(row), row.partner(rows)) };
        let cell = |row: Option<&Row>, of: fn(&Row) -> f64, digits: usize| {
            row.map_or_else(String::new, |row| format!("{:.digits$}", of(row)))
        };
        let ratio = |of: fn(&Row) -> f64| match (ours, plain) {
            (Some(ours), Some(plain)) if of(plain) > 0.0 => format!("{:.2}", of(ours) / of(plain)),
            _ => String::new(),
        };
        let both = |of: fn(&Row) -> f64, digits| [cell(ours, of, digits), cell(plain, of, digits)];
        let mut cells = vec![row.name.clone(), row.of.to_owned()];
        cells.extend(both(|row| row.instructions, 0));
        cells.push(ratio(|row| row.instructions));
        cells.extend(both(|row| row.system_calls, 2));
        cells.push(ratio(|row| row.system_calls));
        cells.extend(both(|row| row.sleeps, 2));
        cells.extend(both(|row| row.misses, 1));
        cells.extend(both(|row| row.last_misses, 1));
        cells.push(row.processor_time.map_or_else(String::new, |time| format!("{:.4} %", 100.0 * time)));
        table.row(cells);
        kinds.row([row.name.clone(), named(ours), named(plain)]);
    }
    format!("{}\n{}", table.render(), kinds.render())
}

/// Returns the system calls of a row, the most frequent first.
fn named(row: Option<&Row>) -> String {
    let mut kinds: Vec<(&String, f64)> = row.into_iter().flat_map(|row| &row.kinds).map(|(a, b)| (a, *b)).collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    kinds.iter().map(|(name, count)| format!("{name} {count:.2}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::line;
    use super::*;

    fn row(name: &str, instructions: u64) -> Row {
        let line = line::all().into_iter().find(|line| line.name() == name).unwrap();
        let kinds = [("recvfrom", 4), ("sendto", 2)].map(|(name, count)| (name.to_owned(), count));
        let count = Count { instructions, system_calls: 6, sleeps: 2, kinds: kinds.into(), ..Count::default() };
        Row::new(line, 1, &std::array::from_fn(|_| count.clone()))
    }

    /// Documents quote a line by this name.
    #[test]
    fn a_line_of_a_report_has_the_name_of_the_table() {
        for line in line::all() {
            let mut row = row(&line.name(), 7);
            row.processor_time = Some(1.0);
            let recorded = row.recorded();
            assert_eq!(recorded.len(), 5);
            assert!(recorded.iter().all(|row| row.name() == line.name()));
        }
    }

    #[test]
    fn plain_sockets_are_beside_the_library_in_table_and_report() {
        let rows = [
            row("tcp ping 4 B, sleeping", 900),
            row("tcp ping 4 B, tokio", 1200),
            row("sockets ping 4 B, sleeping", 600),
            row("shm ping 8 B, polling", 10),
        ];
        let text = render(&rows);
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        let cells: Vec<&str> = line("tcp ping 4 B, tokio").split_whitespace().collect();
        assert_eq!(cells[5..14], ["message", "600", "300", "2.00", "3.00", "3.00", "1.00", "1.00", "1.00"]);
        assert!(text.contains("recvfrom 2.00, sendto 1.00") && text.contains("shm ping 8 B, polling"));
        assert!(!text.lines().any(|line| line.starts_with("sockets")), "it has a row only beside the others");
        let ratios = ratios_of_drivers(&rows);
        assert_eq!(ratios[0], ("tcp ping 4 B, tokio, instructions / sockets".into(), 2.0, "times".into()));
        let [ours, _, plain, _] = rows.each_ref().map(Row::recorded);
        assert!(ours[0].is_beside(&plain[0]) && plain[0].kind == Kind::Baseline);
    }
}
