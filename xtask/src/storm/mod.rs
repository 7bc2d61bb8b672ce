//! `cargo xtask storm`: runs commands against a cluster of processes while servers are killed and
//! stopped, and compares all that is read with models.
//!
//! **Why.** The simulator tests the same code under more faults, but it does not test the programs.
//! The storm has the command line with its repetitions, real page caches, sockets that the kernel
//! closes, and servers that do nothing for a second.
//!
//! **How.**
//! 1. A cluster is begun in a directory of its own: a manager and I/O servers, each a process
//!    ([`cluster`]).
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
//! 4. No server outlives the storm, however it ends ([`guard`]).
//!
//! The seed decides which commands and blows are drawn. How they meet in time is up to the machine,
//! so a seed does not repeat a run.
//!
//! | module | what |
//! |---|---|
//! | `content` | the bytes of a version |
//! | `worlds` | the exact model of the names of one worker |
//! | `history` | the model of a name that several workers use |
//! | `client` | one command |
//! | `worker` | random commands, compared with the models |
//! | `cluster`, `guard` | servers as processes, and their certain end |
//! | `killer` | kills and stops |
//! | `verify` | what is checked afterwards |
//! | `report` | counts and findings |

mod client;
pub(crate) mod cluster;
mod content;
pub(crate) mod guard;
mod history;
mod killer;
mod report;
mod verify;
mod worker;
mod worlds;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi_report::stats::{self, Random};
use clap::Args;

use crate::command::{Failure, Invocation};
use crate::steps;
use crate::totals::Totals;
use client::{Client, Clock};
use cluster::{Cluster, Services};
use content::Content;
use guard::Guard;
use history::History;
use killer::Killer;
use report::{Blows, Report, Space, Tally};
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
    /// Seed of what is drawn [default: taken from the clock, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// The directory with the programs pvfsd and pvfs [default: they are built].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Keep the directory with logs and data. It is also kept if something was wrong.
    #[arg(long)]
    keep: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

/// Time limit for building the programs.
const BUILD_LIMIT: Duration = Duration::from_secs(2400);
/// Longest wait for all servers to answer.
const START_LIMIT_US: u64 = 60_000_000;
/// Time between two lines of progress.
const PROGRESS_US: u64 = 5_000_000;
/// The number of names that all workers use.
const SHARED: usize = 4;
/// The exit status of a storm that could not be run.
const FAILED: u8 = 2;

/// What all parts of a storm share.
struct Storm {
    dir: PathBuf,
    clock: Clock,
    client: Client,
    /// True if `pvfs` has the command `truncate`.
    truncates: bool,
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

