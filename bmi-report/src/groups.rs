//! Rows that measured the same thing over different transports, and the ratios between them.
//!
//! **Why.** The table for a terminal, the page and the answer in sentences have to agree in what
//! they call faster. So they all take their ratios and verdicts from here.
//!
//! **Ratio.** Always of costs ([`Unit::cost`]): below 1 is faster, also where the row counts bytes
//! per second. It is made from the rounds that both rows have.
//!
//! **Verdict.** Faster or slower only if the interval excludes 1 and there are at least
//! [`LEAST_ROUNDS`] rounds. Counted rows hardly vary. Two rounds are enough for them, and their
//! interval is the range of all quotients.
//!
//! **The baseline of a row** is the first one of its group, but one whose name begins with that of
//! the transport is preferred: `tcp sockets` for `tcp`.

use serde::Serialize;

use crate::report::{Kind, Plan, Report, Row, Unit};
use crate::stats::{self, Interval, LEAST_ROUNDS};

/// The rounds below which nothing is claimed of a counted row. The second shows whether counts
/// repeat.
const LEAST_COUNTED_ROUNDS: usize = 2;
/// Counts that differ by less are equal: one system call in hundreds of operations.
const NEGLIGIBLE: f64 = 0.005;
/// The seed of all intervals, so that a report is always shown with the same ones.
const SEED: u64 = 1;

/// The percentiles that are shown, with their names.
pub const PERCENTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

/// What a ratio of costs says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval is below 1.
    Faster,
    /// The whole interval is above 1.
    Slower,
    /// The interval contains 1.
    NoDifference,
    /// There are too few rounds to say anything.
    TooFewRounds,
}

impl Verdict {
    /// Returns the words for people.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::NoDifference => "no difference",
            Verdict::TooFewRounds => "too few rounds",
        }
    }
}

/// The cost of a row divided by that of another.
#[derive(Clone, Copy, Debug)]
pub struct Ratio<'a> {
    /// The row that is divided by.
    pub to: &'a Row,
    /// The ratio and its interval.
    pub interval: Interval,
    /// The rounds that both rows have.
    pub rounds: usize,
    /// What it says.
    pub verdict: Verdict,
}

impl<'a> Ratio<'a> {
    /// Divides the cost of `row` by that of `to`, which measured the same thing.
    pub fn of(row: &Row, to: &'a Row) -> Ratio<'a> {
        let pairs: Vec<(f64, f64)> =
            to.pairs(row).into_iter().map(|(a, b)| (cost(row.unit, a), cost(row.unit, b))).collect();
        let interval = match row.unit.is_counted() {
            true => counted(pairs.iter().map(|(a, b)| quotient(*a, *b))),
            false => finite(stats::paired_ratio(&pairs, SEED)),
        };
        Ratio { to, interval, rounds: pairs.len(), verdict: verdict(row.unit, interval, pairs.len()) }
    }
}

/// Returns the ratio of the costs of two rows that have no rounds in common: `b / a`.
pub fn unpaired(unit: Unit, a: &[f64], b: &[f64]) -> Interval {
    let costs = |values: &[f64]| values.iter().map(|value| cost(unit, *value)).collect::<Vec<f64>>();
    let (a, b) = (costs(a), costs(b));
    match unit.is_counted() {
        true => counted(a.iter().flat_map(|a| b.iter().map(|b| quotient(*a, *b)))),
        false => finite(stats::ratio(&a, &b, SEED)),
    }
}

/// Returns what a ratio says that was made from so many rounds.
pub fn verdict(unit: Unit, ratio: Interval, rounds: usize) -> Verdict {
    let least = if unit.is_counted() { LEAST_COUNTED_ROUNDS } else { LEAST_ROUNDS };
    match ratio {
        _ if rounds < least || ratio.middle.is_nan() => Verdict::TooFewRounds,
        _ if !ratio.excludes(1.0) => Verdict::NoDifference,
        _ if ratio.high < 1.0 => Verdict::Faster,
        _ => Verdict::Slower,
    }
}

/// Counted values are costs, and stay as they are: those of 0 have no inverse.
fn cost(unit: Unit, value: f64) -> f64 {
    if unit.is_counted() { value } else { unit.cost(value) }
}

/// Divides counts. What is counted where there was nothing before costs infinitely more.
fn quotient(a: f64, b: f64) -> f64 {
    if (a - b).abs() < NEGLIGIBLE { 1.0 } else { b / a }
}

/// Returns the range of quotients, and their middle.
fn counted(quotients: impl Iterator<Item = f64>) -> Interval {
    let mut all: Vec<f64> = quotients.collect();
    if all.is_empty() {
        return Interval::NONE;
    }
    let middle = stats::middle(&mut all);
    Interval { middle, low: all[0], high: all[all.len() - 1] }
}

/// A time or rate of 0 has no ratio.
fn finite(interval: Interval) -> Interval {
    let all = [interval.low, interval.middle, interval.high];
    if all.iter().all(|value| value.is_finite() && *value > 0.0) { interval } else { Interval::NONE }
}

/// A row with what follows from its rounds.
#[derive(Clone, Debug)]
pub struct Figure<'a> {
    /// The row.
    pub row: &'a Row,
    /// The median of its rounds.
    pub median: Interval,
    /// Its cost compared with that of the baseline. Only rows of the library have it.
    pub to_baseline: Option<Ratio<'a>>,
    /// Its cost compared with that of the group's first row of the library.
    pub to_first: Option<Ratio<'a>>,
}

