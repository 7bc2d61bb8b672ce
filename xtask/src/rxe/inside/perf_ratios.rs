//! Measures `bmi-perf` over verbs beside `perftest`, in the same machine and in turns.
//!
//! **Where both measure the same,** and must be within [`BOUND`]: one RDMA operation of 64 KiB, or
//! the same number of them in flight, on one connection, from the post to the completion. Both
//! poll, and both ask for each completion (`-Q 1`). At this length the transfer takes most of the
//! time: our verbs without an endpoint are within a few percent of `perftest` (`measure`).
//!
//! | `bmi-perf` | `perftest` | |
//! |---|---|---|
//! | `read-latency` | `ib_read_lat` | the whole read, the median |
//! | `write-bandwidth`, depth 1 | `ib_write_bw -t 1` | a write until its completion, the mean |
//! | `read-bandwidth`, depth 16 | `ib_read_bw -t 16 -o 16` | at most 16 reads in flight |
//! | `write-bandwidth`, depth 16 | `ib_write_bw -t 16` | at most 16 writes in flight |
//!
//! **Where they do not,** the row has the reason and no bound. A message of the library has a
//! header, is matched, and needs credit. Operations of 64 bytes show the instructions of the
//! library, which emulation makes as expensive as the device. An endpoint also reads the clock in
//! each poll, which is a system call in the machine. `ib_write_lat` ends when the peer has seen the
//! bytes, and `write-latency` when the acknowledgement has come. No test of `perftest` has the
//! median of the latter.
//!
//! **One poller.** Beside a second one, on two processors, the kernel's threads that are the device
//! would wait for a processor. The server of `perftest` sleeps in these tests, and so does that of
//! `bmi-perf`. In the tests with messages both programs poll on both sides.
//!
//! As in `cargo xtask pair --check`, the two programs run in turns, and the best of the rounds
//! counts, because other load on the host only makes a round slower. Only ratios are printed,
//! because emulated speeds say nothing.

use std::path::Path;

use bmi_report::{Report, Unit};

use super::measure::number;
use super::perftest::perftest;
use super::scenario::Scene;
use crate::rxe::build::PERF_IN_RELEASE;

/// How far a value may be from that of `perftest`, where both measure the same.
const BOUND: f64 = 0.1;
/// The rounds where a bound is tested, and where none is. The machine's two processors also run the
/// device, and the poller is often in its way. Many short rounds find one in which it was not.
const ROUNDS: usize = 15;
const ROUNDS_WITHOUT_BOUND: usize = 5;
const HOST: &str = "127.0.0.1";
/// `perftest` and its users count megabytes of this many bytes.
const MIB: f64 = 1_048_576.0;

/// A length of messages, and the number of operations that take about a tenth of a second.
struct Length {
    bytes: usize,
    operations: usize,
}

const SHORT: Length = Length { bytes: 64, operations: 1000 };
const LONG: Length = Length { bytes: 64 << 10, operations: 128 };

/// The value that a program of `perftest` prints.
#[derive(Clone, Copy)]
enum Value {
    /// The typical latency, in µs.
    Latency,
    /// The average bandwidth, in MiB/s.
    Bandwidth,
    /// The mean time of an operation in µs, from the average bandwidth of one at a time.
    Mean,
}

/// A measurement that both programs make.
struct Series {
    /// The test of `bmi-perf`, and its depth.
    test: &'static str,
    depth: usize,
    length: &'static Length,
    /// The program of `perftest`, and its arguments beside the length and the number.
    program: &'static str,
    args: &'static [&'static str],
    value: Value,
    /// Why the two need not agree. `None` if they must.
    differs: Option<&'static str>,
}

