//! `cargo xtask pair`: two network namespaces joined by a cable. They are the two hosts of programs
//! that need two, on one machine.
//!
//! **Why.** A benchmark between two hosts is right if it measures what is known. The cable has a
//! known rate, delay and loss.
//!
//! **How.** The hosts are network namespaces. Without delay and loss, the cable is a veth pair,
//! with `tbf` at both ends for a rate ([`shape`]). Delay and loss are `netem` if the kernel has it,
//! and else a process that carries packets between two TUN devices ([`relay`]). The cable itself
//! takes some time: a round trip takes tens of microseconds over veth and about a hundred over the
//! relay (`--check` measures both).
//!
//! **Invariants**
//! 1. All that a run makes is removed by the kernel at its end, however it ends ([`isolation`]).
//! 2. No packet leaves the two namespaces. The machine's own network is not changed.
//!
//! | module | what |
//! |---|---|
//! | `link` | what is asked of the cable |
//! | `hosts` | the namespaces, and programs in them |
//! | `isolation` | the end of all processes of a run |
//! | `cable` | a pair, made and joined |
//! | `shape` | rate, delay and loss in the kernel |
//! | `relay`, `queue`, `tun` | delay and loss in a process |
//! | `clock` | time |
//! | `check` | what is known of a pair, measured with programs of others |
//!
//! **Tests** of the modules need no root. `--check` tests the whole with programs of others.

mod cable;
mod check;
mod clock;
mod hosts;
mod isolation;
mod link;
mod queue;
mod relay;
mod shape;
mod tun;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;

use self::cable::{CLIENT, Pair, SERVER};
use self::link::{Cable, Link, Loss, Rate};
use crate::command::{Failure, Invocation};
use crate::setup::{self, Need};
use crate::totals::Totals;

pub(crate) use relay::main as relay_main;

/// Options of `cargo xtask pair`.
#[derive(Args)]
#[command(after_help = "\
Two network namespaces are the two hosts. Both commands have the addresses of the hosts in the
environment variables PAIR_SERVER and PAIR_CLIENT. COMMAND starts when the serve command listens
(at most 2 s later). At its end, all processes in both namespaces are ended.

Examples:
  cargo xtask pair                                             a shell in the client
  cargo xtask pair --rate 1gbit --serve 'iperf3 -s' -- sh -c 'iperf3 -c $PAIR_SERVER'
  cargo xtask pair --delay 1ms --serve 'sockperf server --tcp -i $PAIR_SERVER' \\
      -- sh -c 'sockperf ping-pong --tcp --full-rtt -i $PAIR_SERVER'
  cargo xtask pair --delay 20ms --loss 0.1% --rate 100mbit     a bad line, and a shell
  cargo xtask pair --flow-rate 200mbit                         a path that one flow does not fill
  cargo xtask pair --keep                                      two hosts that stay
  cargo xtask pair --check                                     is the cable what it should be?

Rate, delay and loss hold for each direction. So a round trip takes twice the delay longer.
Units: kbit, mbit, gbit (powers of 1000); ns, us, ms, s; %.


Exit status: that of COMMAND (128 + N if signal N ended it), 1 if --check finds something wrong, 2
if the pair could not be made.")]
pub(crate) struct PairArgs {
    /// The rate of the cable in each direction [default: no limit].
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The rate of each flow in each direction, instead: what one TCP connection reaches.
    #[arg(long, value_name = "RATE", conflicts_with = "rate")]
    flow_rate: Option<Rate>,
    /// How long a packet is in flight, one way.
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = link::delay)]
    delay: Duration,
    /// The part of the packets that is lost.
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    loss: Loss,
    /// The longest IP packet, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: u32,
    /// What delays and loses packets.
    #[arg(long, value_name = "WHICH", value_enum, default_value = "auto")]
    cable: Cable,
    /// Decides which packets the relay loses.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A shell command that runs in the server. Its output goes to standard error.
    #[arg(long, value_name = "COMMAND")]
    serve: Option<String>,
    /// Make the pair, print its names and how to remove it, and leave it there.
    #[arg(long, conflicts_with_all = ["serve", "command"])]
    keep: bool,
    /// Measure pairs with iperf3, sockperf and bmi-perf, and compare with what is known.
    #[arg(long, conflicts_with_all = ["serve", "command", "keep"])]
    check: bool,
    /// With --check: the directory with the program bmi-perf [default: it is built, in release].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Run as the first process of a namespace. The path is that of a pipe (`isolation`).
    #[arg(long, hide = true)]
    leader: Option<PathBuf>,
    /// The program that runs in the client, with its arguments [default: a shell].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// The exit status of a run that could not be made.