impl Figure<'_> {
    /// Returns all ratios of this row.
    pub fn ratios(&self) -> impl Iterator<Item = &Ratio<'_>> {
        self.to_baseline.iter().chain(&self.to_first)
    }
}

/// Rows that differ only in what they run over, and in their kind.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The rows, in the order of the report. There is at least one.
    pub figures: Vec<Figure<'a>>,
}

impl Group<'_> {
    /// Returns what is counted, if something is: `instructions`. Figures of other units say it
    /// themselves.
    pub fn counted(&self) -> Option<&'static str> {
        self.row().unit.counted()
    }

    /// Returns true if the rows take a path that the library would not always choose: the setting
    /// `path` has another value than `chosen`.
    pub fn is_forced(&self) -> bool {
        self.row().setup.get("path").is_some_and(|path| path != "chosen")
    }

    /// Returns the first row, which tells test, size, setup and unit of all.
    pub fn row(&self) -> &Row {
        self.figures[0].row
    }
}

/// Returns the groups of a report, in the order of their first rows.
pub fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in &report.rows {
        match groups.iter_mut().find(|group| group[0].is_beside(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.into_iter().map(|rows| Group { figures: rows.iter().map(|row| figure(row, &rows)).collect() }).collect()
}

/// Returns the groups of each test and setup. Those of one part differ in their size only.
pub fn parts<'g, 'a>(groups: &'g [Group<'a>]) -> Vec<Vec<&'g Group<'a>>> {
    let mut parts: Vec<Vec<&Group<'_>>> = Vec::new();
    for group in groups {
        let (row, key) = (group.row(), |row: &Row| (row.test.clone(), row.setup.clone(), row.unit));
        match parts.iter_mut().find(|part| key(part[0].row()) == key(row)) {
            Some(part) => part.push(group),
            None => parts.push(vec![group]),
        }
    }
    parts
}

fn figure<'a>(row: &'a Row, group: &[&'a Row]) -> Figure<'a> {
    let is_library = row.kind == Kind::Library;
    let first = group.iter().find(|other| other.kind == Kind::Library);
    let first = first.filter(|first| is_library && first.over != row.over);
    let baseline = baseline(row, group).filter(|_| is_library);
    Figure {
        row,
        median: row.median(),
        to_baseline: baseline.map(|to| Ratio::of(row, to)),
        to_first: first.map(|to| Ratio::of(row, to)),
    }
}

/// Returns the baseline of a row of the library, or `None` if the report has none.
pub(crate) fn baseline_in<'a>(report: &'a Report, row: &Row) -> Option<&'a Row> {
    let group: Vec<&Row> = report.rows.iter().filter(|other| other.is_beside(row)).collect();
    baseline(row, &group).filter(|_| row.kind == Kind::Library)
}

fn baseline<'a>(row: &Row, group: &[&'a Row]) -> Option<&'a Row> {
    let all = || group.iter().filter(|other| other.kind == Kind::Baseline);
    all().find(|other| other.over.starts_with(&row.over)).or_else(|| all().next()).copied()
}

