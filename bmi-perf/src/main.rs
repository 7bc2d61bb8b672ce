//! `bmi-perf`: measures transports between two hosts. See `docs/comparing.md`.
//!
//! | module | what is there |
//! |---|---|
//! | `case`, `plan` | what is measured |
//! | `schedule` | when, and how often |
//! | `control` | what both sides tell each other besides |
//! | `run`, `serve` | the two sides |
//! | `worker` | the threads that measure |
//! | `library`, `sockets`, `memory` | what they do |
//! | `usage`, `system_calls`, `host` | what it costs, and where |

mod case;
mod cli;
mod control;
mod host;
mod library;
mod measured;
mod memory;
mod plan;
mod progress;
mod run;
mod schedule;
mod serve;
mod sockets;
mod stop;
mod system_calls;
mod usage;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use bmi_report::Report;
use clap::Parser;

use cli::{Cli, Command, Output};

/// Something went wrong.
const FAILED: u8 = 2;
/// The user ended the run: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Serve(serve) => serve.options().and_then(|options| {
            serve::serve(&options).map(|()| ExitCode::SUCCESS).map_err(|trouble| trouble.to_string())
        }),
        Command::Run(run) => measure(&run),
        Command::Show(show) => {
            let report = Report::read(&show.report).map_err(|error| error.to_string());
            report.and_then(|report| write(&report, &show.output)).map(|()| ExitCode::SUCCESS)
        }
        Command::Compare(_) => Err("not yet".to_owned()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(FAILED)
    })
}

fn measure(run: &cli::Run) -> Result<ExitCode, String> {
    let options = run.options(std::env::args().collect())?;
    let report = run::run(&options).map_err(|trouble| trouble.to_string())?;
    let Some(why) = report.interrupted.clone() else {
        return write(&report, &run.output).map(|()| ExitCode::SUCCESS);
    };
    if !report.rows.is_empty() {
        write(&report, &run.output)?;
    }
    eprintln!("error: {why}");
    Ok(ExitCode::from(if why == run::INTERRUPTED { INTERRUPTED } else { FAILED }))
}

/// Writes a report in the forms that the user asked for, and prints the table.
fn write(report: &Report, output: &Output) -> Result<(), String> {
    let to_file = |path: &Option<std::path::PathBuf>, render: fn(&Report) -> String| match path {
        Some(path) => std::fs::write(path, render(report)).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    };
    if output.json.as_deref() == Some(Path::new("-")) {
        println!("{}", report.to_json());
    } else {
        to_file(&output.json, Report::to_json)?;
        for row in &report.rows {
            let median = row.median();
            println!("{:50} {} {:.4} {}", row.name(), row.unit.figure(median.middle), median.width(), row.rounds.len());
        }
    }
    Ok(())
}
