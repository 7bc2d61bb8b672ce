//! The measurements of a report that a profile of the simulator is fitted to, and the fit.
//!
//! **Choice.** A latency is that of the shortest message, up to [`SHORT`]; a bandwidth is that of
//! the longest one, from [`LONG`] on. Over TCP the reader sleeps, and otherwise it polls, as
//! [`Measurements`](bmi_sim::Measurements) says. One-sided operations over TCP are messages, so
//! they are left out there.
//!
//! **Not measured.** When the peer sees the bytes of an RDMA write, only `write-seen` of a backend
//! tells. Without it, the time of a read does not tell the link from the adapter, so it is in the
//! text as a comment. There is no registration, copy or disk: the prices of the base stay.
//!
//! Tested here: what the simulator measures of a known profile, made into a report, gives the
//! profile back.

mod fit;

use bmi_report::{Kind, Report, Row};
use clap::ValueEnum;

pub(crate) use self::fit::{Input, fit, show};
use crate::case::{Over, Test, Waiting};

/// Length of the longest message whose latency is that of a short one.
const SHORT: u64 = 64;
/// Length of the shortest message whose bandwidth is that of a long one.
const LONG: u64 = 64 << 10;
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
    if over == Over::Tcp.name() {
        return Ok(head(report, over) + &lines);
    }
    let backend = format!("{over} backend");
    let seen = Figure { key: "write_one_way_us", test: Test::WriteSeen };
    let read = Figure { key: "read_round_trip_us", test: Test::ReadLatency };
    let seen = seen.find(report, &backend, waiting).map(|row| seen.line(row));
    let read = read.find(report, over, waiting).map(|row| read.line(row)).unwrap_or_default();
    Ok(head(report, over)
        + &lines
        + &match seen {
            Some(seen) => seen + &read,
            None if read.is_empty() => String::new(),
            None => format!("{ALONE}# {read}"),
        })
}

/// Why the time of a read is a comment.
const ALONE: &str = "\
# Without the time of a write, that of a read does not tell the link from the adapter:
# --test write-seen --interface endpoint,backend measures it.
";

fn head(report: &Report, over: &str) -> String {
    let one_line = |text: &str| text.replace(['\n', '\r'], " ");
    format!(
        "# Measured over {over} by {} between {}.\n\
         # Times in us, rates in MB/s of 2^20 bytes. Not measured, so the prices of the base stay: register,\n\
         # copy, disk_read_mb_per_s, disk_write_mb_per_s.\n",
        one_line(&report.program),
        one_line(&report.title),
    )
}

#[cfg(test)]
mod tests;
