//! Compares shared memory between two processes with the limits of the machine, and with UCX and
//! libfabric if they are installed.
//!
//! **How.** This program starts itself again as its peer, and each process runs on a processor of
//! its own. Both go through the same list of rows. A row has short rounds. Its figure is that of
//! the round which only a tenth of them beat. So a process that loses its processor for a moment
//! spoils a round, and not the row. Everything, including the other libraries, is measured in
//! several passes, and the best pass counts, because the processors of a virtual machine are near
//! each other for some seconds and then far. The limits are measured in the same run: a cache line
//! passed between the two processors, and `memcpy` of the same sizes, with the buffers in the cache
//! and out of it.
//!
//! **Data that moves.** Each line of a payload is written before it is sent, and before `memcpy`
//! copies it. Otherwise the lines stay in the receiver's cache after the first round, and a row
//! measures copies within one cache. A stream uses as many places as messages may be under way, so
//! that no place is written while it is sent. Reads are the exception: their owner does not know
//! when it could write.
//!
//! **Other conditions of the others.** `ucx_perftest` and `fi_pingpong` use one buffer repeatedly
//! on each side, and do not write it again. So beside their figures ours are the costlier ones.
//! The peer detects a one-sided write by its last byte (*writelatency*, as in `ucp_put_lat`), or
//! with immediate data by a completion (*immediate*), which the other libraries do not have.
//!
//! **Levels.** *raw* is the transport itself: posted receives, no tag matching, no credits.
//! *message* is `bmi_core::Endpoint` over it: tags, credits, paths. Both read the clock every 64th
//! poll. *file* is the file system over that, beside a plain system call (see [`mod@file`]).

mod file;
mod limits;
mod message;
mod peers;
mod raw;
mod record;

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::process::{Child, Command, ExitCode, Stdio};

use benches::report::{ReportArgs, begin};
use benches::sample;
use bmi_report::stats::quantile;
use bmi_report::table::Table;

use bmi_report::{Unit, units};
use clap::Parser;
use serde::Serialize;

use crate::record::{NOTE, Recorded, rows_of};

/// Compares shared memory between two processes with the limits and two other libraries: latency,
/// bandwidth, message rate.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        shm_bench                                everything, some minutes\n  \
                        shm_bench --quick --no-peers             without the other libraries\n  \
                        shm_bench --only 'message latency'       the rows with this in their name\n  \
                        shm_bench --sample                       what `cargo xtask compare` reads")]
struct Cli {
    /// Make fewer passes, and run the other programs for a shorter time.
    #[arg(long)]
    quick: bool,
    /// The number of passes [default: 5, with --quick 2].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    passes: Option<u16>,
    /// Measure only rows whose names contain this, such as raw, rate or "message send 64 KiB".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Leave out `ucx_perftest` and `fi_pingpong`.
    #[arg(long)]
    no_peers: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Measure each row in one pass, without limits and other libraries, in about ten seconds;
    /// print only JSON.
    #[arg(long, conflicts_with_all = ["quick", "passes", "no_peers", "json", "reports"])]
    sample: bool,
    /// Internal: be the other process, and meet the first one in this directory.
    #[arg(long = "serve-as-peer", hide = true)]
    peer: Option<String>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// One direction, half of a ping-pong, in seconds.
    Latency,
    /// The same with one-sided writes, which the other side detects by their last byte.
    WriteLatency,
    /// The same with one-sided writes with immediate data, which the other side gets as a
    /// completion.
    Immediate,
    /// A stream of messages, in bytes per second.
    Send,
    /// One-sided writes, in bytes per second.
    Write,
    /// One-sided reads, in bytes per second.
    Read,
    /// Messages per second.
    Rate,
}

impl Test {
    fn is_time(self) -> bool {
        self.unit() == Unit::Seconds
    }

    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    /// Returns the unit of the figure.
    fn unit(self) -> Unit {
        match self {
            Test::Latency | Test::WriteLatency | Test::Immediate => Unit::Seconds,
            Test::Send | Test::Write | Test::Read => Unit::BytesPerSecond,
            Test::Rate => Unit::PerSecond,
        }
    }
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) level: &'static str,
    pub(crate) test: Test,
    pub(crate) size: usize,
}

