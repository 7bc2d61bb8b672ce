//! Prints the page of an example report: `cargo run -p bmi-report --example page > page.html`. With
//! `text`, `csv` or `json` as its argument it prints the same report in that form.

mod sample;

use bmi_report::{csv, html, text};

fn main() {
    let report = sample::report();
    match std::env::args().nth(1).as_deref() {
        None | Some("html") => print!("{}", html::render(&report)),
        Some("text") => print!("{}", text::render(&report)),
        Some("csv") => print!("{}", csv::render(&report)),
        Some("json") => println!("{}", report.to_json()),
        Some(other) => eprintln!("{other}: not html, text, csv or json"),
    }
}
