//! `paper`: the experiments of the papers, in the simulator.

use std::path::{Path, PathBuf};

use crate::paper::report::{Comparison, Report, summary};
use crate::paper::{ALL, Reproduction, Scale, svg};
use crate::report::{ReportArgs, begin};
use serde::Serialize;

use super::Failed;

/// Reproduces experiments of the papers in the simulator: the real client and server, on the
/// papers' machines.
///
/// Prints for each published result what the model predicts, and the error. The machines are
/// profiles of the simulator that were calibrated only on micro-benchmarks (latency, bandwidth,
/// registration, copies, disk). So an error is due to the model or to our code;
/// docs/reproduction.md says where and why. MB are 2^20 bytes, as in the papers. The same command
/// prints the same digits.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo run --release -p benches -- paper --list\n  \
                        cargo run --release -p benches -- paper vapi cpu\n  \
                        cargo run --release -p benches -- paper all --svg pictures\n  \
                        cargo run --release -p benches -- paper small --json")]
pub(crate) struct Paper {
    /// Experiments to run; `all` runs all of them.
    #[arg(required_unless_present = "list")]
    names: Vec<String>,
    /// List the experiments and stop.
    #[arg(long)]
    list: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Draw the figures into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
    /// Use fewer points and less data, for a result in a second or so.
    #[arg(long)]
    quick: bool,
}

/// A report with its name, for JSON.
#[derive(Serialize)]
struct Named {
    name: &'static str,
    source: &'static str,
    #[serde(flatten)]
    report: Report,
}

impl Paper {
    /// Runs the chosen experiments. If a statement of a paper does not hold, that is printed and is
    /// no failure.
    pub(crate) fn run(&self) -> Result<bool, Failed> {
        if self.list {
            let mut table = bmi_report::table::Table::new(3, ["name", "source", "what"]);
            ALL.iter().for_each(|one| table.row([one.name, one.source, one.what].map(str::to_owned)));
            print!("{}", table.render());
            return Ok(true);
        }
        let mut recorded =
            begin("benches paper", "the experiments of the papers in the simulator, beside what is published");
        let scale = if self.quick { Scale::Reduced } else { Scale::Full };
        let mut reports = Vec::new();
        for one in self.chosen()? {
            let report = one.run(scale).map_err(|error| -> Failed { error })?;
            if !self.json {
                println!("== {} ({}): {}\n\n{}", one.name, one.source, one.what, report.render());
            }
            if let Some(folder) = &self.svg {
                self.draw(folder, &report)?;
            }
            report.add_to(&mut recorded, one.name);
            reports.push(Named { name: one.name, source: one.source, report });
        }
        let whole = summary(reports.iter().flat_map(|one| &one.report.comparisons));
        if let Some(median) = whole.median_percent {
            let results = whole.results as f64;
            recorded.summary.push(("results".to_owned(), results, "results".to_owned()));
            recorded.summary.push(("median error".to_owned(), median, "%".to_owned()));
        }
        self.conclude(&reports)?;
        self.report.write(&recorded)?;
        Ok(true)
    }

    fn draw(&self, folder: &Path, report: &Report) -> Result<(), Failed> {
        std::fs::create_dir_all(folder)?;
        for figure in &report.figures {
            let path = folder.join(format!("{}.svg", figure.name));
            let picture = svg::draw(figure).map_err(|error| -> Failed { error })?;
            std::fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
            if !self.json {
                println!("drawn: {}", path.display());
            }
        }
        Ok(())
    }

    fn chosen(&self) -> Result<Vec<&'static Reproduction>, Failed> {
        if self.names.iter().any(|name| name == "all") {
            return Ok(ALL.iter().collect());
        }
        let find = |name: &String| {
            let known = || ALL.iter().map(|one| one.name).collect::<Vec<_>>().join(", ");
            ALL.iter()
                .find(|one| one.name == name)
                .ok_or_else(|| format!("no {name}; there are all, {}", known()).into())
        };
        self.names.iter().map(find).collect()
    }

    fn conclude(&self, reports: &[Named]) -> Result<(), Failed> {
        let comparisons = || reports.iter().flat_map(|one| &one.report.comparisons);
        let summary = summary(comparisons());
        if self.json {
            println!(
                "{}",
                serde_json::to_string_pretty(&serde_json::json!({ "reports": reports, "summary": summary }))?
            );
            return Ok(());
        }
        if let (Some(median), Some(largest)) = (summary.median_percent, summary.largest_percent) {
            println!(
                "{} results with a published number that count: median error {median:.1} %, largest {largest:.1} %",
                summary.results
            );
        }
        if let Some(points) = summary.largest_cpu_points {
            println!("processor utilisation: largest error {points:.1} points");
        }
        let counts = |one: &&Comparison| one.counted && one.error.is_some_and(|error| error.abs() > 25.0);
        let off = comparisons().filter(counts);
        let off: Vec<&str> = off.map(|one| one.id.as_str()).collect();
        if !off.is_empty() {
            println!("off by more than 25: {} (docs/reproduction.md says why)", off.join(", "));
        }
        Ok(())
    }
}
