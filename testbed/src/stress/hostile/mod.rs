//! `cargo xtask hostile`: attacks the servers of the file system with processes, and reports what
//! an honest client beside them notices, and what the servers use.
//!
//! **Why.** The tests of each layer send it bad bytes. Here all layers, the kernel's queues and the
//! program `pvfsd` are attacked together, in real time, by peers that do not use the library.
//!
//! **How.**
//! 1. A cluster is begun in a directory of its own: a manager and I/O servers, each a process that
//!    listens over TCP and shared memory ([`scene`]).
//! 2. Real `pvfs` commands are recorded by relays ([`recording`]). Attackers send these streams
//!    again, cut and changed ([`attack`]).
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
//!
//! The honest client's 99th percentile beside an attack should be at most twice the control's. A
//! miss is reported, and fails the run only with `--strict-latency`, because it depends on the
//! machine.

mod attack;
mod attackers;
mod honest;
mod recording;
mod report;
mod scene;
mod spec;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bmi_report::stats;
use clap::{Args, ValueEnum};
use testbed::Outcome;
use testbed::cluster::Cluster;
use testbed::process::{Usage, now_us, sleep, until};
use testbed::sandbox::Sandbox;

use crate::Common;
use attackers::Plan;
use report::{Report, Row, Server};
use scene::Scene;
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
    /// Only run the test that delivers so many changed frames to endpoints in the simulator.
    #[arg(long, value_name = "N", conflicts_with_all = ["attack", "over", "bin_dir"])]
    frames: Option<u64>,
    /// Fail if the honest client's 99th percentile is above twice the control's.
    #[arg(long)]
    strict_latency: bool,
    #[command(flatten)]
    common: Common,
}

/// What a server's memory may grow by during an attack, besides its connections. The buffers of an
/// I/O server take 32 MiB (`limits.buffers`), and the store and the allocator may take as much.
const MOST_BESIDE: u64 = 64 << 20;
/// What it may grow by for each connection: 1.7 MiB of slots and buffers (docs/design/memory.md),
/// and the tables of a connection.
const MOST_PER_CONNECTION: u64 = 2 << 20;
/// What may remain afterwards: touched pages of buffers that all clients share (32 MiB), pages of
/// the store's cache, and free memory that the allocator keeps.
const BACK_WITHIN: u64 = 48 << 20;
/// Descriptors that may be open more than before: datafiles that the store keeps open, and honest
/// connections that are being exchanged.
const DESCRIPTORS_WITHIN: u64 = 96;
/// How often the servers are looked at during an attack.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn phase(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.05..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 3600 s".to_owned()) }
}

/// Runs all attacks and prints the report. Returns true if nothing was wrong. The error is a reason
/// why they could not be run to the end.
pub(crate) fn main(args: &HostileArgs) -> Outcome<bool> {
    if let Some(frames) = args.frames {
        return mutated_frames(frames, args.common.seed);
    }
    let mut sandbox = Sandbox::new("hostile")?;
    let result = run(&sandbox, args);
    let is_kept = args.common.keep || !result.as_ref().is_ok_and(|report| report.wrong() == 0);
    if is_kept {
        sandbox.keep();
    }
    let kept = sandbox.path().display().to_string();
    let report = result.map_err(|why| format!("{why}\nkept: {kept}"))?;
    let report = Report { kept: is_kept.then_some(kept), ..report };
    args.common.print(&report, &report.render())?;
    Ok(report.wrong() == 0 && !(args.strict_latency && report.slow() > 0))
}

/// Runs the test of changed frames in the simulator, with the development profile, which checks
/// more.
fn mutated_frames(frames: u64, seed: Option<u64>) -> Outcome<bool> {
    let mut test = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    test.args(["test", "-p", "bmi-sim", "--test", "it", "mutated", "--", "--nocapture"]);
    test.current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).env("BMI_FRAMES", frames.to_string());
    test.envs(seed.map(|seed| ("BMI_SEED", seed.to_string())));
    Ok(test.status()?.success())
}

