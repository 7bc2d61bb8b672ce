//! Prints the page of an example report: `cargo run -p bmi-report --example page > page.html`. With
//! `text`, `csv` or `json` as its argument it prints the same report in that form. With the name of
//! a file it prints the page of the report in that file.

mod sample;

use std::path::Path;
use std::process::ExitCode;

use bmi_report::{Report, csv, html, text};

fn main() -> ExitCode {
    let argument = std::env::args().nth(1);
    let out = match argument.as_deref() {
        None => html::render(&sample::report()),
        Some("text") => text::render(&sample::report()),
        Some("csv") => csv::render(&sample::report()),
        Some("json") => sample::report().to_json() + "\n",
        Some(file) => match Report::read(Path::new(file)) {
            Ok(report) => html::render(&report),
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        },
    };
    print!("{out}");
    ExitCode::SUCCESS
}
