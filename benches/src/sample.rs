//! Samples: the output of a benchmark with `--sample`, which `cargo xtask compare` reads.
//!
//! **Why.** A comparison of two builds needs many short measurements of both, in turns, each by a
//! new process. So every benchmark has a mode that measures each of its lines once, within some
//! seconds, and prints only JSON. The names of the lines are the same in every run, because the
//! comparison matches lines of two builds by name.
//!
//! **Format.** A JSON array on standard output, with one object for each line:
//! `{"name": "tcp stat, 1 in flight", "value": 0.000052, "unit": "s"}`. Builds of different dates
//! are compared. So a line keeps its name and unit unless it measures something else.

use std::io::Write;

use bmi_report::Unit;
use serde::Serialize;

/// A line of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The name, which is unique within a benchmark.
    pub name: String,
    /// The value, in units of `unit`.
    pub value: f64,
    /// The unit of `value`. It tells whether less or more is better.
    pub unit: Unit,
}

impl Line {
    /// Creates a line.
    pub fn new(name: impl Into<String>, value: f64, unit: Unit) -> Line {
        Line { name: name.into(), value, unit }
    }
}

/// Prints a sample.
///
/// # Errors
/// If standard output cannot be written.
pub fn print(lines: &[Line]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, lines)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_printed_as_documented() {
        let line = Line::new("tcp stat, 1 in flight", 0.5, Unit::Seconds);
        let text = serde_json::to_string(&[line]).expect("plain data");
        assert_eq!(text, r#"[{"name":"tcp stat, 1 in flight","value":0.5,"unit":"s"}]"#);
    }
}
