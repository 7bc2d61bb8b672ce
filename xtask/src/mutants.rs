//! `cargo xtask mutants`: activates the bugs that are seeded in the code, one after the other, and
//! reports which of them the sweeps find.
//!
//! **Why.** A sweep that passes is evidence only if it is known to fail when there is a bug. See
//! `bmi_core::mutated`.
//!
//! **How.** The names of the bugs are read from the sources. The sweeps are those of the step
//! `tests`, which are built with the feature `mutants`. Each run of a sweep is a process with at
//! most one bug, which `BMI_MUTANT` names. A bug is found if a sweep that passes without it fails,
//! or does not end in time.
//!
//! **Seeds.** [`SEEDS_FILE`] has the sweep and the seed that found each bug the last time. Only
//! that seed is run, with the bug and without it. A change of the code may make the seed find
//! nothing more. Then all sweeps look for the bug anew, and `--learn` records what finds it now.
//! What a sweep cannot see, for instance what a loop costs or how a real socket behaves, has an
//! ordinary test: the file names it instead of a seed, and that test must fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::command::{Failure, Invocation};
use crate::metadata::{self, Built};
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
/// The seeds and the tests that are known to find the bugs, as JSON.
const SEEDS_FILE: &str = "xtask/seeds.json";
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

/// A seeded bug.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Bug {
    name: String,
    /// The crate that contains it.
    package: String,
}

/// What finds a bug.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Finder {
    /// A seed of a sweep.
    Seed { sweep: String, seed: u64 },
    /// A test of a program, which is an integration test or [`UNIT_TESTS`].
    Test { package: String, program: String, test: String },
}

/// The program of the unit tests of a package.
const UNIT_TESTS: &str = "lib";

