//! Counts what a message costs, in instructions and system calls.
//!
//! **Why.** Both counts are the same in every run and on every machine of a kind, however busy it
//! is. So they show a change of one percent. To see it in a time would take hours.
//!
//! **How.** Two endpoints of one process send messages to each other in lockstep ([`pair`]; [`raw`]
//! is the transport alone, [`tasks`] the `async` interface). Callgrind counts the work of both
//! sides together ([`callgrind`]), in a process for each line ([`mod@line`]). The kernel's
//! instructions are not counted.
//!
//! **Limits.** No side waits for a packet here: a side that polls finds a message in the first poll
//! after it was sent. Over TCP, two real processes also poll without finding anything.

mod backend;
mod callgrind;
mod line;
mod pair;
mod raw;
mod tasks;

use std::io::{Error, IsTerminal, Result};
use std::process::ExitCode;

use crate::report::{self, ReportArgs, begin, steps};
use crate::sample;
use bmi::{Endpoint, SharedEndpoint};
use bmi_report::table::Table;
use bmi_report::{Kind, Unit};
use bmi_shm::ShmTransport;
use bmi_tcp::TcpTransport;
use clap::Parser;
use serde::Serialize;

use self::backend::Backend;
use self::callgrind::{Count, WINDOWS};
use self::line::{Line, Play, Target};
use self::pair::Pair;
use self::raw::Raw;
use self::tasks::Tasks;

/// Counts the instructions and system calls that a message costs on both sides, with callgrind.
///
/// "polling": both sides poll in turns. "sleeping": each side waits in poll(2) when it has nothing
/// to do, as a driver that sleeps does. "ping" is one message at a time, and "rate" is 32 at a
/// time. "push" and "pull" move bytes to and from memory that the other side exposes. "idle" is a
/// poll of each side that finds nothing, "wake" is one after a sleep. "task" is a ping of the async
/// interface for one thread, "shared task" of that for any thread. "raw" is the transport without
/// the protocol. Not counted: instructions of the kernel, and the copy of 64 KiB and more
/// over shared memory. Needs valgrind.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        message_cost                           everything, in half a minute to a minute\n  \
                        message_cost --over tcp                only lines over TCP\n  \
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
    /// Count only lines over these transports [default: all].
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

/// A line that was counted.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// The name of the thing that the figures are for.
    of: &'static str,
    instructions: f64,
    system_calls: f64,
    /// The instructions of each repetition; `instructions` is the least of them.
    repetitions: [f64; WINDOWS],
}

impl Row {
    fn new(line: &Line, count: usize, counts: &[Count; WINDOWS]) -> Row {
        let things = (count * line.play.things()) as u64;
        let each = |total: u64| total as f64 / things as f64;
        let beside_copies = |count: &Count| {
            let copied = line.copied() * things;
            each(count.instructions.checked_sub(copied).unwrap_or(count.instructions))
        };
        let repetitions = counts.each_ref().map(beside_copies);
        Row {
            name: line.name(),
            of: line.play.counts(),
            instructions: repetitions.iter().copied().fold(f64::INFINITY, f64::min),
            system_calls: counts.iter().map(|count| each(count.system_calls)).fold(f64::INFINITY, f64::min),
            repetitions,
        }
    }
}

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
    let is_chosen = |line: &Line| {
        line.name().to_lowercase().contains(&only) && (cli.over.is_empty() || cli.over.contains(&line.over))
    };
    line::all().into_iter().filter(is_chosen).collect()
}

