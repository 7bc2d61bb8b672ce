//! The A/B table.

use bmi_report::table::Table;
use bmi_report::units;

use crate::job::Tallies;
use crate::tally::{CLASSES, Line};

/// The results over one transport.
pub(crate) struct Measured {
    pub(crate) transport: String,
    /// The path that data of each size takes, and the reason.
    pub(crate) plan: String,
    pub(crate) put: Tallies,
    pub(crate) get: Tallies,
    /// The differences between what was stored and what was read back.
    pub(crate) wrong: Vec<String>,
}

/// Returns all lines, ordered by size class, direction and transport, so that lines to compare are
/// adjacent.
pub(crate) fn lines(measured: &[Measured]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (index, (_, class)) in CLASSES.iter().enumerate() {
        for direction in ["put", "get"] {
            lines.extend(measured.iter().filter_map(|one| {
                let tallies = if direction == "put" { &one.put } else { &one.get };
                tallies[index].line(class, direction, &one.transport)
            }));
        }
    }
    lines
}

/// Formats the lines for people.
pub(crate) fn render(lines: &[Line]) -> String {
    let heading = ["file size", "", "over", "path", "files", "bytes", "bandwidth", "median", "p99", "client CPU"];
    let mut table = Table::new(4, heading);
    for line in lines {
        table.row([
            line.class.to_owned(),
            line.direction.to_owned(),
            line.transport.to_owned(),
            line.path(),
            line.operations.to_string(),
            units::amount(line.bytes),
            units::bandwidth(line.bytes_per_second),
            units::time(line.median_seconds),
            units::time(line.p99_seconds),
            units::time(line.cpu_seconds),
        ]);
    }
    table.render()
}
