//! `cargo xtask mutants`: activates the bugs that are seeded in the code, one after the other, and
//! reports which of them the sweeps find.
//!
//! **Why.** A sweep that passes is evidence only if it is known to fail when there is a bug. See
//! `bmi_core::mutated`.
//!
//! **How.** The names of the bugs are read from the sources. The sweeps are those of the step
//! `tests`, which are built with the feature `mutants`. Each run of a sweep is a process with at
//! most one bug, which `BMI_MUTANT` names. A bug is found if a sweep that passes without it fails,
//! or does not end in time. What a sweep cannot see, for instance what a loop costs or how a real
//! socket behaves, has an ordinary test: [`ORDINARY`] names it, and that test must fail.
//!
//! **Seeds.** [`SEEDS_FILE`] has the sweep and the seed that found each bug the last time. Only
//! that seed is run, with the bug and without it. A change of the code may make the seed find
//! nothing more. Then all sweeps look for the bug anew, and `--learn` records what finds it now.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::command::{Failure, Invocation};
use crate::steps;
use crate::totals::Totals;

/// Activates the seeded bugs one after the other, and reports which of them the sweeps find.
#[derive(Args)]
pub(crate) struct MutantsArgs {
    /// Try only bugs whose name contains this (may be given several times).
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The number of seeds that a sweep tries if it has to search; quick sweeps try several times
    /// as many.
    #[arg(long, default_value_t = SEEDS)]
    seeds: u32,
    /// Search for all bugs, also for those with a seed that is known to find them, and write the
    /// seeds to xtask/seeds.json.
    #[arg(long)]
    learn: bool,
    /// The number of sweeps that run at the same time [default: the number of processors].
    #[arg(long)]
    jobs: Option<usize>,
    /// List the bugs and stop.
    #[arg(long)]
    list: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The number of seeds of a sweep that searches.
const SEEDS: u32 = 60;
/// The seeds that are known to find the bugs, as JSON.
const SEEDS_FILE: &str = "xtask/seeds.json";
/// The percentage of the bugs that must be found.
const LEAST_PERCENT: usize = 95;
/// Time limit for building the sweeps.
const BUILD_LIMIT: Duration = Duration::from_secs(2400);
/// Time limit for one sweep. Without a bug, each takes some seconds.
const SWEEP_LIMIT: Duration = Duration::from_secs(180);

/// A test binary that tries seeds.
struct Sweep {
    package: &'static str,
    test: &'static str,
    /// Prefixes of crate names. The sweep looks for bugs in these crates.
    of: &'static [&'static str],
    /// The number of seeds that take as long as one seed of the slowest sweep.
    share: u32,
}

/// The sweeps, in the order in which they are tried: the quickest first.
const SWEEPS: &[Sweep] = &[
    Sweep { package: "bmi-sim", test: "sweep", of: &["bmi-"], share: 1 },
    Sweep { package: "bmi-sim", test: "chaos", of: &["bmi-"], share: 1 },
    Sweep { package: "fs-server", test: "cluster", of: &["bmi-", "fs-"], share: 5 },
];

/// The sweep that looks for the bugs of the cache, in whatever crate they are. With such a bug all
/// of its servers have caches of their own, with another one none has. With this variable all have,
/// too.
const CACHE: (&str, &str, &str) = ("cache/", "cluster", "BMI_UNIFIER");

impl Sweep {
    fn looks_for(&self, bug: &Bug) -> bool {
        let (area, test, _) = CACHE;
        let of_crate = self.of.iter().any(|prefix| bug.package.starts_with(prefix));
        of_crate && (self.test == test || !bug.name.starts_with(area))
    }
}

/// A bug that no sweep can see, and the test that must fail with it.
struct Ordinary {
    bug: &'static str,
    package: &'static str,
    /// The test program: the name of an integration test, or [`UNIT_TESTS`].
    program: &'static str,
    test: &'static str,
}

/// The program of the unit tests of a package.
const UNIT_TESTS: &str = "lib";