impl Row {
    /// Returns the name, which is the same in every run: "shm message latency 8 B".
    fn name(&self) -> String {
        format!("shm {} {} {}", self.level, self.test.name(), units::size(self.size))
    }
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for level in ["raw", "message"] {
        let mut add = |test, sizes: &[usize]| rows.extend(sizes.iter().map(|&size| Row { level, test, size }));
        add(Test::Latency, &[8, 4 * KIB, 64 * KIB]);
        if level == "raw" {
            add(Test::WriteLatency, &[8, 4 * KIB, 64 * KIB]);
            add(Test::Immediate, &[8, 4 * KIB, 64 * KIB]);
        }
        for test in [Test::Send, Test::Write, Test::Read] {
            add(test, &[64 * KIB, MIB, 32 * MIB]);
        }
        add(Test::Rate, &[64]);
    }
    rows.extend([Test::Write, Test::Read].map(|test| Row { level: FILE, test, size: 32 * MIB }));
    rows
}

/// The level whose rows need no peer process.
const FILE: &str = "file";

/// A measured row.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    row: Row,
    /// The figures of all rounds of all passes, and of the best of each pass of the others.
    #[serde(skip)]
    recorded: Recorded,
    ours: Option<f64>,
    limit: Option<f64>,
    ucx: Option<f64>,
    libfabric: Option<f64>,
}

/// Returns the number of operations in one round of a row. A round takes some milliseconds.
pub(crate) fn count_for(row: &Row) -> usize {
    match row.test {
        Test::Latency | Test::WriteLatency | Test::Immediate => (20_000_000 / (row.size + 2000)).max(50),
        Test::Rate => 20_000,
        _ => ((32 << 20) / row.size).max(4),
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.peer {
        Some(folder) => serve(folder, &cli),
        None if cli.sample => measure_sample(&cli),
        None => measure(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Binds this thread, and all threads and processes that it starts, to one processor.
fn pin(processor: usize) {
    keep_to(&[processor]);
}

fn keep_to(processors: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    processors.iter().for_each(|processor| set.set(*processor));
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("cannot keep to processors {processors:?}: {error}");
    }
}

/// Returns the rows that the command line selects.
fn chosen(cli: &Cli) -> Vec<Row> {
    let only = cli.only.as_deref().unwrap_or_default().to_lowercase();
    rows().into_iter().filter(|row| row.name().to_lowercase().contains(&only)).collect()
}

/// The connections between the two processes.
struct Ends {
    raw: raw::Raw,
    message: message::Messages,
}

impl Ends {
    fn run(&mut self, row: &Row, near: bool) -> std::result::Result<f64, bmi_core::Error> {
        let count = count_for(row);
        if row.level == "raw" { self.raw.run(row, near, count) } else { self.message.run(row, near, count) }
    }
}

/// Returns the number of passes over all rows. Each has two new processes.
fn passes(cli: &Cli) -> usize {
    cli.passes.map_or(if cli.quick { 2 } else { 5 }, usize::from)
}

/// The number of rounds of a row in one pass.
const ROUNDS: usize = 10;

/// Returns the sample that a tenth of a pass's rounds beat.
fn best(test: Test, samples: &mut [f64]) -> f64 {
    quantile(samples, if test.is_time() { 0.1 } else { 0.9 })
}

/// Returns the better one of two figures.
fn better(test: Test, before: Option<f64>, now: Option<f64>) -> Option<f64> {
    let pick = if test.is_time() { f64::min } else { f64::max };
    match (before, now) {
        (Some(before), Some(now)) => Some(pick(before, now)),
        (before, now) => before.or(now),
    }
}

fn serve(folder: &str, cli: &Cli) -> Result<()> {
    pin(1);
    println!("listening");
    if !cli.sample {
        limits::hand_over(&mut limits::Line::open(folder)?, false);
    }
    let mut ends = Ends {
        raw: raw::Raw::listen(folder).map_err(Error::other)?,
        message: message::Messages::listen(folder).map_err(Error::other)?,
    };
    for row in chosen(cli).into_iter().filter(|row| row.level != FILE) {
        for _ in 0..ROUNDS {
            ends.run(&row, false).map_err(Error::other)?;
        }
    }
    Ok(())
}

/// The other process. Dropping this ends it.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended, or this side may have failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs all passes. The processors of a virtual machine are near each other at one moment and far
/// at the next. So everything is measured several times, in turns, and the best figure of each
/// counts.
fn measure(cli: &Cli) -> Result<()> {
    let mut lines = empty_lines(cli)?;
    let mut report = begin("shm_bench", "shared memory between two processes, against the limits of the machine");
    let total = passes(cli);
    for pass in 1..=total {
        eprint!("\rpass {pass} of {total} ");
        measure_pairs(cli, &mut lines)?;
        measure_files(&mut lines)?;
        if !cli.no_peers {
            measure_others(cli, &mut lines);
        }
    }
    eprintln!();
    let mut out = std::io::stdout().lock();
    if cli.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&lines)?)?;
    } else {
        write!(out, "{}", render(&lines))?;
    }
    report.notes.push(NOTE.to_owned());
    report.rows.extend(lines.iter().enumerate().flat_map(|(number, line)| rows_of(line, number * total * ROUNDS)));
    cli.report.write(&report)
}

