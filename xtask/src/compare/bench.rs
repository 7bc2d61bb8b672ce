//! The benchmarks that can be compared, and the samples that they print.
//!
//! A benchmark is a program of the crate `benches` with an option `--sample`. It measures each of
//! its rows once, within seconds, and prints them as JSON. `benches::sample` defines the format,
//! and the types here read it.
//!
//! **How to add a benchmark.** Add it to [`BENCHES`].

use std::time::Duration;

use bmi_report::Unit;
use serde::Deserialize;

use super::source::Programs;
use crate::command::{Failure, Invocation};

/// A benchmark.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The name of the program, and of the benchmark for `--bench`.
    pub(crate) name: &'static str,
    /// True if it counts instructions, with valgrind.
    pub(super) counts: bool,
    /// The other programs that it starts. It finds each of them in its own directory, or by the
    /// environment variable with the program's name in capitals.
    pub(super) starts: &'static [&'static str],
}

/// All benchmarks, in the order in which they are reported.
pub(super) const BENCHES: &[Bench] = &[
    Bench { name: "message_cost", counts: true, starts: &[] },
    Bench { name: "micro", counts: false, starts: &[] },
    Bench { name: "shm_bench", counts: false, starts: &[] },
    Bench { name: "handle", counts: false, starts: &[] },
    Bench { name: "sim_rate", counts: false, starts: &[] },
    Bench { name: "fs_bench", counts: false, starts: &["pvfsd"] },
];

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
    /// Fails if the program is older than the option `--sample`.
    pub(super) fn understands_samples(&self, programs: &Programs) -> Result<(), Failure> {
        let help = Invocation::new(programs.folder(), programs.program(self.name)?, "--help");
        if help.output(HELP_LIMIT)?.contains("--sample") {
            return Ok(());
        }
        let (name, revision) = (self.name, programs.name());
        Err(Failure::new(format!("{revision}: {name} has no --sample yet; choose other benchmarks with --bench")))
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
        let program = programs.program(self.name)?;
        let mut invocation = match run.realtime && !self.counts {
            // Even the lowest round-robin priority is above every ordinary program.
            true => Invocation::new(programs.folder(), "chrt", "-r 1").args(&[program.display().to_string()]),
            false => Invocation::new(programs.folder(), program, ""),
        };
        for name in self.starts {
            // Without this, a program that the user's environment names would be used for both
            // sides.
            invocation = invocation.env(&name.to_uppercase(), programs.program(name)?);
        }
        let invocation = invocation.args(&["--sample".to_owned()]).args(&run.args);
        let failed = |why: String| Failure::new(format!("{} of {}: {why}", self.name, programs.name()));
        let output = invocation.output(SAMPLE_LIMIT).map_err(|failure| failed(failure.reason))?;
        let sample: Sample = serde_json::from_str(&output).map_err(|error| failed(error.to_string()))?;
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
        assert!(parse("no-such").is_err_and(|why| why.contains("micro, shm_bench")));
    }
}
