//! `cargo xtask`: tasks that take more than one command. `test` is the project's test command, and
//! `bench` measures the transport on this host.
//!
//! **Why** a program and not a script: it runs wherever the project builds, and it has tests.
//!
//! | module | what |
//! |---|---|
//! | `steps` | the table of test steps, and the loop over it |
//! | `command` | runs a program: passes its output on, limits its time, collects its totals |
//! | `totals` | reads the totals in the output of test runners |
//! | `budget`, `cpu` | what the test command may cost, and what it has cost |
//! | `mutants` | seeded bugs, and which of them the sweeps find |
//! | `dist` | lays out the libraries for C programs; the Debian package |
//! | `digests` | the same digests in debug and in release |
//! | `lines` | how much code and how many tests there are |
//! | `metadata` | the workspace, as cargo describes it, and the programs that it builds |
//! | `compare` | two commits, measured side by side |
//! | `pair` | two network namespaces joined by a cable |
//! | `rxe` | real verbs in an emulated machine |
//! | `setup` | finds and installs what a machine lacks: packages, components |
//! | `stress` | storm and hostile: long tests of a cluster of processes |

mod budget;
mod command;
mod compare;
mod cpu;
mod digests;
mod dist;
mod lines;
mod metadata;
mod mutants;
mod pair;
mod rxe;
mod setup;
mod steps;
mod stress;
mod totals;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use command::{Failure, Invocation};

/// Tasks that take more than one command.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Examples:\n  cargo xtask test                 everything, as CI runs it\n  cargo xtask test --list          the steps, in order\n  \
                  cargo xtask test --only tests    one step alone\n  cargo xtask bench -- --quick     the transport on this host, briefly\n  \
                  cargo xtask compare HEAD         is the working tree slower than the last commit?\n  \
                  cargo xtask pair --rate 1gbit    two hosts on this machine, and a shell in one"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs every test step, and stops at the first that fails.
    ///
    /// The first step installs what the machine lacks. Prints each step with its duration, a
    /// summary, and in the last line the totals: "N passed, N failed, N skipped". Each test,
    /// doctest and example and the main job count as one. A step that counts nothing (fmt, clippy,
    /// rustdoc) counts as one failure if it fails.
    Test(TestArgs),
    /// Measures the transport on this host beside plain sockets, in release: `bmi-perf here`; see
    /// `cargo xtask bench -- --help`.
    Bench {
        /// Arguments for the benchmark.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Compares the benchmarks of two commits, or of a commit and the working tree, and reports
    /// which rows are worse.
    ///
    /// Builds both and runs their benchmarks in turns. Prints for each row what A and B measured,
    /// the cost of B divided by the cost of A, and the confidence interval of that ratio.
    Compare(compare::CompareArgs),
    /// Activates the bugs that are seeded in the code, one after the other, and reports which of
    /// them the sweeps in the simulator find.
    Mutants(mutants::MutantsArgs),
    /// Builds the libraries for C programs in release, and lays them out with their headers and
    /// files for pkg-config.
    Dist {
        /// The folder that gets `lib` and `include`.
        dir: PathBuf,
    },
    /// Makes the Debian package of the programs, with cargo-deb, and prints where it is. `test
    /// --only deb` tries it in a bare root.
    Deb,
    /// Counts the lines of code, comments and tests of each crate.
    Lines(lines::LinesArgs),
    /// Runs the tests of `bmi-ib` over real verbs: in a small emulated machine with Soft-RoCE,
    /// without an adapter.
    Rxe(rxe::RxeArgs),
    /// Makes two hosts on this machine, joined by a cable with a known rate, delay and loss, and
    /// runs a command in each.
    Pair(pair::PairArgs),
    /// The cable of a pair.
    #[command(hide = true)]
    PairRelay {
        /// What it does, as JSON.
        spec: String,
    },
    /// Runs commands of the file system while its servers are killed and stopped, and compares all
    /// that is read with a model.
    Storm(stress::StressArgs),
    /// Attacks the servers of the file system, and reports what an honest client notices.
    Hostile(stress::StressArgs),
}

#[derive(Args)]
struct TestArgs {
    /// Run only this step (may be given several times); `--list` prints the names.
    #[arg(long, value_name = "STEP", value_parser = steps::parse_step)]
    only: Vec<&'static steps::Step>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
    /// Run all behaviours of the conformance suite over all configurations, and not only those that
    /// `bmi-conformance/src/suite/table.rs` lists; more seeds of the cluster, ten thousand power
    /// failures of a store, and the Raft cluster of `examples/raft`.
    #[arg(long)]
    full: bool,
}

/// Returns the root of the workspace, which is the directory above this crate's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of a workspace lies in a folder of it").to_owned()
}

/// Returns the directory in which cargo builds.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Test(args) if args.list => {
            for step in steps::STEPS {
                let when = match step.when {
                    steps::When::Always => "",
                    steps::When::InFull => " (with --full)",
                    steps::When::OnRequest => " (on request)",
                };
                println!("{:<10} {}{when}", step.name, step.what);
            }
            ExitCode::SUCCESS
        }
        Task::Test(args) if args.full && std::env::var_os(FULL).is_none() => in_full(),
        Task::Test(args) => steps::run(&root(), &args.only),
        Task::Bench { args } => exit(bench(&args)),
        Task::Compare(args) => compare::main(&root(), &args),
        Task::Mutants(args) => exit(mutants::main(&root(), &args)),
        Task::Dist { dir } => exit(dist::main(&root(), &dir)),
        Task::Deb => exit(dist::deb::main(&root())),
        Task::Lines(args) => exit(lines::main(&root(), &args)),
        Task::Rxe(args) => rxe::main(&root(), &args),
        Task::Pair(args) => pair::main(&root(), &args),
        Task::PairRelay { spec } => pair::relay_main(&spec),
        Task::Storm(args) => stress::main(&root(), "storm", &args),
        Task::Hostile(args) => stress::main(&root(), "hostile", &args),
    }
}

/// The variable that makes the conformance suite run everything (`bmi_conformance::Suite`), and
/// other tests look further.
const FULL: &str = "BMI_FULL";

/// Starts this program anew, with the variable for all that it starts.
fn in_full() -> ExitCode {
    let this =
        std::env::current_exe().map(|exe| Command::new(exe).args(std::env::args_os().skip(1)).env(FULL, "1").exec());
    eprintln!("cargo xtask: {}", this.unwrap_or_else(|error| error));
    ExitCode::FAILURE
}

/// Time limit of the benchmark, longer than any full run. The benchmark limits its own phases.
const BENCH_LIMIT: Duration = Duration::from_secs(1800);

fn bench(args: &[String]) -> Result<(), Failure> {
    let cargo = Invocation::cargo(&root(), "run --release --package bmi-perf -- here").args(args);
    cargo.hand_over(BENCH_LIMIT)
}

/// Prints why something failed.
fn exit(result: Result<(), Failure>) -> ExitCode {
    result.map_or_else(
        |failure| {
            eprintln!("{failure}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_every_option_is_parsed() {
        super::Cli::command().debug_assert();
        let values = [("only", "fmt"), ("bench", "bmi-perf"), ("env", "NAME=VALUE"), ("width", "1.1")];
        let values = [
            &values[..],
            &[("rate", "1gbit"), ("flow-rate", "1gbit"), ("delay", "1ms"), ("loss", "1%"), ("mtu", "1500")],
        ]
        .concat();
        let values = [&values[..], &[("bound", "1.1"), ("exact-bound", "1.1")]].concat();
        assert!(testbed::cli::every_option::<super::Cli>(&values) >= 25);
    }
}