/// The bugs that ordinary tests find.
const ORDINARY: &[Ordinary] = &[
    Ordinary {
        bug: "cache/frames-of-an-earlier-start",
        package: "bmi-cache",
        program: UNIT_TESTS,
        test: "arena::tests::open::frames_that_the_owner_has_not_noted_are_refused_while_they_hold_something",
    },
    Ordinary {
        bug: "cache/repeated-commit-discards",
        package: "fs-server",
        program: UNIT_TESTS,
        test: "store::unified::tests::a_repeated_commit_discards_nothing_that_was_written_while_it_waited",
    },
    Ordinary {
        bug: "cache/unit-computed-for-each-of-its-parts",
        package: "bmi-cache",
        program: UNIT_TESTS,
        test: "tests::strided::a_strided_list_write_does_not_stop_the_server",
    },
    Ordinary {
        bug: "iod/long-lists-without-a-break",
        package: "fs-server",
        program: "sim",
        test: "bounds::iod::every_request_to_an_io_server_with_a_cache_is_bounded",
    },
    Ordinary {
        bug: "cache/victims-searched-without-a-break",
        package: "fs-server",
        program: "sim",
        test: "bounds::iod::every_request_to_an_io_server_with_a_cache_is_bounded",
    },
    Ordinary {
        bug: "admission/one-peer-takes-all",
        package: "bmi-core",
        program: UNIT_TESTS,
        test: "comm::admission::tests::one_peer_has_three_quarters_and_many_leave_a_place",
    },
    Ordinary {
        bug: "identity/any-server-is-accepted",
        package: "fs-proto",
        program: UNIT_TESTS,
        test: "identity::tests::a_server_is_the_expected_one_or_an_error_names_both",
    },
    Ordinary {
        bug: "admission/turns-searched-without-a-place",
        package: "bmi-core",
        program: UNIT_TESTS,
        test: "comm::admission::tests::peers_that_wait_are_not_searched_while_no_place_is_free",
    },
    Ordinary {
        bug: "iod/views-of-all-peers-swept",
        package: "fs-server",
        program: "sim",
        test: "bounds::iod::every_request_to_an_io_server_with_a_cache_is_bounded",
    },
    Ordinary {
        bug: "manager/unknown-start-not-noticed",
        package: "fs-server",
        program: UNIT_TESTS,
        test: "manager::tests::a_manager_learns_that_it_has_gone_back_in_time_from_a_start_that_it_does_not_know",
    },
    Ordinary {
        bug: "manager/heartbeat-compared-with-all",
        package: "fs-server",
        program: "sim",
        test: "bounds::manager::every_request_to_a_manager_is_bounded",
    },
    Ordinary {
        bug: "cache/scattered-bytes-kept",
        package: "bmi-cache",
        program: UNIT_TESTS,
        test: "tests::strided::a_strided_list_write_that_is_given_up_does_not_stop_the_server",
    },
    Ordinary {
        bug: "cache/locks-compared-without-a-break",
        package: "bmi-cache",
        program: UNIT_TESTS,
        test: "range_locks::tests::others_run_while_very_many_locks_are_compared",
    },
    Ordinary {
        bug: "cache/all-units-discarded-at-once",
        package: "fs-server",
        program: "sim",
        test: "bounds::iod::every_request_to_an_io_server_with_a_cache_is_bounded",
    },
    Ordinary {
        bug: "cache/batch-of-any-number-of-units",
        package: "fs-server",
        program: "sim",
        test: "bounds::iod::every_request_to_an_io_server_with_a_cache_is_bounded",
    },
    Ordinary {
        bug: "endpoint/view-counts-as-awaited",
        package: "fs-server",
        program: "sim",
        test: "disk_stall::clients_that_were_lent_views_are_not_cut_because_the_disk_stalls",
    },
    Ordinary {
        bug: "manager/failed-duty-stops-the-others",
        package: "fs-server",
        program: "sim",
        test: "maintenance::a_datafile_that_cannot_be_removed_stops_nothing_else",
    },
    Ordinary {
        bug: "tcp/a-peer-that-does-not-read-is-dead",
        package: "bmi-tcp",
        program: "it",
        test: "silence::a_program_that_does_not_read_for_long_keeps_its_connection",
    },
    Ordinary {
        bug: "names/kept-without-their-entries",
        package: "bmi-sim",
        program: "it",
        test: "named_by_peers::the_name_of_an_announcement_that_was_received_cancels_no_other_message",
    },
    Ordinary {
        bug: "names/searched-one-by-one",
        package: "bmi-sim",
        program: "it",
        test: "named_by_peers::frames::a_message_of_each_kind_is_bounded",
    },
    Ordinary {
        bug: "offered-receive/unseen-searched-one-by-one",
        package: "bmi-sim",
        program: "it",
        test: "named_by_peers::frames::a_message_of_each_kind_is_bounded",
    },
    Ordinary {
        bug: "lent/revoked-at-once",
        package: "bmi-sim",
        program: "it",
        test: "ended_early::a_move_that_the_server_ends_early_ends_its_call_alone",
    },
    Ordinary {
        bug: "lent/left-without-bound",
        package: "bmi-sim",
        program: "it",
        test: "ended_early::a_bounded_number_of_memories_is_left",
    },
    Ordinary {
        bug: "call/an-operation-for-each-grant",
        package: "bmi-sim",
        program: "it",
        test: "ended_early::a_call_has_few_operations_however_many_grants_there_are",
    },
    Ordinary {
        bug: "eviction/without-a-word",
        package: "bmi-sim",
        program: "it",
        test: "evictions::a_request_that_crosses_the_decision_is_not_handled",
    },
    Ordinary {
        bug: "queue/cleared-for-each-that-leaves",
        package: "bmi-sim",
        program: "it",
        test: "named_by_peers::frames::what_a_peer_causes_without_a_message_is_bounded",
    },
];

