//! Two reports compared: which rows cost more in B than in A.
//!
//! **Ratio.** The cost of B divided by the cost of A, so above 1 is slower, also where rows count
//! bytes per second. Two runs have no rounds in common, so the ratio is that of their trimmed means
//! ([`crate::stats::ratio`]).
//!
//! **Baseline.** A machine is not the same in two runs. So the cost of a row that has a
//! [baseline](crate::groups) in both reports is that divided by the cost of its own run's baseline,
//! round by round. If the baseline itself moved, that is, if the intervals of its two medians do
//! not overlap, nothing is claimed of the row: what else moved with it is not known. A baseline is
//! never faster or slower, because it is not what is compared. A timed row without a baseline is
//! compared as it is, with whatever changed between the runs, and a [warning](Comparison::warnings)
//! says so. The two hosts' facts are compared, too: there is a warning for each difference.
//!
//! **Verdicts**
//!
//! | verdict | when |
//! |---|---|
//! | slower, faster | the whole interval is above 1, or below |
//! | same | it contains 1 and is between 1/1.05 and 1.05; for counted rows 1/1.02 and 1.02 |
//! | unclear | it contains 1 and is wider, or there are too few rounds |
//! | no verdict | the baseline of the row, or the row as a baseline, moved |
//! | only in A, only in B | the other report has no such row, or has it in another unit |

mod fail_if;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use fail_if::FailIf;

use crate::groups::{self, Verdict, ratio_figure};
use crate::report::{Host, Kind, Report, Row, Unit};
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
    /// Nothing is claimed: what both runs measured beside the program moved between them.
    BaselineMoved,
    /// Only A has the row.
    OnlyInA,
    /// Only B has the row.
    OnlyInB,
}

impl Change {
    const ALL: [Change; 7] = [
        Change::Slower,
        Change::Faster,
        Change::Same,
        Change::Unclear,
        Change::BaselineMoved,
        Change::OnlyInA,
        Change::OnlyInB,
    ];

    /// Returns the words for people.
    pub fn words(self) -> &'static str {
        match self {
            Change::Slower => "slower",
            Change::Faster => "faster",
            Change::Same => "same",
            Change::Unclear => "unclear",
            Change::BaselineMoved => "no verdict: the baseline moved",
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
    /// The cost of B divided by that of A, each in terms of its own baseline if there is one.
    pub ratio: Option<Interval>,
    /// The name of that baseline.
    pub baseline: Option<String>,
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
    let mut rows: Vec<Line> = Vec::new();
    for row in &a.rows {
        let one = Measured::of(a, row);
        rows.push(line(Some(&one), b.beside(row, &row.over).map(|row| Measured::of(b, row)).as_ref()));
    }
    let is_new = |row: &&Row| a.beside(row, &row.over).is_none();
    rows.extend(b.rows.iter().filter(is_new).map(|row| line(None, Some(&Measured::of(b, row)))));
    let warnings = [warnings(a, b), alone(a, b)].concat();
    Comparison { a: side(a), b: side(b), warnings, rows }
}

fn side(report: &Report) -> Side {
    Side { title: report.title.clone(), program: report.program.clone(), began: report.began }
}

/// A row of a report, and the baseline of it.
struct Measured<'a> {
    row: &'a Row,
    median: Interval,
    baseline: Option<&'a Row>,
}

impl<'a> Measured<'a> {
    fn of(report: &'a Report, row: &'a Row) -> Measured<'a> {
        Measured { row, median: row.median(), baseline: groups::baseline_in(report, row) }
    }
}

/// Returns the warning that rows of both reports are compared without a baseline, if some are.
fn alone(a: &Report, b: &Report) -> Vec<String> {
    let is_alone = |row: &&Row| {
        row.kind == Kind::Library
            && !row.unit.is_counted()
            && b.beside(row, &row.over)
                .is_some_and(|other| baselines(&Measured::of(a, row), &Measured::of(b, other)).is_none())
    };
    let rows = match a.rows.iter().filter(is_alone).count() {
        0 => return Vec::new(),
        1 => "1 row has no baseline".to_owned(),
        many => format!("{many} rows have no baseline"),
    };
    vec![format!("{rows} in both reports: a change of the machine looks like a change of the program")]
}

/// Returns the baselines of a row, if both reports have the same one.
fn baselines<'a>(a: &Measured<'a>, b: &Measured<'a>) -> Option<(&'a Row, &'a Row)> {
    // Counts do not depend on the machine's load.
    a.baseline.zip(b.baseline).filter(|(one, other)| one.over == other.over && !a.row.unit.is_counted())
}

fn line(a: Option<&Measured<'_>>, b: Option<&Measured<'_>>) -> Line {
    let (name, unit) = a.or(b).map(|one| (one.row.name(), one.row.unit)).unwrap_or_default();
    let rounds = [a, b].map(|one| one.map_or(0, |one| one.row.rounds.len()));
    let (ratio, change) = match (a, b) {
        (Some(a), Some(b)) => {
            let (ratio, change) = judged(a, b);
            (Some(ratio).filter(|ratio| !ratio.middle.is_nan()), change)
        }
        (Some(_), None) => (None, Change::OnlyInA),
        _ => (None, Change::OnlyInB),
    };
    let median = |one: Option<&Measured<'_>>| one.map(|one| one.median).filter(|median| !median.middle.is_nan());
    let baseline = a.zip(b).and_then(|(a, b)| baselines(a, b)).map(|(base, _)| base.over.clone());
    Line { name, unit, a: median(a), b: median(b), ratio, baseline, rounds, change }
}

/// Returns the ratio of the costs of a row of both reports, and what it says.
fn judged(a: &Measured<'_>, b: &Measured<'_>) -> (Interval, Change) {
    let unit = a.row.unit;
    let moved = |a: Interval, b: Interval| a.high < b.low || b.high < a.low;
    if let Some((base_a, base_b)) = baselines(a, b) {
        // Round by round, in terms of the own run's baseline.
        let costs = |row: &Row, base: &Row| -> Vec<f64> {
            base.pairs(row).into_iter().map(|(base, value)| value / base).collect()
        };
        let (a, b) = (costs(a.row, base_a), costs(b.row, base_b));
        let ratio = groups::unpaired(unit, &a, &b);
        let change = match moved(base_a.median(), base_b.median()) {
            true => Change::BaselineMoved,
            false => change(unit, ratio, a.len().min(b.len())),
        };
        return (ratio, change);
    }
    let ratio = groups::unpaired(unit, &a.row.values(), &b.row.values());
    let change = match change(unit, ratio, a.row.rounds.len().min(b.row.rounds.len())) {
        _ if a.row.kind == Kind::Baseline && moved(a.median, b.median) => Change::BaselineMoved,
        Change::Slower | Change::Faster if a.row.kind == Kind::Baseline => Change::Unclear,
        change => change,
    };
    (ratio, change)
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

    /// Says in terms of what the costs are, if rows have baselines.
    pub fn terms(&self) -> Option<String> {
        let mut names: Vec<&str> = self.rows.iter().filter_map(|line| line.baseline.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        let names = names.join(" or ");
        (!names.is_empty()).then(|| format!("The cost of B is in terms of {names}, as measured in each run beside it."))
    }

    /// Formats the comparison for a terminal.
    pub fn render(&self) -> String {
        let mut text = format!("{}\nA: {}\nB: {}\n", self.sentence(), name(&self.a), name(&self.b));
        text.extend(self.terms().map(|terms| terms + "\n"));
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
