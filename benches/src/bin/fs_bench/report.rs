//! The rows of the report, and a progress bar on a terminal.

use std::io::{IsTerminal, stderr};

use benches::report::steps;
use bmi_report::Row;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::line::Line;

/// A line with the figures of all rounds.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) line: Line,
    pub(crate) values: Vec<f64>,
}

impl Series {
    pub(crate) fn new(line: Line) -> Series {
        Series { line, values: Vec::new() }
    }

    /// Returns the row of a report. Lines of the same round were measured side by side.
    pub(crate) fn row(self) -> Row {
        Row { rounds: steps(0, self.values), ..self.line.row }
    }
}

/// The progress of a run, in lines.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Starts the progress of a run of this many lines, in all rounds.
    pub(crate) fn new(lines: u64) -> Progress {
        let show = stderr().is_terminal();
        let target = if show { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(lines), target);
        let style = ProgressStyle::with_template("{msg:40} [{bar:30}] {pos}/{len}");
        Progress(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// Shows what is being done now.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Adds a line to those that are done.
    pub(crate) fn advance(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use benches::lines;
    use bmi_core::Scheme;
    use bmi_report::Report;

    use super::*;
    use crate::line::What;

    fn row(scheme: Scheme, what: What, values: [f64; 3]) -> Row {
        Series { line: Line::new(scheme, what, 64 << 20), values: values.to_vec() }.row()
    }

    #[test]
    fn transports_are_side_by_side_under_the_names_of_the_lines() {
        let rows = vec![
            row(Scheme::Tcp, What::Stat(1), [6e-5, 2e-5, 4e-5]),
            row(Scheme::Tcp, What::Put, [2e9, 1e9, 3e9]),
            row(Scheme::Shm, What::Stat(1), [3e-5, 1e-5, 2e-5]),
        ];
        assert!(rows[2].is_beside(&rows[0]));
        assert_eq!(lines::sample(rows.iter().map(|row| (row.name(), row)))[1].value, 2e9);
        let table = lines::render(&Report { rows, ..Report::new("", "") });
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert!(lines[0].starts_with("tcp stat, 1 in flight   40.00 us    20.00 us to 60.00 us"), "{table}");
        assert!(lines[1].starts_with("shm stat, 1 in flight   20.00 us    10.00 us to 30.00 us"), "{table}");
        assert!(lines[1].contains("x 0.50") && lines[1].ends_with("too few rounds"), "{table}");
        assert!(lines[2].starts_with("tcp put 64 MiB         2.00 GB/s  1.00 GB/s to 3.00 GB/s"), "{table}");
    }
}
