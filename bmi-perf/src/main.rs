//! `bmi-perf`: measures transports between two hosts. See `docs/comparing.md`.
//!
//! | module | what is there |
//! |---|---|
//! | `case`, `selection` | what is measured |
//! | `client`, `serve` | the two sides |
//! | `control` | what both tell each other besides |
//! | `work` | the threads that measure, and what they do |
//! | `measured`, `usage`, `system_calls` | how long it took, and what it cost |
//! | `stop` | how a part that is running is ended |
//! | `model`, `calibrate` | the simulator beside the measurement, and how it is fitted |

mod calibrate;
mod case;
mod cli;
mod client;
mod control;
mod measured;
mod model;
mod selection;
mod serve;
mod stop;
mod system_calls;
mod usage;
mod work;

use std::path::Path;
use std::process::ExitCode;

use bmi_report::{FailIf, Figures, Report, Row, figures};
use bmi_sim::Profile;
use clap::{CommandFactory, Parser};
use serde_json::{Value, json};

use case::Over;
use cli::{Cli, Command, Output};

/// A comparison fails, or a profile does not fit.
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
        Command::Run(run) => run.measure.options(command()).and_then(|options| {
            let report = client::run(&run.host, &options).map_err(|trouble| trouble.to_string())?;
            finish(&report, &run.measure)
        }),
        Command::Here(here) => measure_here(&here),
        Command::Show(show) => {
            let report = Report::read(&show.report).map_err(|error| error.to_string());
            report.and_then(|report| write(&report, &show.output)).map(|()| ExitCode::SUCCESS)
        }
        Command::Compare(reports) => compare(&reports),
        Command::Calibrate(calibrate) => fit(&calibrate),
        Command::Manual(manual) => {
            manual.run(Cli::command()).map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
        }
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(FAILED)
    })
}

fn command() -> Vec<String> {
    std::env::args().collect()
}

fn measure_here(here: &cli::Here) -> Result<ExitCode, String> {
    let options = here.options(command())?;
    let server = client::Here::start(&here.server(), options.wanted.overs.contains(&Over::Tls))
        .map_err(|trouble| trouble.to_string())?;
    let report = client::run(&server.at, &options).map_err(|trouble| trouble.to_string())?;
    match (here.sample, &report.interrupted) {
        (true, None) => sample(&report).map(|()| ExitCode::SUCCESS),
        (true, Some(why)) => Err(why.clone()),
        (false, _) => finish(&report, &here.measure),
    }
}

/// Prints the rows as `cargo xtask compare` reads them.
fn sample(report: &Report) -> Result<(), String> {
    let line = |row: &Row| json!({ "name": row.name(), "value": row.median().middle, "unit": row.unit });
    let lines: Vec<Value> = report.rows.iter().map(line).collect();
    println!("{}", serde_json::to_string(&lines).map_err(|error| error.to_string())?);
    Ok(())
}

/// Writes the report of a run, and says how the run ended.
fn finish(report: &Report, measure: &cli::Measure) -> Result<ExitCode, String> {
    if let (Some(path), Some(trace)) = (&measure.timeline, &report.timeline) {
        to_file(Some(path), || trace.to_string())?;
    }
    if !report.rows.is_empty() || report.interrupted.is_none() {
        write(report, &measure.output)?;
    }
    let Some(why) = &report.interrupted else { return Ok(ExitCode::SUCCESS) };
    eprintln!("error: {why}");
    Ok(ExitCode::from(if why == client::INTERRUPTED { INTERRUPTED } else { FAILED }))
}

/// Prints a profile of the simulator, or the measurements that one is fitted to.
fn fit(calibrate: &cli::Calibrate) -> Result<ExitCode, String> {
    if let Some(profile) = &calibrate.show {
        print!("{}", calibrate::show(profile)?);
        return Ok(ExitCode::SUCCESS);
    }
    let (text, usual) = calibrate.input().text()?;
    if calibrate.example || calibrate.measured {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let usual = || Profile::from_name_or_file(usual).map_err(|error| error.to_string());
    let base = calibrate.base.clone().map_or_else(usual, Ok)?;
    let (profile, table, misfit) = calibrate::fit(&text, &base, calibrate.tolerance)?;
    eprint!("{table}");
    print!("{profile}");
    let Some(why) = misfit else { return Ok(ExitCode::SUCCESS) };
    eprintln!("error: {why}");
    Ok(ExitCode::from(WORSE))
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

/// Writes a report, with the predictions of models, in the forms that the user asked for, and
/// prints the table.
fn write(report: &Report, output: &Output) -> Result<(), String> {
    let mut report = report.clone();
    model::add(&mut report, &output.model);
    let report = &report;
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
