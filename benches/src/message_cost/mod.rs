//! Counts what a message costs, in instructions, system calls, sleeps and cache misses, and what it
//! costs two plain sockets.
//!
//! **Why.** Counts are the same in every run and on every machine of a kind, however busy it
//! is. So they show a change of one percent. To see it in a time would take hours.
//!
//! **How.** Two endpoints of one process send messages to each other in lockstep ([`pair`]; [`raw`]
//! is the transport alone, [`tasks`] the `async` interface, [`plain`] plain sockets), or each is
//! run by a driver ([`drivers`]). Callgrind counts the work of both sides together ([`callgrind`]),
//! in a process for each line ([`mod@line`]). The kernel's instructions are not counted.
//!
//! **Limits.** No side waits for a packet here: a side that polls finds a message in the first poll
//! after it was sent. Over TCP, two real processes also poll without finding anything. Copies of
//! the payload are not counted as such; a `recv` more than plain sockets make is one.

mod backend;
mod callgrind;
mod drivers;
mod line;
mod pair;
mod plain;
mod raw;
mod row;
mod tasks;
mod window;

use std::io::{Error, IsTerminal, Result};
use std::process::ExitCode;

use crate::report::{ReportArgs, begin};
use crate::sample;
use bmi::{Endpoint, SharedEndpoint};
use bmi_shm::ShmTransport;
use bmi_tcp::TcpTransport;
use clap::Parser;

use self::backend::Backend;
use self::callgrind::WINDOWS;
use self::line::{Line, Play, Target};
use self::pair::Pair;
use self::plain::Plain;
use self::raw::Raw;
use self::row::Row;
use self::tasks::Tasks;

/// Counts the instructions and system calls that a message costs on both sides, with callgrind.
///
/// How a side waits: "polling", both sides poll in turns; "sleeping", each side waits in poll(2)
/// when it has nothing to do; "thread", by the library's own driver, a thread for each side;
/// "tokio", by the driver under tokio, a runtime for each side.
///
/// What is played: "ping" is one message at a time, and "rate" is 32 at a time. "push" and "pull"
/// move bytes to and from memory that the other side exposes. "idle" is a poll of each side that
/// finds nothing, "wake" is one after a sleep. "task" is a ping of the async interface for one
/// thread, "shared task" of that for any thread. "raw" is the transport without the protocol.
/// "request a second" and "idle second" show what rare requests and nothing cost; for these the
/// processor time is measured, too, without valgrind.
///
/// Beside the library over TCP are plain sockets that do the same: "sockets", which write each
/// message by a call of its own, and for rates "batched sockets", which write 32 at once. They poll
/// with recv, or sleep in epoll_wait; that is also what both drivers are compared with.
///
/// "sleeps" are calls that wait until something comes: in lockstep, a wake-up each. "L1" and "LL"
/// are misses of simulated caches: 32 KiB for instructions and for data, and 8 MiB behind them.
/// Not counted: instructions and cache misses of the kernel, copies as such, and the instructions
/// of a copy of 64 KiB and more over shared memory. Needs valgrind.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        message_cost                           everything, in three minutes\n  \
                        message_cost --over tcp                only lines over TCP, and plain sockets\n  \
                        message_cost --only 'ping 8 B'         only lines with this in their name\n  \
                        message_cost --only idle --count 8192  more operations of each\n  \
                        message_cost --json                    for another program to read\n  \
                        message_cost --figures docs/figures.json  what documents quote\n  \
                        message_cost --sample                  what `cargo xtask compare` reads")]
struct Cli {
    /// Count only lines whose names contain this, such as rate, "push 257 KiB" or "ping 8 B,
    /// sleeping".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Count only lines over these transports [default: all]. Plain sockets come with tcp.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SCHEMES")]
    over: Vec<Target>,
    /// The number of operations to count of each line [default: 32 to 2048, by line].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: Option<u32>,
    /// Print JSON instead of a table, with the counts of all repetitions.
    #[arg(long)]
    json: bool,
    /// Print only JSON, two lines for each line of the table: instructions and system calls.
    #[arg(long, conflicts_with_all = ["json", "count"])]
    sample: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Internal: play the line with this name, to be counted.
    #[arg(long, hide = true, conflicts_with_all = ["only", "over", "json", "sample"])]
    play: Option<String>,
}

/// The seconds in which the processor time is measured of lines that take seconds, at least.
const SECONDS: usize = 10;

/// Runs the program `message_cost`.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.play {
        Some(name) => play_named(name, cli.count),
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

/// Returns the lines that the command line selects.
fn chosen(cli: &Cli) -> Vec<Line> {
    let only = cli.only.as_deref().unwrap_or_default().to_lowercase();
    let is_over = |over: Target| cli.over.is_empty() || cli.over.contains(&over);
    let is_chosen = |line: &Line| line.name().to_lowercase().contains(&only) && is_over(line.over);
    let mut lines: Vec<Line> = line::all().into_iter().filter(is_chosen).collect();
    if cli.sample {
        // Two builds do not differ in plain sockets, and counts of several threads vary a little.
        lines.retain(|line| !line.over.is_plain() && !line.mode.is_driven());
        return lines;
    }
    let partners: Vec<Line> = lines.iter().filter_map(Line::partner).collect();
    for partner in partners {
        if !lines.contains(&partner) {
            lines.push(partner);
        }
    }
    lines
}

