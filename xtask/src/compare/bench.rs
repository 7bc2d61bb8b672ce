//! The benchmarks that can be compared, and the samples that they print.
//!
//! A benchmark is a program of the crate `benches` or `bmi-perf` with an option `--sample`. It
//! measures each of its rows once, within seconds, and prints them as JSON. `benches::sample`
//! defines the format, and the types here read it. The file system is measured by `pvfs bench all`,
//! which prints a report, with a cluster of `pvfsd scratch`.
//!
//! **How to add a benchmark.** Add it to [`BENCHES`].

use std::time::Duration;

use bmi_report::{Report, Row, Unit};
use serde::Deserialize;

use super::source::Programs;
use crate::command::{Failure, Invocation};

/// A benchmark.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The name of the program, and of the benchmark for `--bench`.
    pub(crate) name: &'static str,
    /// What makes it print a sample.
    args: &'static str,
    /// True if it counts instructions, with valgrind.
    pub(super) counts: bool,
    /// The other programs that are started.
    starts: &'static [&'static str],
}

/// The command of the file system, which measures a cluster.
const PVFS: &str = "pvfs";
/// The program of its servers.
const PVFSD: &str = "pvfsd";

/// All benchmarks, in the order in which they are reported.
pub(super) const BENCHES: &[Bench] = &[
    Bench { name: "message_cost", args: "--sample", counts: true, starts: &[] },
    Bench { name: "bmi-perf", args: PERF, counts: false, starts: &[] },
    Bench { name: "sim_rate", args: "--sample", counts: false, starts: &[] },
    Bench { name: PVFS, args: ALL, counts: false, starts: &[PVFSD] },
];

/// All that `pvfs` measures of one client, once.
const ALL: &str = "--json --over tcp,shm bench all --rounds 1 --seed 1";
/// Both transports of every host, through each interface for one thread, however a side waits.
const PERF: &str = "here --sample --over tcp,shm --interface endpoint,polled,backend --waiting polling,sleeping";

/// Time limit for one sample, which takes some seconds to a minute.
const SAMPLE_LIMIT: Duration = Duration::from_secs(600);
const HELP_LIMIT: Duration = Duration::from_secs(20);

/// Finds a benchmark by its name, for `--bench`.
pub(super) fn parse(name: &str) -> Result<&'static Bench, String> {
    BENCHES.iter().find(|bench| bench.name == name).ok_or_else(|| {
        let names = BENCHES.iter().map(|bench| bench.name).collect::<Vec<_>>().join(", ");
        format!("no such benchmark; there are {names}")
    })
}

/// The rows that one run of a benchmark measured.
pub(super) type Sample = Vec<Line>;

/// A row of a sample.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Line {
    /// The name of the row.
    pub(super) name: String,
    /// The measured value.
    pub(super) value: f64,
    /// The unit of `value`.
    pub(super) unit: Unit,
}

/// How benchmarks are run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Arguments for the benchmark.
    pub(super) args: Vec<String>,
    /// True to run at real-time priority. Benchmarks that count never do.
    pub(super) realtime: bool,
}

impl Bench {
    /// Returns the names of all programs that a run starts.
    pub(super) fn programs(&self) -> impl Iterator<Item = &'static str> {
        self.starts.iter().copied().chain([self.name])
    }

    /// Fails if the program is older than what it is asked to do.
    pub(super) fn understands_samples(&self, programs: &Programs) -> Result<(), Failure> {
        let (args, known) = match self.name {
            PVFS => ("bench all --help", "--quick"),
            "bmi-perf" => ("here --help", "polled"),
            _ => ("--help", "--sample"),
        };
        let help = Invocation::new(programs.folder(), programs.program(self.name)?, args);
        if help.output(HELP_LIMIT).is_ok_and(|help| help.contains(known)) {
            return Ok(());
        }
        let (name, revision) = (self.name, programs.name());
        Err(Failure::new(format!("{revision}: {name} prints no sample yet; choose other benchmarks with --bench")))
    }

    /// Returns the command line of a sample, without the arguments of the user.
    fn command(&self, programs: &Programs) -> Result<Vec<String>, Failure> {
        let program = |name| programs.program(name).map(|path| path.display().to_string());
        let mut words = vec![program(self.name)?];
        if self.name == PVFS {
            words.splice(0..0, [program(PVFSD)?, "scratch".to_owned(), "--".to_owned()]);
        }
        words.extend(self.args.split_whitespace().map(str::to_owned));
        Ok(words)
    }

    fn parse(&self, output: &str) -> Result<Sample, String> {
        if self.name != PVFS {
            return serde_json::from_str(output).map_err(|error| error.to_string());
        }
        let report = Report::from_json(output).map_err(|error| error.to_string())?;
        let line = |row: &Row| Line { name: row.name(), value: row.median().middle, unit: row.unit };
        Ok(report.rows.iter().map(line).collect())
    }

    /// Runs the benchmark once. If the run fails, runs it again, because a port may have been
    /// taken.
    pub(super) fn sample(&self, programs: &Programs, run: &Run) -> Result<Sample, Failure> {
        self.try_sample(programs, run).or_else(|failure| {
            eprintln!("{failure}; trying again");
            self.try_sample(programs, run)
        })
    }

    fn try_sample(&self, programs: &Programs, run: &Run) -> Result<Sample, Failure> {
        let mut words = self.command(programs)?;
        if run.realtime && !self.counts {
            // Even the lowest round-robin priority is above every ordinary program.
            words.splice(0..0, ["chrt", "-r", "1"].map(str::to_owned));
        }
        words.extend(run.args.iter().cloned());
        let invocation = Invocation::new(programs.folder(), &words[0], "").args(&words[1..]);
        let failed = |why: String| Failure::new(format!("{} of {}: {why}", self.name, programs.name()));
        let output = invocation.output(SAMPLE_LIMIT).map_err(|failure| failed(failure.reason))?;
        let sample = self.parse(&output).map_err(failed)?;
        match sample.iter().find(|row| !row.value.is_finite() || row.value < 0.0) {
            Some(row) => Err(failed(format!("{} is {}", row.name, row.value))),
            None if sample.is_empty() => Err(failed("it measured nothing".to_owned())),
            None => Ok(sample),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_as_benches_prints_them() {
        let text = r#"[{"name":"tcp stat, 1 in flight","value":0.5,"unit":"s"},{"name":"b","value":2,"unit":"1/s"}]"#;
        let sample: Sample = serde_json::from_str(text).unwrap();
        assert_eq!(sample[0], Line { name: "tcp stat, 1 in flight".into(), value: 0.5, unit: Unit::Seconds });
        assert!(sample[0].unit.less_is_better() && !sample[1].unit.less_is_better());
    }

    #[test]
    fn every_benchmark_is_found_by_its_name_and_no_other() {
        assert!(BENCHES.iter().all(|bench| parse(bench.name).is_ok_and(|found| found.name == bench.name)));
        assert!(parse("no-such").is_err_and(|why| why.contains("message_cost, bmi-perf")));
    }
}