/// Returns the percentiles of a row in seconds, in the order of [`PERCENTILES`]. One that too few
/// durations are beyond is `None`.
pub fn percentiles(row: &Row) -> [Option<f64>; 4] {
    PERCENTILES.map(|(_, share)| {
        let histogram = row.histogram.as_ref().filter(|histogram| histogram.reaches(share))?;
        Some(histogram.quantile(share) as f64 / 1e9)
    })
}

/// Sizes next to each other that take one path for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// The smallest size.
    pub from: u64,
    /// The largest size, inclusive; `None` if there is no end.
    pub to: Option<u64>,
    /// The path.
    pub path: &'a str,
    /// The reason.
    pub why: &'a str,
}

impl Segment<'_> {
    /// Returns the sizes of a segment of a strip: `up to 4 KiB`, `4097 B to 64 KiB`.
    pub fn sizes(&self) -> String {
        let size = |bytes: u64| crate::units::size(bytes as usize);
        match (self.from, self.to) {
            (0, Some(to)) => format!("up to {}", size(to)),
            (from, Some(to)) if from == to => size(to),
            (from, Some(to)) => format!("{} to {}", size(from), size(to)),
            (0, None) => "any size".to_owned(),
            (from, None) => format!("from {} on", size(from)),
        }
    }
}

/// The paths by size of what is moved over one transport in one direction.
#[derive(Clone, Debug)]
pub struct Strip<'a> {
    /// Over what.
    pub over: &'a str,
    /// What is moved.
    pub direction: &'a str,
    /// The paths, in the order of sizes and without gaps. There is at least one; the last one has
    /// no end.
    pub segments: Vec<Segment<'a>>,
}

/// Returns the plans of a report as strips, those of a transport next to each other.
pub fn strips(report: &Report) -> Vec<Strip<'_>> {
    let mut kinds: Vec<Vec<&Plan>> = Vec::new();
    for plan in &report.plans {
        let key = |plan: &Plan| (plan.over.clone(), plan.direction.clone());
        match kinds.iter_mut().find(|kind| key(kind[0]) == key(plan)) {
            Some(kind) => kind.push(plan),
            None => kinds.push(vec![plan]),
        }
    }
    let first = |over: &str| report.plans.iter().position(|plan| plan.over == over);
    kinds.sort_by_key(|kind| first(&kind[0].over));
    let strips = kinds.into_iter().map(|plans| {
        let Plan { over, direction, .. } = plans[0];
        Strip { over, direction, segments: segments(plans) }
    });
    strips.collect()
}

fn segments(mut plans: Vec<&Plan>) -> Vec<Segment<'_>> {
    plans.sort_by_key(|plan| plan.size);
    // Of two plans of one size, the first one counts.
    plans.dedup_by_key(|plan| plan.size);
    let mut segments: Vec<Segment<'_>> = Vec::new();
    for Plan { size, path, why, .. } in plans {
        match segments.last_mut() {
            Some(last) if (last.path, last.why) == (path, why) => continue,
            Some(last) => last.to = Some(size - 1),
            None => {}
        }
        segments.push(Segment { from: *size, to: None, path, why });
    }
    segments
}

