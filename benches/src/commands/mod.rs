//! The papers' experiments, and programs over a file system of their own: one command for each.
//!
//! | command | what |
//! |---|---|
//! | `paper` | the papers' experiments in the simulator, beside what was published |
//! | `workload` | the papers' programs, over any transport |
//! | `datatypes` | datatypes: pieces a second, and patterns of noncontiguous access in several ways |
//! | `cores` | an I/O server on several cores, in the simulator |
//! | `cache` | the services of an I/O server side by side; `sizes` reads files again that are larger than memory |

mod cache;
mod cores;
mod datatypes;
mod paper;
mod services;
mod sizes;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Any error that ends a run.
type Failed = Box<dyn std::error::Error>;

/// The papers' experiments and programs, in the simulator and on this machine.
#[derive(Parser)]
#[command(
    name = "benches",
    after_help = "Examples:\n  cargo run --release -p benches -- paper --list       the papers' experiments, in the simulator\n  \
                  cargo run --release -p benches -- workload --help    their programs, over any transport\n  \
                  cargo run --release -p benches -- datatypes          datatypes and noncontiguous access\n  \
                  cargo run --release -p benches -- cores              an I/O server on several cores, in the simulator\n  \
                  cargo run --release -p benches -- cache              an I/O server with a cache of its own, and without"
)]
enum Cli {
    Paper(paper::Paper),
    Workload(workload::Run),
    Datatypes(datatypes::Datatypes),
    Cores(cores::Cores),
    Cache(cache::Cache),
}

/// Runs the program `benches`.
pub fn main() -> ExitCode {
    // Messages of servers and clients; RUST_LOG=debug shows more. Each of the many clusters would
    // complain of few file descriptors, of which it needs less.
    let quiet = || EnvFilter::new("warn,fs_server::descriptors=error");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| quiet());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let done = match Cli::parse() {
        Cli::Paper(paper) => paper.run(),
        Cli::Workload(workload) => workload.run(),
        Cli::Datatypes(datatypes) => datatypes.run(),
        Cli::Cores(cores) => cores.run(),
        Cli::Cache(cache) => cache.run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_option_is_parsed() {
        let values = [
            ("over", "tcp"),
            ("path", "inline"),
            ("only", "fig7"),
            ("report", "a.json"),
            ("pattern", "tile"),
            ("way", "view"),
        ];
        assert!(testbed::cli::every_option::<super::Cli>(&values) >= 7 * 5 + 11);
    }
}
