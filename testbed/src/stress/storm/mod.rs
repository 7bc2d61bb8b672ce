//! `cargo xtask storm`: runs commands against a cluster of processes while servers are killed and
//! stopped, and compares all that is read with models.
//!
//! **Why.** The simulator tests the same code under more faults, but it does not test the programs.
//! The storm has the command line with its repetitions, real page caches, sockets that the kernel
//! closes, and servers that do nothing for a second.
//!
//! **How.**
//! 1. A cluster is begun in a directory of its own: a manager and I/O servers, each a process.
//! 2. Workers run one random `pvfs` command after the other ([`worker`]). Meanwhile servers are
//!    killed and stopped ([`killer`]).
//! 3. All servers are started, and every name is read once more. When it is quiet, [`verify`]
//!    checks the listing, looks for datafiles that belong to no file, and for panics in the logs.
//!
//! **Invariants**
//! 1. An acknowledged command has had its effect. A failed one has had it as a whole or not at all,
//!    for each of its files.
//! 2. A file that was read is one whole version that the model has as possible.
//! 3. After the storm every file can be read, and no datafile is left that belongs to none.
//!
//! The seed decides which commands and blows are drawn. How they meet in time is up to the machine,
//! so a seed does not repeat a run.

mod killer;
mod report;
mod verify;
mod worker;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bmi_report::stats::{self, Random};
use clap::Args;
use testbed::Outcome;
use testbed::cluster::Cluster;
use testbed::command::{Ended, Pvfs};
use testbed::names::{Content, History};
use testbed::process::now_us;
use testbed::sandbox::Sandbox;

use crate::Common;
use killer::{Killer, Services};
use report::{Report, Tally};
use worker::Worker;

/// Options of `cargo xtask storm`.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask storm                                   200 kills, some minutes
  cargo xtask storm --kills 20 --seed 7               a short one
  cargo xtask storm --bin-dir target/release --json   other programs; the report as JSON

Exit status: 0 nothing was wrong, 1 something was, 2 the storm could not be run.")]
pub(crate) struct StormArgs {
    /// How often a server is killed. Servers are also stopped, about two times for three kills.
    #[arg(long, default_value_t = 200)]
    kills: u32,
    /// The number of workers, each with one command at a time.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=100))]
    workers: u16,
    /// The number of I/O servers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    iods: u16,
    /// The mean time between two blows, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 400, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    every: u64,
    /// Time limit of the blows, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// Longest wait until the servers are quiet after the storm, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=3600))]
    settle: u64,
    /// How the I/O servers move data.
    #[arg(long, value_enum, default_value_t = Services::Mixed)]
    service: Services,
    #[command(flatten)]
    common: Common,
}

/// Time limit of one request of a client.
const REQUEST_LIMIT: &str = "5s";
/// Time between two lines of progress.
const PROGRESS_US: u64 = 5_000_000;
/// The number of names that all workers use.
const SHARED: usize = 4;

/// What all parts of a storm share.
struct Storm {
    dir: PathBuf,
    began_us: u64,
    pvfs: Pvfs,
    /// The names that all workers use.
    shared: Vec<(String, Mutex<History>)>,
    /// All versions, from 1 on.
    versions: Mutex<Vec<Content>>,
    /// Names that no model has any more, because something was wrong with them.
    abandoned: Mutex<BTreeSet<String>>,
    tally: Mutex<Tally>,
    /// True when the workers shall end.
    is_over: AtomicBool,
    /// True when all servers run and are left alone.
    is_calm: AtomicBool,
}

impl Storm {
    fn new(dir: PathBuf, program: PathBuf, manager: &str) -> Storm {
        let options = ["--manager", manager, "--timeout", REQUEST_LIMIT, "-q"].map(str::to_owned).to_vec();
        Storm {
            began_us: now_us(),
            pvfs: Pvfs { program, options, dir: dir.clone() },
            dir,
            shared: (0..SHARED).map(|index| (format!("/shared/s{index}"), Mutex::new(History::absent()))).collect(),
            versions: Mutex::default(),
            abandoned: Mutex::default(),
            tally: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
        }
    }

    /// Returns the microseconds since the storm began.
    fn now_us(&self) -> u64 {
        now_us() - self.began_us
    }

    /// Runs a command. Its times are those of the storm.
    fn run(&self, pvfs: &Pvfs, args: &[&str]) -> Outcome<Ended> {
        let ended = pvfs.run(args)?;
        Ok(Ended { begin_us: ended.begin_us - self.began_us, end_us: ended.end_us - self.began_us, ..ended })
    }

