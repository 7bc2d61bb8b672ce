//! The program `stress`: the two long tests of a cluster of processes. `cargo xtask storm` and
//! `cargo xtask hostile` build it and hand their arguments to it.
//!
//! | module | what |
//! |---|---|
//! | `storm` | commands of the file system while its servers are killed |
//! | `hostile` | an honest client beside attackers |
//! | `measured` | times and errors of operations |

mod hostile;
mod measured;
mod storm;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use testbed::Outcome;

/// Long tests of a cluster of processes.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    test: Test,
}

#[derive(Subcommand)]
enum Test {
    /// Runs commands of the file system while its servers are killed and stopped, and compares all
    /// that is read with a model.
    Storm(storm::StormArgs),
    /// Attacks the servers of the file system, and reports what an honest client notices.
    Hostile(hostile::HostileArgs),
    /// A process that attacks.
    #[command(hide = true)]
    Attacker {
        /// What it does, as JSON.
        spec: String,
    },
}

/// Options of both tests.
#[derive(Args)]
struct Common {
    /// Seed of what is drawn [default: taken from the clock, and printed].
    #[arg(long)]
    seed: Option<u64>,
    /// The directory with the programs pvfsd, pvfs and honest [default: they are built].
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Keep the directory with logs and data. It is also kept if something was wrong.
    #[arg(long)]
    keep: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Common {
    /// Returns the path of a program. Without a directory it is beside this one.
    fn program(&self, name: &str) -> Outcome<PathBuf> {
        let own = std::env::current_exe()?;
        let dir = self.bin_dir.as_deref().or(own.parent()).ok_or("this program is in no directory")?;
        Ok(std::path::absolute(dir.join(name))?)
    }

    /// Prints a report.
    fn print(&self, report: &impl serde::Serialize, text: &str) -> Outcome {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?)
        } else {
            print!("{text}")
        }
        Ok(())
    }
}

/// The exit status of a test that could not be run.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let result = match Cli::parse().test {
        Test::Storm(args) => storm::main(&args),
        Test::Hostile(args) => hostile::main(&args),
        Test::Attacker { spec } => hostile::attacker_main(&spec).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_every_option_is_parsed() {
        super::Cli::command().debug_assert();
        assert!(testbed::cli::every_option::<super::Cli>(&[]) >= 20);
    }
}
