//! `cores`: an I/O server on several cores, in the simulator.

use crate::cores::{Row, Scale, rows};
use crate::report::{self, ReportArgs, begin, steps};
use bmi::paths::Direction;
use bmi_report::table::Table;
use bmi_report::{Kind, Unit, units};

use super::Failed;

/// Predicts what an I/O server with an event loop on each of 1, 2, 4 and 8 cores serves to 64
/// clients, in the simulator.
///
/// Prints for each machine, direction and size of requests the rate, the speed-up over one core,
/// and how busy the resources of the server's machine were. The one that was busiest limits the
/// row. The prediction was not compared with a real machine. docs/performance.md has the prices,
/// the workload and the reasons. The same command prints the same digits.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo run --release -p benches -- cores\n  \
                        cargo run --release -p benches -- cores --quick --json")]
pub(crate) struct Cores {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    report: ReportArgs,
    /// Leave out 2 and 4 cores, and count for a shorter time.
    #[arg(long)]
    quick: bool,
}

impl Cores {
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        let scale = if self.quick { Scale::Reduced } else { Scale::Full };
        let mut report = begin("benches cores", "an I/O server on several cores, in the simulator");
        let rows = rows(scale).map_err(|error| -> Failed { error })?;
        if self.json {
            println!("{}", serde_json::to_string_pretty(&rows)?);
        } else {
            print!("{}", table(&rows).render());
        }
        report.rows = rows.iter().map(recorded).collect();
        self.report.write(&report)?;
        Ok(true)
    }
}

/// Returns the row of a report.
fn recorded(row: &Row) -> bmi_report::Row {
    let setup = [("cores", &*row.cores.to_string()), ("machine", row.machine)];
    bmi_report::Row {
        size: Some(row.bytes as u64),
        rounds: steps(0, [row.requests_per_s]),
        notes: vec![format!("limited by {}, to {:.0} %", row.limit, 100.0 * row.limit_utilisation())],
        ..report::row(row.direction, "sim", Kind::Model, Unit::PerSecond, &setup)
    }
}

fn table(rows: &[Row]) -> Table {
    let heading = [
        "machine",
        "requests",
        "limited by",
        "cores",
        "requests",
        "bytes",
        "speed-up",
        "of the limit",
        "waiting for locks",
    ];
    let mut table = Table::new(3, heading);
    for row in rows {
        let what = if row.direction == Direction::Write.as_str() { "write" } else { "read" };
        table.row([
            row.machine.to_owned(),
            format!("{what} {}", units::size(row.bytes)),
            row.limit.clone(),
            row.cores.to_string(),
            units::rate(row.requests_per_s),
            units::bandwidth(row.bytes_per_s),
            format!("{:.2}", row.speed_up),
            format!("{:.0} %", 100.0 * row.limit_utilisation()),
            format!("{:.1} %", 100.0 * row.lock_waiting),
        ]);
    }
    table
}