/// What is known to find the bugs, by bug.
type Finders = BTreeMap<String, Finder>;

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
pub(crate) fn main(root: &Path, args: &MutantsArgs) -> Result<(), Failure> {
    check(root, args).map(drop)
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
    let seeds = read_seeds(root)?;
    let mut known = seeds.clone();
    // Without a seed, all sweeps search.
    known.retain(|_, finder| !args.learn || matches!(finder, Finder::Test { .. }));
    let programs = Programs::build(root, &bugs, &known)?;
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

fn read_seeds(root: &Path) -> Result<Finders, Failure> {
    let unreadable = |error: &dyn std::fmt::Display| Failure::new(format!("{SEEDS_FILE}: {error}"));
    let text = std::fs::read_to_string(root.join(SEEDS_FILE)).map_err(|error| unreadable(&error))?;
    serde_json::from_str(&text).map_err(|error| unreadable(&error))
}

/// Writes the seeds of the bugs that sweeps have found. Keeps the tests, and the seeds of bugs that
/// were not tried.
fn write_seeds(root: &Path, mut seeds: Finders, outcomes: &[Outcome]) -> Result<(), Failure> {
    for outcome in outcomes.iter().filter(|outcome| outcome.searched) {
        seeds.remove(&outcome.name);
        if let (Some(sweep), Some(seed)) = (outcome.found_by.clone(), outcome.seed) {
            seeds.insert(outcome.name.clone(), Finder::Seed { sweep, seed });
        }
    }
    let rows: Vec<String> = seeds
        .iter()
        .map(|(bug, finder)| format!("  {}: {}", serde_json::json!(bug), serde_json::json!(finder)))
        .collect();
    let text = format!("{{\n{}\n}}\n", rows.join(",\n"));
    std::fs::write(root.join(SEEDS_FILE), text).map_err(|error| Failure::new(format!("{SEEDS_FILE}: {error}")))
}

/// Prints the sum. Fails if a bug was not found.
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
    match missed.len() as u64 {
        0 => Ok(totals),
        failed => Err(Failure::counted(format!("{sum}; all are asked for"), Totals { failed, ..totals })),
    }
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
    known: Finders,
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
        match self.known.get(&bug.name) {
            None => {}
            Some(Finder::Test { package, program, test }) => {
                let command = test_command(self.root, package, self.programs.path(package, program)?, test, &bug.name);
                outcome.note("its test", command.captured(SWEEP_LIMIT));
                return Ok(outcome);
            }
            Some(Finder::Seed { sweep, seed }) => {
                let at = SWEEPS.iter().position(|one| one.test == sweep && one.looks_for(bug));
                if let Some(at) = at
                    && self.run(at, (*seed, seed + 1), bug, &mut outcome)?
                {
                    outcome.seed = Some(*seed);
                    return Ok(outcome);
                }
            }
        }
        outcome.searched = true;
        for (at, sweep) in SWEEPS.iter().enumerate().filter(|(_, sweep)| sweep.looks_for(bug)) {
            if self.run(at, (0, u64::from(self.args.seeds * sweep.share)), bug, &mut outcome)? {
                break;
            }
        }
        Ok(outcome)
    }

    /// Runs a sweep with the bug. If it fails, runs it without the bug too, up to the seed that
    /// failed, unless that was done. Returns true if it found the bug.
    fn run(&self, sweep: usize, seeds: (u64, u64), bug: &Bug, outcome: &mut Outcome) -> Result<bool, Failure> {
        let (area, cluster, variable) = CACHE;
        let Sweep { package, test, .. } = SWEEPS[sweep];
        let caches = test == cluster && bug.name.starts_with(area);
        let program = self.programs.path(package, test)?;
        let captured = |seeds: (u64, u64), bug| {
            let command = sweep_command(self.root, package, program, seeds, bug);
            let command = if caches && bug.is_none() { command.env(variable, "1") } else { command };
            command.captured(SWEEP_LIMIT * (seeds.1 - seeds.0).div_ceil(SEEDS.into()) as u32)
        };
        if !outcome.note(test, captured(seeds, Some(&bug.name))) {
            return Ok(false);
        }
        let seeds = (seeds.0, outcome.seed.map_or(seeds.1, |seed| seed + 1));
        let run = Run { sweep, seeds, caches };
        // One at a time: others may wait for the same one.
        let mut sound = self.sound.lock().unwrap_or_else(PoisonError::into_inner);
        if !sound.contains(&run) {
            let (result, output) = captured(seeds, None);
            result.map_err(|why| Failure::new(format!("{test} fails without any bug: {why}\n{output}")))?;
            sound.insert(run);
        }
        Ok(true)
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
fn test_command(root: &Path, package: &str, program: &Path, test: &str, bug: &str) -> Invocation {
    // Cargo runs tests in the directory of their package.
    let invocation = Invocation::new(&root.join(package), program, &format!("{test} --exact --nocapture"));
    invocation.env("RUST_BACKTRACE", "0").env("BMI_MUTANT", bug).env("CARGO_PKG_NAME", package)
}

/// The programs that look for bugs: those of [`SWEEPS`], and of the tests that are known.
struct Programs(Vec<Built>);

impl Programs {
    /// Builds the sweeps, and the ordinary tests that look for `bugs`.
    fn build(root: &Path, bugs: &[Bug], known: &Finders) -> Result<Programs, Failure> {
        let tests = bugs.iter().filter_map(|bug| match known.get(&bug.name) {
            Some(Finder::Test { program, .. }) => Some(program.as_str()),
            _ => None,
        });
        let tests: BTreeSet<&str> = SWEEPS.iter().map(|sweep| sweep.test).chain(tests).collect();
        // Build as the test command does. Then nothing is left to build here after its other steps.
        let mut args = vec!["--features".to_owned(), metadata::features(root)?];
        for test in tests {
            match test {
                UNIT_TESTS => args.push("--lib".to_owned()),
                test => args.extend(["--test", test].map(str::to_owned)),
            }
        }
        metadata::build(root, "test --no-run --workspace", &args).map(Programs)
    }

    /// Returns the path of a test program of a package.
    fn path(&self, package: &str, program: &str) -> Result<&Path, Failure> {
        let is_program = |built: &Built| built.name == program || program == UNIT_TESTS && built.is_unit_tests();
        let found = self.0.iter().find(|built| built.package == package && built.is_test && is_program(built));
        let missing = || Failure::new(format!("cargo built no test {program} of {package}"));
        found.map(|built| &*built.path).ok_or_else(missing)
    }
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
    fn seeds_and_tests_are_known_for_bugs_that_exist() {
        let (root, bugs) = (crate::root(), bugs(&crate::root()).unwrap());
        for (name, finder) in read_seeds(&root).unwrap() {
            let bug = bugs.iter().find(|bug| bug.name == name).unwrap_or_else(|| panic!("{name}"));
            let Finder::Seed { sweep, .. } = finder else { continue };
            assert!(SWEEPS.iter().any(|one| one.test == sweep && one.looks_for(bug)), "{name}");
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