/// A seeded bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Bug {
    name: String,
    /// The crate that contains it.
    package: String,
}

/// Where a bug was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Known {
    sweep: String,
    seed: u64,
}

/// The seeds that are known to find bugs, by bug.
type Seeds = BTreeMap<String, Known>;

/// The result for one bug.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    name: String,
    /// The sweep or the test that failed.
    found_by: Option<String>,
    /// The seed of the sweep, if it named one.
    seed: Option<u64>,
    /// True if no seed was known to find it, so all sweeps searched for it.
    searched: bool,
    /// The message of the failure.
    how: String,
    /// True if the code of the bug ran in any sweep.
    reached: bool,
    seconds: f64,
}

/// `cargo xtask mutants`.
pub(crate) fn main(root: &Path, args: &MutantsArgs) -> ExitCode {
    match check(root, args) {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    let (only, jobs, list, json) = (Vec::new(), None, false, false);
    check(root, &MutantsArgs { only, seeds: SEEDS, learn: false, jobs, list, json })
}

fn check(root: &Path, args: &MutantsArgs) -> Result<Totals, Failure> {
    let mut bugs = bugs(root)?;
    bugs.retain(|bug| args.only.is_empty() || args.only.iter().any(|text| bug.name.contains(text)));
    if args.list && args.json {
        println!("{}", serde_json::to_string_pretty(&bugs).map_err(|error| Failure::new(error.to_string()))?);
        return Ok(Totals::NONE);
    }
    if args.list {
        bugs.iter().for_each(|bug| println!("{:<52} {}", bug.name, bug.package));
        return Ok(Totals::NONE);
    }
    let programs = build(root, &bugs)?;
    let seeds = read_seeds(root)?;
    let known = if args.learn { Seeds::new() } else { seeds.clone() };
    let outcomes = try_all(args, &bugs, &Search { root, args, programs, known, sound: Mutex::default() })?;
    if args.learn {
        write_seeds(root, seeds, &outcomes)?;
    }
    if args.json {
        let json = serde_json::to_string_pretty(&outcomes).map_err(|error| Failure::new(error.to_string()))?;
        println!("{json}");
    }
    report(&outcomes, args.json)
}

fn read_seeds(root: &Path) -> Result<Seeds, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| Failure::new(format!("{SEEDS_FILE}: {error}"));
    let text = std::fs::read_to_string(root.join(SEEDS_FILE)).map_err(|error| unreadable(&error))?;
    serde_json::from_str(&text).map_err(|error| unreadable(&error))
}

