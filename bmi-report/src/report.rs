//! A report: the hosts, and what each row measured in each round.
//!
//! **Why.** Tables and pictures show a choice. The report has everything from which they are made,
//! so another program, or a reader with another question, can make others.
//!
//! **Layout.** JSON; the fields are those of [`Report`]. [`FORMAT`] is the version. A reader
//! refuses a version that it does not know, and ignores fields that it does not know.
//!
//! **Invariants**
//! 1. A row is known by its test, its size, its setup and what it runs over. No two rows of a
//!    report agree in all of them. Rows of two reports that agree in all of them measured the same
//!    thing.
//! 2. The values of a row are those of its rounds, in the order of [`Step::round`]. Rows that were
//!    measured in the same round were measured one right after the other: their ratio is not
//!    affected by what changes slowly.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::histogram::Histogram;

/// The version of the format.
pub const FORMAT: u32 = 1;
/// Length of the longest report that is read, in bytes.
const LONGEST: u64 = 256 << 20;

/// What a run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// The program that measured, with its version.
    pub program: String,
    /// What this report is about, in one line.
    pub title: String,
    /// When the run began, in seconds since 1970 (UTC).
    pub began: u64,
    /// The command line that repeats the run.
    pub command: Vec<String>,
    /// Why the run ended before everything was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// The hosts that took part.
    pub hosts: Vec<Host>,
    /// The rows, in the order in which they are shown.
    pub rows: Vec<Row>,
    /// Which path the library takes for data of each size, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<Plan>,
    /// What a reader has to know besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the program computed of all of it: a name, a value, and its unit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub summary: Vec<(String, f64, String)>,
    /// A recording of a run, in Chrome's trace event format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Value>,
}

/// A host that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// What it did: `client` or `server`.
    pub role: String,
    /// Its name.
    pub name: String,
    /// What was found out about it, as pairs of a name and a text: processors, kernel, link rate.
    pub facts: Vec<(String, String)>,
}

/// What kind of figure a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The library, measured.
    #[default]
    Library,
    /// What the library is compared with: plain sockets, a copy of memory.
    Baseline,
    /// A prediction of the simulator.
    Model,
}

/// The unit of a row. It tells whether less or more is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Seconds per operation; less is better.
    #[default]
    #[serde(rename = "s")]
    Seconds,
    /// Bytes per second; more is better.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Operations per second; more is better.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Instructions per operation, counted and not timed; less is better.
    #[serde(rename = "instructions")]
    Instructions,
    /// System calls per operation, counted; less is better.
    #[serde(rename = "calls")]
    Calls,
    /// How often an operation sleeps in the kernel, counted; less is better.
    #[serde(rename = "wake-ups")]
    WakeUps,
    /// Cache misses per operation, simulated; less is better.
    #[serde(rename = "misses")]
    Misses,
}

impl Unit {
    /// Returns true if less is better.
    pub fn less_is_better(self) -> bool {
        !matches!(self, Unit::BytesPerSecond | Unit::PerSecond)
    }

    /// Returns true if values are counted, and hardly vary.
    pub fn is_counted(self) -> bool {
        self.counted().is_some()
    }

    /// Returns the name of what is counted, if something is: `instructions`. Figures of other units
    /// say it themselves.
    pub fn counted(self) -> Option<&'static str> {
        match self {
            Unit::Instructions => Some("instructions"),
            Unit::Calls => Some("system calls"),
            Unit::WakeUps => Some("wake-ups"),
            Unit::Misses => Some("cache misses"),
            Unit::Seconds | Unit::BytesPerSecond | Unit::PerSecond => None,
        }
    }

    /// Formats a value for people.
    pub fn figure(self, value: f64) -> String {
        match self {
            Unit::Seconds => crate::units::time(value),
            Unit::BytesPerSecond => crate::units::bandwidth(value),
            Unit::PerSecond => crate::units::rate(value),
            Unit::Instructions => format!("{value:.0}"),
            Unit::Calls | Unit::WakeUps | Unit::Misses => format!("{value:.2}"),
        }
    }

    /// Returns the cost that a value stands for, of which less is better.
    pub fn cost(self, value: f64) -> f64 {
        if self.less_is_better() { value } else { 1.0 / value }
    }
}

