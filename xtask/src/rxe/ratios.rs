//! Measures our verbs, and `bmi-perf` over them, beside `perftest`, in the same machine and in
//! turns.
//!
//! **Why only ratios.** In emulation, an operation costs what the emulator costs. That is true of
//! both programs, so a ratio shows how much our code adds. No figure here shows how fast an adapter
//! is. The rounds alternate, so that other load on the host affects both. Other load only makes a
//! round slower, so the best round of each counts.
//!
//! **Our verbs** (`bmi-perf --interface backend`) do what the program of `perftest` does. The row
//! has an aim.
//!
//! **The library** must be within [`BOUND`] where both measure the same: one RDMA operation of 64
//! KiB, or the same number of them in flight, on one connection, from the post to the completion.
//! Both poll, and both ask for each completion (`-Q 1`). At this length the transfer takes most of
//! the time. In the other rows the two differ for the reason that is given. A message of the
//! library has a header, is matched, and needs credit. Operations of 64 bytes show the instructions
//! of the library, which emulation makes as expensive as the device. `ib_write_lat` ends when the
//! peer has seen the bytes, and `write-latency` when the acknowledgement has come.
//!
//! **One poller.** Beside a second one, on two processors, the kernel's threads that are the device
//! would wait for a processor. The server of `perftest` sleeps in these tests, and so does that of
//! `bmi-perf`. In the tests with messages both programs poll on both sides.

use bmi_report::{Report, Unit};

use super::machine::Machine;
use super::report::{Reporter, Verdict};
use super::scenario::script;
use crate::command::Failure;

/// How far a value may be from that of `perftest`, where both measure the same.
const BOUND: f64 = 0.1;
/// The rounds. The machine's two processors also run the device, and the poller is often in its
/// way. Many short rounds find one in which it was not.
const ROUNDS: usize = 10;
/// The aims of our verbs: at most this many times the latency, and at least this part of the
/// bandwidth.
const LATENCY_AIM: f64 = 1.3;
const BANDWIDTH_AIM: f64 = 0.9;
/// Sizes, and the number of operations with which a round takes less than a second.
const SIZES: &[(usize, usize)] = &[(64, 4000), (4 << 10, 3000), (64 << 10, 200), (1 << 20, 24)];
/// The programs of `perftest`, and the tests of `bmi-perf` that measure the same of our verbs.
const VERBS_OF: [(&str, &str); 6] = [
    ("ib_send_lat", "latency"),
    ("ib_write_lat", "write-seen"),
    ("ib_read_lat", "read-latency"),
    ("ib_send_bw", "bandwidth"),
    ("ib_write_bw", "write-bandwidth"),
    ("ib_read_bw", "read-bandwidth"),
];
/// Operations of our verbs in flight, where there are several.
const DEPTH: usize = 64;
const SHORT: (usize, usize) = (64, 1000);
const LONG: (usize, usize) = (64 << 10, 128);
/// `perftest` and its users count megabytes of this many bytes.
const MIB: f64 = 1_048_576.0;

/// The value that a program of `perftest` prints.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    /// The typical latency, in µs.
    Latency,
    /// The average bandwidth, in MiB/s.
    Bandwidth,
    /// The mean time of an operation in µs, from the average bandwidth of one at a time.
    Mean,
}

/// A measurement of the library beside one of `perftest`.
struct Series {
    /// The test of `bmi-perf`, and its depth.
    test: &'static str,
    depth: usize,
    /// The length of messages, and the number of operations.
    length: (usize, usize),
    /// The program of `perftest`, and its arguments beside the length and the number.
    program: &'static str,
    value: Value,
    /// Why the two need not agree. `None` if they must.
    differs: Option<&'static str>,
}

