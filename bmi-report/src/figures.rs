//! The figures that documents quote: one file, written by the programs that measure.
//!
//! **Why.** A figure that is written into a sentence by hand grows old, and is kept where it was
//! better. So a document names each measured figure that it quotes, the file has it with the
//! command that measured it, and a test of `xtask` compares the two.
//!
//! **Layout.** JSON, an object of names and [`Figure`]s, a line for each. A name is the program, a
//! colon, and the name of the row. ` / ` and what another row ran over is the ratio of the values
//! of the two, ours to a baseline, or a variant to what it is a variant of:
//!
//! ```text
//! bmi-perf: tcp latency 4 KiB, polling
//! bmi-perf: tcp latency 4 KiB, polling / sockets
//! message_cost: shm ping 8 B, polling, instructions
//! ```
//!
//! **Quotes** ([`Figures::quoted`]). `{a,b}` stands for several names, one after the other. `range`
//! before a name is the least and the greatest figure of all that it stands for; there, `*` stands
//! for any text. `interval` is the two ends of the interval.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::groups::{Ratio, groups};
use crate::report::{Kind, Report, Row, Unit};
use crate::stats::Interval;
use crate::{text, units};

/// Where the figures of this project are, from the root of its tree.
pub const FILE: &str = "docs/figures.json";

/// A measured figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median, count or ratio, with four digits.
    pub value: f64,
    /// The ends of its interval, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<(f64, f64)>,
    /// `us`, `GB/s`, `M/s`, `instructions`, `system calls`, `times`, or what the program says.
    pub unit: String,
    /// The command line that measured it.
    pub command: String,
    /// The day of the run.
    pub date: String,
    /// What git says of the tree in which it ran.
    pub commit: String,
}

/// Figures by their names.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Figures(BTreeMap<String, Figure>);

impl Figures {
    /// Returns the figures of a report: those of the library and of what is measured beside it.
    pub fn of(report: &Report, commit: &str) -> Figures {
        let program = report.program.rsplit_once(' ').map_or(&*report.program, |(name, _)| name);
        let mut figures = Figures::default();
        let mut add = |name: String, interval: Interval, unit: &str| {
            if interval.middle.is_finite() {
                let [value, low, high] = [interval.middle, interval.low, interval.high].map(four_digits);
                let figure = Figure {
                    value,
                    interval: (low < high).then_some((low, high)),
                    unit: unit.to_owned(),
                    command: text::command(report),
                    date: units::date(report.began).split(' ').next().unwrap_or_default().to_owned(),
                    commit: commit.to_owned(),
                };
                figures.0.insert(format!("{program}: {name}"), figure);
            }
        };
        for group in groups(report) {
            let of = |kind| group.figures.iter().map(|figure| figure.row).filter(move |row| row.kind == kind);
            if of(Kind::Library).next().is_none() {
                continue;
            }
            for row in of(Kind::Library).chain(of(Kind::Baseline)) {
                let (scale, unit) = unit(row.unit);
                add(name(row), scaled(row.median(), scale), unit);
            }
            let all = || group.figures.iter().map(|figure| figure.row);
            let pairs = of(Kind::Library).flat_map(|row| all().map(move |to| (row, to)));
            // `tcp backend` is a variant of `tcp`.
            let is_variant =
                |row: &Row, of: &Row| row.over.strip_prefix(&of.over).is_some_and(|rest| rest.starts_with(' '));
            for (row, to) in pairs.filter(|(row, to)| to.kind == Kind::Baseline || is_variant(row, to)) {
                let cost = Ratio::of(row, to).interval;
                // That of the values: a ratio of rates is above 1 where the library moves more.
                let ratio = match row.unit.less_is_better() {
                    true => cost,
                    false => Interval { middle: 1.0 / cost.middle, low: 1.0 / cost.high, high: 1.0 / cost.low },
                };
                add(format!("{} / {}", name(row), to.over), ratio, "times");
            }
        }
        for (name, value, unit) in &report.summary {
            add(name.clone(), Interval { middle: *value, low: *value, high: *value }, unit);
        }
        figures
    }