#[rustfmt::skip]
const SERIES: &[Series] = &[
    Series { test: "read-latency", depth: 1, length: &LONG, program: "ib_read_lat", args: &["-o", "1"], value: Value::Latency, differs: None },
    Series { test: "write-bandwidth", depth: 1, length: &LONG, program: "ib_write_bw", args: &["-t", "1", "-Q", "1"], value: Value::Bandwidth, differs: None },
    Series { test: "read-bandwidth", depth: 16, length: &LONG, program: "ib_read_bw", args: &["-t", "16", "-o", "16", "-Q", "1"], value: Value::Bandwidth, differs: None },
    Series { test: "write-bandwidth", depth: 16, length: &LONG, program: "ib_write_bw", args: &["-t", "16", "-Q", "1"], value: Value::Bandwidth, differs: None },
    Series { test: "write-latency", depth: 1, length: &LONG, program: "ib_write_bw", args: &["-t", "1", "-Q", "1"], value: Value::Mean, differs: Some("a median beside a mean") },
    Series { test: "bandwidth", depth: 16, length: &LONG, program: "ib_send_bw", args: &["-t", "16", "-Q", "1"], value: Value::Bandwidth, differs: Some("announced, and then read by the receiver") },
    Series { test: "read-latency", depth: 1, length: &SHORT, program: "ib_read_lat", args: &["-o", "1"], value: Value::Latency, differs: Some("the library's instructions and clock, emulated") },
    Series { test: "write-latency", depth: 1, length: &SHORT, program: "ib_write_lat", args: &[], value: Value::Latency, differs: Some("until the acknowledgement, not until seen") },
    Series { test: "latency", depth: 1, length: &SHORT, program: "ib_send_lat", args: &[], value: Value::Latency, differs: Some("header, matching and credits") },
];

/// Measures all series. Fails if one that must agree does not.
pub(crate) fn beside_perftest(scene: &Scene<'_>) -> Result<(), String> {
    let server = scene.start(&[PERF_IN_RELEASE, "serve", HOST])?;
    server.await_output("listening at")?;
    scene.note(format!(
        "bmi-perf over ib beside perftest, best of {ROUNDS} rounds in turns, or {ROUNDS_WITHOUT_BOUND} without a bound:"
    ));
    scene.note(format!("{:<34}{:<30}{:>6}", "bmi-perf", "perftest", "ratio"));
    let mut wrong = Vec::new();
    for series in SERIES {
        let mut pairs = Vec::new();
        for _ in 0..if series.differs.is_none() { ROUNDS } else { ROUNDS_WITHOUT_BOUND } {
            let ours = ours(scene, series).map_err(|why| format!("{why}\nthe server said:\n{}", server.output()))?;
            pairs.push((ours, theirs(scene, series)?));
        }
        let (ours, theirs) = best(series.value, &pairs);
        let line = line(series, ours, theirs);
        if series.differs.is_none() && !is_near(ours, theirs) {
            wrong.push(line.clone());
        }
        scene.note(line);
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("not within {:.0} % of perftest:\n{}", 100.0 * BOUND, wrong.join("\n"))),
    }
}

/// Runs `bmi-perf` once. Returns the value of its only row, in the unit of `perftest`.
fn ours(scene: &Scene<'_>, series: &Series) -> Result<f64, String> {
    const JSON: &str = "/tmp/perf-ratios.json";
    let Series { test, depth, length: Length { bytes, operations }, .. } = series;
    let line = format!(
        "{PERF_IN_RELEASE} run {HOST} --over ib --test {test} --size {bytes} --depth {depth} --count {operations} \
         --rounds 1 --waiting polling --no-baseline --json {JSON}"
    );
    scene.ok(&line.split_whitespace().collect::<Vec<_>>())?;
    value(&Report::read(Path::new(JSON)).map_err(|error| error.to_string())?).map_err(|why| format!("{line}: {why}"))
}

/// Returns the value of the only round of the only row, in µs or MiB/s.
fn value(report: &Report) -> Result<f64, String> {
    let [row] = &report.rows[..] else { return Err(format!("{} rows: {:?}", report.rows.len(), report.notes)) };
    match (row.unit, &row.values()[..]) {
        (Unit::Seconds, [seconds]) => Ok(1e6 * seconds),
        (Unit::BytesPerSecond, [rate]) => Ok(rate / MIB),
        (_, values) => Err(format!("{}: {values:?}", row.name())),
    }
}

fn theirs(scene: &Scene<'_>, series: &Series) -> Result<f64, String> {
    let (bytes, operations) = (series.length.bytes.to_string(), series.length.operations.to_string());
    // Without "-F" it does not report if its clock and its processor disagree.
    let output = perftest(scene, series.program, &[&["-F", "-s", &bytes, "-n", &operations], series.args].concat())?;
    their_value(&output, series).ok_or_else(|| format!("{} printed no number:\n{output}", series.program))
}

fn their_value(output: &str, series: &Series) -> Option<f64> {
    let bytes = series.length.bytes;
    match series.value {
        Value::Latency => number(output, bytes, 4),
        Value::Bandwidth => number(output, bytes, 3),
        Value::Mean => Some(1e6 * bytes as f64 / (MIB * number(output, bytes, 3)?)),
    }
}