/// Runs one pass of the library alone, for `cargo xtask compare`. Passes differ, but the comparison
/// takes many samples.
fn measure_sample(cli: &Cli) -> Result<()> {
    let mut lines = empty_lines(cli)?;
    measure_pairs(cli, &mut lines)?;
    measure_files(&mut lines)?;
    let sampled = |line: &Line| {
        let unmeasured = || Error::other(format!("{} was not measured", line.row.name()));
        Ok(sample::Line::new(line.row.name(), line.ours.ok_or_else(unmeasured)?, line.row.test.unit()))
    };
    sample::print(&lines.iter().map(sampled).collect::<Result<Vec<_>>>()?)
}

/// Returns the chosen rows, not measured yet.
fn empty_lines(cli: &Cli) -> Result<Vec<Line>> {
    let new = |row| Line { row, recorded: Recorded::default(), ours: None, limit: None, ucx: None, libfabric: None };
    let lines: Vec<Line> = chosen(cli).into_iter().map(new).collect();
    if lines.is_empty() {
        return Err(Error::other("no row has that in its name; there are raw, message, file; latency, send, rate …"));
    }
    Ok(lines)
}

/// Measures two processes, over the transport and over messages, with the limits. A sample has no
/// limits.
fn measure_pairs(cli: &Cli, lines: &mut [Line]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().to_str().ok_or_else(|| Error::other("the temporary folder's name is no text"))?;
    let mut line = limits::Line::create(place)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--serve-as-peer", place]).stdout(Stdio::piped());
    if let Some(only) = &cli.only {
        command.args(["--only", only]);
    }
    if cli.sample {
        command.arg("--sample");
    }
    let mut peer = Peer(command.spawn()?);
    let output = peer.0.stdout.take().ok_or_else(|| Error::other("the peer has no output"))?;
    BufReader::new(output).read_line(&mut String::new())?;
    pin(0);
    let limits = (!cli.sample).then(|| limits::Limits { line: limits::hand_over(&mut line, true) });
    let mut ends = Ends {
        raw: raw::Raw::connect(place).map_err(Error::other)?,
        message: message::Messages::connect(place).map_err(Error::other)?,
    };
    for line in lines.iter_mut().filter(|line| line.row.level != FILE) {
        let (row, test) = (line.row, line.row.test);
        let mut samples = Vec::new();
        for _ in 0..ROUNDS {
            samples.push(ends.run(&row, true).map_err(Error::other)?);
        }
        line.recorded.ours.extend(&samples);
        line.ours = better(test, line.ours, Some(best(test, &mut samples)));
        let limit = limits.as_ref().and_then(|limits| limits.of(&row));
        line.recorded.limit.push(limit);
        line.limit = better(test, line.limit, limit);
    }
    Ok(())
}