#[rustfmt::skip]
const SERIES: &[Series] = &[
    Series { test: "read-latency", depth: 1, length: LONG, program: "ib_read_lat -o 1", value: Value::Latency, differs: None },
    Series { test: "write-bandwidth", depth: 1, length: LONG, program: "ib_write_bw -t 1 -Q 1", value: Value::Bandwidth, differs: None },
    Series { test: "read-bandwidth", depth: 16, length: LONG, program: "ib_read_bw -t 16 -o 16 -Q 1", value: Value::Bandwidth, differs: None },
    Series { test: "write-bandwidth", depth: 16, length: LONG, program: "ib_write_bw -t 16 -Q 1", value: Value::Bandwidth, differs: None },
    Series { test: "write-latency", depth: 1, length: LONG, program: "ib_write_bw -t 1 -Q 1", value: Value::Mean, differs: Some("a median beside a mean") },
    Series { test: "bandwidth", depth: 16, length: LONG, program: "ib_send_bw -t 16 -Q 1", value: Value::Bandwidth, differs: Some("announced, and then read by the receiver") },
    Series { test: "read-latency", depth: 1, length: SHORT, program: "ib_read_lat -o 1", value: Value::Latency, differs: Some("the library's instructions and clock, emulated") },
    Series { test: "write-latency", depth: 1, length: SHORT, program: "ib_write_lat", value: Value::Latency, differs: Some("until the acknowledgement, not until seen") },
    Series { test: "latency", depth: 1, length: SHORT, program: "ib_send_lat", value: Value::Latency, differs: Some("header, matching and credits") },
];

/// What can be measured, as tests.
pub(crate) const NAMES: [&str; 2] = [VERBS, LIBRARY];
const VERBS: &str = "our verbs beside perftest";
const LIBRARY: &str = "bmi-perf is within 10 % of perftest where both measure the same";

/// Measures one of them.
pub(crate) fn run(machine: &mut Machine, name: &str, reporter: &mut Reporter) {
    let mut bench = Bench { machine, why: None };
    reporter.begin();
    let mut wrong = if name == VERBS { verbs(&mut bench, reporter) } else { library(&mut bench, reporter) };
    wrong.extend(bench.why.map(|why| why.reason));
    let verdict = if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed };
    reporter.end("bench", name, verdict, wrong.join("\n"));
}

/// Prints a row for each program. Nothing is wrong if an aim is not met.
fn verbs(bench: &mut Bench<'_>, reporter: &mut Reporter) -> Vec<String> {
    reporter.say(&format!(
        "verbs beside perftest; aims: latency at most {LATENCY_AIM}, bandwidth at least {BANDWIDTH_AIM}"
    ));
    for (program, test) in VERBS_OF {
        let value = if program.ends_with("_bw") { Value::Bandwidth } else { Value::Latency };
        let cells = SIZES.iter().map(|&(size, count)| {
            let ours = script(&format!("verbs --test {test} --size {size} --depth {DEPTH} --count {count}"));
            let ratio = bench.ratio(value, (size, count), program, &ours, only_value);
            let met = if value == Value::Bandwidth { ratio >= BANDWIDTH_AIM } else { ratio <= LATENCY_AIM };
            format!("{size:>8} B {ratio:.2}{}", if met { ' ' } else { '!' })
        });
        let cells = cells.collect::<String>();
        reporter.say(&format!("{program:<14}{cells}"));
    }
    Vec::new()
}

/// Prints a row for each series. Returns those that must agree and do not.
fn library(bench: &mut Bench<'_>, reporter: &mut Reporter) -> Vec<String> {
    let mut wrong = Vec::new();
    for series in SERIES {
        let Series { test, depth, length: (size, count), program, value, differs } = *series;
        let perf = script(&format!("perf --test {test} --size {size} --depth {depth} --count {count} 2>/dev/null"));
        let ratio = bench.ratio(value, (size, count), program, &perf, only_value);
        let verdict = match differs {
            Some(why) => format!("no bound: {why}"),
            None if is_near(ratio) => "ok".to_owned(),
            None => "WRONG".to_owned(),
        };
        let line = format!("{:<34}{program:<30}{ratio:>6.2}  {verdict}", format!("{test} {size} B, depth {depth}"));
        reporter.say(&line);
        if verdict == "WRONG" {
            wrong.push(line);
        }
    }
    wrong
}

struct Bench<'a> {
    machine: &'a mut Machine,
    /// The first measurement that went wrong.
    why: Option<Failure>,
}