/// Formats a ratio, with more digits where it is close to 1 or to 0.
pub fn ratio_figure(ratio: f64) -> String {
    match ratio {
        _ if ratio.is_nan() => "-".to_owned(),
        f64::INFINITY => "∞".to_owned(),
        0.9..1.1 | ..0.1 => format!("{ratio:.3}"),
        ..10.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Step;

    fn row(over: &str, kind: Kind, unit: Unit, values: &[f64]) -> Row {
        let step = |(round, value): (usize, &f64)| Step { round: round as u32, value: *value };
        let rounds = values.iter().enumerate().map(step).collect();
        Row { test: "latency".into(), over: over.into(), kind, unit, rounds, ..Row::default() }
    }

    #[test]
    fn more_bandwidth_is_faster_and_few_rounds_claim_nothing() {
        let (a, b) = ([1e9; 8], [2e9; 8]);
        let (a, b) =
            (row("tcp", Kind::Library, Unit::BytesPerSecond, &a), row("shm", Kind::Library, Unit::BytesPerSecond, &b));
        let ratio = Ratio::of(&b, &a);
        assert_eq!((ratio.verdict, ratio.rounds), (Verdict::Faster, 8));
        assert!((ratio.interval.middle - 0.5).abs() < 1e-9);
        assert_eq!(Ratio::of(&a, &b).verdict, Verdict::Slower);
        assert_eq!(Ratio::of(&a, &a).verdict, Verdict::NoDifference);
        let few = row("shm", Kind::Library, Unit::BytesPerSecond, &[2e9; 7]);
        assert_eq!(Ratio::of(&few, &a).verdict, Verdict::TooFewRounds);
        let none = row("shm", Kind::Library, Unit::BytesPerSecond, &[0.0; 9]);
        assert_eq!(Ratio::of(&none, &a).verdict, Verdict::TooFewRounds);
    }

    #[test]
    fn counts_need_two_rounds_and_may_be_zero() {
        let of = |values: &[f64]| row("tcp", Kind::Library, Unit::Calls, values);
        assert_eq!(Ratio::of(&of(&[0.0, 0.0]), &of(&[0.0, 0.001])).verdict, Verdict::NoDifference);
        assert_eq!(Ratio::of(&of(&[1.0, 1.0]), &of(&[0.0, 0.0])).verdict, Verdict::Slower);
        assert_eq!(Ratio::of(&of(&[1.0]), &of(&[2.0])).verdict, Verdict::TooFewRounds);
    }

    #[test]
    fn a_row_is_compared_with_its_own_baseline_and_with_the_first_transport() {
        let mut report = Report::new("", "");
        let of = |over: &str, kind| row(over, kind, Unit::Seconds, &[1.0; 8]);
        report.rows = vec![
            of("memcpy", Kind::Baseline),
            of("tcp sockets", Kind::Baseline),
            of("shm", Kind::Library),
            of("tcp", Kind::Library),
            of("model", Kind::Model),
        ];
        report.rows.push(Row { size: Some(8), ..of("tcp", Kind::Library) });
        let groups = groups(&report);
        let to = |figure: &Figure<'_>| {
            [&figure.to_baseline, &figure.to_first].map(|ratio| ratio.as_ref().map(|ratio| ratio.to.over.clone()))
        };
        let found: Vec<_> = groups[0].figures.iter().map(to).collect();
        let expected =
            [[None, None], [None, None], [Some("memcpy"), None], [Some("tcp sockets"), Some("shm")], [None, None]];
        assert_eq!(found, expected.map(|pair| pair.map(|name| name.map(str::to_owned))));
        assert_eq!(groups.len(), 2);
        assert_eq!(to(&groups[1].figures[0]), [None, None]);
    }

    #[test]
    fn a_strip_covers_all_sizes_from_its_first_on() {
        let plan = |direction: &str, size, path: &str| Plan {
            direction: direction.into(),
            size,
            path: path.into(),
            ..Plan::default()
        };
        let mut report = Report::new("", "");
        // Neither sorted nor next to each other, and one size twice.
        report.plans = vec![
            plan("write", 4097, "slot"),
            plan("write", 0, "inline"),
            plan("read", 8, "slot"),
            plan("write", 64, "inline"),
            plan("write", 4097, "bulk"),
            plan("write", 65_537, "bulk"),
        ];
        let found: Vec<(&str, Vec<String>)> = strips(&report)
            .iter()
            .map(|strip| {
                let segment = |segment: &Segment<'_>| format!("{} {}", segment.path, segment.sizes());
                (strip.direction, strip.segments.iter().map(segment).collect())
            })
            .collect();
        let write = ["inline up to 4 KiB", "slot 4097 B to 64 KiB", "bulk from 65537 B on"];
        assert_eq!(
            found,
            [("write", write.map(str::to_owned).to_vec()), ("read", vec!["slot from 8 B on".to_owned()]),]
        );
    }

    #[test]
    fn ratios_have_the_digits_that_matter() {
        let all = [0.0114, 0.412, 0.9987, 1.0042, 1.534, 14.26, f64::NAN, f64::INFINITY].map(ratio_figure);
        assert_eq!(all, ["0.011", "0.41", "0.999", "1.004", "1.53", "14.3", "-", "∞"]);
    }
}