/// Returns the best value of each program.
fn best(value: Value, pairs: &[(f64, f64)]) -> (f64, f64) {
    let better = match value {
        Value::Bandwidth => f64::max,
        Value::Latency | Value::Mean => f64::min,
    };
    let best = |one: fn(&(f64, f64)) -> f64| pairs.iter().map(one).reduce(better).unwrap_or(f64::NAN);
    (best(|pair| pair.0), best(|pair| pair.1))
}

/// Returns true if our value is near theirs. A value that is better by more is not the same
/// measurement either.
fn is_near(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= BOUND * theirs
}

fn line(series: &Series, ours: f64, theirs: f64) -> String {
    let Series { test, depth, length, program, args, differs, .. } = series;
    let size =
        if length.bytes < 1 << 10 { format!("{} B", length.bytes) } else { format!("{} KiB", length.bytes >> 10) };
    let verdict = match differs {
        Some(why) => format!("no bound: {why}"),
        None if is_near(ours, theirs) => "ok".to_owned(),
        None => "WRONG".to_owned(),
    };
    let (what, peer) = (format!("{test} {size}, depth {depth}"), [&[*program], *args].concat().join(" "));
    format!("{what:<34}{peer:<30}{:>6.2}  {verdict}", ours / theirs)
}

#[cfg(test)]
mod tests {
    use bmi_report::{Row, Step};

    use super::*;

    #[test]
    fn the_only_row_is_found_in_the_units_of_perftest() {
        let row = |unit, values: &[f64]| Row {
            unit,
            rounds: values.iter().map(|value| Step { round: 0, value: *value }).collect(),
            ..Row::default()
        };
        let report = |rows| Report { rows, ..Report::default() };
        assert_eq!(value(&report(vec![row(Unit::Seconds, &[2e-6])])), Ok(2.0));
        assert_eq!(value(&report(vec![row(Unit::BytesPerSecond, &[3.0 * MIB])])), Ok(3.0));
        assert!(value(&report(vec![])).unwrap_err().contains("0 rows"));
        assert!(value(&report(vec![row(Unit::Seconds, &[1.0, 2.0])])).is_err());
        assert!(value(&report(vec![row(Unit::Seconds, &[])])).is_err());
        assert!(value(&report(vec![row(Unit::PerSecond, &[1.0])])).is_err());
    }

    #[test]
    fn a_mean_comes_from_the_bandwidth_of_one_at_a_time() {
        let output = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      128             49.10              50.00              0.000782\n";
        let of = |value| Series { value, ..named("write-latency", &LONG) };
        assert_eq!(their_value(output, &of(Value::Bandwidth)), Some(50.0));
        assert_eq!(their_value(output, &of(Value::Mean)), Some(1250.0));
        assert_eq!(their_value(" 65536 128 9.0 20.0 15.5 16.0\n", &of(Value::Latency)), Some(15.5));
        assert_eq!(their_value("", &of(Value::Mean)), None);
    }

    #[test]
    fn the_best_round_is_the_shortest_or_the_fastest() {
        let pairs = [(3.0, 6.0), (2.0, 5.0), (4.0, 7.0)];
        assert_eq!(best(Value::Latency, &pairs), (2.0, 5.0));
        assert_eq!(best(Value::Bandwidth, &pairs), (4.0, 7.0));
    }

    #[test]
    fn a_value_that_is_far_better_is_wrong_too() {
        let verdicts = [109.0, 111.0, 91.0, 89.0].map(|ours| is_near(ours, 100.0));
        assert_eq!(verdicts, [true, false, true, false]);
        assert!(!is_near(f64::NAN, 100.0) && !is_near(1.0, f64::NAN));
        let same = named("read-latency", &LONG);
        assert!(line(&same, 95.0, 100.0).ends_with("0.95  ok"));
        assert!(line(&same, 120.0, 100.0).ends_with("1.20  WRONG"));
        let other = named("latency", &SHORT);
        assert!(line(&other, 500.0, 100.0).ends_with("no bound: header, matching and credits"));
    }

    /// Returns the first series of a test and a length.
    fn named(test: &str, length: &Length) -> Series {
        let found = SERIES.iter().find(|one| one.test == test && one.length.bytes == length.bytes).unwrap();
        Series { ..*found }
    }
}