fn run(sandbox: &Sandbox, args: &HostileArgs) -> Outcome<Report> {
    let seed = args.common.seed.unwrap_or_else(stats::seed);
    let kinds = if args.attack.is_empty() { Kind::value_variants() } else { &args.attack };
    let overs = if args.over.is_empty() { Over::value_variants() } else { &args.over };
    let attacks: Vec<(Kind, Over)> =
        kinds.iter().flat_map(|kind| overs.iter().map(move |over| (*kind, *over))).collect();
    eprintln!("hostile: seed {seed}, {} attacks", attacks.len());
    let began_us = now_us();
    let mut scene = Scene::new(sandbox.path(), &args.common, args.iods.into())?;
    let of_streams = attacks.iter().filter(|(kind, _)| kind.is_streams()).count() as u64;
    let mut rows = Vec::new();
    for (kind, over) in attacks {
        let streams = if kind.is_streams() { args.streams.div_ceil(of_streams) } else { 0 };
        let row = run_attack(&mut scene, args, kind, over, streams, seed)?;
        let wrong = if row.wrong.is_empty() { String::new() } else { format!(", WRONG: {}", row.wrong.join("; ")) };
        eprintln!("{kind} over {over}: {} streams, p99 ratio {:.2}{wrong}", row.done.streams, row.p99_ratio);
        rows.push(row);
    }
    let streams = rows.iter().filter(|row| row.attack.is_streams()).map(|row| row.done.streams).sum();
    Ok(Report { seed, seconds: (now_us() - began_us) as f64 / 1e6, streams, rows, kept: None })
}

/// Runs one attack: before, attack, after, control.
fn run_attack(scene: &mut Scene, args: &HostileArgs, kind: Kind, over: Over, streams: u64, seed: u64) -> Outcome<Row> {
    let time = Duration::from_secs_f64(args.seconds);
    let rest = || {
        let begin_us = now_us();
        sleep(time);
        (begin_us, now_us())
    };
    let logged = scene.log_bytes();
    let before_us = rest();
    let before = scene.usages();
    let (processes, connections) = (args.processes.into(), args.connections.into());
    let plan = Plan { scene, kind, over, seed, processes, connections, streams, time };
    let (outcome, most) = watched(scene, || plan.run());
    let outcome = outcome?;
    let (attack_us, after_us) = (outcome.window, rest());
    let is_back = |now: &[Usage]| before.iter().zip(now).all(|(before, now)| left(before, now).is_none());
    let back = until(Duration::from_secs(args.settle), || Ok(is_back(&scene.usages())))?;
    let back_after_s = back.then(|| (now_us() - attack_us.1) as f64 / 1e6);
    let after = scene.usages();
    let control_us = plan.control(&outcome)?;
    let windows = [before_us, attack_us, after_us, control_us];
    let [before_it, during, after_it, control] = windows.map(|window| scene.latency(over, window));
    let (failed, mut wrong) = scene.honest_failures((before_us.0, control_us.1));
    wrong.extend(memory_errors(&before, &most, &after, plan.most_connections()));
    let servers = (0..before.len()).map(|index| Server::new(index, before[index], most[index], after[index])).collect();
    wrong.extend(scene.check()?);
    Ok(Row {
        attack: kind,
        over,
        done: outcome.done,
        seconds: (attack_us.1 - attack_us.0) as f64 / 1e6,
        cpu_s: outcome.cpu_us as f64 / 1e6,
        p99_ratio: during.p99_us as f64 / control.p99_us.max(1) as f64,
        before: before_it,
        during,
        after: after_it,
        control,
        failed,
        servers,
        back_after_s,
        log_bytes: scene.log_bytes() - logged,
        wrong,
    })
}

/// Runs `work` while the servers are watched. Returns its result and the most that each used.
fn watched<R>(scene: &Scene, work: impl FnOnce() -> R) -> (R, Vec<Usage>) {
    /// Ends the watch also if the work panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let is_over = AtomicBool::new(false);
    let pids = scene.pids();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = vec![Usage::default(); pids.len()];
            while !is_over.load(Ordering::Relaxed) {
                most.iter_mut().zip(&pids).for_each(|(most, pid)| *most = most.max(Usage::of(*pid)));
                sleep(LOOK_AGAIN);
            }
            most
        });
        let end = End(&is_over);
        let result = work();
        drop(end);
        (result, watch.join().unwrap_or_default())
    })
}

/// Returns what is wrong with the memory and the descriptors of the servers.
fn memory_errors(before: &[Usage], most: &[Usage], after: &[Usage], connections: usize) -> Vec<String> {
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
fn left(before: &Usage, now: &Usage) -> Option<String> {
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
        let was = Usage { resident: 10 << 20, private: 1 << 20, descriptors: 20 };
        assert_eq!(left(&was, &Usage { resident: was.resident + BACK_WITHIN, ..was }), None);
        let grown = left(&was, &Usage { resident: was.resident + BACK_WITHIN + 1, ..was });
        assert!(grown.is_some_and(|what| what.contains("58 MiB after the attack, 10 MiB before")));
        let open = left(&was, &Usage { descriptors: 21 + DESCRIPTORS_WITHIN, ..was });
        assert!(open.is_some_and(|what| what.contains("117 descriptors")));
        let grown = |private| memory_errors(&[was], &[Usage { private, ..was }], &[was], 3);
        let bound = was.private + MOST_BESIDE + 3 * MOST_PER_CONNECTION;
        assert_eq!((grown(bound).len(), grown(bound + 1).len()), (0, 1));
    }
}
