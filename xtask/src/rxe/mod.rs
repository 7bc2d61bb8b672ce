//! `cargo xtask rxe`: real verbs without an adapter. Boots a small emulated machine with Soft-RoCE,
//! which is RoCE v2 in the kernel, and runs in it the programs that need an RDMA device.
//!
//! **Why.** Verbs that are only compiled are not tested, and adapters are rare. Soft-RoCE needs a
//! kernel module. Containers and most kernels of hired machines do not have it. An emulated machine
//! has its own kernel, and the user needs only the right to run a program.
//!
//! **Invariants**
//! 1. A test that cannot run is reported as *skipped*, with the reason. It never counts as passed.
//! 2. Only plain emulation is used. Hardware support (KVM) exists on some machines and hangs there.
//!
//! **Layout**
//!
//! ```text
//!   host                                          machine (QEMU, 2 processors)
//!  ┌──────────────────────────┐                  ┌───────────────────────────────────────────────┐
//!  │ kernel: Debian's         │   a few modules  │ init.sh: mounts the host's files, read-only   │
//!  │ all files of the host  <─┼──── 9p ──────────┼──┘                                            │
//!  │ cargo: tests, programs   │                  │ inside.sh: modules, veth pair d0─d1, rxe0     │
//!  │ tests, scenario, ratios ─┼─ virtio-serial ──┼─> ├─ test program ───────────┐                │
//!  │   commands and output  <─┼──────────────────┼── └─ scenarios.sh: pvfsd, …  ├─ libibverbs    │
//!  │ last lines, if it dies <─┼── console (file) ┼─ kernel                      └──> rxe0 on d0  │
//!  └──────────────────────────┘                  └───────────────────────────────────────────────┘
//!  two machines: rxe0 on eth0 ── virtio-net ── datagram socket ── virtio-net ── eth0 with rxe0;
//!  tc netem loses 0.5 % each way
//! ```
//!
//! A program runs in the machine at the path at which it was built or installed, with the libraries
//! that it finds on the host.
//!
//! | module | what |
//! |---|---|
//! | `build` | builds test programs and programs with cargo |
//! | `machine` | QEMU, and commands that run in it |
//! | `programs`, `scenario`, `ratios` | test programs, several processes together, figures |
//! | `report` | the results |
//!
//! **Tests** of the parts are in each module. The group `machine` runs programs of other projects,
//! and shows that the machine works.

mod build;
mod machine;
mod programs;
mod ratios;
mod report;
mod scenario;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::command::Failure;
use crate::setup::kernel::Kernel;
use crate::setup::{self, Need, emulator};
use crate::totals::Totals;
use machine::{Link, Machine, Spec};
use programs::Program;
use report::{Reporter, Verdict};
use scenario::{PAIR, SCENARIOS, Scenario};

/// Options of `cargo xtask rxe`.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask rxe                                       all tests that need an RDMA device
  cargo xtask rxe --only conformance --filter read      some of them; --list names all
  cargo xtask rxe --test it -- --nocapture faults::      a test program, as it is, with its output
  cargo xtask rxe --run /usr/bin/ibv_devinfo            any program
  cargo xtask rxe --shell                               look around
  cargo xtask rxe --bench                               ratios to perftest

Exit status: 0 all passed, 1 something failed, 77 it cannot be done on this machine; that of the program with --run and --test.")]
pub(crate) struct RxeArgs {
    /// Run only this group (may be given several times).
    #[arg(long, value_name = "GROUP")]
    only: Vec<String>,
    /// Run only tests whose name contains this.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// List the tests and stop.
    #[arg(long)]
    list: bool,
    /// Print one JSON document at the end instead of lines.
    #[arg(long)]
    json: bool,
    /// Also print a line for each test that passed.
    #[arg(long, short)]
    verbose: bool,
    /// Measure the ratios to perftest, in the same machine and in the release profile. Runs no
    /// tests.
    #[arg(long, conflicts_with_all = ["only", "filter", "list"])]
    bench: bool,
    /// Run this program in the machine with ARGS, print its output, and end with its exit status.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["only", "filter", "list", "bench", "json"])]
    run: Option<PathBuf>,
    /// Build this test program of bmi-ib and run it, as --run does.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["run", "only", "filter", "list", "bench", "json"])]
    test: Option<String>,
    /// Start a shell in the machine, on this terminal.
    #[arg(long, conflicts_with_all = ["run", "test", "only", "filter", "list", "bench", "json"])]
    shell: bool,
    /// Set an environment variable in the machine (may be given several times).
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// End the program of --run or --test if it prints nothing for so long.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    limit: u64,
    /// Arguments for that program.
    #[arg(last = true)]
    args: Vec<String>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.into(), value.into()))
}

