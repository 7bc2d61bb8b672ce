//! `cargo xtask hostile`: attacks the servers of the file system with processes, and reports what
//! an honest client beside them notices, and what the servers use.
//!
//! **Why.** The tests of each layer send it bad bytes. Here all layers, the kernel's queues and the
//! program `pvfsd` are attacked together, in real time, by peers that do not use the library.
//!
//! **How.**
//! 1. A cluster is begun in a directory of its own: a manager and I/O servers, each a process that
//!    listens over TCP and shared memory.
//! 2. Real `pvfs` commands are recorded by relays ([`recording`]). Attackers send these streams
//!    again, cut and changed.
//! 3. An honest client over each transport works during the whole run ([`honest`]).
//! 4. Each attack over each transport has four phases ([`run_attack`]):
//!
//! ```text
//!   before ──> attack ──> after, until memory and descriptors are back ──> control
//! ```
//!
//!    In the control, the same number of processes use as much processor time as the attackers did,
//!    and connect to nobody. So the difference is what the servers did for the attackers.
//!
//! **Invariants**, which the run checks
//! 1. No operation of an honest client fails, at any time, and it reads what it has written.
//! 2. No server ends or panics.
//! 3. A server's private memory stays within [`MOST_BESIDE`] and [`MOST_PER_CONNECTION`]. All its
//!    resident memory comes back to [`BACK_WITHIN`] of what it was, and so do its descriptors.
//!    During the attack, pages that a peer over shared memory has passed count as the peer's.
//! 4. No process outlives the run, however it ends (`storm/guard.rs`).
//!
//! The honest client's 99th percentile beside an attack should be at most twice the control's. A
//! miss is reported, and fails the run only with `--strict-latency`, because it depends on the
//! machine.
//!
//! | module | what |
//! |---|---|
//! | `spec` | the kinds of attacks, and what attackers are told |
//! | `attack` | the program of an attacker |
//! | `attackers` | the processes of an attack, and of its control |
//! | `recording` | what a real client sends |
//! | `honest`, `server` | what is measured |
//! | `setup` | the cluster and its recording |
//! | `process`, `clock` | processes and time |
//! | `report` | the result |

mod attack;
mod attackers;
mod clock;
mod honest;
mod process;
mod recording;
mod report;
mod server;
mod setup;
mod spec;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bmi_report::stats;
use clap::{Args, ValueEnum};

use crate::command::{Failure, Invocation};
use crate::steps;
use crate::storm::cluster::Cluster;
use crate::totals::Totals;
use attackers::Plan;
use clock::{now_us, sleep, until};
use report::{Report, Row};
use server::{Sight, log_bytes, sights, usages, watched};
use setup::Scene;
use spec::{Kind, Over};

pub(crate) use attack::main as attacker_main;

/// Options of `cargo xtask hostile`.
#[derive(Args)]
#[command(
    after_help = "Each attack over each transport has four phases: before, attack, after, and a control in which the same
number of processes use as much processor time without connecting. An honest client over each
transport works all the time.

Examples:
  cargo xtask hostile                                    every attack over both transports, some minutes
  cargo xtask hostile --attack mutate --over tcp         one attack over one transport
  cargo xtask hostile --attack slow --seconds 30         a long one
  cargo xtask hostile --streams 100000 --seed 7          as many streams, over all attacks that send streams
  cargo xtask hostile --frames 1000000                   changed frames in the simulator, and nothing else
  cargo xtask hostile --bin-dir target/release --json    other programs; the report as JSON

Attacks:
  garbage       random bytes, packets, descriptors and words in shared memory
  cut           real streams that end in the middle
  lengths       huge lengths in handshakes, frames, records and messages
  slow          a byte each second
  half-open     connections that send nothing
  idle          established connections that do nothing
  hung-readers  pvfs get, stopped in the middle
  hung-writers  pvfs put, stopped in the middle
  replay        real streams, sent again
  mutate        real streams with seeded changes

