//! The transport against plain sockets: the same measurements, between the same two processes, in turns.
//!
//! **How.** This program starts itself again as its peer. For every row, rounds of plain sockets and rounds of the library alternate, who comes
//! first changing each time, so that whatever else the machine does hits both; a row's ratio is the median of its rounds' ratios.
//! How many messages a round has is found beforehand, so that each takes about as long.
//!
//! **What is compared.** `ours` against `plain`; neither knows of the measurement. The same number of buffers of the same size on both
//! sides; `TCP_NODELAY`; a stream ends when its last byte is acknowledged by the peer's program. For the rate there are two baselines: a write
//! for each full window of messages, the best that is possible, and a write for each message, what a simple program does.

mod ours;
mod peer;
mod phase;
mod plain;
mod report;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::peer::Peer;
use crate::phase::{Mode, Phase, What, Who};
use crate::report::{Line, Round};

/// The transport against plain sockets, over TCP on the loopback: latency, bandwidth, message rate.
///
/// "plain" is a minimal non-blocking ping-pong and stream between the same two processes in the same run. "ratio" is
/// bmi to plain, the median over the rounds; "cpu" is the processor time of both processes, bmi to plain; "aim" is what the
/// project set itself. Close other programs first: what else runs on the machine widens "least..greatest".
#[derive(Parser)]
#[command(after_help = "Examples:\n  cargo xtask bench                            everything, about two minutes\n  \
                        cargo xtask bench -- --quick                 a few seconds, rough\n  \
                        cargo xtask bench -- --mode polling --json   for another program to read")]
struct Cli {
    /// A few seconds in all: fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Rounds of each row [default: 9, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// About how long a round takes, in milliseconds [default: 150, with --quick 25].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=5000))]
    round_ms: Option<u16>,
    /// Only one way of waiting.
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Only rows whose test has this in its name: latency, send, write, read, rate.
    #[arg(long, value_name = "TEST")]
    only: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Internal: be the other process.
    #[arg(long = "serve-as-peer", hide = true)]
    peer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    Polling,
    Sleeping,
}

/// What is measured: test, message sizes, window. Latency: two buffers, one for each way. Bandwidth: some MiB under way.
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
    let result = if cli.peer { peer::serve() } else { measure(&cli) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> std::io::Result<()> {
    let rounds = cli.rounds.unwrap_or(if cli.quick { 3 } else { 9 });
    let round = Duration::from_millis(cli.round_ms.unwrap_or(if cli.quick { 25 } else { 150 }).into());
    let mut peer = Peer::start()?;
    let mut lines = Vec::new();
    for (mode, arg) in [(Mode::Polling, ModeArg::Polling), (Mode::Sleeping, ModeArg::Sleeping)] {
        if cli.mode.is_some_and(|only| only != arg) {
            continue;
        }
        for (what, sizes) in ROWS {
            let name = format!("{what:?}").to_lowercase();
            if cli.only.as_ref().is_some_and(|only| !name.contains(&only.to_lowercase())) {
                continue;
            }
            for (size, window) in *sizes {
                if std::io::stderr().is_terminal() {
                    eprint!("\r{:60}\r{mode:?} {what:?} {size} B ", "");
                }
                let phase = Phase { who: Who::Plain, mode, what: *what, size: *size, window: *window, count: 0 };
                lines.push(Line::new(mode, *what, *size, &run_row(&mut peer, phase, rounds, round)?));
            }
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r{:60}\r", "");
    }
    if lines.is_empty() {
        return Err(std::io::Error::other("no test has that name; there are latency, send, write, read, rate"));
    }
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        println!("{}", machine());
        print!("{}", report::render(&lines));
    }
    Ok(())
}

/// What a reader must know to judge the figures: how many processors, and how busy they were with this and everything else.
fn machine() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    format!("{processors} processors, two processes; load average over the last minute {load}")
}

fn run_row(peer: &mut Peer, phase: Phase, rounds: u16, round: Duration) -> std::io::Result<Vec<Round>> {
    let plain = Phase { who: Who::Plain, ..phase };
    let ours = Phase { who: Who::Ours, ..phase };
    let plain = Phase { count: count_for(peer, plain, round)?, ..plain };
    let ours = Phase { count: count_for(peer, ours, round)?, ..ours };
    let mut samples = Vec::new();
    for number in 0..rounds {
        let first = if number % 2 == 0 { [&plain, &ours] } else { [&ours, &plain] };
        let outcomes = [peer.run(first[0])?, peer.run(first[1])?];
        let [plain_outcome, ours_outcome] = if number % 2 == 0 { outcomes } else { [outcomes[1], outcomes[0]] };
        samples.push(Round {
            plain: figure(&plain, plain_outcome.seconds),
            ours: figure(&ours, ours_outcome.seconds),
            plain_cpu: plain_outcome.cpu / plain.count as f64,
            ours_cpu: ours_outcome.cpu / ours.count as f64,
        });
    }
    Ok(samples)
}

/// How many messages take about as long as a round should; the trials that find it also warm everything up.
fn count_for(peer: &mut Peer, phase: Phase, round: Duration) -> std::io::Result<u64> {
    // Beyond this the samples of a round would fill memory, and nothing would become more exact.
    const MOST: u64 = 1 << 20;
    let mut count = 2 * phase.window as u64;
    loop {
        let outcome = peer.run(&Phase { count, ..phase })?;
        let took = if phase.what == What::Latency { outcome.seconds * 2.0 * count as f64 } else { outcome.seconds };
        let wanted = (round.as_secs_f64() / took.max(1e-9) * count as f64) as u64;
        // A trial much shorter than a round says little about the round.
        if count * 4 >= wanted || count >= MOST {
            return Ok(wanted.clamp(phase.window as u64, MOST));
        }
        count = wanted.min(count * 8).min(MOST);
    }
}

/// What a row shows: seconds, bytes per second or messages per second.
fn figure(phase: &Phase, seconds: f64) -> f64 {
    match phase.what {
        What::Latency => seconds,
        What::Send | What::Write | What::Read => (phase.count * phase.size as u64) as f64 / seconds,
        What::Rate | What::RateEach => phase.count as f64 / seconds,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_starts_its_peer() {
        super::Cli::command().debug_assert();
        assert!(
            <super::Cli as clap::Parser>::try_parse_from(["micro", super::peer::ARGUMENT]).is_ok_and(|cli| cli.peer)
        );
    }
}