/// Environment variables that are passed on, so that they work as in any other run.
const HANDED_ON: &[&str] = &["BMI_FULL", "RUST_BACKTRACE", "RUST_LOG", "PROPTEST_CASES"];
/// The exit status for "it could not be run", as in test harnesses.
const SKIPPED: u8 = 77;

/// `cargo xtask rxe`.
pub(crate) fn main(root: &Path, args: &RxeArgs) -> ExitCode {
    match run(root, args) {
        Ok(code) => code,
        Err(failure) if failure.is_skip => {
            println!("SKIPPED: {failure}\n{}", failure.totals);
            ExitCode::from(SKIPPED)
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    let kernel = set_up(root)?;
    let mut reporter = Reporter::new(false, false);
    let totals = run_all(root, &kernel, &Choice { setting: setting(root, &[]), ..Choice::default() }, &mut reporter)?;
    match totals.failed {
        0 => Ok(totals),
        failed => Err(Failure::counted(format!("{failed} tests failed; alone again: cargo xtask rxe"), totals)),
    }
}

/// Installs what the machine needs. If that is impossible, returns a skip.
fn set_up(root: &Path) -> Result<Kernel, Failure> {
    let here = (std::env::consts::OS, std::env::consts::ARCH);
    if here != ("linux", "x86_64") {
        return Err(Failure::skip(format!(
            "the emulated machine is built from Debian's packages for x86_64; here is {here:?}"
        )));
    }
    setup::install(root, Need::Machine).map_err(|why| Failure::skip(why.reason))?;
    let kernel = Kernel::installed();
    let kernel =
        kernel.ok_or_else(|| Failure::skip("there is no kernel in /boot that has its modules in /lib/modules"))?;
    match emulator::obstacle() {
        Some(why) => Err(Failure::skip(why)),
        None => Ok(kernel),
    }
}

/// The tests to run.
#[derive(Default)]
struct Choice {
    /// Only these groups. If empty, all usual ones.
    only: Vec<String>,
    /// Only tests whose name contains this.
    filter: Option<String>,
    /// What sets the environment in the machine.
    setting: String,
}

impl Choice {
    fn has(&self, group: &str, name: &str, usual: bool) -> bool {
        self.has_group(group, usual) && self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    fn has_group(&self, group: &str, usual: bool) -> bool {
        if self.only.is_empty() { usual } else { self.only.iter().any(|one| one == group) }
    }
}

fn run(root: &Path, args: &RxeArgs) -> Result<ExitCode, Failure> {
    let choice = Choice {
        only: if args.bench { vec![BENCH.into()] } else { args.only.clone() },
        filter: args.filter.clone(),
        setting: setting(root, &args.env),
    };
    if args.list {
        for scenario in SCENARIOS.iter().filter(|one| choice.has(one.group, one.name, true)) {
            println!("{:<16} {}", scenario.group, scenario.name);
        }
        for program in programs(root, &choice, &mut Reporter::new(true, false))? {
            program
                .tests
                .iter()
                .map(|test| program.place(test))
                .for_each(|(group, name)| println!("{group:<16} {name}"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = set_up(root)?;
    let spec = spec(&kernel, choice.setting.clone());
    if args.shell {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        return machine::shell(&Spec { limit: DAY, ..spec }).map(|()| ExitCode::SUCCESS);
    }
    let program = match &args.test {
        None => args.run.as_ref().map(|path| quoted(&path.to_string_lossy())),
        Some(name) => {
            let path = quoted(&test(root, name)?.to_string_lossy());
            Some(format!("{path} --include-ignored --skip {}", programs::PART))
        }
    };
    if let Some(program) = program {
        let mut machine = Machine::start(&spec)?;
        machine.await_device()?;
        let words = args.args.iter().map(|word| quoted(word));
        let line = std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ");
        let status = machine.run(&line, Duration::from_secs(args.limit), &mut |line| print!("{line}"))?;
        // There is no status above 255.
        return Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)));
    }
    let totals = run_all(root, &kernel, &choice, &mut Reporter::new(args.json, args.verbose))?;
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The group of what measures.
const BENCH: &str = "bench";
/// The group of the independent peer's tests.
const PEER: &str = "peer";
/// Time limit of a machine. The usual tests take less than eight minutes.
const LIMIT: Duration = Duration::from_secs(1800);

fn spec(kernel: &Kernel, setting: String) -> Spec<'_> {
    Spec { kernel, link: Link::Veth, setting, memory_mib: 3072, limit: LIMIT }
}

/// Returns a word as the shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the commands that set the environment in the machine: what the user's environment has
/// for any run, `more`, and where the tree and our programs are.
fn setting(root: &Path, more: &[(String, String)]) -> String {
    let handed_on = HANDED_ON.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)));
    let all = handed_on.chain(more.iter().cloned());
    let all = all.map(|(name, value)| format!("export {name}={}; ", quoted(&value))).collect::<String>();
    let [tree, programs] = [root, &crate::target(root).join("debug")].map(|path| quoted(&path.to_string_lossy()));
    format!("export RXE_TREE={tree} PATH={programs}:$PATH; {all}")
}

/// Builds the chosen test programs, and fails if a chosen group does not exist.
fn programs(root: &Path, choice: &Choice, reporter: &mut Reporter) -> Result<Vec<Program>, Failure> {
    let is_scenario = |group: &str| group == PAIR || group == BENCH || SCENARIOS.iter().any(|one| one.group == group);
    let built = build::tests(root)?;
    let mut programs = Vec::new();
    if choice.only.is_empty() || choice.only.iter().any(|group| group != PEER && !is_scenario(group)) {
        for one in built {
            programs.push(Program::new(&one.name, one.path, "--ignored")?);
        }
    }
    if choice.has_group(PEER, true) {
        match setup::install(root, Need::Peer) {
            Ok(()) => {
                for one in build::peer(root)? {
                    programs.push(Program::new(PEER, one.path, "")?);
                }
            }
            Err(why) => reporter.end(PEER, "all", Verdict::Skipped, why.reason),
        }
    }
    let groups = || programs.iter().flat_map(|one| one.tests.iter().map(|test| one.place(test).0));
    if let Some(asked) = choice.only.iter().find(|one| !is_scenario(one) && !groups().any(|group| group == *one)) {
        let mut groups: Vec<&str> = groups().collect();
        groups.dedup();
        return Err(Failure::new(format!("there is no group {asked}; the test programs have {}", groups.join(", "))));
    }
    programs.iter_mut().for_each(|one| one.retain(|group, name| choice.has(group, name, true)));
    programs.retain(|one| !one.tests.is_empty());
    Ok(programs)
}

/// Builds the test programs of `bmi-ib`, and returns the path of one.
fn test(root: &Path, name: &str) -> Result<PathBuf, Failure> {
    let tests = build::tests(root)?;
    let names = tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>().join(", ");
    let found = tests.iter().find(|test| test.name == name).map(|test| test.path.clone());
    found.ok_or_else(|| Failure::new(format!("there is no test program {name}; there are {names}")))
}

/// Runs the chosen tests and prints the results.
fn run_all(root: &Path, kernel: &Kernel, choice: &Choice, reporter: &mut Reporter) -> Result<Totals, Failure> {
    let programs = programs(root, choice, reporter)?;
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(|one| choice.has(one.group, one.name, one.usual)).collect();
    let bench = ratios::NAMES.iter().any(|name| choice.has(BENCH, name, false));
    if !programs.is_empty() || !scenarios.is_empty() || bench {
        let result = run_in_one(root, kernel, choice, &programs, &scenarios, reporter);
        if let Err(failure) = result {
            reporter.end("machine", "runs to its end", Verdict::Failed, failure.reason);
        }
    }
    if choice.has(PAIR, "", true) {
        scenario::pair(kernel, &choice.setting, reporter)?;
    }
    reporter.print();
    Ok(reporter.totals())
}

/// Runs what needs one machine.
fn run_in_one(
    root: &Path,
    kernel: &Kernel,
    choice: &Choice,
    programs: &[Program],
    scenarios: &[&Scenario],
    reporter: &mut Reporter,
) -> Result<(), Failure> {
    let mut setting = choice.setting.clone();
    let benches = || ratios::NAMES.iter().filter(|name| choice.has(BENCH, name, false));
    if benches().next().is_some() {
        build::measuring_program(root)?;
        let release = crate::target(root).join("release");
        setting += &format!("export PATH={}:$PATH; ", quoted(&release.to_string_lossy()));
    }
    let mut machine = Machine::start(&spec(kernel, setting))?;
    machine.await_device()?;
    // If the programs of others fail there, a failure of another test is not its own.
    let (first, rest): (Vec<&&Scenario>, Vec<_>) = scenarios.iter().partition(|one| one.group == "machine");
    first.into_iter().try_for_each(|one| scenario::run(&mut machine, one, reporter))?;
    programs.iter().try_for_each(|one| one.run(&mut machine, reporter))?;
    rest.into_iter().try_for_each(|one| scenario::run(&mut machine, one, reporter))?;
    benches().for_each(|name| ratios::run(&mut machine, name, reporter));
    Ok(())
}