Exit status: 0 nothing was wrong, 1 something was, 2 the run could not be made."
)]
pub(crate) struct HostileArgs {
    /// Run only this attack (may be given several times) [default: all].
    #[arg(long, value_name = "KIND", value_enum, hide_possible_values = true)]
    attack: Vec<Kind>,
    /// Attack only over this transport (may be given several times) [default: both].
    #[arg(long, value_name = "WHICH", value_enum)]
    over: Vec<Over>,
    /// The number of streams of all attacks that send streams together. More are sent if there is
    /// time left.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    streams: u64,
    /// The time of each phase, in seconds. An attack that sends streams may take longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = phase)]
    seconds: f64,
    /// The number of processes of each attack.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// The number of connections that a process of the attacks slow, half-open and idle holds.
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// The number of I/O servers.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    iods: u16,
    /// Longest wait until the servers have given back what an attack took, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    settle: u64,
    /// Seed of what is drawn [default: taken from the clock, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Only run the test that delivers so many changed frames to endpoints in the simulator.
    #[arg(long, value_name = "N", conflicts_with_all = ["attack", "over", "bin_dir"])]
    frames: Option<u64>,
    /// Fail if the honest client's 99th percentile is above twice the control's.
    #[arg(long)]
    strict_latency: bool,
    /// The directory with the programs pvfsd, pvfs and honest [default: they are built].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Keep the directory with logs and data. It is also kept if something was wrong.
    #[arg(long)]
    keep: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Time limit for building the programs, and for the test in the simulator.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The exit status of a run that could not be made.
const FAILED: u8 = 2;
/// What a server's memory may grow by during an attack, besides its connections. The buffers of an
/// I/O server take 32 MiB (`limits.buffers`), and the store and the allocator may take as much.
const MOST_BESIDE: u64 = 64 << 20;
/// What it may grow by for each connection: 1.7 MiB of slots and buffers (docs/memory.md), and the
/// tables of a connection.
const MOST_PER_CONNECTION: u64 = 2 << 20;
/// What may remain afterwards: touched pages of buffers that all clients share (32 MiB), pages of
/// the store's cache, and free memory that the allocator keeps.
const BACK_WITHIN: u64 = 48 << 20;
/// Descriptors that may be open more than before: datafiles that the store keeps open, and honest
/// connections that are being exchanged.
const DESCRIPTORS_WITHIN: u64 = 96;

fn phase(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 3600 s".to_owned()) }
}

/// `cargo xtask hostile`.
pub(crate) fn main(root: &Path, args: &HostileArgs) -> ExitCode {
    let result = match args.frames {
        Some(frames) => {
            let result = mutated_frames(root, frames, args.seed);
            return end(Ok(result.inspect_err(|failure| eprintln!("error: {failure}")).is_ok()));
        }
        None => programs(root, args).and_then(|programs| run(&programs, args).map_err(Failure::new)),
    };
    end(result.map(|report| {
        match serde_json::to_string_pretty(&report) {
            Ok(json) if args.json => println!("{json}"),
            _ => print!("{}", report.render()),
        }
        report.wrong() == 0 && !(args.strict_latency && report.slow() > 0)
    }))
}

fn end(is_good: Result<bool, Failure>) -> ExitCode {
    match is_good {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

/// The step of the test command: a short run of every attack with the programs in `programs`.
pub(crate) fn step(programs: &Path) -> Result<Totals, Failure> {
    let args = HostileArgs {
        attack: Vec::new(),
        over: Vec::new(),
        streams: 500,
        seconds: 0.15,
        processes: 1,
        connections: 200,
        iods: 2,
        settle: 30,
        seed: None,
        frames: None,
        strict_latency: false,
        bin_dir: None,
        keep: false,
        json: false,
    };
    let report = run(programs, &args).map_err(Failure::new)?;
    print!("{}", report.render());
    match report.wrong() {
        0 => Ok(Totals::PASSED),
        wrong => Err(Failure::counted(format!("{wrong} wrong results"), Totals::FAILED)),
    }
}

/// Returns the directory of the programs, which are built if none is given.
fn programs(root: &Path, args: &HostileArgs) -> Result<PathBuf, Failure> {
    if let Some(dir) = &args.bin_dir {
        return std::path::absolute(dir).map_err(|error| Failure::new(error.to_string()));
    }
    let features = ["--features".to_owned(), steps::features(root)?];
    Invocation::cargo(root, steps::BUILD).args(&features).run_aside(BUILD_LIMIT)?;
    Ok(crate::target(root).join("debug"))
}

/// Runs the test of changed frames in the simulator, with the development profile, which checks
/// more.
fn mutated_frames(root: &Path, frames: u64, seed: Option<u64>) -> Result<(), Failure> {
    let mut test = Invocation::cargo(root, "test -p bmi-sim --test it mutated -- --nocapture")
        .env("BMI_FRAMES", frames.to_string());
    if let Some(seed) = seed {
        test = test.env("BMI_SEED", seed.to_string());
    }
    test.hand_over(BUILD_LIMIT)
}

/// Runs all attacks. The error is a reason why they could not be run to the end.
fn run(programs: &Path, args: &HostileArgs) -> Result<Report, String> {
    let seed = args.seed.unwrap_or_else(stats::seed);
    let of_kind = |given: &[Kind]| if given.is_empty() { Kind::value_variants().to_vec() } else { given.to_vec() };
    let overs = if args.over.is_empty() { Over::value_variants() } else { &args.over };
    let attacks: Vec<(Kind, Over)> =
        of_kind(&args.attack).into_iter().flat_map(|kind| overs.iter().map(move |over| (kind, *over))).collect();
    eprintln!("hostile: seed {seed}, {} attacks", attacks.len());
    let began_us = now_us();
    let mut scene = Scene::new(programs, args.iods.into(), args.keep)?;
    let mut rows = Vec::new();
    for (kind, over) in &attacks {
        let of_streams = attacks.iter().filter(|(kind, _)| kind.is_streams()).count() as u64;
        let streams = if kind.is_streams() { args.streams.div_ceil(of_streams) } else { 0 };
        let row = run_attack(&mut scene, args, *kind, *over, streams, seed).map_err(|why| scene.failed(&why))?;
        let wrong = if row.wrong.is_empty() { String::new() } else { format!(", WRONG: {}", row.wrong.join("; ")) };
        eprintln!("{kind} over {over}: {} streams, p99 ratio {:.2}{wrong}", row.done.streams, row.p99_ratio);
        rows.push(row);
    }
    let streams = rows.iter().filter(|row| row.attack.is_streams()).map(|row| row.done.streams).sum();
    let report = Report { seed, seconds: (now_us() - began_us) as f64 / 1e6, streams, rows, kept: None };
    let is_kept = args.keep || report.wrong() > 0;
    Ok(Report { kept: scene.end(is_kept)?, ..report })
}

/// Runs one attack: before, attack, after, control.
fn run_attack(
    scene: &mut Scene,
    args: &HostileArgs,
    kind: Kind,
    over: Over,
    streams: u64,
    seed: u64,
) -> Result<Row, String> {
    let time = Duration::from_secs_f64(args.seconds);
    let window = |work: &mut dyn FnMut() -> Result<(), String>| -> Result<(u64, u64), String> {
        let begin_us = now_us();
        work()?;
        Ok((begin_us, now_us()))
    };
    let mut rest = || {
        sleep(time);
        Ok(())
    };
    let logged = log_bytes(&scene.cluster);
    let before_us = window(&mut rest)?;
    let before = sights(&scene.cluster);
    let plan = Plan {
        kind,
        over,
        targets: scene.targets(over),
        seed,
        processes: args.processes.into(),
        connections: args.connections.into(),
        streams,
        time,
        pvfs: &scene.pvfs,
        dir: &scene.dir,
        manager: &scene.cluster.manager,
        guard: &scene.guard,
    };
    let (outcome, most) = watched(&scene.cluster, || plan.run());
    let outcome = outcome?;
    let during_us = outcome.window;
    let after_us = window(&mut rest)?;
    let is_back = |now: &[Sight]| before.iter().zip(now).all(|(before, now)| left(before, now).is_none());
    let back = until(Duration::from_secs(args.settle), || Ok(is_back(&sights(&scene.cluster))))?;
    let back_after_s = back.then(|| (now_us() - during_us.1) as f64 / 1e6);
    let after = sights(&scene.cluster);
    let control_us = window(&mut || plan.control(outcome))?;
    let client = scene.honest(over);
    let [before_client, during, quiet, control] =
        [before_us, during_us, after_us, control_us].map(|window| client.latency(window));
    let (failed, mut wrong) = scene.honest_failures((before_us.0, control_us.1));
    wrong.extend(memory_errors(&before, &most, &after, plan.most_connections()));
    wrong.extend(scene.check()?);
    Ok(Row {
        attack: kind,
        over,
        done: outcome.done,
        seconds: (during_us.1 - during_us.0) as f64 / 1e6,
        cpu_s: outcome.cpu_us as f64 / 1e6,
        p99_ratio: during.p99_us as f64 / control.p99_us.max(1) as f64,
        before: before_client,
        during,
        after: quiet,
        control,
        failed,
        servers: usages(&before, &most, &after),
        back_after_s,
        log_bytes: log_bytes(&scene.cluster) - logged,
        wrong,
    })
}

/// Returns what is wrong with the memory and the descriptors of the servers.
fn memory_errors(before: &[Sight], most: &[Sight], after: &[Sight], connections: usize) -> Vec<String> {
    let bound = MOST_BESIDE + MOST_PER_CONNECTION * connections as u64;
    let mut wrong = Vec::new();
    for (index, was) in before.iter().enumerate() {
        let name = Cluster::name(index);
        wrong.extend(left(was, &after[index]).map(|what| format!("{name}: {what}")));
        let grown = most[index].private.saturating_sub(was.private);
        if grown > bound {
            wrong.push(format!("{name}: its memory grew by {} MiB, the bound is {}", grown >> 20, bound >> 20));
        }
    }
    wrong
}

/// Returns what a server has not given back, in words.
fn left(before: &Sight, now: &Sight) -> Option<String> {
    if now.resident > before.resident + BACK_WITHIN {
        let (was, is) = (before.resident >> 20, now.resident >> 20);
        return Some(format!("its memory is {is} MiB after the attack, {was} MiB before"));
    }
    let (was, is) = (before.descriptors, now.descriptors);
    (is > was + DESCRIPTORS_WITHIN).then(|| format!("it has {is} descriptors after the attack, {was} before"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_back_is_named() {
        let was = Sight { resident: 10 << 20, private: 1 << 20, descriptors: 20 };
        assert_eq!(left(&was, &Sight { resident: was.resident + BACK_WITHIN, ..was }), None);
        let grown = left(&was, &Sight { resident: was.resident + BACK_WITHIN + 1, ..was });
        assert!(grown.is_some_and(|what| what.contains("58 MiB after the attack, 10 MiB before")));
        let open = left(&was, &Sight { descriptors: 21 + DESCRIPTORS_WITHIN, ..was });
        assert!(open.is_some_and(|what| what.contains("117 descriptors")));
        let grown = |private| memory_errors(&[was], &[Sight { private, ..was }], &[was], 3);
        let bound = was.private + MOST_BESIDE + 3 * MOST_PER_CONNECTION;
        assert_eq!((grown(bound).len(), grown(bound + 1).len()), (0, 1));
    }
}