/// Writes the seeds of the bugs that sweeps have found. Keeps those of bugs that were not tried.
fn write_seeds(root: &Path, mut seeds: Seeds, outcomes: &[Outcome]) -> Result<(), Failure> {
    for outcome in outcomes {
        seeds.remove(&outcome.name);
        if let (Some(sweep), Some(seed)) = (&outcome.found_by, outcome.seed) {
            seeds.insert(outcome.name.clone(), Known { sweep: sweep.clone(), seed });
        }
    }
    let rows: Vec<String> = seeds
        .iter()
        .map(|(bug, known)| format!("  {}: {}", serde_json::json!(bug), serde_json::json!(known)))
        .collect();
    let text = format!("{{\n{}\n}}\n", rows.join(",\n"));
    std::fs::write(root.join(SEEDS_FILE), text).map_err(|error| Failure::new(format!("{SEEDS_FILE}: {error}")))
}

/// Prints the sum. Fails if too few bugs were found.
fn report(outcomes: &[Outcome], quiet: bool) -> Result<Totals, Failure> {
    let missed: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.found_by.is_none()).collect();
    let found = outcomes.len() - missed.len();
    let totals = Totals { passed: found as u64, ..Totals::NONE };
    let sum = format!("{found} of {} seeded bugs were found", outcomes.len());
    if !quiet {
        println!("{sum}");
        for outcome in &missed {
            println!("missed: {}{}", outcome.name, if outcome.reached { "" } else { " (no sweep came by its place)" });
        }
        let searched: Vec<&str> =
            outcomes.iter().filter(|outcome| outcome.searched).map(|outcome| &*outcome.name).collect();
        if !searched.is_empty() {
            println!(
                "searched for, at a price; `cargo xtask mutants --learn` records the seeds: {}",
                searched.join(", ")
            );
        }
    }
    if found * 100 < outcomes.len() * LEAST_PERCENT {
        let failed = Totals { failed: missed.len() as u64, ..totals };
        return Err(Failure::counted(format!("{sum}; at least {LEAST_PERCENT} % are asked for"), failed));
    }
    Ok(totals)
}

/// Tries all bugs, several at the same time, and prints each result.
///
/// # Errors
/// If a sweep fails without any bug.
#[expect(clippy::disallowed_methods, reason = "tells a person how long it took")]
fn try_all(args: &MutantsArgs, bugs: &[Bug], search: &Search<'_>) -> Result<Vec<Outcome>, Failure> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)).max(1);
    let work = || -> Result<(), Failure> {
        while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begin = Instant::now();
            let mut outcome = search.try_one(bug)?;
            outcome.seconds = begin.elapsed().as_secs_f64();
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            if !args.json {
                let by = outcome.found_by.as_deref().map_or("MISSED".to_owned(), |by| format!("found by {by}"));
                let seed = outcome.seed.map_or_else(String::new, |seed| seed.to_string());
                let how = &outcome.how;
                println!("{by:<18} {seed:>4} {:>5.1} s  {:<48} {how:.80}", outcome.seconds, outcome.name);
            }
            done.insert(outcome.name.clone(), outcome);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        let stopped = |_| Failure::new("a thread has panicked");
        workers.into_iter().try_for_each(|worker| worker.join().map_err(stopped)?)
    })?;
    Ok(done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
}

/// What a search for bugs has.
struct Search<'a> {
    root: &'a Path,
    args: &'a MutantsArgs,
    programs: Programs,
    known: Seeds,
    /// The runs that have passed without a bug.
    sound: Mutex<BTreeSet<Run>>,
}

