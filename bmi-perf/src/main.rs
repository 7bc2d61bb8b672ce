//! `bmi-perf`: measures transports between two hosts. See `docs/comparing.md`.
//!
//! | module | what is there |
//! |---|---|
//! | `case`, `plan` | what is measured |
//! | `schedule`, `count` | when, how often, and how many messages |
//! | `control` | what both sides tell each other besides |
//! | `run`, `serve` | the two sides |
//! | `worker` | the threads that measure |
//! | `library`, `sockets`, `memory` | what they do |
//! | `self_check` | whether the verdicts on these hosts are right |
//! | `usage` | what it costs; the library has `system_calls` |
//! | `host` | what this host can be measured over |
//! | `timelines` | where the time of a message goes |
//! | `model`, `calibrate` | the simulator beside the measurement, and what it is fitted to |

mod calibrate;
mod case;
mod cli;
mod control;
mod count;
mod host;
mod library;
mod measured;
mod memory;
mod model;
mod plan;
mod progress;
mod run;
mod schedule;
mod self_check;
mod serve;
mod sockets;
mod stop;
mod timelines;
mod usage;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use bmi_perf::system_calls;
use bmi_report::{FailIf, Figures, Report, figures};
use clap::Parser;

use cli::{Cli, Command, Output};

/// A comparison fails.
const WORSE: u8 = 1;
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
        Command::Compare(reports) => compare(&reports),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(FAILED)
    })
}

fn measure(run: &cli::Run) -> Result<ExitCode, String> {
    let options = run.options(std::env::args().collect())?;
    let report = run::run(&options).map_err(|trouble| trouble.to_string())?;
    if let (Some(path), Some(trace)) = (&run.timeline, &report.timeline) {
        std::fs::write(path, trace.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let Some(why) = report.interrupted.clone() else {
        write(&report, &run.output)?;
        return Ok(if run.self_check { self_checked(&report) } else { ExitCode::SUCCESS });
    };
    if !report.rows.is_empty() {
        write(&report, &run.output)?;
    }
    eprintln!("error: {why}");
    Ok(ExitCode::from(if why == run::INTERRUPTED { INTERRUPTED } else { FAILED }))
}

/// Says whether all verdicts of a self-check are right.
fn self_checked(report: &Report) -> ExitCode {
    let checked = self_check::Checked::of(report);
    eprintln!("{checked}");
    ExitCode::from(if checked.is_right() { 0 } else { WORSE })
}

/// Prints what changed between two reports.
fn compare(reports: &cli::Compare) -> Result<ExitCode, String> {
    let rule: Option<FailIf> = reports.fail_if.as_deref().map(str::parse).transpose()?;
    let read = |path: &Path| Report::read(path).map_err(|error| error.to_string());
    let comparison = bmi_report::compare(&read(&reports.a)?, &read(&reports.b)?);
    to_file(reports.html.as_deref(), || bmi_report::html::render_comparison(&comparison))?;
    match reports.json {
        true => println!("{}", comparison.to_json()),
        false => print!("{}", comparison.render()),
    }
    let failed = rule.map(|rule| comparison.fails(&rule).len()).unwrap_or_default();
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{failed} rows break the rule {}", reports.fail_if.as_deref().unwrap_or_default());
    Ok(ExitCode::from(WORSE))
}

/// Writes a report, with the predictions of models, and the input of `calibrate`.
fn write(report: &Report, output: &Output) -> Result<(), String> {
    let mut report = report.clone();
    model::add(&mut report, &output.model);
    write_forms(&report, output)?;
    // Last, so that a measurement that is missing does not cost those that there are.
    output.calibrate.as_deref().map_or(Ok(()), |file| calibrate::write(&report, output.calibrate_over(), file))
}

/// Writes a report in the forms that the user asked for, and prints the table.
fn write_forms(report: &Report, output: &Output) -> Result<(), String> {
    to_file(output.html.as_deref(), || bmi_report::html::render(report))?;
    to_file(output.csv.as_deref(), || bmi_report::csv::render(report))?;
    if let Some(path) = &output.figures {
        Figures::of(report, &figures::commit()).merge_into(path)?;
    }
    if output.json.as_deref() == Some(Path::new("-")) {
        println!("{}", report.to_json());
        return Ok(());
    }
    to_file(output.json.as_deref(), || report.to_json())?;
    print!("{}", bmi_report::text::render(report));
    Ok(())
}

/// Writes a text to a file, if there is one.
fn to_file(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<(), String> {
    match path {
        Some(path) => std::fs::write(path, text()).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    }
}
