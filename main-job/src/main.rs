//! The main job: stores a real directory tree in a file system and reads it back, over every
//! transport that this machine has, side by side.
//!
//! **How.** For each transport an embedded cluster starts, with one manager and four I/O servers.
//! One client stores the tree. A second client, which has no cached state of it, reads it back.
//! Names, lengths and checksums are compared. The same code does this over every transport; only
//! the module `cluster` differs. In the simulator, time is that of the model; elsewhere, it is that
//! of the machine.
//!
//! | module | what |
//! |---|---|
//! | `tree` | the files that are stored |
//! | `job` | storing and reading back, and what is timed |
//! | `cluster` | the differences between the transports; servers in this process, or beside it |
//! | `machine` | endpoints, processor time, a limit on the time |
//! | `tally`, `report` | size classes, the table |

mod cluster;
mod job;
mod machine;
mod progress;
mod report;
mod tally;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bmi::Scheme;
use bmi_report::output::{ReportArgs, begin};
use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::job::Failed;
use crate::machine::Limit;
use crate::progress::Progress;
use crate::report::Measured;
use crate::tree::Tree;

/// Stores a directory tree in a file system, reads it back and compares, over TCP, shared memory,
/// verbs, and in the simulator.
///
/// For each transport, one manager and four I/O servers start, a client stores the tree, and a
/// second client reads it back. Names, lengths and checksums are compared; after any difference the
/// exit status is not zero. The table has a row for each transport and class of file sizes: the
/// number of files, bandwidth and latency (an operation is one file: create and write, or open and
/// read), the path of the data (inline: in the request or reply; server-based: transferred by the
/// server with RDMA), and the processor time of the client for each file.
///
/// Over tcp, shm and ib everything is real and on this machine, including the servers. In the
/// simulator (sim), time and processor time are those of the model (an adapter of 100 Gb/s), and
/// the processor time counts only the work of the transport.
#[derive(Parser)]
#[command(
    name = "ab",
    after_help = "Examples:\n  cargo run --release                           the project's own sources, and some large files\n  \
                  cargo run --release -- ~/photos --no-large    another tree, nothing else\n  \
                  cargo run --release -- --over tcp,sim         only these two\n  \
                  cargo run --release -- --over shm --processes the servers in another process (build pvfsd first)\n  \
                  cargo run -- --quick                          a few seconds\n  \
                  cargo run --release -- --report job.json      everything that was measured, for other programs"
)]
struct Cli {
    /// The tree to store [default: the project's own sources].
    path: Option<PathBuf>,
    /// Which transports to compare: tcp, shm, ib, sim [default: all that this machine has].
    #[arg(long, value_delimiter = ',', value_parser = scheme)]
    over: Vec<Scheme>,
    /// Run the servers in a process of their own (the program pvfsd beside this one).
    #[arg(long)]
    processes: bool,
    /// Leave out the generated files: 16 of 1 MiB, 4 of 16 MiB.
    #[arg(long)]
    no_large: bool,
    /// Store at most 40 files of the tree, and smaller generated files.
    #[arg(long)]
    quick: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Seed of the simulated world.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time limit of a run, in seconds.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

fn scheme(text: &str) -> Result<Scheme, String> {
    let known = Scheme::ALL.into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "there are tcp, shm, ib and sim".to_owned())
}

fn main() -> ExitCode {
    // Messages of servers and clients; RUST_LOG=debug shows more.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if everything was read back as it was stored.
fn run(cli: &Cli) -> Result<bool, Failed> {
    let mut report = begin("ab", "a directory tree, stored and read back over several transports");
    let tree = tree(cli)?;
    if !cli.json {
        let left_out =
            if tree.left_out == 0 { String::new() } else { format!(", {} links and the like left out", tree.left_out) };
        let (files, folders) = (tree.files.len(), tree.folders.len());
        println!("{files} files in {folders} folders, {}{left_out}", bmi_report::units::amount(tree.bytes()));
    }
    let mut schemes = cli.over.clone();
    if schemes.is_empty() {
        schemes = machine::transports();
        schemes.push(Scheme::Sim);
    }
    let progress = Progress::new(2 * tree.bytes() * schemes.len() as u64, cli.json);
    let mut measured = Vec::new();
    for scheme in schemes {
        let limit = Duration::from_secs(cli.limit);
        measured.push(match scheme {
            Scheme::Sim => {
                let _limit = Limit::new("the run in the simulator".to_owned(), limit, None)?;
                cluster::in_sim(&tree, &progress, cli.seed)?
            }
            real => cluster::over(real, cli.processes, &tree, &progress, limit)?,
        });
    }
    drop(progress);
    print(cli, &measured)?;
    report.rows = report::rows(&measured);
    report.plans = measured.iter().flat_map(report::plans).collect();
    cli.report.write(&report)?;
    Ok(measured.iter().all(|one| one.wrong.is_empty()))
}

fn print(cli: &Cli, measured: &[Measured]) -> Result<(), Failed> {
    let lines = report::lines(measured);
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        print!("{}", report::render(&lines));
        for one in measured {
            println!("\n{}: the plan\n{}", one.transport, one.plan);
        }
    }
    for one in measured {
        if one.wrong.is_empty() {
            if !cli.json {
                println!("{}: everything was read back as it was stored", one.transport);
            }
            continue;
        }
        const SHOWN: usize = 20;
        eprintln!("error: {}: {} differences", one.transport, one.wrong.len());
        one.wrong.iter().take(SHOWN).for_each(|line| eprintln!("  {line}"));
        if one.wrong.len() > SHOWN {
            eprintln!("  and {} more", one.wrong.len() - SHOWN);
        }
    }
    Ok(())
}

fn tree(cli: &Cli) -> Result<Tree, Failed> {
    let mut tree = match &cli.path {
        Some(path) => Tree::read(path, &[])?,
        // The directories of cargo and of git contain no sources.
        None => Tree::read(&own_sources(), &["target", ".git"])?,
    };
    if cli.quick {
        tree.thin_out(40);
    }
    if !cli.no_large {
        for (count, len) in if cli.quick { [(2, 1 << 20), (1, 4 << 20)] } else { [(16, 1 << 20), (4, 16 << 20)] } {
            tree.add_made(count, len);
        }
    }
    if tree.files.is_empty() {
        return Err("there is no file to store".into());
    }
    Ok(tree)
}

/// Returns the workspace. `cargo run` tells where the package is. If the program was started in
/// another way, returns the current directory.
fn own_sources() -> PathBuf {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(package) => Path::new(&package).parent().unwrap_or(Path::new(".")).to_owned(),
        None => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_option_is_parsed() {
        assert!(testbed::cli::every_option::<super::Cli>(&[("over", "tcp"), ("report", "a.json")]) >= 8);
    }
}
