//! Runs everything in the machine as tests: builds, boots, runs, and reports.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::inside::scenario::{self, SCENARIOS, Scenario};
use super::machine::{CORPORA, Machine, Spec};
use super::report::Reporter;
use super::wire::{Job, Plan};
use super::{Kernel, Link, build, image, pair, stripped_folder};
use crate::command::Failure;
use crate::{setup, totals::Totals};

/// The tests to run, and how to report them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Run only these groups. If empty, run all usual ones.
    pub(crate) only: Vec<String>,
    /// Run only tests whose name contains this.
    pub(crate) filter: Option<String>,
    /// Environment variables in the machine.
    pub(crate) env: Vec<(String, String)>,
    /// Print one JSON document instead of lines.
    pub(crate) json: bool,
    /// Also print a line for each test that passed.
    pub(crate) verbose: bool,
}

impl Choice {
    fn has_group(&self, group: &str, usual: bool) -> bool {
        if self.only.is_empty() { usual } else { self.only.iter().any(|one| one == group) }
    }

    fn has_name(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// Time limit for one test, in seconds. Most take a second or two; the test of the memory of 200
/// connections 20 to 40.
const TEST_LIMIT_S: u64 = 180;
/// Time limit for everything that runs in one machine. The usual tests take less than four minutes.
const LIMIT: Duration = Duration::from_secs(900);
/// Test programs whose tests do not affect each other, so that several can run at the same time.
/// They are processes with their own queue pairs.
const SIDE_BY_SIDE: &[&str] = &["bmi_ib", "conformance"];
/// The number of processors of the machine.
pub(crate) const CPUS: u32 = 2;
/// The memory of a machine, in MiB. The host provides only what is used.
pub(crate) const MEMORY_MIB: u32 = 3072;

/// Runs the chosen tests and prints the results.
#[expect(clippy::disallowed_methods, reason = "tells a person how long it took")]
pub(crate) fn run(root: &Path, kernel: &Kernel, choice: &Choice) -> Result<Totals, Failure> {
    let mut reporter = Reporter::new(choice.json, choice.verbose);
    let mut work = Work::prepare(root, choice, &mut reporter)?;
    let begin = Instant::now();
    if !work.plan.jobs.is_empty() {
        work.programs.push(own_program(root)?);
        let spec = Spec {
            kernel,
            link: Link::Veth,
            plan: Some(&work.plan),
            programs: &work.programs,
            cpus: CPUS,
            memory_mib: MEMORY_MIB,
            limit: LIMIT,
        };
        let end =
            Machine::start(&spec, "one").and_then(|machine| machine.follow(&mut |record| reporter.take(record), None));
        if let Err(failure) = end {
            reporter.stopped(&failure.reason);
        }
    }
    if choice.has_group(scenario::PAIR, true) && choice.filter.is_none() {
        pair::run(root, kernel, &choice.env, &mut reporter)?;
        work.groups.push(scenario::PAIR.into());
    }
    // With a filter, a group may have no tests.
    if choice.filter.is_none() {
        work.groups.iter().for_each(|group| reporter.expect(group));
    }
    reporter.print(begin.elapsed().as_secs_f64());
    Ok(reporter.totals())
}

/// The work of one machine.
#[derive(Default)]
struct Work {
    plan: Plan,
    programs: Vec<(String, PathBuf)>,
    groups: Vec<String>,
}

impl Work {
    /// Builds the chosen programs, and reports what cannot be built.
    fn prepare(root: &Path, choice: &Choice, reporter: &mut Reporter) -> Result<Work, Failure> {
        let mut work = Work::default();
        work.plan.env = choice.env.clone();
        work.plan.env.push((CORPORA.0.into(), CORPORA.1.into()));
        let is_chosen = |scenario: &&Scenario| {
            scenario.group != scenario::PAIR
                && choice.has_group(scenario.group, scenario.usual)
                && choice.has_name(scenario.name)
        };
        let (before, after): (Vec<&Scenario>, Vec<&Scenario>) =
            SCENARIOS.iter().filter(is_chosen).partition(|scenario| scenario.group == "machine");
        before.into_iter().for_each(|scenario| work.scenario(scenario));
        for test in test_programs(root, choice, reporter)? {
            work.tests(root, &test, choice)?;
        }
        after.into_iter().for_each(|scenario| work.scenario(scenario));
        let names: Vec<&str> = work.scenarios().flat_map(|scenario| scenario.programs).copied().collect();
        work.programs.extend(programs(root, &names)?);
        Ok(work)
    }

    fn scenario(&mut self, scenario: &Scenario) {
        self.plan.jobs.push(Job::Scenario { group: scenario.group.into(), name: scenario.name.into() });
        self.note_group(scenario.group);
    }

    fn scenarios(&self) -> impl Iterator<Item = &'static Scenario> {
        self.plan.jobs.iter().filter_map(|job| match job {
            Job::Scenario { group, name } => scenario::find(group, name),
            _ => None,
        })
    }

    fn tests(&mut self, root: &Path, test: &build::Built, choice: &Choice) -> Result<(), Failure> {
        let inside = format!("/tests/{}", test.name);
        self.programs
            .push((inside.clone(), image::stripped(&test.path, &stripped_folder(root), &file_name(&test.path))?));
        self.note_group(&test.name);
        self.plan.jobs.push(Job::Tests {
            group: test.name.clone(),
            program: inside,
            filter: choice.filter.clone(),
            limit_s: TEST_LIMIT_S,
            workers: if SIDE_BY_SIDE.contains(&test.name.as_str()) { CPUS as usize } else { 1 },
        });
        Ok(())
    }

    fn note_group(&mut self, group: &str) {
        if !self.groups.iter().any(|one| one == group) {
            self.groups.push(group.into());
        }
    }
}

/// Builds the chosen test programs, and fails if a chosen group does not exist. If only scenarios
/// are chosen, cargo does not run.
fn test_programs(root: &Path, choice: &Choice, reporter: &mut Reporter) -> Result<Vec<build::Built>, Failure> {
    let is_scenario = |group: &String| SCENARIOS.iter().any(|scenario| scenario.group == group);
    if !choice.only.is_empty() && choice.only.iter().all(is_scenario) {
        return Ok(Vec::new());
    }
    let mut tests = Vec::new();
    let is_peer_only = choice.only.iter().all(|group| group == PEER || is_scenario(group)) && !choice.only.is_empty();
    if !is_peer_only {
        tests.extend(build::tests(root)?);
    }
    if choice.has_group(PEER, true) {
        match setup::set_up_peer(root) {
            Ok(()) => {
                tests.extend(build::peer(root)?.into_iter().map(|test| build::Built { name: PEER.into(), ..test }))
            }
            Err(why) => reporter.skip(PEER, "all", &why.reason),
        }
    }
    for asked in &choice.only {
        if !is_scenario(asked) && asked != PEER && !tests.iter().any(|test| &test.name == asked) {
            let names = tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(Failure::new(format!("there is no group {asked}; test programs are {names}")));
        }
    }
    tests.retain(|test| choice.has_group(&test.name, true));
    Ok(tests)
}

/// The group of the independent peer's tests.
const PEER: &str = "peer";

/// Returns the programs with these names. Ours are those that were built here, the others are those
/// that are installed.
pub(crate) fn programs(root: &Path, names: &[&str]) -> Result<Vec<(String, PathBuf)>, Failure> {
    const OURS: &[&str] = &["pvfsd", "pvfs", "ab", "bmi-perf"];
    let mut built = if names.iter().any(|name| OURS.contains(name)) { build::programs(root)? } else { Vec::new() };
    if names.iter().any(|name| [build::MEASURE, build::PERF_IN_RELEASE].contains(name)) {
        built.extend(build::measure(root)?);
    }
    let mut programs: Vec<(String, PathBuf)> = Vec::new();
    for name in names {
        if programs.iter().any(|(other, _)| other == name) {
            continue;
        }
        let path = match built.iter().find(|program| program.name == *name) {
            Some(program) => image::stripped(&program.path, &stripped_folder(root), name)?,
            None => {
                setup::program(name).ok_or_else(|| Failure::new(format!("{name} was neither built nor installed")))?
            }
        };
        programs.push(((*name).to_owned(), path));
    }
    Ok(programs)
}

/// Returns this program, which carries out the plan in the machine.
pub(crate) fn own_program(root: &Path) -> Result<(String, PathBuf), Failure> {
    // Use the path of the process, because cargo may have replaced the file since it was started.
    let own = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
    Ok(("xtask".into(), image::stripped(&own, &stripped_folder(root), "xtask")?))
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Prints the groups with their tests.
pub(crate) fn list(root: &Path, choice: &Choice) -> Result<(), Failure> {
    let is_chosen = |scenario: &&Scenario| choice.has_group(scenario.group, true) && choice.has_name(scenario.name);
    for scenario in SCENARIOS.iter().filter(is_chosen) {
        println!("{:<16} {}", scenario.group, scenario.name);
    }
    let mut reporter = Reporter::new(false, false);
    for test in test_programs(root, choice, &mut reporter)? {
        let output = Command::new(&test.path)
            .args(["--list", "--format", "terse"])
            .output()
            .map_err(|error| Failure::new(format!("{}: {error}", test.path.display())))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for name in text.lines().filter_map(|line| line.strip_suffix(": test")).filter(|name| choice.has_name(name)) {
            println!("{:<16} {name}", test.name);
        }
    }
    Ok(())
}