/// A value and the number of its round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The round, from 0 on. Rows of a report with the same number were measured side by side.
    pub round: u32,
    /// The value, in the unit of the row.
    pub value: f64,
}

/// What a message or operation takes of one host, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time in seconds, user and system.
    pub cpu: f64,
    /// Context switches, voluntary and involuntary.
    pub switches: f64,
    /// System calls. `None` if they could not be counted.
    pub calls: Option<f64>,
}

/// One line of a table, one point of a picture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured, under the name that people know: `latency`, `bandwidth`.
    pub test: String,
    /// Over what: `tcp`, `ib`, `shm`, or for a baseline `sockets`, `memcpy`.
    pub over: String,
    /// What kind of figure it is.
    #[serde(default)]
    pub kind: Kind,
    /// Bytes of a message or operation, where rows differ in them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// All other settings in which rows may differ: `waiting` is `polling`, `depth` is `16`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub setup: BTreeMap<String, String>,
    /// The unit of the values.
    pub unit: Unit,
    /// The values of the rounds.
    pub rounds: Vec<Step>,
    /// The durations of single operations in all rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Histogram>,
    /// What an operation takes of each host, by its role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cost: BTreeMap<String, Cost>,
    /// Where the time of an operation goes: a name, and seconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<(String, f64)>,
    /// What a reader has to know about this row: `warm-up took 3 rounds`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Row {
    /// Returns the values of the rounds.
    pub fn values(&self) -> Vec<f64> {
        self.rounds.iter().map(|step| step.value).collect()
    }

    /// Returns the median of the rounds with its interval.
    pub fn median(&self) -> crate::stats::Interval {
        crate::stats::median(&self.values(), 1)
    }

    /// Returns what this row measures, without what it runs over: `latency 8 B, depth 1, polling`.
    pub fn what(&self) -> String {
        let mut text = self.test.clone();
        if let Some(size) = self.size {
            text += &format!(" {}", crate::units::size(size as usize));
        }
        for (name, value) in &self.setup {
            // `polling` says enough, `16` does not.
            text += &match value.parse::<f64>() {
                Ok(_) => format!(", {name} {value}"),
                Err(_) => format!(", {value}"),
            };
        }
        text
    }

    /// Returns the whole name: `tcp latency 8 B, depth 1, polling`.
    pub fn name(&self) -> String {
        format!("{} {}", self.over, self.what())
    }

    /// Returns true if both measured the same thing, be it over different transports.
    pub fn is_beside(&self, other: &Row) -> bool {
        (&self.test, self.size, &self.setup, self.unit) == (&other.test, other.size, &other.setup, other.unit)
    }

    /// Returns the values of both rows in the rounds that both have.
    pub fn pairs(&self, other: &Row) -> Vec<(f64, f64)> {
        let of: BTreeMap<u32, f64> = other.rounds.iter().map(|step| (step.round, step.value)).collect();
        let pair = |step: &Step| of.get(&step.round).map(|value| (step.value, *value));
        self.rounds.iter().filter_map(pair).collect()
    }
}

/// The path from one size on, up to the size of the next plan of the same transport and direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Over what.
    pub over: String,
    /// What is moved: `message`, or the data of a call, as in `write` or `read, registered memory`.
    pub direction: String,
    /// The smallest number of bytes.
    pub size: u64,
    /// The path: `inline`, `fast RDMA`.
    pub path: String,
    /// Why this path.
    pub why: String,
}

/// A report could not be read.
#[derive(Debug)]
pub struct ReadError(String);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ReadError {}

impl Report {
    /// Creates an empty report of a program.
    pub fn new(program: impl Into<String>, title: impl Into<String>) -> Report {
        Report { format: FORMAT, program: program.into(), title: title.into(), ..Report::default() }
    }

