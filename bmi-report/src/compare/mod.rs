//! Two reports compared: which rows cost more in B than in A.
//!
//! **Ratio.** The cost of B divided by the cost of A, so above 1 is slower, also where rows count
//! bytes per second. Two runs have no rounds in common, so the ratio is that of their trimmed means
//! ([`crate::stats::ratio`]). Whatever changed between the runs is in it: the two hosts' facts are
//! compared, and a [warning](Comparison::warnings) tells of each difference.
//!
//! **Verdicts**
//!
//! | verdict | when |
//! |---|---|
//! | slower, faster | the whole interval is above 1, or below |
//! | same | it contains 1 and is between 1/1.05 and 1.05; for counted rows 1/1.02 and 1.02 |
//! | unclear | it contains 1 and is wider, or there are too few rounds |
//! | only in A, only in B | the other report has no such row, or has it in another unit |

mod fail_if;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use fail_if::FailIf;

use crate::groups::{self, Verdict, ratio_figure};
use crate::report::{Host, Report, Row, Unit};
use crate::stats::Interval;
use crate::table::Table;

/// How many times more a row may cost and still be the same.
const SAME: f64 = 1.05;
/// The same for a row that is counted.
const SAME_COUNT: f64 = 1.02;

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// B costs more.
    Slower,
    /// B costs less.
    Faster,
    /// B costs the same.
    Same,
    /// The rounds do not tell.
    Unclear,
    /// Only A has the row.
    OnlyInA,
    /// Only B has the row.
    OnlyInB,
}

impl Change {
    const ALL: [Change; 6] =
        [Change::Slower, Change::Faster, Change::Same, Change::Unclear, Change::OnlyInA, Change::OnlyInB];

    /// Returns the words for people.
    pub fn words(self) -> &'static str {
        match self {
            Change::Slower => "slower",
            Change::Faster => "faster",
            Change::Same => "same",
            Change::Unclear => "unclear",
            Change::OnlyInA => "only in A",
            Change::OnlyInB => "only in B",
        }
    }

    /// Returns true if both reports have the row.
    pub fn is_in_both(self) -> bool {
        !matches!(self, Change::OnlyInA | Change::OnlyInB)
    }
}

/// One of the two reports.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The title of the report.
    pub title: String,
    /// The program that measured, with its version.
    pub program: String,
    /// When the run began, in seconds since 1970 (UTC).
    pub began: u64,
}

/// A row of either report.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The name of the row, with what it ran over.
    pub name: String,
    /// The unit of the medians.
    pub unit: Unit,
    /// The median of A.
    pub a: Option<Interval>,
    /// The median of B.
    pub b: Option<Interval>,
    /// The cost of B divided by that of A.
    pub ratio: Option<Interval>,
    /// The number of rounds of A and of B.
    pub rounds: [usize; 2],
    /// What became of the row.
    pub change: Change,
}

/// Two reports, row by row.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The report that is compared with.
    pub a: Side,
    /// The report that may be slower.
    pub b: Side,
    /// What makes the comparison doubtful.
    pub warnings: Vec<String>,
    /// The rows of A in their order, then those that only B has.
    pub rows: Vec<Line>,
}

/// Compares B with A.
pub fn compare(a: &Report, b: &Report) -> Comparison {
    let of = |report: &Report, row: &Row| {
        report.rows.iter().position(|other| other.over == row.over && other.is_beside(row))
    };
    let mut rows: Vec<Line> = Vec::new();
    for row in &a.rows {
        rows.push(line(Some(row), of(b, row).map(|place| &b.rows[place])));
    }
    rows.extend(b.rows.iter().filter(|row| of(a, row).is_none()).map(|row| line(None, Some(row))));
    Comparison { a: side(a), b: side(b), warnings: warnings(a, b), rows }
}

fn side(report: &Report) -> Side {
    Side { title: report.title.clone(), program: report.program.clone(), began: report.began }
}

fn line(a: Option<&Row>, b: Option<&Row>) -> Line {
    let (name, unit) = a.or(b).map(|row| (row.name(), row.unit)).unwrap_or_default();
    let rounds = [a, b].map(|row| row.map_or(0, |row| row.rounds.len()));
    let (ratio, change) = match (a, b) {
        (Some(a), Some(b)) => {
            let ratio = groups::unpaired(unit, &a.values(), &b.values());
            (Some(ratio).filter(|ratio| !ratio.middle.is_nan()), change(unit, ratio, rounds[0].min(rounds[1])))
        }
        (Some(_), None) => (None, Change::OnlyInA),
        _ => (None, Change::OnlyInB),
    };
    let median = |row: Option<&Row>| row.map(Row::median).filter(|median| !median.middle.is_nan());
    Line { name, unit, a: median(a), b: median(b), ratio, rounds, change }
}