/// A run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    /// The place in [`SWEEPS`].
    sweep: usize,
    /// The first seed, and the first that is not tried.
    seeds: (u64, u64),
    /// With caches only ([`CACHE`]).
    caches: bool,
}

impl Search<'_> {
    /// # Errors
    /// If a sweep fails without any bug.
    fn try_one(&self, bug: &Bug) -> Result<Outcome, Failure> {
        let name = bug.name.clone();
        let (found_by, how) = (None, String::new());
        let mut outcome = Outcome { name, found_by, seed: None, searched: false, how, reached: false, seconds: 0.0 };
        if let Some((row, program)) = self.programs.ordinary.get(bug.name.as_str()) {
            outcome.note("its test", ordinary_command(self.root, row, program).captured(SWEEP_LIMIT));
            return Ok(outcome);
        }
        let known = self.known.get(&bug.name);
        if let Some(known) = known
            && let Some(sweep) = SWEEPS.iter().position(|sweep| sweep.test == known.sweep && sweep.looks_for(bug))
            && self.run(sweep, (known.seed, known.seed + 1), bug, &mut outcome)?
        {
            outcome.seed = Some(known.seed);
            return Ok(outcome);
        }
        outcome.searched = true;
        for (at, sweep) in SWEEPS.iter().enumerate().filter(|(_, sweep)| sweep.looks_for(bug)) {
            if self.run(at, (0, u64::from(self.args.seeds * sweep.share)), bug, &mut outcome)? {
                break;
            }
        }
        Ok(outcome)
    }

    /// Runs a sweep without the bug, unless that was done, and with it. Returns true if it found
    /// the bug.
    fn run(&self, sweep: usize, seeds: (u64, u64), bug: &Bug, outcome: &mut Outcome) -> Result<bool, Failure> {
        let (area, test, variable) = CACHE;
        let caches = SWEEPS[sweep].test == test && bug.name.starts_with(area);
        let run = Run { sweep, seeds, caches };
        let command = |bug| sweep_command(self.root, SWEEPS[sweep].package, &self.programs.sweeps[sweep], seeds, bug);
        // One at a time: others may wait for the same one.
        let mut sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if !sound.contains(&run) {
            let plain = command(None);
            let (result, output) = if caches { plain.env(variable, "1") } else { plain }.captured(SWEEP_LIMIT);
            let failed = |why| Failure::new(format!("{} fails without any bug: {why}\n{output}", SWEEPS[sweep].test));
            result.map_err(failed)?;
            sound.insert(run);
        }
        drop(sound);
        Ok(outcome.note(SWEEPS[sweep].test, command(Some(&bug.name)).captured(SWEEP_LIMIT)))
    }
}

impl Outcome {
    /// Notes the result of a run. Returns true if it found the bug.
    fn note(&mut self, by: &str, (result, output): (Result<(), Failure>, String)) -> bool {
        self.reached |= output.contains("is reached");
        let Err(failure) = result else { return false };
        self.found_by = Some(by.to_owned());
        self.seed = seed_in(&output);
        self.how = words(&output).unwrap_or_else(|| failure.to_string());
        true
    }
}

