//! The costs of storing and reading back, by size class.

use std::time::Duration;

use bmi::paths::{Direction, Miss, Path};
use bmi::stats::PathCounters;
use bmi_report::Histogram;
use serde::{Serialize, Serializer};

/// The upper bounds of the size classes in bytes, and their names. The bounds are those of the
/// transfer paths: up to 4 KiB is sent inline, 64 KiB is a strip, and 1 MiB and more keeps all
/// servers busy.
pub(crate) const CLASSES: [(u64, &str); 4] =
    [(4 << 10, "<= 4 KiB"), (64 << 10, "<= 64 KiB"), (1 << 20, "<= 1 MiB"), (u64::MAX, "> 1 MiB")];

/// Returns the class of a file of `len` bytes.
pub(crate) fn class_of(len: u64) -> usize {
    CLASSES.iter().position(|(most, _)| len <= *most).unwrap_or(CLASSES.len() - 1)
}

/// The sums over some operations.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    operations: u64,
    bytes: u64,
    time: Duration,
    cpu: Duration,
    latency: Histogram,
    paths: PathCounters,
}

impl Default for Tally {
    fn default() -> Tally {
        let zero = Duration::ZERO;
        Tally {
            operations: 0,
            bytes: 0,
            time: zero,
            cpu: zero,
            latency: Histogram::new(),
            paths: PathCounters::default(),
        }
    }
}

/// A line of the table, in units for other programs to read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) class: &'static str,
    pub(crate) direction: &'static str,
    pub(crate) transport: String,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_per_second: f64,
    pub(crate) median_seconds: f64,
    pub(crate) p99_seconds: f64,
    /// The requests to I/O servers, by the path of their data, and the reasons why cheaper paths
    /// were not taken.
    #[serde(serialize_with = "paths")]
    pub(crate) paths: PathCounters,
    /// The processor time of the client per operation.
    pub(crate) cpu_seconds: f64,
}

impl Tally {
    /// Adds one operation.
    pub(crate) fn add(&mut self, bytes: u64, time: Duration, cpu: Duration, before: PathCounters, after: PathCounters) {
        self.operations += 1;
        self.bytes += bytes;
        self.time += time;
        self.cpu += cpu;
        self.latency.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.paths = self.paths.plus(&after.since(&before));
    }

    /// Returns the durations of single operations.
    pub(crate) fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Returns the line; `None` if there was no operation.
    pub(crate) fn line(&self, class: &'static str, direction: &'static str, transport: &str) -> Option<Line> {
        if self.operations == 0 {
            return None;
        }
        let seconds = |rank: f64| self.latency.quantile(rank) as f64 / 1e9;
        Some(Line {
            class,
            direction,
            transport: transport.to_owned(),
            operations: self.operations,
            bytes: self.bytes,
            // A simulated operation that costs nothing takes no time at all.
            bytes_per_second: self.bytes as f64 / self.time.as_secs_f64().max(1e-9),
            median_seconds: seconds(0.5),
            p99_seconds: seconds(0.99),
            paths: self.paths,
            cpu_seconds: self.cpu.as_secs_f64() / self.operations as f64,
        })
    }
}

impl Line {
    /// Returns the path taken, as text.
    pub(crate) fn path(&self) -> String {
        let taken: Vec<(Path, u64)> = Path::TAKEN
            .into_iter()
            .map(|path| (path, requests(&self.paths, path)))
            .filter(|(_, count)| *count > 0)
            .collect();
        match &taken[..] {
            [] => "no data".to_owned(),
            [(path, _)] => path.to_string(),
            several => several.iter().map(|(path, count)| format!("{count} {path}")).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Returns the number of requests that took a path, in both directions.
fn requests(paths: &PathCounters, path: Path) -> u64 {
    Direction::ALL.iter().map(|direction| paths.requests(*direction, path)).sum()
}

/// Serialises the counters that are not zero: requests by path, and the reasons why cheaper paths
/// were not taken.
fn paths<S: Serializer>(paths: &PathCounters, serializer: S) -> Result<S::Ok, S::Error> {
    let taken = Path::TAKEN.into_iter().map(|path| (path.as_str(), requests(paths, path)));
    let missed = Miss::ALL.into_iter().map(|miss| (miss.as_str(), paths.missed(miss)));
    serializer.collect_map(taken.chain(missed).filter(|(_, count)| *count > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_its_class() {
        for (len, class) in [(0, 0), (4096, 0), (4097, 1), (65536, 1), (1 << 20, 2), ((1 << 20) + 1, 3), (u64::MAX, 3)]
        {
            assert_eq!(class_of(len), class, "{len}");
        }
    }

    #[test]
    fn a_line_sums_up_its_operations() {
        let mut tally = Tally::default();
        assert!(tally.line("c", "put", "tcp").is_none());
        let none = PathCounters::default();
        let mut inline = none;
        inline.count(Direction::Write, Path::Inline, 1000, None);
        for ms in [1, 2, 9] {
            tally.add(1000, Duration::from_millis(ms), Duration::from_millis(1), none, inline);
        }
        let line = tally.line("c", "put", "tcp").unwrap();
        assert_eq!((line.operations, line.bytes, line.path().as_str()), (3, 3000, "inline"));
        assert!((line.bytes_per_second - 250_000.0).abs() < 1.0 && (line.cpu_seconds - 0.001).abs() < 1e-9);
        assert!((line.median_seconds - 0.002).abs() < 1e-5 && (line.p99_seconds - 0.009).abs() < 1e-5);
    }
}
