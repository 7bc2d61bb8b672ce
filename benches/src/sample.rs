//! Samples: what a benchmark prints with `--sample`, for `cargo xtask compare` to read.
//!
//! **Why.** A comparison of two builds needs many short measurements of both, in turns, each by a
//! new process. So every benchmark has one form that measures each of its lines once, within some
//! seconds, and prints nothing but JSON. The names of the lines are the same in every run: the
//! comparison matches them across builds.
//!
//! **Format.** A JSON array on standard output, one object for each line: `{"name": "tcp stat, 1 in
//! flight", "value": 0.000052, "unit": "s"}`. Builds of different dates are compared, so a line's
//! name and unit do not change unless what it measures does.

use std::io::Write;

use serde::Serialize;

/// One line of a sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What was measured; unique within a benchmark.
    pub name: String,
    /// How much, in units of `unit`.
    pub value: f64,
    /// What `value` counts, and with it whether less or more of it is better.
    pub unit: Unit,
}

/// What a line counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Seconds an operation takes; less is better.
    #[serde(rename = "s")]
    Seconds,
    /// Bytes a second; more is better.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// Operations a second; more is better.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Instructions that an operation takes, counted and not timed; less is better.
    #[serde(rename = "instructions")]
    Instructions,
    /// System calls that an operation takes, counted; less is better.
    #[serde(rename = "calls")]
    Calls,
}

impl Line {
    /// A line.
    pub fn new(name: impl Into<String>, value: f64, unit: Unit) -> Line {
        Line { name: name.into(), value, unit }
    }
}

/// Prints a sample.
///
/// # Errors
/// Standard output cannot be written.
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
