//! The input of the program `calibrate`, from the measurements of a report.
//!
//! **Why.** `calibrate` fits a profile of the simulator to a few measurements of a machine. A
//! report has most of them, and says how sure they are.
//!
//! **Choice.** A latency is that of the shortest message, up to [`SHORT`]; a bandwidth is that of
//! the longest one, from [`LONG`] on. Over TCP the reader sleeps, and otherwise it polls, as
//! [`Measurements`] says. One-sided operations over TCP are messages, so they are left out there.
//!
//! **Not measured.** The time of an RDMA write in a report ends with its completion. `calibrate`
//! asks when the peer sees the bytes, so the file does not have it. Without it, the time of a read
//! does not tell the link from the adapter, so it is in the file as a comment. The file has no
//! registration, copies or disks. `calibrate` keeps the prices of its base for all of them.
//!
//! Tested here: what the simulator measures of a known profile, made into a report, gives the
//! profile back.

use std::path::Path;

use bmi_report::{Kind, Report, Row, Step};
#[cfg(doc)]
use bmi_sim::Measurements;
use clap::ValueEnum;

use crate::case::{Case, Over, Test, Waiting};
use crate::plan::Wanted;

/// Length of the longest message whose latency is that of a short one.
const SHORT: u64 = 64;
/// Length of the shortest message whose bandwidth is that of a long one.
const LONG: u64 = 64 << 10;
const READ: &str = "read_round_trip_us";
const MB: f64 = 1_048_576.0;

/// A figure of the file.
struct Figure {
    key: &'static str,
    test: Test,
}

impl Figure {
    /// Returns true if it is a time, of a short message.
    fn is_latency(&self) -> bool {
        !self.test.streams()
    }

    /// Returns the row that it comes from.
    fn find<'a>(&self, report: &'a Report, over: &str, waiting: Waiting) -> Option<&'a Row> {
        let is_one = |row: &&Row| {
            let plain = row.setup.keys().all(|name| ["waiting", "depth"].contains(&name.as_str()));
            let waits = row.setup.get("waiting").map(String::as_str) == Some(waiting.name());
            let middle = row.median().middle;
            row.kind == Kind::Library
                && row.over == over
                && (&*row.test, row.unit) == (self.test.name(), self.test.unit())
                && plain
                && (waits || !self.is_latency())
                && middle.is_finite()
                && middle > 0.0
        };
        let rows = report.rows.iter().filter(is_one);
        let size = |row: &&Row| row.size.unwrap_or_default();
        if self.is_latency() {
            return rows.filter(|row| (1..=SHORT).contains(&size(row))).min_by_key(size);
        }
        // Of several depths and ways of waiting, the fastest.
        let rate = |row: &Row| row.median().middle;
        rows.filter(|row| size(row) >= LONG).max_by(|a, b| size(a).cmp(&size(b)).then(rate(a).total_cmp(&rate(b))))
    }

    /// Returns the line of the file.
    fn line(&self, row: &Row) -> String {
        let median = row.median();
        let scale = |value: f64| if self.is_latency() { value * 1e6 } else { value / MB };
        let span = match median.low.is_finite() && median.high.is_finite() {
            true => format!(", {} to {}", row.unit.figure(median.low), row.unit.figure(median.high)),
            false => String::new(),
        };
        let rounds = match row.rounds.len() {
            1 => "1 round".to_owned(),
            number => format!("the median of {number} rounds"),
        };
        let (key, value) = (self.key, scale(median.middle));
        format!("{key} = {value:.4} # {}: {rounds}{span}\n", row.name().replace('\n', " "))
    }

    /// Returns what has to be measured.
    fn wanted(&self, waiting: Waiting) -> String {
        let test = option(self.test);
        match self.is_latency() {
            true => format!("{} of at most {SHORT} B, {} (--test {test})", self.test.name(), waiting.name()),
            false => format!("{} of at least {} KiB (--test {test})", self.test.name(), LONG >> 10),
        }
    }
}

