//! Runs `pvfs bench` over verbs: data with verification, and names.

use std::path::Path;

use bmi_report::{Report, Row};

use super::files::Cluster;
use super::scenario::Scene;

const TASKS: usize = 2;
const ROUNDS: usize = 2;
/// Files of a task of `meta`.
const FILES: usize = 10;

/// A run of `pvfs bench` and what its report must have.
struct Run {
    line: String,
    /// The tests of its rows.
    tests: &'static [&'static str],
    /// Settings of each row.
    setup: &'static [(&'static str, &'static str)],
    /// Operations of each row, where they can be counted.
    operations: Option<usize>,
}

/// A shared file, a file for each task, and names.
pub(crate) fn over_ib(scene: &Scene<'_>) -> Result<(), String> {
    let cluster = Cluster::start(scene, "127.0.0.1")?;
    for run in [
        // Transfers that take the inline path.
        io("--shared --transfer 1000 --block 8000 --segments 2", 16, &[("layout", "shared file"), VERIFIED]),
        // Larger ones, in random order. Each touches two I/O servers.
        io("--file-per-task --transfer 100000 --block 800000 --random", 8, &[("layout", "file per task"), VERIFIED]),
        Run {
            line: format!("meta --files {FILES}"),
            tests: &["create", "stat", "list", "remove"],
            setup: &[("dirs", "shared directory")],
            operations: None,
        },
    ] {
        let report = report(&cluster, &run.line)?;
        check(&report, &run).map_err(|why| cluster.explain(&format!("{}: {why}", run.line)))?;
        scene.note(format!("{}: {}", report.title, figures(&report.rows)));
    }
    let left = cluster.ok(&["ls", "/"])?;
    if left.trim().is_empty() { Ok(()) } else { Err(format!("the benchmark has left: {left}")) }
}

const VERIFIED: (&str, &str) = ("check", "verified");

/// Returns a run in which a task does `transfers` in a phase.
fn io(options: &str, transfers: usize, setup: &'static [(&'static str, &'static str)]) -> Run {
    let line = format!("io --verify --seed 7 {options}");
    Run { line, tests: &["write", "read"], setup, operations: Some(ROUNDS * TASKS * transfers) }
}

/// Runs it, and returns its report. A wrong byte is a bad exit status.
fn report(cluster: &Cluster<'_>, line: &str) -> Result<Report, String> {
    const REPORT: &str = "/tmp/bench.json";
    let line = format!("--over ib bench {line} --tasks {TASKS} --rounds {ROUNDS} --report {REPORT}");
    cluster.ok(&line.split_whitespace().collect::<Vec<_>>())?;
    Report::read(Path::new(REPORT)).map_err(|error| error.to_string())
}

/// Checks that all was measured, and over verbs.
fn check(report: &Report, run: &Run) -> Result<(), String> {
    if let Some(why) = &report.interrupted {
        return Err(why.clone());
    }
    let tests: Vec<&str> = report.rows.iter().map(|row| row.test.as_str()).collect();
    if tests != run.tests {
        return Err(format!("it has the rows {tests:?}"));
    }
    report.rows.iter().try_for_each(|row| check_row(row, run).map_err(|what| format!("{}: {what}", row.name())))
}

fn check_row(row: &Row, run: &Run) -> Result<(), String> {
    if row.over != "ib" {
        return Err(format!("it is over {}", row.over));
    }
    let values = row.values();
    if values.len() != ROUNDS || values.iter().any(|value| !(value.is_finite() && *value > 0.0)) {
        return Err(format!("its rounds are {values:?}"));
    }
    if let Some((name, value)) =
        run.setup.iter().find(|(name, value)| row.setup.get(*name).is_none_or(|is| is != value))
    {
        return Err(format!("its {name} is not {value}: {:?}", row.setup));
    }
    let counted = row.histogram.as_ref().map_or(0, |histogram| histogram.len() as usize);
    match run.operations {
        Some(operations) if operations != counted => Err(format!("{counted} operations, not {operations}")),
        _ => Ok(()),
    }
}

/// Returns the medians, in a line.
fn figures(rows: &[Row]) -> String {
    let one = |row: &Row| format!("{} {}", row.test, row.unit.figure(row.median().middle));
    rows.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use bmi_report::{Histogram, Step};

    use super::*;

    fn run() -> Run {
        io("", 8, &[VERIFIED])
    }

    /// Returns a report that is as it must be.
    fn good() -> Report {
        let row = |test: &str| {
            let mut operations = Histogram::new();
            (0..ROUNDS * TASKS * 8).for_each(|_| operations.record(1000));
            Row {
                test: test.to_owned(),
                over: "ib".to_owned(),
                setup: [VERIFIED].map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
                rounds: (0..ROUNDS as u32).map(|round| Step { round, value: 1.0 }).collect(),
                histogram: Some(operations),
                ..Row::default()
            }
        };
        Report { rows: vec![row("write"), row("read")], ..Report::default() }
    }

    #[test]
    fn a_report_that_lacks_something_is_not_right() {
        assert_eq!(check(&good(), &run()), Ok(()));
        let spoil: [fn(&mut Report); 7] = [
            |report| report.interrupted = Some("lost".to_owned()),
            |report| report.rows.truncate(1),
            |report| report.rows[1].over = "tcp".to_owned(),
            |report| report.rows[0].rounds.truncate(1),
            |report| report.rows[0].rounds[0].value = 0.0,
            |report| report.rows[0].setup.clear(),
            |report| report.rows[1].histogram = Some(Histogram::new()),
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            let mut report = good();
            spoil(&mut report);
            assert!(check(&report, &run()).is_err(), "{number}");
        }
    }
}
