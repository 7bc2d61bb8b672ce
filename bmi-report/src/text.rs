//! A report as tables for a terminal. The answer comes first, in sentences.
//!
//! **Layout.** A part for each test and setup, with narrow tables below each other instead of one
//! that is wide: medians, percentiles, ratios, what a message costs. Then the paths by size, the
//! notes, the hosts. Most lines have at most 100 columns. Rows that measured the same thing are
//! next to each other, and a blank cell repeats the one above.

use crate::answer::{self, span};
use crate::groups::{self, Figure, Group, PERCENTILES, percentiles, ratio_figure};
use crate::report::{Kind, Report, Row};
use crate::table::Table;
use crate::units;

/// The most columns of a line of prose.
const COLUMNS: usize = 100;

/// Formats a report.
pub fn render(report: &Report) -> String {
    let groups = groups::groups(report);
    let mut parts = vec![head(report, &groups)];
    for part in groups::parts(&groups) {
        parts.push(test(report, &part));
    }
    parts.extend(paths(report));
    parts.extend(foot(report));
    parts.join("\n")
}

fn head(report: &Report, groups: &[Group<'_>]) -> String {
    let mut text = if report.title.is_empty() { String::new() } else { wrapped(&report.title, "") + "\n" };
    for sentence in answer::sentences(report, groups) {
        text += &wrapped(&sentence, "  ");
    }
    text
}

fn test(report: &Report, groups: &[&Group<'_>]) -> String {
    let all = || groups.iter().flat_map(|group| &group.figures);
    let mut heading = Row { size: None, ..groups[0].row().clone() }.what();
    heading.extend(groups[0].counted().map(|what| format!(": {what}")));
    let tables: Vec<String> = tables(groups).into_iter().map(|table| table.without_repeats().render()).collect();
    let findings: String = answer::findings(report, groups).iter().map(|finding| wrapped(finding, "  ")).collect();
    let mut text = format!("{heading}\n{findings}\n{}", tables.join("\n"));
    for row in all().map(|figure| figure.row) {
        for note in &row.notes {
            text += &wrapped(&format!("{}: {note}", row.name()), "  ");
        }
    }
    text
}

/// Returns the tables of a test and setup: medians; then percentiles, ratios and costs, if there
/// are any.
pub(crate) fn tables(groups: &[&Group<'_>]) -> Vec<Table> {
    let others = [shares(groups), ratios(groups), costs(groups)];
    std::iter::once(medians(groups)).chain(others.into_iter().filter(|table| !table.rows.is_empty())).collect()
}

fn size(row: &Row) -> String {
    row.size.map_or("-".to_owned(), |size| units::size(size as usize))
}

/// Returns the transport, marked if it is not the library that was measured.
pub(crate) fn over(row: &Row) -> String {
    let kind = match row.kind {
        Kind::Library => return row.over.clone(),
        Kind::Baseline => "baseline",
        Kind::Model => "model",
    };
    match row.over.contains(kind) {
        true => row.over.clone(),
        false => format!("{} ({kind})", row.over),
    }
}

fn medians(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(2, ["size", "over", "median", "interval", "rounds"]);
    for Figure { row, median, .. } in groups.iter().flat_map(|group| &group.figures) {
        let middle = if median.middle.is_nan() { "-".to_owned() } else { row.unit.figure(median.middle) };
        table.row([size(row), over(row), middle, span(row.unit, *median), row.rounds.len().to_string()]);
    }
    table
}

/// Returns the table of percentiles, with the rows that have any.
fn shares(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(2, ["size", "over"].into_iter().chain(PERCENTILES.map(|(name, _)| name)));
    for row in groups.iter().flat_map(|group| &group.figures).map(|figure| figure.row) {
        let shares = percentiles(row);
        if shares.iter().any(Option::is_some) {
            let shares = shares.map(|value| value.map_or("-".to_owned(), units::time));
            table.row([size(row), over(row)].into_iter().chain(shares));
        }
    }
    table
}

fn ratios(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(3, ["size", "over", "compared with", "cost", "interval", "rounds", "that is"]);
    for figure in groups.iter().flat_map(|group| &group.figures) {
        for ratio in figure.ratios() {
            let interval = ratio.interval;
            let span = match interval.middle.is_nan() {
                true => "-".to_owned(),
                false => format!("{} to {}", ratio_figure(interval.low), ratio_figure(interval.high)),
            };
            let (cost, rounds) = (format!("x {}", ratio_figure(interval.middle)), ratio.rounds.to_string());
            let (from, to, words) = (over(figure.row), over(ratio.to), ratio.verdict.words().to_owned());
            table.row([size(figure.row), from, to, cost, span, rounds, words]);
        }
    }
    table
}

fn costs(groups: &[&Group<'_>]) -> Table {
    let mut table = Table::new(3, ["size", "over", "host", "processor time", "context switches", "system calls"]);
    for row in groups.iter().flat_map(|group| &group.figures).map(|figure| figure.row) {
        for (role, cost) in &row.cost {
            let calls = cost.calls.map_or("-".to_owned(), |calls| format!("{calls:.2}"));
            let (cpu, switches) = (units::time(cost.cpu), format!("{:.3}", cost.switches));
            table.row([size(row), over(row), role.clone(), cpu, switches, calls]);
        }
    }
    table
}

/// Returns the paths by size, a list for each strip, or `None` if no plan is known.
fn paths(report: &Report) -> Option<String> {
    let strips = groups::strips(report);
    let all = || strips.iter().flat_map(|strip| &strip.segments);
    let sizes = all().map(|segment| segment.sizes().len()).max()?;
    let names = all().map(|segment| segment.path.chars().count()).max()?;
    let mut text = "paths by size\n".to_owned();
    for strip in &strips {
        text += &format!("\n{}: {}\n", strip.over, strip.direction);
        for segment in &strip.segments {
            let line = format!("  {:sizes$}  {:names$}  {}", segment.sizes(), segment.path, segment.why);
            text += &format!("{}\n", line.trim_end());
        }
    }
    Some(text)
}

fn foot(report: &Report) -> Option<String> {
    let mut text = String::new();
    for host in &report.hosts {
        let facts: Vec<String> = host.facts.iter().map(|(name, fact)| format!("{name} {fact}")).collect();
        let facts = if facts.is_empty() { "nothing is known".to_owned() } else { facts.join(", ") };
        text += &wrapped(&format!("{} {}: {facts}", host.role, host.name), "  ");
    }
    report.notes.iter().for_each(|note| text += &wrapped(&format!("note: {note}"), "  "));
    if !report.command.is_empty() {
        text += &format!("repeat it: {}\n", command(report));
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the command line, quoted for a shell.
pub(crate) fn command(report: &Report) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_=+,./:@%".contains(letter);
    let quoted = |word: &String| match !word.is_empty() && word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    report.command.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Breaks a text at spaces into lines, each but the first with an indent.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out += &format!("{line}\n");
            line = indent.to_owned() + word;
        } else {
            line += if line.is_empty() { "" } else { " " };
            line += word;
        }
    }
    format!("{out}{line}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::histogram::Histogram;
    use crate::report::{Cost, Host, Plan, Step};

    fn row(over: &str, kind: Kind, value: f64) -> Row {
        let rounds = (0..8).map(|round| Step { round, value }).collect();
        Row { test: "latency".into(), over: over.into(), kind, size: Some(8), rounds, ..Row::default() }
    }

    #[test]
    fn rows_of_a_group_are_side_by_side_with_all_that_is_known() {
        let mut report = Report::new("", "Two transports");
        let mut histogram = Histogram::new();
        (0..2000).for_each(|_| histogram.record(9000));
        let cost = Cost { cpu: 1.5e-6, switches: 0.25, calls: Some(2.0) };
        report.rows = vec![
            row("sockets", Kind::Baseline, 8e-6),
            Row {
                histogram: Some(histogram),
                cost: BTreeMap::from([("client".into(), cost), ("server".into(), cost)]),
                notes: vec!["a note".into()],
                ..row("tcp", Kind::Library, 9e-6)
            },
        ];
        report.hosts =
            vec![Host { role: "client".into(), name: "a".into(), facts: vec![("kernel".into(), "6".into())] }];
        report.plans = vec![Plan {
            over: "tcp".into(),
            direction: "write".into(),
            size: 8,
            path: "inline".into(),
            why: "so".into(),
        }];
        report.command = vec!["bench".into(), "it's".into()];
        let expected = "\
Two transports

tcp: 1.12 times higher latency than sockets (8 B).
Latency 8 B: 9.00 us over tcp, 8.00 us with sockets.

latency
tcp: 1.12 times higher latency than sockets (8 B).

size  over                 median         interval  rounds
----------------------------------------------------------
8 B   sockets (baseline)  8.00 us  8.00 to 8.00 us       8
      tcp                 9.00 us  9.00 to 9.00 us       8

size  over      p50      p99  p99.9  p99.99
-------------------------------------------
8 B   tcp   9.01 us  9.01 us      -       -

size  over  compared with         cost      interval  rounds  that is
---------------------------------------------------------------------
8 B   tcp   sockets (baseline)  x 1.12  1.12 to 1.12       8   slower

size  over  host    processor time  context switches  system calls
------------------------------------------------------------------
8 B   tcp   client         1.50 us             0.250          2.00
            server         1.50 us             0.250          2.00
tcp latency 8 B: a note

paths by size

tcp: write
  from 8 B on  inline  so

client a: kernel 6
repeat it: bench 'it'\\''s'
";
        assert_eq!(render(&report), expected);
    }

    #[test]
    fn prose_is_broken_at_spaces() {
        let text = wrapped(&"word ".repeat(50), "  ");
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.len() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")));
        assert_eq!(wrapped(&"x".repeat(200), "  ").lines().count(), 1);
    }
}