    /// Reads a file. One that does not exist has no figures.
    ///
    /// # Errors
    /// If the file cannot be read, or has something else.
    pub fn read(path: &Path) -> Result<Figures, String> {
        let within = |why: String| format!("{}: {why}", path.display());
        match std::fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| within(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Figures::default()),
            Err(error) => Err(within(error.to_string())),
        }
    }

    /// Puts these figures into a file, in the place of those of the same names. The others stay.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn merge_into(self, path: &Path) -> Result<(), String> {
        let mut all = Figures::read(path)?;
        all.0.extend(self.0);
        // A line for each, so that a change of one is a change of one line.
        let mut lines = Vec::new();
        for (name, figure) in &all.0 {
            let json = |error: serde_json::Error| error.to_string();
            let name = serde_json::to_string(name).map_err(json)?;
            lines.push(format!("  {name}: {}", serde_json::to_string(figure).map_err(json)?));
        }
        let text = format!("{{\n{}\n}}\n", lines.join(",\n"));
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the names and the values that a quote stands for, in its order.
    ///
    /// # Errors
    /// If there is no such figure.
    pub fn quoted(&self, quote: &str) -> Result<Vec<(String, f64)>, String> {
        if let Some(pattern) = quote.strip_prefix("range ") {
            let names = expanded(pattern);
            let all = || {
                let all = self.0.iter().filter(|(name, _)| names.iter().any(|pattern| is_like(name, pattern)));
                all.map(|(_, figure)| figure.value)
            };
            let (least, most) = (all().reduce(f64::min), all().reduce(f64::max));
            let (least, most) = least.zip(most).ok_or_else(|| format!("no figure is like {pattern}"))?;
            return Ok(vec![(format!("the least of {pattern}"), least), (format!("the most of {pattern}"), most)]);
        }
        let figure = |name: &str| self.0.get(name).ok_or_else(|| format!("there is no figure {name}"));
        if let Some(name) = quote.strip_prefix("interval ") {
            let (low, high) = figure(name)?.interval.ok_or_else(|| format!("the figure {name} has no interval"))?;
            return Ok(vec![(format!("the low end of {name}"), low), (format!("the high end of {name}"), high)]);
        }
        expanded(quote).into_iter().map(|name| figure(&name).map(|figure| (name.clone(), figure.value))).collect()
    }
}

/// Returns what git says of the tree of the working directory: the commit, with a `+` if files
/// have changed since. A build that is not a release says so, too.
pub fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|files| files.lines().any(|line| !line.ends_with(FILE)));
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let (changed, debug) = (if changed { "+" } else { "" }, if cfg!(debug_assertions) { ", debug build" } else { "" });
    format!("{commit}{changed}{debug}")
}

/// Returns the name of a row. What is counted says it.
fn name(row: &Row) -> String {
    match row.unit.counted() {
        Some(counted) => format!("{}, {counted}", row.name()),
        None => row.name(),
    }
}

/// Returns the unit of figures, and what values are multiplied by.
fn unit(unit: Unit) -> (f64, &'static str) {
    match unit {
        Unit::Seconds => (1e6, "us"),
        Unit::BytesPerSecond => (1e-9, "GB/s"),
        Unit::PerSecond => (1e-6, "M/s"),
        counted => (1.0, counted.counted().unwrap_or_default()),
    }
}

fn scaled(of: Interval, scale: f64) -> Interval {
    Interval { middle: of.middle * scale, low: of.low * scale, high: of.high * scale }
}

/// Rounds to four digits, so that the file can be read, and at most to a whole number.
fn four_digits(value: f64) -> f64 {
    let power = if value == 0.0 { 0 } else { (3 - value.abs().log10().floor() as i32).max(0) };
    let text = format!("{value:.*}", usize::try_from(power).unwrap_or_default());
    text.parse().unwrap_or(value)
}

/// Returns the names that `a {b,c} d` stands for.
fn expanded(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('{') else { return vec![pattern.to_owned()] };
    let Some((choices, behind)) = rest.split_once('}') else { return vec![pattern.to_owned()] };
    let behind = expanded(behind);
    choices.split(',').flat_map(|choice| behind.iter().map(move |behind| format!("{before}{choice}{behind}"))).collect()
}

