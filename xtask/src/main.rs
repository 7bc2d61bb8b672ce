//! `cargo xtask`: what is more than a one-liner. `test` is the project's test command, `bench` runs
//! the micro-benchmark.
//!
//! **Why** a program and not a script: it runs wherever the project builds, and is tested with it.
//!
//! | module | what |
//! |---|---|
//! | `steps` | the table of test steps, and the loop over it |
//! | `command` | runs one program: its output is passed on, its time limited, its totals noted |
//! | `totals` | reads "so many passed" out of the test runners' output |
//! | `mutants` | seeded bugs, and whether the sweeps find them |
//! | `digests` | the same digests in debug and in release |
//! | `metadata` | the workspace as cargo describes it |
//! | `prose` | lengths of lines and sentences, links and citations in comments and documents |
//! | `compare` | two commits measured side by side |
//! | `cpu` | processor time of this program and of what it started |
//! | `rxe` | real verbs in an emulated machine |
//! | `setup` | installs what a bare machine lacks |

mod command;
mod compare;
mod cpu;
mod digests;
mod metadata;
mod mutants;
mod prose;
mod rxe;
mod setup;
mod steps;
mod totals;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// What is more than a one-liner.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    after_help = "Examples:\n  cargo xtask test                 everything, as CI runs it\n  cargo xtask test --list          the steps, in order\n  \
                  cargo xtask test --only tests    one step alone\n  cargo xtask bench -- --quick     the micro-benchmark, shortened\n  \
                  cargo xtask compare HEAD         is the working tree slower than the last commit?"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// The test command: sets the machine up, then runs every step and stops at the first that
    /// fails.
    ///
    /// Prints each step with how long it took, a summary, and as its last line the totals: "N
    /// passed, N failed, N skipped". Tests, doctests, examples and the main job count one each; a
    /// step that counts nothing (fmt, clippy, rustdoc) counts as one failure when it fails.
    Test(TestArgs),
    /// The micro-benchmark against plain sockets, in release; see `cargo xtask bench -- --help`.
    Bench {
        /// Passed on to the benchmark.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Builds two commits, or a commit and the working tree, runs their benchmarks in turns, and
    /// reports which rows are worse.
    ///
    /// Prints for each row what A and B measured, the cost of B divided by the cost of A, and the
    /// confidence interval of that ratio.
    Compare(compare::CompareArgs),
    /// Switches on the bugs that are seeded in the code, one after the other, and says which of
    /// them the sweeps in the simulator find.
    Mutants(mutants::MutantsArgs),
    /// Checks the text of comments and documents: long lines, dead links, unknown papers.
    Prose(prose::ProseArgs),
    /// Real verbs without an adapter: boots a small emulated machine with Soft-RoCE and runs the
    /// tests of `bmi-ib` in it.
    Rxe(rxe::RxeArgs),
    /// What runs inside that machine.
    #[command(hide = true)]
    RxeInside,
}

#[derive(Args)]
struct TestArgs {
    /// Run only this step (may be given several times); `--list` names them.
    #[arg(long, value_name = "STEP", value_parser = steps::parse_step)]
    only: Vec<&'static steps::Step>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
}

/// The workspace's root: the folder above this crate's.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a crate of a workspace lies in a folder of it").to_owned()
}

/// Where cargo builds.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

fn main() -> ExitCode {
    match Cli::parse().task {
        Task::Test(args) if args.list => {
            for step in steps::STEPS {
                let when = if step.always { "" } else { " (on request)" };
                println!("{:<10} {}{when}", step.name, step.what);
            }
            ExitCode::SUCCESS
        }
        Task::Test(args) => steps::run(&root(), &args.only),
        Task::Bench { args } => bench(&args),
        Task::Compare(args) => compare::main(&root(), &args),
        Task::Mutants(args) => mutants::main(&root(), &args),
        Task::Prose(args) => prose::main(&root(), &args),
        Task::Rxe(args) => rxe::main(&root(), &args),
        Task::RxeInside => rxe::inside::main(),
    }
}

/// Longer than any full run of the benchmark, which limits its own phases.
const BENCH_LIMIT: Duration = Duration::from_secs(1800);

fn bench(args: &[String]) -> ExitCode {
    let cargo = command::Invocation::cargo(&root(), "run --release --package benches --bin micro --").args(args);
    match cargo.hand_over(BENCH_LIMIT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_every_option_is_parsed() {
        super::Cli::command().debug_assert();
        let values = [("only", "fmt"), ("bench", "micro"), ("env", "NAME=VALUE"), ("width", "1.1")];
        let values = [&values[..], &[("bound", "1.1"), ("exact-bound", "1.1")]].concat();
        assert!(cli_check::every_option::<super::Cli>(&values) >= 25);
    }
}