    fn abandoned(&self) -> BTreeSet<String> {
        locked(&self.abandoned).clone()
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        locked(&self.tally)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the workers to end, also when the thread that has it panics.
struct End<'a>(&'a Storm);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// `cargo xtask storm`.
pub(crate) fn main(root: &Path, args: &StormArgs) -> ExitCode {
    let report = match &args.bin_dir {
        Some(dir) => std::path::absolute(dir).map_err(|error| Failure::new(error.to_string())),
        None => build(root),
    };
    match report.and_then(|programs| run(&programs, args).map_err(Failure::new)) {
        Ok(report) => {
            match serde_json::to_string_pretty(&report) {
                Ok(json) if args.json => println!("{json}"),
                _ => print!("{}", report.render()),
            }
            if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

/// The step of the test command: a short storm with the programs in `programs`.
pub(crate) fn step(programs: &Path) -> Result<Totals, Failure> {
    let args = StormArgs {
        kills: 12,
        workers: 6,
        iods: 4,
        every: 400,
        limit: 20,
        settle: 90,
        service: Services::Mixed,
        seed: None,
        bin_dir: None,
        keep: false,
        json: false,
    };
    let report = run(programs, &args).map_err(Failure::new)?;
    print!("{}", report.render());
    match report.is_good() {
        true => Ok(Totals::PASSED),
        false => Err(Failure::counted(format!("{} wrong results", report.wrong_in_all), Totals::FAILED)),
    }
}

/// Builds the programs and returns their directory.
fn build(root: &Path) -> Result<PathBuf, Failure> {
    let args = ["--features".to_owned(), steps::features(root)?];
    Invocation::cargo(root, steps::BUILD).args(&args).run_aside(BUILD_LIMIT)?;
    Ok(crate::target(root).join("debug"))
}

/// Runs a storm. The error is a reason why it could not be run to its end.
fn run(programs: &Path, args: &StormArgs) -> Result<Report, String> {
    let seed = args.seed.unwrap_or_else(stats::seed);
    let mut random = Random::new(seed);
    eprintln!("storm: seed {seed}, {} kills, {} workers, {} I/O servers", args.kills, args.workers, args.iods);
    let dir = std::env::temp_dir().join(format!("pvfs-storm-{}", std::process::id()));
    // Not a directory that is there already, because the guard removes it.
    fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let guard = Guard::start((!args.keep).then_some(&dir))?;
    let mut cluster = Cluster::start(&dir, &programs.join("pvfsd"), args.iods.into(), args.service, guard)?;
    let result = run_in(&mut cluster, &dir, programs, args, seed, &mut random);
    let is_good = matches!(&result, Ok(report) if report.is_good());
    if !is_good {
        cluster.keep()?;
    }
    match result {
        Ok(report) => Ok(Report { kept: (args.keep || !is_good).then(|| dir.display().to_string()), ..report }),
        Err(why) => Err(format!("{why}\nkept: {}", dir.display())),
    }
}

fn run_in(
    cluster: &mut Cluster,
    dir: &Path,
    programs: &Path,
    args: &StormArgs,
    seed: u64,
    random: &mut Random,
) -> Result<Report, String> {
    let storm = prepare(cluster, dir, programs)?;
    let mut log = File::create(dir.join("killer.log")).map_err(|error| format!("killer.log: {error}"))?;
    let mut killer = Killer::new(cluster, storm.clock, Random::new(random.number()), move |line| {
        let _ = writeln!(log, "{line}");
    });
    verify::await_servers(&storm, &mut killer, START_LIMIT_US)?;
    let made = storm.client.run(&["mkdir", "/shared"])?;
    if !made.is_acknowledged() {
        return Err(format!("{}: {}", made.line, made.errors));
    }
    let workers = (0..args.workers.into()).map(|number| Worker::new(&storm, number, Random::new(random.number())));
    let workers = workers.collect::<Result<Vec<_>, String>>()?;
    let mut workers = rage(&storm, &mut killer, workers, args)?;
    let (blows, space) = settle(&storm, &mut killer, &mut workers, args.settle * 1_000_000)?;
    drop(killer);
    verify::check_servers(&storm, cluster, &blows);
    verify::check_coverage(&storm, &blows);
    let tally = storm.tally();
    Ok(Report {
        seed,
        seconds: storm.clock.now_us() as f64 / 1e6,
        left_out: if storm.truncates { Vec::new() } else { vec!["truncate"] },
        blows,
        operations: tally.operations(),
        space,
        wrong_in_all: tally.wrong_in_all,
        wrong: tally.wrong.clone(),
        kept: None,
    })
}

fn prepare(cluster: &Cluster, dir: &Path, programs: &Path) -> Result<Storm, String> {
    let (clock, manager) = (Clock::start(), cluster.manager.clone());
    let client = Client { pvfs: programs.join("pvfs"), manager, clock, dir: dir.to_owned() };
    let truncates = client.has_command("truncate")?;
    let shared = (0..SHARED).map(|index| (format!("/shared/s{index}"), Mutex::new(History::new()))).collect();
    Ok(Storm {
        dir: dir.to_owned(),
        clock,
        client,
        truncates,
        shared,
        versions: Mutex::default(),
        abandoned: Mutex::default(),
        tally: Mutex::default(),
        is_over: AtomicBool::new(false),
        is_calm: AtomicBool::new(false),
    })
}

/// Lets the workers work while servers are hit.
fn rage<'a>(
    storm: &'a Storm,
    killer: &mut Killer<'_>,
    workers: Vec<Worker<'a>>,
    args: &StormArgs,
) -> Result<Vec<Worker<'a>>, String> {
    let mut shown_us = storm.clock.now_us();
    let progress = |kills: u32| {
        let now_us = storm.clock.now_us();
        if now_us - shown_us >= PROGRESS_US {
            shown_us = now_us;
            let (tally, seconds) = (storm.tally(), now_us / 1_000_000);
            let ((acknowledged, failed), wrong) = (tally.sums(), tally.wrong_in_all);
            eprintln!("{seconds:>5} s  {kills} kills, {acknowledged} acknowledged, {failed} failed, {wrong} wrong");
        }
    };
    std::thread::scope(|scope| {
        let end = End(storm);
        let start = |mut worker: Worker<'a>| scope.spawn(move || worker.run().map(|()| worker));
        let running: Vec<_> = workers.into_iter().map(start).collect();
        let end_us = storm.clock.now_us() + args.limit * 1_000_000;
        let killed = killer.run(args.kills, args.every * 1000, end_us, progress);
        drop(end);
        let panicked = |_| Err("a worker panicked".to_owned());
        let workers = running.into_iter().map(|worker| worker.join().unwrap_or_else(panicked)).collect();
        killed.and(workers)
    })
}

/// Checks everything after the storm.
fn settle(
    storm: &Storm,
    killer: &mut Killer<'_>,
    workers: &mut [Worker<'_>],
    limit_us: u64,
) -> Result<(Blows, Space), String> {
    verify::await_servers(storm, killer, START_LIMIT_US)?;
    storm.is_calm.store(true, Ordering::Relaxed);
    let mut states = verify::States::new();
    for worker in workers.iter_mut() {
        worker.check()?;
        states.extend(worker.states());
    }
    for (index, (name, _)) in storm.shared.iter().enumerate() {
        if let Some(worker) = workers.first_mut() {
            worker.check_shared(index)?;
        }
        let now_us = storm.clock.now_us();
        states.insert(name.clone(), storm.history(index).states(now_us, now_us));
    }
    let space = verify::await_quiet(storm, &states, limit_us)?;
    // A server may have ended since.
    killer.look()?;
    Ok((std::mem::take(&mut killer.blows), space))
}