fn measure(cli: &Cli) -> Result<()> {
    let lines = chosen(cli);
    if lines.is_empty() {
        return Err(Error::other(
            "no line has that in its name; there are idle, wake, ping, rate, task, push, pull, raw, second",
        ));
    }
    callgrind::check()?;
    if cfg!(debug_assertions) {
        eprintln!("This is a debug build; `cargo run --release` counts what users run.");
    }
    let mut rows = Vec::new();
    let mut report = begin("message_cost", "instructions and system calls of a message, both sides together");
    for line in lines {
        show_progress(&line.name());
        let count = cli.count.map_or(line.count(), |count| count as usize);
        let mut row = Row::new(line, count, &callgrind::run(&line, count, !cli.sample)?);
        if line.play.takes_seconds() {
            let seconds = SECONDS.div_ceil(WINDOWS);
            row.processor_time = Some(callgrind::processor_time(&line, seconds)? / (seconds * WINDOWS) as f64);
        }
        report.rows.extend(row.recorded());
        rows.push(row);
    }
    show_progress("");
    report.summary = row::ratios_of_drivers(&rows);
    cli.report.write(&report)?;
    if cli.sample {
        return sample::print(&rows.iter().flat_map(Row::sampled).collect::<Vec<_>>());
    }
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", row::render(&rows));
    }
    Ok(())
}

/// Shows which line is next, or clears the terminal's line if there is none.
fn show_progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{:60}\r{line}", "");
    }
}

/// Runs the child to its end.
fn play_named(name: &str, count: Option<u32>) -> Result<()> {
    // Kill the child if its parent is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let line = line::all().into_iter().find(|line| line.name() == name);
    let line = line.ok_or_else(|| Error::other(format!("there is no line {name:?}")))?;
    let count = count.map_or(line.count(), |count| count as usize);
    play(&line, count).map_err(Error::other)
}

/// Plays a line: connects, warms up, and plays `count` operations as often as they are counted.
fn play(line: &Line, count: usize) -> std::result::Result<(), bmi::Error> {
    match line.over {
        Target::Sockets | Target::BatchedSockets => {
            let mut plain = Plain::connect(line)?;
            Ok(in_windows(count, || plain.play())?)
        }
        _ if line.mode.is_driven() => drivers::play(*line, count),
        Target::Shm => play_over::<ShmTransport>(line, count),
        Target::Tcp => play_over::<TcpTransport>(line, count),
    }
}

fn play_over<T: Backend>(line: &Line, count: usize) -> std::result::Result<(), bmi::Error> {
    let folder = tempfile::tempdir()?;
    if matches!(line.play, Play::RawIdle | Play::RawPing | Play::RawRate) {
        let mut raw = Raw::<T>::connect(line, folder.path())?;
        return in_windows(count, || raw.play());
    }
    let mut pair = Pair::connect::<T>(line, folder.path())?;
    match line.play {
        Play::Task => {
            let mut tasks = Tasks::new(pair, Endpoint::new)?;
            in_windows(count, || tasks.play())
        }
        Play::SharedTask => {
            let mut tasks = Tasks::new(pair, SharedEndpoint::shared)?;
            in_windows(count, || tasks.play())
        }
        _ => in_windows(count, || pair.play()),
    }
}

/// Plays `count` operations in each window.
fn in_windows<E>(
    count: usize,
    mut operation: impl FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    for _ in 0..WINDOWS {
        let _counted = window::begin();
        (0..count).try_for_each(|_| operation())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_parsed_and_a_sample_excludes_what_changes_its_lines() {
        assert!(testbed::cli::every_option::<Cli>(&[("report", "a.json")]) >= 5);
        for other in ["--json", "--count=9"] {
            assert!(Cli::try_parse_from(["message_cost", "--sample", other]).is_err(), "{other}");
        }
        assert!(Cli::try_parse_from(["message_cost", "--play", "x", "--count", "9"]).is_ok());
    }

    #[test]
    fn lines_are_chosen_by_name_and_transport() {
        let names = |args: &[&str]| {
            chosen(&Cli::parse_from(["message_cost"].iter().chain(args))).iter().map(Line::name).collect::<Vec<_>>()
        };
        let pair = ["tcp ping 8 B, sleeping", "sockets ping 8 B, sleeping"];
        assert_eq!(names(&["--over", "tcp", "--only", "PING 8 b, sleep"]), pair);
        assert_eq!(names(&["--over", "tcp", "--only", "ping 8 B, sleep", "--sample"]), pair[..1]);
        assert_eq!(names(&["--over", "shm", "--only", "ping 8 B, sleep"]), ["shm ping 8 B, sleeping"]);
        assert_eq!(names(&[]).len(), line::all().len());
        assert!(names(&["--only", "no such line"]).is_empty());
    }

    #[test]
    fn every_line_plays_to_its_end() {
        for line in line::all() {
            play(&line, line.count().min(3)).unwrap_or_else(|error| panic!("{}: {error}", line.name()));
        }
    }
}
