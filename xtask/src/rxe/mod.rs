//! `cargo xtask rxe`: real verbs without an adapter. Boots a small emulated machine with Soft-RoCE,
//! which is RoCE v2 in the kernel, and runs in it the programs that need an RDMA device.
//!
//! **Why.** Verbs that are only compiled are not tested, and adapters are rare. Soft-RoCE needs a
//! kernel module. Containers and most kernels of hired machines do not have it. An emulated machine
//! has its own kernel, and the user needs only the right to run a program.
//!
//! **Invariants**
//! 1. A test that cannot run is reported as *skipped*, with the reason. It never counts as passed.
//! 2. A test that began and sent no result has failed. The cause may be a panic of the kernel, a
//!    hang, or a limit.
//! 3. Only plain emulation is used. Hardware support (KVM) exists on some machines and hangs there.
//!
//! **Layout**
//!
//! ```text
//!   host                                              machine (QEMU, 2 processors, all of its files in memory)
//!  ┌────────────────────────────┐                    ┌──────────────────────────────────────────────────────────────┐
//!  │ cargo: tests and programs  │   image (cpio):    │ init.sh: modules, veth pair d0─d1, rxe0 on d0                │
//!  │ kernel: Debian's, modules ─┼──> programs, their │   └─ xtask rxe-inside                                        │
//!  │ suite: the plan            │    libraries, plan │        ├─ test program, once for each test ─┐                │
//!  │                            │                    │        ├─ pvfsd, pvfs, ab                   ├─ libibverbs ─┐ │
//!  │ report: counts, exit code <┼─── virtio-serial ──┼────────┤  (scenarios)                       │              │ │
//!  │                            │    records         │        └─ perftest ─────────────────────────┘   rxe0 <─────┘ │
//!  │ last lines, if it dies    <┼─── console (file) ─┼─ kernel                                          │ UDP        │
//!  └────────────────────────────┘                    │                                                  d0 ── d1    │
//!                                                    └──────────────────────────────────────────────────────────────┘
//!  two machines: rxe0 on eth0 ── virtio-net ── datagram socket ── virtio-net ── eth0 with rxe0;
//!  tc netem loses 0.5 % each way
//! ```
//!
//! | module | what |
//! |---|---|
//! | `build` | builds test programs and programs with cargo |
//! | `kernel`, `image`, `machine` | the kernel, the root file system, QEMU |
//! | `wire` | the plan, and the records that the machine sends |
//! | `inside` | what runs in the machine: test programs, scenarios of several processes |
//! | `suite`, `pair`, `report` | runs everything as tests, and reports |
//!
//! **Tests** of the parts are in each module. The group `machine` runs programs of other projects,
//! and shows that the machine works.

pub(crate) mod build;
mod image;
pub(crate) mod inside;
mod kernel;
pub(crate) mod machine;
mod pair;
mod report;
mod suite;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::command::Failure;
use crate::setup;
use crate::totals::Totals;
pub(crate) use kernel::Kernel;
use machine::{Machine, Spec};
use report::Reporter;
use suite::Choice;
use wire::{Job, Plan};

/// Options of `cargo xtask rxe`.
#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask rxe                                       all tests that need an RDMA device
  cargo xtask rxe --only conformance --filter read      some of them; --list names all
  cargo xtask rxe --test conformance -- --nocapture rea  one test program, as it is, with its output
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
    /// With --run, --test and --shell: copy this program to /bin/NAME (may be given several times).
    #[arg(long, value_name = "PATH")]
    with: Vec<PathBuf>,
    /// Set an environment variable in the machine (may be given several times).
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Time limit for the program of --run or --test, in seconds.
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

/// The link of the machine's RDMA device.
pub(crate) enum Link {
    /// A pair of virtual Ethernet devices inside one machine.
    Veth,
    /// A socket between two machines, with loss.
    Pair {
        /// The socket of this machine.
        own: PathBuf,
        /// The socket of the other machine.
        peer: PathBuf,
        /// The index of this machine, 0 or 1.
        index: u8,
    },
}

impl Link {
    /// Returns the machine's address on the link.
    fn address(&self) -> String {
        match self {
            Link::Veth => "192.168.77.1".to_owned(),
            Link::Pair { index, .. } => format!("192.168.78.{}", index + 1),
        }
    }