/// Measures the file system, in this process.
fn measure_files(lines: &mut [Line]) -> Result<()> {
    let mut lines: Vec<&mut Line> = lines.iter_mut().filter(|line| line.row.level == FILE).collect();
    let Some(size) = lines.first().map(|line| line.row.size) else { return Ok(()) };
    keep_to(&[0, 1]);
    let figures = file::run(size, ROUNDS).map_err(|error| Error::other(error.to_string()))?;
    for (test, mut figure) in [Test::Write, Test::Read].into_iter().zip(figures) {
        for line in lines.iter_mut().filter(|line| line.row.test == test) {
            line.recorded.ours.extend(&figure.ours);
            line.ours = better(test, line.ours, Some(best(test, &mut figure.ours)));
            let limit = Some(best(test, &mut figure.plain));
            line.recorded.limit.push(limit);
            line.limit = better(test, line.limit, limit);
        }
    }
    pin(0);
    Ok(())
}

/// Measures the other libraries, each with every one of its settings.
fn measure_others(cli: &Cli, lines: &mut [Line]) {
    for line in lines.iter_mut().filter(|line| line.row.level != FILE) {
        let (row, test) = (line.row, line.row.test);
        let ucx = |settings: &_| peers::ucx(&row, settings, cli.quick);
        let libfabric = |settings: &_| peers::libfabric(&row, settings, cli.quick);
        let now = peers::UCX.iter().fold(None, |best, settings| better(test, best, ucx(settings)));
        line.recorded.ucx.push(now);
        line.ucx = better(test, line.ucx, now);
        let now = peers::LIBFABRIC.iter().fold(None, |best, settings| better(test, best, libfabric(settings)));
        line.recorded.libfabric.push(now);
        line.libfabric = better(test, line.libfabric, now);
    }
}

fn figure(test: Test, value: f64) -> String {
    match test {
        _ if test.is_time() => format!("{:.3} us", value * 1e6),
        Test::Rate => units::rate(value),
        _ => units::bandwidth(value),
    }
}

/// Returns how many times better our figure is.
fn ratio(line: &Line, other: Option<f64>) -> String {
    let (Some(ours), Some(other)) = (line.ours, other.filter(|other| *other > 0.0)) else { return "-".into() };
    format!("{:.2}", if line.row.test.is_time() { other / ours } else { ours / other })
}

fn render(lines: &[Line]) -> String {
    let mut table = Table::new(2, ["level", "test", "size", "bmi", "limit", "of it", "ucx", "x", "libfabric", "x"]);
    for line in lines {
        let other = |value: Option<f64>| value.map_or("-".into(), |value| figure(line.row.test, value));
        table.row([
            line.row.level.into(),
            line.row.test.name(),
            units::size(line.row.size),
            other(line.ours),
            other(line.limit),
            ratio(line, line.limit),
            other(line.ucx),
            ratio(line, line.ucx),
            other(line.libfabric),
            ratio(line, line.libfabric),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{CommandFactory, Parser};

    use super::{Cli, chosen, rows};

    #[test]
    fn the_command_line_is_well_formed_and_a_sample_excludes_what_changes_its_lines() {
        Cli::command().debug_assert();
        assert!(testbed::cli::every_option::<Cli>(&[("report", "a.json")]) >= 6);
        for other in ["--quick", "--json", "--no-peers", "--passes=3", "--report=a.json"] {
            assert!(Cli::try_parse_from(["shm_bench", "--sample", other]).is_err(), "{other}");
        }
    }

    #[test]
    fn rows_have_names_of_their_own_and_are_chosen_by_them() {
        assert_eq!(rows().iter().map(|row| row.name()).collect::<HashSet<_>>().len(), rows().len());
        let chosen = chosen(&Cli::parse_from(["shm_bench", "--sample", "--only", "MESSAGE rate"]));
        assert_eq!(chosen.iter().map(|row| row.name()).collect::<Vec<_>>(), ["shm message rate 64 B"]);
    }
}