/// Returns what --test calls it.
fn option(test: Test) -> String {
    test.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Returns what is needed of a transport.
fn figures(over: &str) -> Vec<Figure> {
    let of = |key, test| Figure { key, test };
    let mut all = vec![of("send_one_way_us", Test::Latency), of("send_mb_per_s", Test::Bandwidth)];
    if over != Over::Tcp.name() {
        all.push(of("write_mb_per_s", Test::WriteBandwidth));
        all.push(of("read_mb_per_s", Test::ReadBandwidth));
    }
    all
}

/// Checks before a run that it measures what is needed.
///
/// # Errors
/// If it does not, with the command line that does.
pub(crate) fn check(wanted: &Wanted, over: Option<&str>) -> Result<(), String> {
    // Every host has TCP, which is the first transport of a run that names none.
    let overs = if wanted.overs.is_empty() { vec![Over::Tcp] } else { wanted.overs.clone() };
    let cases = Wanted { overs, ..wanted.clone() }.groups();
    let measured = |case: &Case| Row { rounds: vec![Step { round: 0, value: 1.0 }], ..case.row() };
    let rows = cases.iter().flatten().map(measured).collect();
    let over = over.or_else(|| wanted.overs.first().map(|over| over.name()));
    text(&Report { rows, ..Report::new("", "") }, over).map(drop).map_err(|why| format!("--calibrate: {why}"))
}

/// Writes the input of `calibrate`.
///
/// # Errors
/// If a measurement is missing, with the command line that makes it.
pub(crate) fn write(report: &Report, over: Option<&str>, file: &Path) -> Result<(), String> {
    let text = text(report, over).map_err(|why| format!("--calibrate: {why}"))?;
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns the text of the file.
fn text(report: &Report, over: Option<&str>) -> Result<String, String> {
    let first = || report.rows.iter().find(|row| row.kind == Kind::Library).map(|row| row.over.as_str());
    let over = over.or_else(first).ok_or("the report has no measurement of the library")?;
    if [Over::Sockets, Over::Memory].iter().any(|baseline| baseline.name() == over) {
        return Err(format!("{over} is a baseline; name a transport of the library: tcp, ib or shm"));
    }
    let waiting = if over == Over::Tcp.name() { Waiting::Sleeping } else { Waiting::Polling };
    let (mut lines, mut missing) = (String::new(), Vec::new());
    let figures = figures(over);
    for figure in &figures {
        match figure.find(report, over, waiting) {
            Some(row) => lines += &figure.line(row),
            None => missing.push(figure.wanted(waiting)),
        }
    }
    if !missing.is_empty() {
        let tests: Vec<String> = figures.iter().map(|figure| option(figure.test)).collect();
        return Err(format!(
            "over {over} there is no {}. All that is needed comes from one run: bmi-perf run HOST --over {over} \
             --test {} --size 8,256K --waiting {}",
            missing.join(", and no "),
            tests.join(","),
            waiting.name()
        ));
    }
    // Only together with the time of a write.
    let read = Figure { key: READ, test: Test::ReadLatency };
    let row = read.find(report, over, waiting).filter(|_| over != Over::Tcp.name());
    let read = row.map(|row| format!("# {}", read.line(row))).unwrap_or_default();
    Ok(head(report, over) + &lines + rest(over) + &read)
}

fn head(report: &Report, over: &str) -> String {
    let base = if over == Over::Tcp.name() { "gige-2008" } else { "cx7-400" };
    let one_line = |text: &str| text.replace(['\n', '\r'], " ");
    format!(
        "# Measured over {over} by {} between {}.\n\
         # Fit a profile to it: calibrate --base {base} FILE > profile.toml\n\
         # The base has to be of the same kind, and not slower than the machine.\n\
         # Times in us, rates in MB/s of 2^20 bytes.\n",
        one_line(&report.program),
        one_line(&report.title),
    )
}

/// Says what is not in the file, and why.
fn rest(over: &str) -> &'static str {
    if over == Over::Tcp.name() {
        return "# Not measured by bmi-perf, so the prices of the base stay: register, copy, disk_read_mb_per_s,\n\
                # disk_write_mb_per_s. Machines with TCP have no one-sided operations to fit.\n";
    }
    "# Not measured by bmi-perf, so the prices of the base stay: register, copy, disk_read_mb_per_s,\n\
     # disk_write_mb_per_s.\n\
     # write_one_way_us ends when the peer sees the bytes, and the time of a write in the report ends\n\
     # with its completion. Add it from ib_write_lat if you have it. With it, also give the time of\n\
     # a read; without it, the fit cannot tell the link from the adapter.\n"
}

#[cfg(test)]
mod tests;