const FAILED: u8 = 2;

/// `cargo xtask pair`.
pub(crate) fn main(root: &Path, args: &PairArgs) -> ExitCode {
    let run = || match &args.leader {
        None => {
            prepare(root)?;
            if args.keep { keep(args) } else { isolation::lead().map(code) }
        }
        Some(end) => {
            isolation::follow(end)?;
            let ended = if args.check { check(root, args) } else { run(args) };
            isolation::end_others();
            ended
        }
    };
    ExitCode::from(run().unwrap_or_else(|why: String| {
        eprintln!("error: {why}");
        FAILED
    }))
}

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    /// A release build, and some minutes of measurements.
    const LIMIT: Duration = Duration::from_secs(4800);
    if !setup::is_root() {
        return Err(Failure::skip("network namespaces are made by root"));
    }
    Invocation::new(root, isolation::OWN_PROGRAM, "pair --check").run(LIMIT)?;
    Ok(Totals::PASSED)
}

/// Looks for what a pair needs.
fn prepare(root: &Path) -> Result<(), String> {
    if !setup::is_root() {
        return Err("network namespaces are made by root; try again as root".to_owned());
    }
    setup::install(root, Need::Pair).map_err(|failure: Failure| failure.reason)
}

fn check(root: &Path, args: &PairArgs) -> Result<u8, String> {
    let totals = check::run(root, args.bin_dir.as_deref())?;
    println!("{totals}");
    Ok(u8::from(totals.failed > 0))
}

impl PairArgs {
    fn link(&self) -> Link {
        let PairArgs { rate, flow_rate, delay, loss, mtu, cable, seed, .. } = *self;
        Link { rate, flow_rate, delay, loss, mtu, cable, seed }
    }
}

fn run(args: &PairArgs) -> Result<u8, String> {
    if let Some(program) = args.command.first().filter(|name| setup::program(name).is_none()) {
        return Err(format!("there is no program `{program}`"));
    }
    let mut pair = Pair::make(&args.link(), false)?;
    if let Some(line) = &args.serve {
        pair.serve(line)?;
    }
    let status = work(&pair, &args.command)?;
    for ended in pair.failed() {
        eprintln!("warning: the serve command has ended: {ended}");
    }
    Ok(code(status))
}

/// Runs the program of the client, or a shell.
fn work(pair: &Pair, words: &[String]) -> Result<ExitStatus, String> {
    let shell = std::env::var("SHELL").ok().filter(|shell| setup::program(shell).is_some());
    let mut command: Command = match words.split_first() {
        Some((program, args)) => pair.command(&pair.client, program, args),
        None => {
            eprintln!("a shell in the client {CLIENT}; the server is {SERVER}; `exit` removes both");
            eprintln!("a program in the server: nsenter --net={} PROGRAM", pair.server.path());
            pair.command(&pair.client, &shell.unwrap_or_else(|| "sh".to_owned()), &[])
        }
    };
    command.status().map_err(|error| format!("the command cannot be started: {error}"))
}

/// Returns the exit status of a program, as shells do.
fn code(status: ExitStatus) -> u8 {
    let number = status.code().or(status.signal().map(|signal| 128 + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(1)
}

/// Makes a pair that stays, and prints its names.
fn keep(args: &PairArgs) -> Result<u8, String> {
    let [server, client] = ["server", "client"].map(|host| format!("bmi-kept-{}-{host}", std::process::id()));
    Pair::make(&args.link(), true)?.keep([&server, &client])?;
    println!("server {server} {SERVER}\nclient {client} {CLIENT}");
    eprintln!("run a program in one:  ip netns exec {client} PROGRAM");
    eprintln!("remove both:           ip netns delete {server}; ip netns delete {client}");
    eprintln!("end what runs in one:  ip netns pids {server} | xargs -r kill");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_is_that_of_the_command() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
    }
}