/// Returns the seed in the command that a sweep prints to repeat its first failure.
fn seed_in(output: &str) -> Option<u64> {
    let (_, rest) = output.split_once("BMI_SEED=")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the message of a test's first panic.
fn words(output: &str) -> Option<String> {
    let mut lines = output.lines().skip_while(|line| !line.contains("panicked at"));
    lines.next()?;
    let (first, second) = (lines.next()?.trim(), lines.next().unwrap_or_default().trim());
    // The test harness prints the seed first.
    Some(if first.starts_with("check ") { second } else { first }.to_owned())
}

/// Returns a run of a sweep, with a bug or without one. The run is left as soon as a seed fails: no
/// plan is shrunk, and nothing is run for its digest.
fn sweep_command(root: &Path, package: &str, program: &Path, (from, to): (u64, u64), bug: Option<&str>) -> Invocation {
    let mut invocation = Invocation::new(root, program, "--nocapture --skip digests_to_compare");
    invocation = invocation.env("BMI_SEEDS", format!("{from}..{to}")).env("BMI_SHRINK", "0");
    invocation = invocation.env("RUST_BACKTRACE", "0").env("BMI_MUTANT", bug.unwrap_or_default());
    // The sweep prints a command to repeat it. That command names the package in this variable,
    // which must not be this program's.
    invocation.env("CARGO_PKG_NAME", package)
}

/// Returns a run of the ordinary test that must find a bug.
fn ordinary_command(root: &Path, row: &Ordinary, program: &Path) -> Invocation {
    // Cargo runs tests in the directory of their package.
    let dir = root.join(row.package);
    let invocation = Invocation::new(&dir, program, &format!("{} --exact --nocapture", row.test));
    invocation.env("RUST_BACKTRACE", "0").env("BMI_MUTANT", row.bug).env("CARGO_PKG_NAME", row.package)
}

/// The programs that look for bugs.
struct Programs {
    /// Those of [`SWEEPS`], in their order.
    sweeps: Vec<PathBuf>,
    /// The rows of [`ORDINARY`] for the bugs that are tried, by bug.
    ordinary: BTreeMap<&'static str, (&'static Ordinary, PathBuf)>,
}

/// Builds the sweeps, and the ordinary tests that look for `bugs`.
fn build(root: &Path, bugs: &[Bug]) -> Result<Programs, Failure> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
        package_id: Option<String>,
        target: Option<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let rows: Vec<&Ordinary> = ORDINARY.iter().filter(|row| bugs.iter().any(|bug| bug.name == row.bug)).collect();
    // Build as the test command does. Then nothing is left to build here after its other steps.
    let mut args = vec!["--features".to_owned(), steps::features(root)?];
    let tests: BTreeSet<&str> =
        SWEEPS.iter().map(|sweep| sweep.test).chain(rows.iter().map(|row| row.program)).collect();
    for test in tests {
        match test {
            UNIT_TESTS => args.push("--lib".to_owned()),
            test => args.extend(["--test", test].map(str::to_owned)),
        }
    }
    let build = Invocation::cargo(root, "test --no-run --workspace --message-format json").args(&args);
    let output = build.output(BUILD_LIMIT)?;
    let messages: Vec<Message> = output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let program = |package: &str, test: &str| {
        let is_it = |message: &&Message| {
            // `path+file:///…/fs-server#0.1.0`
            let id = message.package_id.as_deref().unwrap_or_default();
            let is_package = id.rsplit_once('#').is_some_and(|(path, _)| path.rsplit('/').next() == Some(package));
            let is_program = |target: &Target| match test {
                UNIT_TESTS => target.kind.iter().any(|kind| kind == "lib"),
                test => target.name == test && target.kind.iter().any(|kind| kind == "test"),
            };
            is_package && message.executable.is_some() && message.target.as_ref().is_some_and(is_program)
        };
        let found = messages.iter().find(is_it).and_then(|message| message.executable.clone());
        found.ok_or_else(|| Failure::new(format!("cargo built no test {test} of {package}")))
    };
    let sweeps = SWEEPS.iter().map(|sweep| program(sweep.package, sweep.test)).collect::<Result<_, _>>()?;
    let ordinary = rows.into_iter().map(|row| Ok((row.bug, (row, program(row.package, row.program)?))));
    Ok(Programs { sweeps, ordinary: ordinary.collect::<Result<_, Failure>>()? })
}