impl Bench<'_> {
    /// Runs both commands in turns. Returns our best value divided by theirs, or no number.
    fn ratio(
        &mut self,
        value: Value,
        length: (usize, usize),
        program: &str,
        ours: &str,
        read: impl Fn(&str) -> Option<f64>,
    ) -> f64 {
        // Without "-F" it does not report if its clock and its processor disagree. Emulated ones do
        // so now and then.
        let theirs = script(&format!("perftest {program} -F -s {} -n {}", length.0, length.1));
        let better = if value == Value::Bandwidth { f64::max } else { f64::min };
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..ROUNDS {
            let ours = self.value(ours, &read);
            let theirs = self.value(&theirs, |output| their_value(output, value, length.0));
            let (Some(ours), Some(theirs)) = (ours, theirs) else { return f64::NAN };
            best = Some(best.map_or((ours, theirs), |best| (better(best.0, ours), better(best.1, theirs))));
        }
        best.map_or(f64::NAN, |(ours, theirs)| ours / theirs)
    }

    fn value(&mut self, line: &str, read: impl Fn(&str) -> Option<f64>) -> Option<f64> {
        let result = match self.machine.output(line) {
            Ok((0, output)) => read(&output).ok_or_else(|| Failure::new(format!("`{line}` has no number: {output}"))),
            Ok((status, output)) => Err(Failure::new(format!("`{line}`: status {status}: {output}"))),
            Err(failure) => Err(failure),
        };
        result.map_err(|why| self.why.get_or_insert(why)).ok()
    }
}

/// Returns the value of the only round of the only row of a report, in µs or MiB/s.
fn only_value(output: &str) -> Option<f64> {
    let report = output.lines().find_map(|line| line.strip_prefix("report: "))?;
    let report: Report = serde_json::from_str(report).ok()?;
    let [row] = &report.rows[..] else { return None };
    match (row.unit, &row.values()[..]) {
        (Unit::Seconds, [seconds]) => Some(1e6 * seconds),
        (Unit::BytesPerSecond, [rate]) => Some(rate / MIB),
        _ => None,
    }
}

fn their_value(output: &str, value: Value, size: usize) -> Option<f64> {
    match value {
        Value::Latency => number(output, size, 4),
        Value::Bandwidth => number(output, size, 3),
        Value::Mean => Some(1e6 * size as f64 / (MIB * number(output, size, 3)?)),
    }
}

/// Returns the number in `column` of the line that begins with the size.
fn number(output: &str, size: usize, column: usize) -> Option<f64> {
    let size = size.to_string();
    let line = output.lines().find(|line| line.split_whitespace().next() == Some(&size))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

/// Returns true if our value is near theirs. A value that is better by more is not the same
/// measurement either.
fn is_near(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= BOUND
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
        let said = |rows| {
            let report = Report { rows, ..Report::default() };
            format!("noise\nreport: {}\n", serde_json::to_string(&report).unwrap())
        };
        assert_eq!(only_value(&said(vec![row(Unit::Seconds, &[2e-6])])), Some(2.0));
        assert_eq!(only_value(&said(vec![row(Unit::BytesPerSecond, &[3.0 * MIB])])), Some(3.0));
        for rows in [vec![], vec![row(Unit::Seconds, &[1.0, 2.0])], vec![row(Unit::PerSecond, &[1.0])]] {
            assert_eq!(only_value(&said(rows)), None);
        }
    }

    #[test]
    fn the_numbers_of_perftest_are_found() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 64      500          10.08          135.24       13.66    \t       15.26\n";
        assert_eq!(their_value(latency, Value::Latency, 64), Some(13.66));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      128             49.10              50.00              0.000782\n";
        assert_eq!(their_value(bandwidth, Value::Bandwidth, 65_536), Some(50.0));
        assert_eq!(their_value(bandwidth, Value::Mean, 65_536), Some(1250.0));
        assert_eq!(their_value(bandwidth, Value::Bandwidth, 64), None);
    }

    #[test]
    fn a_value_that_is_far_better_is_wrong_too() {
        assert_eq!([1.09, 1.11, 0.91, 0.89, f64::NAN].map(is_near), [true, false, true, false, false]);
    }
}
