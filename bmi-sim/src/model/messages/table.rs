//! The lines of a report.

use bmi_core::describe_message;

use super::{Mark, Messages, Record, What};

/// Lines of a report, below its two lines of heading.
pub(crate) const LINES: usize = 40;
/// How many of them are for the end of the run, if there are faults to show.
const TAIL: usize = 16;
/// Faults whose surroundings are shown: the last ones.
pub(super) const FAULTS: usize = 4;

/// Notes of the test that are shown: the last ones.
const NOTES: usize = 5;

/// A record that may be shown, and whether records were dropped before it.
type Shown<'a> = (&'a Record, bool);

impl Messages {
    /// Returns the records that may be shown, and the nodes whose messages they are. No nodes mean
    /// all of them.
    fn of_interest(&self, failing: &[u32]) -> (Vec<Shown<'_>>, Vec<u32>) {
        let all = || self.kept.iter().chain(&self.last);
        let mut nodes = failing.to_vec();
        for fault in all().filter(|record| record.is_fault()).rev().take(FAULTS) {
            if let What::Mark { nodes: of_fault, .. } = &fault.what {
                nodes.extend(of_fault);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        let mut gap = false;
        let mut shown = Vec::new();
        for record in all() {
            gap |= record.behind_gap;
            if record.concerns(&nodes) {
                shown.push((record, std::mem::take(&mut gap)));
            }
        }
        let count = all().count();
        if count <= LINES || shown.len() < LINES || shown.len() == count {
            return (all().map(|record| (record, record.behind_gap)).collect(), Vec::new());
        }
        (shown, nodes)
    }

    /// Returns the report: a heading and at most [`LINES`] lines.
    pub(crate) fn lines(&self, names: &[&str], failing: &[u32]) -> Vec<String> {
        let (records, nodes) = self.of_interest(failing);
        let picked = pick(&records);
        let whose = match &nodes[..] {
            [] => String::new(),
            nodes => format!(" of {}", nodes.iter().map(|id| names[*id as usize]).collect::<Vec<_>>().join(", ")),
        };
        let any_fault = records.iter().any(|(record, _)| record.is_fault());
        let faults = if any_fault { " around the faults (*) and" } else { "" };
        let mut lines = vec![format!("messages{whose}{faults} before the failure (!), in µs, - for not arrived:")];
        let table =
            Table::of(names, records.iter().zip(&picked).filter(|(_, picked)| **picked).map(|((it, _), _)| *it));
        lines.push(table.heading());
        let mut next = 0;
        let mut skipped = false;
        for ((record, gap), picked) in records.iter().zip(picked) {
            skipped |= *gap || !picked;
            if picked {
                if std::mem::take(&mut skipped) {
                    lines.push(table.gap(record.number - next));
                }
                lines.push(table.line(record));
                next = record.number + 1;
            }
        }
        lines
    }
}

/// Selects the lines that are shown: some around the last faults, and as many of the end as there
/// is room for. Each gap between lines takes a line too.
fn pick(records: &[Shown<'_>]) -> Vec<bool> {
    let mut picked = vec![false; records.len()];
    let is_fault = |at: &usize| records[*at].0.is_fault();
    let faults: Vec<usize> = (0..records.len()).rev().filter(is_fault).take(FAULTS).collect();
    if !faults.is_empty() {
        let around = ((LINES - TAIL) / faults.len() - 2) / 2;
        for at in faults {
            picked[at.saturating_sub(around)..=(at + around).min(records.len() - 1)].fill(true);
        }
    }
    let is_note = |at: &usize| matches!(records[*at].0.what, What::Mark { of: Mark::Note, .. });
    for at in (0..records.len()).rev().filter(is_note).take(NOTES) {
        picked[at] |= height(records, &picked) + 2 <= LINES;
    }
    for at in (0..records.len()).rev().filter(|at| !picked[*at]).collect::<Vec<_>>() {
        picked[at] = true;
        if height(records, &picked) > LINES {
            picked[at] = false;
            break;
        }
    }
    picked
}

/// Returns how many lines the selected records take, with the gaps between them.
fn height(records: &[Shown<'_>], picked: &[bool]) -> usize {
    let (mut height, mut skipped) = (0, false);
    for ((_, gap), picked) in records.iter().zip(picked) {
        skipped |= gap | !picked;
        if *picked {
            height += 1 + usize::from(std::mem::take(&mut skipped));
        }
    }
    height
}

/// The widths of the columns.
struct Table<'a> {
    names: &'a [&'a str],
    time: usize,
    who: usize,
    bytes: usize,
}

/// Formats nanoseconds as microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

impl<'a> Table<'a> {
    fn of<'r>(names: &'a [&'a str], records: impl Iterator<Item = &'r Record>) -> Table<'a> {
        let mut table = Table { names, time: "arrived".len(), who: 0, bytes: 0 };
        for record in records {
            table.time = table.time.max(micros(record.at).len());
            if let What::Packet { len, arrived, .. } = &record.what {
                table.time = table.time.max(arrived.map_or(0, |at| micros(at).len()));
                table.bytes = table.bytes.max(len.to_string().len());
            }
            table.who = table.who.max(table.who(&record.what).chars().count());
        }
        table
    }

    fn heading(&self) -> String {
        format!("  {:>time$}  {:>time$}", "sent", "arrived", time = self.time)
    }

    fn who(&self, what: &What) -> String {
        let name = |id: &u32| self.names[*id as usize];
        match what {
            What::Packet { from, to, .. } => format!("{} → {}", name(from), name(to)),
            What::Ended { node, peer: Some(peer), .. } => format!("{} × {}", name(node), name(peer)),
            What::Ended { node, peer: None, .. } => name(node).to_owned(),
            What::Mark { .. } => String::new(),
        }
    }

    fn line(&self, record: &Record) -> String {
        let Table { time, who, bytes, .. } = *self;
        let at = micros(record.at);
        let from_to = self.who(&record.what);
        let line = match &record.what {
            What::Packet { name, len, arrived, head, .. } => {
                let arrived = arrived.map_or_else(|| "-".to_owned(), micros);
                let note = head.and_then(|head| describe_message(&head, *len)).unwrap_or_default();
                format!("  {at:>time$}  {arrived:>time$}  {from_to:who$}  {name:10}  {len:>bytes$} B  {note}")
            }
            What::Ended { text, .. } => format!("  {at:>time$}  {:time$}  {from_to:who$}  {text}", ""),
            What::Mark { text, of, .. } => {
                let mark = match of {
                    Mark::Fault => '*',
                    Mark::Note => '>',
                    Mark::Failure => '!',
                };
                format!("{mark} {at:>time$}  {:time$}  {text}", "")
            }
        };
        line.trim_end().to_owned()
    }

    fn gap(&self, count: u64) -> String {
        format!("  {:>time$}  {count} lines left out", "…", time = self.time)
    }
}