fn measure(cli: &Cli) -> Result<()> {
    let lines = chosen(cli);
    if lines.is_empty() {
        return Err(Error::other(
            "no line has that in its name; there are idle, wake, ping, rate, task, push, pull, raw",
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
        let row = Row::new(&line, count, &callgrind::run(&line, count)?);
        report.rows.extend(recorded(&line, &row));
        rows.push(row);
    }
    show_progress("");
    cli.report.write(&report)?;
    if cli.sample {
        return sample::print(&rows.iter().flat_map(sampled).collect::<Vec<_>>());
    }
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", render(&rows));
    }
    Ok(())
}

/// Returns the rows of a report.
fn recorded(line: &Line, row: &Row) -> [bmi_report::Row; 2] {
    let (over, mode) = (line.over.name(), line.mode.name());
    [(Unit::Instructions, row.instructions), (Unit::Calls, row.system_calls)].map(|(unit, value)| bmi_report::Row {
        size: (line.len > 0).then_some(line.len as u64),
        rounds: steps(0, [value]),
        ..report::row(line.play.name(), &over, Kind::Library, unit, &[("waiting", &mode)])
    })
}

fn sampled(row: &Row) -> [sample::Line; 2] {
    let calls = format!("{}, system calls", row.name);
    [
        sample::Line::new(&row.name, row.instructions, Unit::Instructions),
        sample::Line::new(calls, row.system_calls, Unit::Calls),
    ]
}

/// Shows which line is next, or clears the terminal's line if there is none.
fn show_progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{:60}\r{line}", "");
    }
}

fn render(rows: &[Row]) -> String {
    let mut table = Table::new(2, ["line", "for each", "instructions", "system calls"]);
    for row in rows {
        let calls = format!("{:.2}", row.system_calls);
        table.row([row.name.clone(), row.of.to_owned(), format!("{:.0}", row.instructions), calls]);
    }
    table.render()
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
        Target::Shm => play_over::<ShmTransport>(line, count),
        Target::Tcp => play_over::<TcpTransport>(line, count),
    }
}

fn play_over<T: Backend>(line: &Line, count: usize) -> std::result::Result<(), bmi::Error> {
    let folder = tempfile::tempdir()?;
    if matches!(line.play, Play::RawIdle | Play::RawPing | Play::RawRate) {
        let mut raw = Raw::<T>::connect(line, folder.path())?;
        (0..WINDOWS).try_for_each(|_| counted(&mut || raw.play(), count))
    } else {
        let mut pair = Pair::connect::<T>(line, folder.path())?;
        if line.play == Play::Task {
            let mut tasks = Tasks::new(pair, Endpoint::new)?;
            return (0..WINDOWS).try_for_each(|_| counted(&mut || tasks.play(), count));
        }
        if line.play == Play::SharedTask {
            let mut tasks = Tasks::new(pair, SharedEndpoint::shared)?;
            return (0..WINDOWS).try_for_each(|_| counted(&mut || tasks.play(), count));
        }
        (0..WINDOWS).try_for_each(|_| counted(&mut || pair.play(), count))
    }
}

/// Plays the operations that are counted. Callgrind counts between the entry and the return of this
/// function, which it finds by its name ([`callgrind::FUNCTION`]).
#[inline(never)]
fn counted(
    operation: &mut dyn FnMut() -> std::result::Result<(), bmi::Error>,
    count: usize,
) -> std::result::Result<(), bmi::Error> {
    for _ in 0..count {
        operation()?;
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
        assert_eq!(names(&["--over", "tcp", "--only", "PING 8 b, sleep"]), ["tcp ping 8 B, sleeping"]);
        assert_eq!(names(&["--over", "tcp,shm"]).len(), line::all().len());
        assert!(names(&["--only", "no such line"]).is_empty());
    }

    /// Documents quote a line by this name.
    #[test]
    fn a_line_of_a_report_has_the_name_of_the_table() {
        for line in line::all() {
            let row = Row::new(&line, 1, &[Count { instructions: 7, system_calls: 2 }; WINDOWS]);
            let names = recorded(&line, &row).map(|row| row.name());
            assert_eq!(names, [line.name(), line.name()]);
        }
    }

    #[test]
    fn every_line_plays_to_its_end() {
        for line in line::all() {
            play(&line, 3).unwrap_or_else(|error| panic!("{}: {error}", line.name()));
        }
    }
}
