//! Compares the transport with plain sockets: the same measurements, between the same two
//! processes, in turns.
//!
//! **How.** This program starts itself again as its peer. For every row, rounds of plain sockets
//! and rounds of the library alternate. The order changes each time, so that other load on the
//! machine affects both. The ratio of a row is the trimmed mean of its rounds' ratios. The number
//! of messages in a round is determined before, so that each round takes about the same time.
//!
//! **What is compared.** `bmi_side` with `socket_side`; neither module knows about the measurement.
//! Both sides have the same number of buffers of the same size, and use `TCP_NODELAY`. A stream
//! ends when the peer's program has acknowledged its last byte. The rate has two baselines: a write
//! for each full window of messages, which is the best possible, and a write for each message, as
//! in a simple program.

mod bmi_side;
mod peer;
mod phase;
mod report;
mod socket_side;

use std::process::ExitCode;
use std::time::Duration;

use benches::report::{ReportArgs, begin};
use benches::{progress, sample};
use bmi_perf::system_calls::Counter;
use bmi_report::stats::middle;
use clap::{Parser, ValueEnum};

use crate::peer::Peer;
use crate::phase::{Mode, Phase, What, Who};
use crate::report::{Line, Side};

/// Compares the transport with plain sockets, over TCP on the loopback: latency, bandwidth, message
/// rate.
///
/// "plain" is a minimal non-blocking ping-pong and stream between the same two processes in the
/// same run. "ratio" is bmi to plain, over the rounds, and "interval" contains the true ratio in 99
/// of 100 runs. "cpu" is the processor time of both processes, bmi to plain. "aim" is the aim of
/// the project. Close other programs first: other load on the machine widens the intervals.
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo xtask bench                            everything, about two minutes\n  \
                        cargo xtask bench -- --quick                 a few seconds, rough\n  \
                        cargo xtask bench -- --mode polling --json   for another program to read\n  \
                        cargo xtask bench -- --report micro.json     all rounds, to compare later\n  \
                        cargo xtask bench -- --sample --only rate    what `cargo xtask compare` reads")]
struct Cli {
    /// Run fewer and shorter rounds, a few seconds in all.
    #[arg(long)]
    quick: bool,
    /// The number of rounds of each row [default: 9, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// The approximate duration of a round, in milliseconds [default: 150, with --quick 25].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=5000))]
    round_ms: Option<u16>,
    /// Measure only one way of waiting.
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Measure only rows whose names contain this, such as latency, "send 64 KiB" or "rate 64 B,
    /// polling".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Measure each row once, without plain sockets, in about ten seconds; print only JSON.
    #[arg(long, conflicts_with_all = ["quick", "rounds", "round_ms", "json", "files"])]
    sample: bool,
    /// Internal: be the other process.
    #[arg(long = "serve-as-peer", hide = true)]
    peer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    Polling,
    Sleeping,
}

/// The measurements: test, message sizes, window. Latency has two buffers, one for each direction.
/// Bandwidth has some MiB in flight.
const ROWS: &[(What, &[(usize, usize)])] = &[
    (What::Latency, &[(4, 2), (4 << 10, 2), (64 << 10, 2)]),
    (What::Send, STREAM),
    (What::Write, STREAM),
    (What::Read, STREAM),
    (What::Rate, &[(64, 64)]),
    (What::RateEach, &[(64, 64)]),
];
const STREAM: &[(usize, usize)] = &[(64 << 10, 16), (1 << 20, 8), (4 << 20, 4)];

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match (cli.peer, cli.sample) {
        (true, _) => peer::serve(),
        (_, true) => measure_sample(&cli),
        _ => measure(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The number of rounds of each row in a sample. The sample has their median, as the table does.
const SAMPLE_ROUNDS: u16 = 5;
/// The approximate duration of such a round. The whole sample then takes about ten seconds.
const SAMPLE_ROUND: Duration = Duration::from_millis(40);

/// Returns the rows that the command line selects, as phases of plain sockets whose count is not
/// known yet.
fn chosen(cli: &Cli) -> std::io::Result<Vec<Phase>> {
    let only = cli.only.as_deref().unwrap_or_default().to_lowercase();
    let mut chosen = Vec::new();
    for (mode, arg) in [(Mode::Polling, ModeArg::Polling), (Mode::Sleeping, ModeArg::Sleeping)] {
        let sizes_of = |(what, sizes): &(What, &'static [(usize, usize)])| {
            sizes.iter().map(|size| (*what, *size)).collect::<Vec<_>>()
        };
        for (what, (size, window)) in ROWS.iter().flat_map(sizes_of) {
            let phase = Phase { who: Who::Plain, mode, what, size, window, count: 0, counting: false };
            if cli.mode.is_none_or(|only| only == arg) && phase.name().to_lowercase().contains(&only) {
                chosen.push(phase);
            }
        }
    }
    if chosen.is_empty() {
        return Err(std::io::Error::other("no row has that in its name; there are latency, send, write, read, rate"));
    }
    Ok(chosen)
}

fn measure(cli: &Cli) -> std::io::Result<()> {
    let rounds = cli.rounds.unwrap_or(if cli.quick { 3 } else { 9 });
    let round = Duration::from_millis(cli.round_ms.unwrap_or(if cli.quick { 25 } else { 150 }).into());
    let chosen = chosen(cli)?;
    let mut peer = Peer::start()?;
    let mut recorded = begin("micro", "the transport over TCP against plain sockets, on the loopback");
    // The same is true of the peer, which is this program.
    let uncounted = Counter::open().err().map(|error| format!("system calls were not counted: {error}"));
    recorded.notes.extend(uncounted);
    let mut lines = Vec::new();
    for (number, phase) in chosen.into_iter().enumerate() {
        progress::show(&phase.name());
        let [plain, ours] = run_row(&mut peer, phase, rounds, round, cli.report.is_given())?;
        let line = Line::new(phase.mode, phase.what, phase.size, &plain, &ours);
        recorded.rows.extend(line.rows(plain, ours, number * usize::from(rounds)));
        lines.push(line);
    }
    progress::show("");
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        println!("{}", machine());
        print!("{}", report::render(&lines));
    }
    cli.report.write(&recorded)
}

/// Runs a short measurement of the library alone, for `cargo xtask compare`.
fn measure_sample(cli: &Cli) -> std::io::Result<()> {
    // The two rates differ only in what plain sockets do.
    let chosen = chosen(cli)?.into_iter().filter(|phase| phase.what != What::RateEach);
    let mut peer = Peer::start()?;
    let mut lines = Vec::new();
    for phase in chosen {
        progress::show(&phase.name());
        let phase = Phase { who: Who::Ours, ..phase };
        let phase = Phase { count: count_for(&mut peer, phase, SAMPLE_ROUND)?, ..phase };
        let mut figures = Vec::new();
        for _ in 0..SAMPLE_ROUNDS {
            figures.push(figure(&phase, peer.run(&phase)?.seconds));
        }
        lines.push(sample::Line::new(phase.name(), middle(&mut figures), phase.what.unit()));
    }
    progress::show("");
    sample::print(&lines)
}

/// Returns the conditions that a reader must know to judge the figures: the number of processors,
/// and their load by this program and all others.
fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = bmi_report::host::load().unwrap_or_default();
    format!("{processors} processors, two processes; load average over the last minute {load}")
}