/// Returns the bugs in the sources, sorted by name.
fn bugs(root: &Path) -> Result<Vec<Bug>, Failure> {
    let unreadable = |path: &Path, error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let mut bugs = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().map_err(|error| unreadable(&folder, error))? {
            let path = entry.map_err(|error| unreadable(&folder, error))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') && name != "xtask" {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "mutated.rs" {
                let text = std::fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
                let inside = path.strip_prefix(root).unwrap_or(&path);
                let package = inside.iter().next().unwrap_or_default().to_string_lossy().into_owned();
                bugs.extend(names(&text).into_iter().map(|name| Bug { name, package: package.clone() }));
            }
        }
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    match bugs.windows(2).find(|two| two[0].name == two[1].name) {
        Some(two) => Err(Failure::new(format!("two places have a bug named {}", two[0].name))),
        None => Ok(bugs),
    }
}

/// Returns the names of the bugs in a source file.
fn names(text: &str) -> Vec<String> {
    let calls = text.split("mutated").skip(1).filter_map(|rest| {
        let call = rest.strip_prefix("_each").unwrap_or(rest).strip_prefix('(')?;
        // A bug that is not active every time has a number before its name.
        let name = call.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',' || c.is_whitespace());
        Some(name.strip_prefix('"')?.split_once('"')?.0.to_owned())
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_sources() {
        let text = "use crate::{mutated, mutated_each};\nif mutated(\"a/one\") {}\nmutated_each(\n  20,\n \"b/two\")\nmutated(name)";
        assert_eq!(names(text), ["a/one", "b/two"]);
    }

    #[test]
    fn there_are_at_least_thirty_bugs_of_as_many_names() {
        let bugs = bugs(&crate::root()).unwrap();
        assert!(bugs.len() >= 30, "{bugs:?}");
        assert!(bugs.iter().all(|bug| bug.name.split('/').count() == 2), "{bugs:?}");
    }

    #[test]
    fn ordinary_tests_are_named_for_bugs_that_exist() {
        let bugs = bugs(&crate::root()).unwrap();
        for row in ORDINARY {
            assert!(bugs.iter().any(|bug| bug.name == row.bug), "{}", row.bug);
        }
    }

    #[test]
    fn bugs_of_the_cache_are_looked_for_over_servers_with_caches_only() {
        let bug = |name: &str, package: &str| Bug { name: name.to_owned(), package: package.to_owned() };
        let by =
            |bug: Bug| SWEEPS.iter().filter(|sweep| sweep.looks_for(&bug)).map(|sweep| sweep.test).collect::<Vec<_>>();
        assert_eq!(by(bug("cache/dirty-bit-lost", "bmi-cache")), ["cluster"]);
        assert_eq!(by(bug("credit/bytes-not-returned", "bmi-core")), ["sweep", "chaos", "cluster"]);
        assert_eq!(by(bug("store/truncate-not-synced", "fs-server")), ["cluster"]);
        let of_cache = bugs(&crate::root()).unwrap().into_iter().filter(|bug| bug.name.starts_with(CACHE.0)).count();
        assert!(of_cache >= 10, "{of_cache}");
    }

    #[test]
    fn seeds_are_known_for_bugs_that_exist_and_have_no_test_of_their_own() {
        let (root, bugs) = (crate::root(), bugs(&crate::root()).unwrap());
        for (name, known) in read_seeds(&root).unwrap() {
            let bug = bugs.iter().find(|bug| bug.name == name).unwrap_or_else(|| panic!("{name}"));
            assert!(ORDINARY.iter().all(|row| row.bug != name), "{name}");
            assert!(SWEEPS.iter().any(|sweep| sweep.test == known.sweep && sweep.looks_for(bug)), "{name}");
        }
        assert_eq!(seed_in("…\nagain: BMI_SEED=17 cargo test -p bmi-sim\nagain: BMI_SEED=3 cargo"), Some(17));
        assert_eq!(seed_in("killed"), None);
    }

    #[test]
    fn the_words_of_a_failure_are_its_panic() {
        let output = "test a ... \nthread 'a' panicked at x.rs:1:2:\nit went wrong\nnote: run with";
        assert_eq!(words(output).as_deref(), Some("it went wrong"));
        assert_eq!(words("killed"), None);
    }
}
