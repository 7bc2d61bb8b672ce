//! Compares the ways to use an endpoint from a program: on one thread, from any thread through a
//! handle, and through a bridge of channels as programs write it by hand.
//!
//! **How.** This program starts itself again as its peer, which always uses the single-threaded
//! interface. For each row, the ways run in turns, in another order each round. Each way opens its
//! own endpoint for a round, so that no idle driver disturbs another way. Ways are compared in the
//! rounds of a row.
//!
//! **The ways**
//! - `single`: `AsyncEndpoint`, driven by `busy` or by `event`. The baseline.
//! - `thread`: a `Handle`, used by `Handle::block_on`. Several tasks are several threads.
//! - `tokio`: a `Handle`, used by tasks of a multi-threaded runtime with two workers.
//! - `task`: a `SharedEndpoint`, driven by a task of that runtime.
//! - `bridge`: a thread that owns an `AsyncEndpoint`, a channel of commands to it, and a channel
//!   for each answer.

mod peer;
mod phase;
mod report;
mod ways;

use std::process::ExitCode;

use benches::report::{ReportArgs, begin};
use benches::{lines, progress, sample};
use clap::{Parser, ValueEnum};

use crate::peer::Peer;
use crate::phase::{Mode, Phase, ROWS, What};
use crate::report::Measured;
use crate::ways::Way;

/// Compares the single-threaded interface with the handle for any thread, over TCP on the loopback
/// and over shared memory: latency, calls, message rate.
///
/// "cost" is the time of a way divided by that of the single-threaded interface, over the rounds,
/// and "interval" contains the true figure in 99 of 100 runs. A second table has what an exchange
/// takes of the measuring process. Close other programs first: other load on the machine widens the
/// intervals.
#[derive(Parser)]
#[command(
    after_help = "Examples:\n  cargo run --release -p benches --bin handle                    everything, about three minutes\n  \
                        cargo run --release -p benches --bin handle -- --quick         rough, half a minute\n  \
                        cargo run --release -p benches --bin handle -- --only 'call' --transport tcp"
)]
struct Cli {
    /// Run fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// The number of rounds of each row [default: 9, with --quick 3].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// The approximate duration of a round, in milliseconds [default: 100, with --quick 30].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=5000))]
    round_ms: Option<u16>,
    /// Measure only this transport.
    #[arg(long, value_enum)]
    transport: Option<phase::Via>,
    /// Measure only one way of waiting.
    #[arg(long, value_enum)]
    mode: Option<ModeArg>,
    /// Measure only this way to use an endpoint, beside the baseline.
    #[arg(long, value_enum)]
    way: Option<Way>,
    /// Measure only rows whose names contain this, such as latency or "64 in flight".
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the report as JSON instead of a table, with all rounds.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Measure each row once and print only JSON, as `cargo xtask compare` reads it.
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

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ran = if cli.peer { peer::serve() } else { measure(&cli) };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("handle: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> std::io::Result<()> {
    let quick = cli.quick || cli.sample;
    let rounds = if cli.sample { 1 } else { usize::from(cli.rounds.unwrap_or(if quick { 3 } else { 9 })) };
    let seconds = f64::from(cli.round_ms.unwrap_or(if quick { 30 } else { 100 })) / 1e3;
    let mode_is_wanted = |mode: Mode| match cli.mode {
        Some(ModeArg::Polling) => mode == Mode::Polling,
        Some(ModeArg::Sleeping) => mode == Mode::Sleeping,
        None => true,
    };
    let mut report = begin("handle", "the ways to use an endpoint from a program");
    let mut samples = Vec::new();
    for via in phase::Via::ALL.into_iter().filter(|via| cli.transport.is_none_or(|wanted| wanted == *via)) {
        let mut peer = Peer::start(via)?;
        for mode in [Mode::Polling, Mode::Sleeping].into_iter().filter(|mode| mode_is_wanted(*mode)) {
            for what in ROWS {
                let name = format!("{via} {what}, {mode}");
                if cli.only.as_ref().is_some_and(|only| !name.contains(only)) {
                    continue;
                }
                progress::show(&name);
                let mut measured = Measured::new(via, what, mode);
                measure_row(cli, &mut peer, &mut measured, (what, mode), rounds, seconds)?;
                let rows = measured.rows();
                samples.extend(lines::sample(rows.iter().map(|row| (measured.name(&row.over), row))));
                report.rows.extend(rows);
            }
        }
        peer.stop()?;
    }
    progress::show("");
    if samples.is_empty() {
        return Err(std::io::Error::other("no row has such a name: see --help"));
    }
    if cli.sample {
        return sample::print(&samples);
    }
    if cli.json {
        println!("{}", report.to_json());
    } else {
        print!("{}", lines::render(&report));
    }
    cli.report.write(&report)
}

fn measure_row(
    cli: &Cli,
    peer: &mut Peer,
    measured: &mut Measured,
    (what, mode): (What, Mode),
    rounds: usize,
    seconds: f64,
) -> std::io::Result<()> {
    let ways: Vec<Way> = Way::ALL
        .into_iter()
        .filter(|way| way.measures(what))
        .filter(|way| *way == Way::Single || cli.way.is_none_or(|wanted| wanted == *way))
        .collect();
    let mut phase = Phase { what, mode, count: 64 };
    // The number that takes about the time of a round.
    let trial = peer.run(&phase, Way::Single)?;
    phase.count = ((seconds / trial.seconds.max(1e-9)) as u64).clamp(64, 1 << 20) / 64 * 64;
    for round in 0..rounds {
        let mut order = ways.clone();
        order.rotate_left(round % ways.len());
        for way in order {
            measured.add(way, peer.run(&phase, way)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_option_is_parsed() {
        assert!(cli_check::every_option::<super::Cli>(&[("report", "a.json")]) >= 9);
    }
}