    /// Parses a report.
    ///
    /// # Errors
    /// If it is no report, or one of another version. The text says which.
    pub fn from_json(text: &str) -> Result<Report, ReadError> {
        let value: Value = serde_json::from_str(text).map_err(|error| ReadError(format!("no JSON: {error}")))?;
        match value.get("format").and_then(Value::as_u64) {
            Some(version) if version == u64::from(FORMAT) => {}
            Some(version) => {
                let text = format!("a report of format {version}; this program reads format {FORMAT}");
                return Err(ReadError(text));
            }
            None => return Err(ReadError("no report: it has no `format`".to_owned())),
        }
        let report: Report =
            serde_json::from_value(value).map_err(|error| ReadError(format!("not a report: {error}")))?;
        for (number, row) in report.rows.iter().enumerate() {
            if report.rows[..number].iter().any(|other| other.over == row.over && other.is_beside(row)) {
                return Err(ReadError(format!("two rows `{}`", row.name())));
            }
            if row.rounds.iter().any(|step| !(step.value.is_finite() && step.value >= 0.0)) {
                return Err(ReadError(format!("a value of row `{}` is not a figure", row.name())));
            }
        }
        Ok(report)
    }

    /// Reads a report from a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is no report. The text has the file's name.
    pub fn read(path: &Path) -> Result<Report, ReadError> {
        let within = |text: String| ReadError(format!("{}: {text}", path.display()));
        let len = std::fs::metadata(path).map_err(|error| within(error.to_string()))?.len();
        if len > LONGEST {
            return Err(within(format!("{len} bytes; a report has at most {LONGEST}")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| within(error.to_string()))?;
        Report::from_json(&text).map_err(|error| within(error.0))
    }

    /// Returns the report as JSON, on one line for each row.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has no maps with other keys than text")
    }

    /// Returns the row that measured the same thing over `over`.
    pub fn beside(&self, row: &Row, over: &str) -> Option<&Row> {
        self.rows.iter().find(|other| other.over == over && other.is_beside(row))
    }

    /// Returns everything that rows ran over, in the order of the rows.
    pub fn overs(&self) -> Vec<&str> {
        let mut overs: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !overs.contains(&row.over.as_str()) {
                overs.push(&row.over);
            }
        }
        overs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn row(test: &str, over: &str, size: u64, values: &[f64]) -> Row {
        let step = |(round, value): (usize, &f64)| Step { round: round as u32, value: *value };
        Row {
            test: test.into(),
            over: over.into(),
            size: Some(size),
            rounds: values.iter().enumerate().map(step).collect(),
            ..Row::default()
        }
    }

    #[test]
    fn a_report_survives_its_json() {
        let mut report = Report::new("test 1", "a title");
        let mut histogram = Histogram::new();
        histogram.record(1500);
        let cost = Cost { cpu: 1e-6, switches: 0.5, calls: None };
        report.rows.push(Row {
            setup: BTreeMap::from([("waiting".into(), "polling".into()), ("depth".into(), "16".into())]),
            histogram: Some(histogram),
            cost: BTreeMap::from([("client".into(), cost)]),
            ..row("latency", "tcp", 65_536, &[1e-6, 2e-6])
        });
        report.hosts.push(Host { role: "client".into(), name: "a".into(), facts: vec![("kernel".into(), "6".into())] });
        assert_eq!(report.rows[0].name(), "tcp latency 64 KiB, depth 16, polling");
        assert_eq!(Report::from_json(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn what_is_no_report_is_refused_with_a_reason() {
        let why = |text: &str| Report::from_json(text).unwrap_err().to_string();
        assert!(why("{").starts_with("no JSON"));
        assert!(why("{}").contains("no `format`"));
        assert!(why(r#"{"format":2}"#).contains("format 2"));
        assert!(why(r#"{"format":1}"#).contains("not a report"));
        let mut report = Report::new("test", "");
        report.rows = vec![row("latency", "tcp", 8, &[1.0]), row("latency", "tcp", 8, &[1.0])];
        assert!(why(&report.to_json()).contains("two rows `tcp latency 8 B`"));
        report.rows.truncate(1);
        report.rows[0].rounds[0].value = -1.0;
        assert!(why(&report.to_json()).contains("not a figure"));
        assert!(Report::read(Path::new("/does/not/exist")).unwrap_err().to_string().starts_with("/does/not/exist: "));
    }

    #[test]
    fn rows_are_paired_by_round() {
        let (a, mut b) = (row("latency", "tcp", 8, &[1.0, 2.0, 3.0]), row("latency", "shm", 8, &[4.0, 5.0, 6.0]));
        b.rounds.remove(1);
        assert_eq!(a.pairs(&b), [(1.0, 4.0), (3.0, 6.0)]);
        assert!(a.is_beside(&b) && !a.is_beside(&row("latency", "tcp", 9, &[])));
    }
}