    fn new_version(&self, name: &str, len: u64) -> Content {
        let mut versions = locked(&self.versions);
        let content = Content::new(name, versions.len() as u64 + 1, len);
        versions.push(content);
        content
    }

    fn version(&self, number: u64) -> Option<Content> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        locked(&self.versions).get(index).copied()
    }

    fn history(&self, index: usize) -> MutexGuard<'_, History> {
        locked(&self.shared[index].1)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        locked(&self.tally)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a storm and prints its report. Returns true if nothing was wrong. The error is a reason why
/// it could not be run to its end.
pub(crate) fn main(args: &StormArgs) -> Outcome<bool> {
    let seed = args.common.seed.unwrap_or_else(stats::seed);
    eprintln!("storm: seed {seed}, {} kills, {} workers, {} I/O servers", args.kills, args.workers, args.iods);
    let mut sandbox = Sandbox::new("storm")?;
    let result = run(&sandbox, args, seed);
    let is_good = result.as_ref().is_ok_and(Report::is_good);
    let is_kept = args.common.keep || !is_good;
    if is_kept {
        sandbox.keep();
    }
    let kept = sandbox.path().display().to_string();
    let report = result.map_err(|why| format!("{why}\nkept: {kept}"))?;
    let report = Report { kept: is_kept.then_some(kept), ..report };
    args.common.print(&report, &report.render())?;
    Ok(is_good)
}

fn run(sandbox: &Sandbox, args: &StormArgs, seed: u64) -> Outcome<Report> {
    let mut random = Random::new(seed);
    let dir = sandbox.path();
    let cluster = Cluster::begin(dir, &args.common.program("pvfsd")?, args.iods.into())?;
    let storm = Storm::new(dir.to_owned(), args.common.program("pvfs")?, &cluster.tcp[0]);
    let mut killer = Killer::start(cluster, &storm, args.service, Random::new(random.number()))?;
    verify::await_servers(&storm, &mut killer)?;
    storm.run(&storm.pvfs, &["mkdir", "/shared"])?.ok()?;
    let workers = (0..args.workers).map(|number| Worker::new(&storm, number, Random::new(random.number())));
    let mut workers = workers.collect::<Outcome<Vec<_>>>()?;
    rage(&storm, &mut killer, &mut workers, args)?;
    let states = read_all(&storm, &mut killer, &mut workers)?;
    let space = verify::await_quiet(&storm, &states, args.settle * 1_000_000)?;
    // A server may have ended since.
    killer.look()?;
    verify::check_servers(&storm, &killer);
    let (seconds, tally) = (storm.now_us() as f64 / 1e6, storm.tally());
    Ok(Report {
        seed,
        seconds,
        blows: killer.blows.clone(),
        operations: tally.operations(),
        space,
        wrong_in_all: tally.wrong_in_all,
        wrong: tally.wrong.clone(),
        kept: None,
    })
}

/// Lets the workers work while servers are hit.
fn rage(storm: &Storm, killer: &mut Killer<'_>, workers: &mut [Worker<'_>], args: &StormArgs) -> Outcome {
    /// Tells the workers to end, also when the killer panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut shown_us = storm.now_us();
    let progress = |kills: u32| {
        let now_us = storm.now_us();
        if now_us - shown_us >= PROGRESS_US {
            shown_us = now_us;
            let (tally, seconds) = (storm.tally(), now_us / 1_000_000);
            let ((acknowledged, failed), wrong) = (tally.sums(), tally.wrong_in_all);
            eprintln!("{seconds:>5} s  {kills} kills, {acknowledged} acknowledged, {failed} failed, {wrong} wrong");
        }
    };
    std::thread::scope(|scope| {
        let end = End(&storm.is_over);
        let running: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| worker.run())).collect();
        let end_us = storm.now_us() + args.limit * 1_000_000;
        let killed = killer.run(args.kills, args.every * 1000, end_us, progress);
        drop(end);
        let worked = running.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?);
        killed.and(worked)
    })
}

/// Reads every name once more. Returns the possible states of each.
fn read_all(storm: &Storm, killer: &mut Killer<'_>, workers: &mut [Worker<'_>]) -> Outcome<verify::States> {
    verify::await_servers(storm, killer)?;
    storm.is_calm.store(true, Ordering::Relaxed);
    let mut states = verify::States::new();
    for worker in workers.iter_mut() {
        worker.check()?;
        states.extend(worker.states());
    }
    for (index, (name, _)) in storm.shared.iter().enumerate() {
        workers[0].get_shared(index)?;
        let now_us = storm.now_us();
        states.insert(name.clone(), storm.history(index).states(now_us, now_us));
    }
    Ok(states)
}