/// Returns the rounds of plain sockets and of the library. Each may have one more, in which system
/// calls are counted.
fn run_row(peer: &mut Peer, phase: Phase, rounds: u16, round: Duration, counting: bool) -> std::io::Result<[Side; 2]> {
    let mut phases = [Who::Plain, Who::Ours].map(|who| Phase { who, ..phase });
    for phase in &mut phases {
        phase.count = count_for(peer, *phase, round)?;
    }
    let mut sides = [Side::default(), Side::default()];
    for number in 0..usize::from(rounds) {
        for turn in 0..2 {
            // Another order in each round.
            let side = (number + turn) % 2;
            let outcome = peer.run(&phases[side])?;
            sides[side].add(figure(&phases[side], outcome.seconds), &outcome, phases[side].count);
        }
    }
    if counting {
        for (phase, side) in phases.iter().zip(&mut sides) {
            let outcome = peer.run(&Phase { counting: true, ..*phase })?;
            side.set_calls(&outcome, phase.count);
        }
    }
    Ok(sides)
}

/// Returns how many messages take about as long as a round should. The trials also warm everything
/// up.
fn count_for(peer: &mut Peer, phase: Phase, round: Duration) -> std::io::Result<u64> {
    // With more messages the samples of a round would fill memory, and be no more exact.
    const MOST: u64 = 1 << 20;
    let mut count = 2 * phase.window as u64;
    loop {
        let outcome = peer.run(&Phase { count, ..phase })?;
        let took = if phase.what == What::Latency { outcome.seconds * 2.0 * count as f64 } else { outcome.seconds };
        let wanted = (round.as_secs_f64() / took.max(1e-9) * count as f64) as u64;
        // A trial that is much shorter than a round says little about the round.
        if count * 4 >= wanted || count >= MOST {
            return Ok(wanted.clamp(phase.window as u64, MOST));
        }
        count = wanted.min(count * 8).min(MOST);
    }
}

/// Returns the figure of a row: seconds, bytes per second or messages per second.
fn figure(phase: &Phase, seconds: f64) -> f64 {
    match phase.what {
        What::Latency => seconds,
        What::Send | What::Write | What::Read => (phase.count * phase.size as u64) as f64 / seconds,
        What::Rate | What::RateEach => phase.count as f64 / seconds,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{CommandFactory, Parser};

    use super::{Cli, chosen};

    #[test]
    fn the_command_line_is_well_formed_and_starts_its_peer() {
        super::Cli::command().debug_assert();
        assert!(cli_check::every_option::<super::Cli>(&[("report", "a.json")]) >= 7);
        assert!(
            <super::Cli as clap::Parser>::try_parse_from(["micro", super::peer::ARGUMENT]).is_ok_and(|cli| cli.peer)
        );
    }

    #[test]
    fn rows_have_names_of_their_own_and_are_chosen_by_them() {
        let rows = |args: &[&str]| {
            let cli = Cli::parse_from(["micro"].iter().chain(args));
            chosen(&cli).map(|rows| rows.iter().map(|row| row.name()).collect::<Vec<_>>()).unwrap_or_default()
        };
        let all = rows(&[]);
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(rows(&["--sample", "--only", "latency 4 b, sleep"]), ["tcp latency 4 B, sleeping"]);
        assert!(rows(&["--only", "no such row"]).is_empty());
    }

    #[test]
    fn a_sample_takes_no_options_that_change_what_its_lines_mean() {
        for other in ["--quick", "--json", "--rounds=3", "--round-ms=10", "--report=a.json"] {
            assert!(Cli::try_parse_from(["micro", "--sample", other]).is_err(), "{other}");
        }
    }
}