/// Returns true if a name is like a pattern, in which `*` stands for any text.
fn is_like(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, behind)) => name.strip_prefix(before).is_some_and(|rest| {
            let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.any(|at| is_like(&rest[at..], behind))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Step;

    fn row(over: &str, kind: Kind, unit: Unit, values: [f64; 8]) -> Row {
        let rounds = (0..).zip(values).map(|(round, value)| Step { round, value }).collect();
        Row { test: "send".into(), over: over.into(), kind, size: Some(4096), unit, rounds, ..Row::default() }
    }

    fn figures() -> Figures {
        let mut report = Report::new("bench 0.1", "");
        (report.began, report.command) = (1_772_366_400, vec!["bench".into(), "--over".into(), "tcp".into()]);
        report.rows = vec![
            row("tcp", Kind::Library, Unit::BytesPerSecond, [2.0e9, 2.1e9, 2.2e9, 2.3e9, 2.4e9, 2.5e9, 2.6e9, 2.7e9]),
            row("sockets", Kind::Baseline, Unit::BytesPerSecond, [4e9; 8]),
            row("tcp backend", Kind::Library, Unit::BytesPerSecond, [3e9; 8]),
            row("shm", Kind::Library, Unit::Instructions, [1691.0; 8]),
            Row { test: "other".into(), ..row("model", Kind::Model, Unit::Seconds, [1.0; 8]) },
        ];
        report.summary = vec![("most, by".into(), 8.96, "%".into())];
        Figures::of(&report, "abc")
    }

    #[test]
    fn a_report_gives_medians_and_ratios_of_values_with_their_command() {
        let figures = figures();
        let names: Vec<&str> = figures.0.keys().map(String::as_str).collect();
        let expected = [
            "bench: most, by",
            "bench: shm send 4 KiB, instructions",
            "bench: sockets send 4 KiB",
            "bench: tcp backend send 4 KiB",
            "bench: tcp backend send 4 KiB / sockets",
            "bench: tcp backend send 4 KiB / tcp",
            "bench: tcp send 4 KiB",
            "bench: tcp send 4 KiB / sockets",
        ];
        assert_eq!(names, expected);
        let of = |name: &str| figures.0[name].clone();
        let tcp = of("bench: tcp send 4 KiB");
        assert_eq!((tcp.value, tcp.unit.as_str(), tcp.date.as_str()), (2.35, "GB/s", "2026-03-01"));
        assert_eq!((tcp.command.as_str(), tcp.commit.as_str()), ("bench --over tcp", "abc"));
        // A ratio of rates: tcp moves less.
        let ratio = of("bench: tcp send 4 KiB / sockets");
        let (low, high) = ratio.interval.unwrap();
        assert!(0.5 < low && low < ratio.value && ratio.value < high && high < 0.68, "{ratio:?}");
        assert_eq!(of("bench: shm send 4 KiB, instructions").interval, None);
    }

    #[test]
    fn what_is_measured_again_replaces_only_what_has_its_name() {
        let folder = std::env::temp_dir().join(format!("bmi-figures-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("figures.json");
        figures().merge_into(&path).unwrap();
        let mut again = Figures::default();
        again.0.insert("bench: most, by".into(), Figure { value: 3.0, ..figures().0["bench: most, by"].clone() });
        again.merge_into(&path).unwrap();
        let read = Figures::read(&path).unwrap();
        assert_eq!((read.0.len(), read.0["bench: most, by"].value), (8, 3.0));
        std::fs::write(&path, "{").unwrap();
        assert!(Figures::read(&path).is_err_and(|why| why.contains("figures.json")));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(Figures::read(&path).unwrap(), Figures::default());
    }

    #[test]
    fn a_quote_names_one_figure_or_several() {
        let figures = figures();
        let values = |quote: &str| {
            figures.quoted(quote).map(|all| all.into_iter().map(|(_, value)| value).collect::<Vec<f64>>())
        };
        assert_eq!(values("bench: {sockets,tcp} send 4 KiB"), Ok(vec![4.0, 2.35]));
        assert_eq!(values("range bench: {tcp,sockets} send *B"), Ok(vec![2.35, 4.0]));
        let ends = values("interval bench: tcp send 4 KiB").unwrap();
        assert!(ends[0] < 2.35 && 2.35 < ends[1], "{ends:?}");
        let why = |quote: &str| values(quote).unwrap_err();
        assert!(why("bench: tcp").contains("no figure bench: tcp") && why("range none *").contains("like none"));
        assert!(why("interval bench: most, by").contains("no interval"));
    }

    #[test]
    fn figures_have_four_digits_and_whole_numbers_all() {
        assert_eq!(
            [1.23456, 0.087654, 4923.4, 123_456.7, 0.0].map(four_digits),
            [1.235, 0.08765, 4923.0, 123_457.0, 0.0]
        );
    }
}