    /// Returns the line that `init.sh` reads: kind, address, loss.
    fn line(&self) -> String {
        let (kind, loss) = match self {
            Link::Veth => ("veth", ""),
            Link::Pair { .. } => ("virtio", "0.5%"),
        };
        format!("{kind} {} {loss}\n", self.address())
    }
}

/// Environment variables that are passed on, so that they work as in any other run.
const HANDED_ON: &[&str] = &["RUST_BACKTRACE", "RUST_LOG", "PROPTEST_CASES"];
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
    let totals = suite::run(root, &kernel, &Choice { env: handed_on(), ..Choice::default() })?;
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
    setup::set_up_machine(root).map_err(|why| Failure::skip(why.reason))?;
    let kernel = Kernel::installed();
    let kernel =
        kernel.ok_or_else(|| Failure::skip("there is no kernel in /boot that has its modules in /lib/modules"))?;
    match machine::obstacle() {
        Some(why) => Err(Failure::skip(why)),
        None => Ok(kernel),
    }
}

fn run(root: &Path, args: &RxeArgs) -> Result<ExitCode, Failure> {
    let choice = Choice {
        only: if args.bench { vec!["bench".into()] } else { args.only.clone() },
        filter: args.filter.clone(),
        env: args.env.iter().cloned().chain(handed_on()).collect(),
        json: args.json,
        verbose: args.verbose,
    };
    if args.list {
        return suite::list(root, &choice).map(|()| ExitCode::SUCCESS);
    }
    let kernel = set_up(root)?;
    if args.run.is_some() || args.test.is_some() || args.shell {
        return by_hand(root, &kernel, args, choice.env);
    }
    let totals = suite::run(root, &kernel, &choice)?;
    Ok(if totals.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn handed_on() -> Vec<(String, String)> {
    HANDED_ON.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect()
}

/// Runs one program, or a shell.
fn by_hand(root: &Path, kernel: &Kernel, args: &RxeArgs, env: Vec<(String, String)>) -> Result<ExitCode, Failure> {
    const BOOT: Duration = Duration::from_secs(60);
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let program = match &args.test {
        None => args.run.clone(),
        Some(name) => {
            let tests = build::tests(root)?;
            let test = tests.iter().find(|test| &test.name == name);
            let names = || tests.iter().map(|test| test.name.as_str()).collect::<Vec<_>>().join(", ");
            Some(
                test.ok_or_else(|| Failure::new(format!("there is no test program {name}; there are {}", names())))?
                    .path
                    .clone(),
            )
        }
    };
    let mut programs = suite::programs(root, &["ib_send_lat", "ib_write_lat", "ib_read_lat", "ibv_rc_pingpong"])?;
    programs.push(suite::own_program(root)?);
    for path in args.with.iter().chain(&program) {
        let name = suite::file_name(path);
        let stripped = image::stripped(path, &stripped_folder(root), &name)?;
        programs.push((name, stripped));
    }
    let mut plan = Plan { jobs: Vec::new(), env };
    if let Some(path) = &program {
        let mut words = vec![format!("/bin/{}", suite::file_name(path))];
        words.extend(args.args.iter().cloned());
        plan.jobs.push(Job::Program { args: words, limit_s: args.limit });
    }
    let spec = Spec {
        kernel,
        link: Link::Veth,
        plan: (!args.shell).then_some(&plan),
        programs: &programs,
        cpus: suite::CPUS,
        memory_mib: suite::MEMORY_MIB,
        limit: if args.shell { DAY } else { BOOT + Duration::from_secs(args.limit) },
    };
    if args.shell {
        return machine::shell(&spec).map(|()| ExitCode::SUCCESS);
    }
    let mut reporter = Reporter::new(false, args.verbose);
    Machine::start(&spec, "one")?.follow(&mut |record| reporter.take(record), None)?;
    // There is no status above 255. If there is none at all, the device did not come up, and a
    // message was printed.
    Ok(ExitCode::from(reporter.status().and_then(|status| u8::try_from(status).ok()).unwrap_or(1)))
}

/// Returns the directory with copies of programs without their debug sections.
fn stripped_folder(root: &Path) -> PathBuf {
    crate::target(root).join("rxe")
}