fn change(unit: Unit, ratio: Interval, rounds: usize) -> Change {
    let bound = if unit.is_counted() { SAME_COUNT } else { SAME };
    match groups::verdict(unit, ratio, rounds) {
        Verdict::Slower => Change::Slower,
        Verdict::Faster => Change::Faster,
        Verdict::NoDifference if ratio.low >= 1.0 / bound && ratio.high <= bound => Change::Same,
        Verdict::NoDifference | Verdict::TooFewRounds => Change::Unclear,
    }
}

fn warnings(a: &Report, b: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    for (side, report) in [("A", a), ("B", b)] {
        warnings.extend(report.interrupted.iter().map(|why| format!("the run of {side} was interrupted: {why}")));
    }
    for host in &a.hosts {
        match b.hosts.iter().find(|other| other.role == host.role) {
            Some(other) => warnings.extend(differences(host, other)),
            None => warnings.push(format!("B has no {}", host.role)),
        }
    }
    let is_new = |host: &&Host| !a.hosts.iter().any(|other| other.role == host.role);
    warnings.extend(b.hosts.iter().filter(is_new).map(|host| format!("A has no {}", host.role)));
    warnings
}

/// The facts that differ a little whenever they are read.
const VARYING: [&str; 3] = ["load", "frequency", "memory"];

/// Returns true if two texts begin with numbers that differ by at most 1, or a tenth.
fn is_close(a: &str, b: &str) -> bool {
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    number(a).zip(number(b)).is_some_and(|(a, b)| (a - b).abs() <= (0.1 * a.max(b)).max(1.0))
}

/// Returns what differs between two hosts of one role.
fn differences(a: &Host, b: &Host) -> Vec<String> {
    let role = &a.role;
    let mut found = Vec::new();
    let mut add = |what: &str, a: &str, b: &str| {
        if a != b && !(VARYING.contains(&what) && is_close(a, b)) {
            found.push(format!("the {role} differs in its {what}: {a} in A, {b} in B"));
        }
    };
    add("name", &a.name, &b.name);
    let fact = |host: &Host, name: &str| {
        host.facts.iter().find(|(other, _)| other == name).map_or("unknown".to_owned(), |(_, fact)| fact.clone())
    };
    for (name, text) in &a.facts {
        add(name, text, &fact(b, name));
    }
    for (name, text) in b.facts.iter().filter(|(name, _)| !a.facts.iter().any(|(other, _)| other == name)) {
        add(name, "unknown", text);
    }
    found
}

impl Comparison {
    /// Returns the number of rows of which this is true.
    pub fn count(&self, change: Change) -> usize {
        self.rows.iter().filter(|line| line.change == change).count()
    }

    /// Returns the rows that break the rule. A row with too few rounds breaks none.
    pub fn fails(&self, rule: &FailIf) -> Vec<&Line> {
        self.rows.iter().filter(|line| line.change == Change::Slower && rule.is_broken(line.ratio)).collect()
    }

    /// Returns the answer in a sentence.
    pub fn sentence(&self) -> String {
        let both = self.rows.iter().filter(|line| line.change.is_in_both()).count();
        if both == 0 {
            return "Nothing can be compared: no row is in both reports.".to_owned();
        }
        let counts = Change::ALL.map(|change| (change, self.count(change)));
        let rows = if both == 1 { "row" } else { "rows" };
        let counts: Vec<String> = counts
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(change, count)| match change.is_in_both() {
                true => format!("{} in {count}", change.words()),
                false => format!("{count} {}", change.words()),
            })
            .collect();
        format!("Of {both} {rows} in both reports, B is {}.", counts.join(", "))
    }

    /// Formats the comparison for a terminal.
    pub fn render(&self) -> String {
        let mut text = format!("{}\nA: {}\nB: {}\n", self.sentence(), name(&self.a), name(&self.b));
        for warning in &self.warnings {
            text += &format!("warning: {warning}\n");
        }
        let mut table = Table::new(1, ["row", "A", "B", "cost of B", "interval", "B is"]);
        for line in &self.rows {
            let median = |side: Option<Interval>| side.map_or("-".to_owned(), |side| line.unit.figure(side.middle));
            let (ratio, interval) = match line.ratio {
                Some(of) => (
                    format!("x {}", ratio_figure(of.middle)),
                    format!("{} to {}", ratio_figure(of.low), ratio_figure(of.high)),
                ),
                None => ("-".to_owned(), "-".to_owned()),
            };
            let word = line.change.words().to_owned();
            table.row([line.name.clone(), median(line.a), median(line.b), ratio, interval, word]);
        }
        format!("{text}\n{}", table.render())
    }

    /// Formats the comparison as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a comparison has no maps")
    }
}

fn name(side: &Side) -> String {
    match side.title.is_empty() {
        true => side.program.clone(),
        false => format!("{} ({})", side.title, side.program),
    }
}
