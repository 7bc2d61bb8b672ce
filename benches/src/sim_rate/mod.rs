//! Measures how fast the simulator is, in real time on one core, and checks that a seed gives the
//! same digest twice.
//!
//! Nodes are paired. Each pair sends a small message back and forth over its own connection, all
//! pairs at the same time. One measurement uses the whole stack (tag matching, credits, the
//! simulated adapters and the network), and one uses raw transports, the bare model. Then many idle
//! nodes are created, to measure the memory of one. The program fails if two runs of one seed
//! differ.

mod bare_model;
mod stack;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::report::{ReportArgs, begin, row, steps};
use crate::sample;
use bmi::Config;
use bmi_report::Unit;
use bmi_report::units;
use bmi_sim::{Profile, SimConfig, TraceOptions, World};
use clap::Parser;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Measures how fast the simulator is: events and messages per second, in real time on one core,
/// and memory of an idle node.
///
/// Every line is run twice with one seed, and must give the same digest. "events" are those that
/// the model executes. A message of a few bytes has two, one when it arrives and one when it is
/// acknowledged, and those of the processors.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        sim_rate                                   everything, a few seconds\n  \
                        sim_rate --quick --profile vapi-2003       on other machines\n  \
                        sim_rate --only 'bare model'               the lines with this in their name\n  \
                        sim_rate --sample                          what `cargo xtask compare` reads\n  \
                        sim_rate --quick --nodes 8 --trace t.json  and open t.json in chrome://tracing or ui.perfetto.dev")]
struct Cli {
    /// The number of nodes of the whole stack, even.
    #[arg(long, default_value_t = 64, value_parser = even)]
    nodes: u32,
    /// The number of nodes of the bare model, even.
    #[arg(long, default_value_t = 1000, value_parser = even)]
    bare_nodes: u32,
    /// The number of idle nodes, and of nodes of the bare model's largest run.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    idle_nodes: u32,
    /// The number of messages in each direction for each pair.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    size: u32,
    /// The prices: a profile of the simulator or a file; +NAME or +FILE for another disk [default:
    /// the simulator's own].
    #[arg(long, value_name = "NAME|FILE", value_parser = Profile::from_name_or_file)]
    profile: Option<Profile>,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run a tenth of the rounds.
    #[arg(long)]
    quick: bool,
    /// Run only lines whose names contain this: idle, whole stack, bare model.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Run each line once, with the default settings, in some seconds; print only JSON.
    #[arg(long, conflicts_with_all = ["nodes", "bare_nodes", "idle_nodes", "rounds", "size", "profile", "seed", "quick", "trace"])]
    sample: bool,
    /// Write the timeline of a run through the whole stack to this file, in Chrome's trace format.
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

fn even(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(nodes) if (2..=100_000).contains(&nodes) && nodes % 2 == 0 => Ok(nodes),
        _ => Err("an even number from 2 to 100000".to_owned()),
    }
}

impl Cli {
    /// Returns the number of messages in each direction for each pair of the whole stack.
    fn rounds(&self) -> u32 {
        if self.quick { self.rounds.div_ceil(10) } else { self.rounds }
    }
}

/// The result of a run.
struct Run {
    digest: u64,
    events: u64,
    messages: u64,
    virtual_seconds: f64,
    real_seconds: f64,
}

impl Run {
    fn events_per_second(&self) -> f64 {
        self.events as f64 / self.real_seconds
    }

    fn messages_per_second(&self) -> f64 {
        self.messages as f64 / self.real_seconds
    }
}

/// Runs a line twice, and prints both runs. Returns their row of a report.
fn twice(line: &Line, config: &SimConfig, size: u32) -> Outcome<bmi_report::Row> {
    let runs = [line.run(config, size)?, line.run(config, size)?];
    println!("{}, {} messages", line.name(), runs[0].messages);
    for run in &runs {
        println!(
            "  digest {:016x}  {} events in {}, {} events, {} messages; virtual time {}",
            run.digest,
            run.events,
            units::time(run.real_seconds),
            units::rate(run.events_per_second()),
            units::rate(run.messages_per_second()),
            units::time(run.virtual_seconds),
        );
    }
    if (runs[0].digest, runs[0].events) == (runs[1].digest, runs[1].events) {
        let (test, nodes) = (format!("{} events", line.what()), line.nodes.to_string());
        let row = row(&test, "sim", bmi_report::Kind::Library, Unit::PerSecond, &[("nodes", &nodes)]);
        Ok(bmi_report::Row { rounds: steps(0, runs.map(|run| run.events_per_second())), ..row })
    } else {
        Err(format!("two runs of {} with one seed differ", line.name()).into())
    }
}

/// Returns the bytes of this process that are in memory.
fn resident() -> Outcome<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no second field in /proc/self/statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Creates nodes that do nothing, first without endpoints and then with endpoints that wait. Call
/// this before other code has used memory and freed it.
fn idle(config: &SimConfig, nodes: u32) -> Outcome<()> {
    for (count, endpoints) in [(nodes, false), (nodes, true)] {
        let world = World::with(config.clone());
        let before = resident()?;
        let mut kept = Vec::new();
        for at in 0..count {
            let node = world.node(&format!("node{at}"));
            if endpoints {
                kept.push(node.endpoint(Config::named("idle"))?);
            }
        }
        world.run_for(std::time::Duration::from_secs(1));
        let each = resident()?.saturating_sub(before) / u64::from(count);
        let with = if endpoints { "with an endpoint and its buffers" } else { "bare" };
        println!("{count} {IDLE}, {with}: {} a node", units::amount(each));
    }
    Ok(())
}

/// The name of the lines for idle nodes.
const IDLE: &str = "idle nodes";

/// The kind of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Messages through the whole stack.
    Stack,
    /// Messages between raw transports.
    Bare,
}

/// A line of the measurement.
#[derive(Clone, Copy)]
struct Line {
    kind: Kind,
    nodes: u32,
    /// The number of messages in each direction for each pair.
    rounds: u64,
}

impl Line {
    /// Returns the name, which is the same in every run: "sim whole stack, 64 nodes".
    fn name(&self) -> String {
        format!("sim {}, {} nodes", self.what(), self.nodes)
    }

    fn what(&self) -> &'static str {
        match self.kind {
            Kind::Stack => "whole stack",
            Kind::Bare => "bare model",
        }
    }

    fn run(&self, config: &SimConfig, size: u32) -> Outcome<Run> {
        Ok(match self.kind {
            Kind::Stack => stack::run(config.clone(), self.nodes, self.rounds, size)?.0,
            Kind::Bare => bare_model::run(config.clone(), self.nodes, self.rounds)?,
        })
    }
}

/// Returns true if the command line selects a line with this name.
fn is_chosen(cli: &Cli, name: &str) -> bool {
    cli.only.as_ref().is_none_or(|only| name.to_lowercase().contains(&only.to_lowercase()))
}

/// Returns the lines that the command line selects. The bare lines send as many messages in all as
/// 64 nodes of the whole stack, so that each line takes about as long.
fn chosen(cli: &Cli) -> Vec<Line> {
    let rounds = u64::from(cli.rounds()) * 64;
    let bare_rounds = (rounds / u64::from(cli.bare_nodes)).max(1);
    let most_rounds = (bare_rounds * u64::from(cli.bare_nodes) / u64::from(cli.idle_nodes)).max(1);
    let lines = [
        Line { kind: Kind::Stack, nodes: cli.nodes, rounds: cli.rounds().into() },
        Line { kind: Kind::Bare, nodes: cli.bare_nodes, rounds: bare_rounds },
        Line { kind: Kind::Bare, nodes: cli.idle_nodes / 2 * 2, rounds: most_rounds },
    ];
    lines.into_iter().filter(|line| is_chosen(cli, &line.name())).collect()
}

/// Writes the timeline of one run through the whole stack.
fn trace(cli: &Cli, config: SimConfig, path: &Path) -> Outcome<()> {
    let traced = SimConfig { trace: Some(TraceOptions::default()), ..config };
    let (_, world) = stack::run(traced, cli.nodes, cli.rounds().into(), cli.size)?;
    let trace = world.trace(TraceOptions::default());
    trace.write_chrome(File::create(path)?)?;
    let (spans, left_out) = trace.spans();
    println!("{}: {spans} spans, {left_out} left out; open it in chrome://tracing or ui.perfetto.dev", path.display());
    Ok(())
}

/// Runs each line once, for `cargo xtask compare`. A change of the protocol may need fewer events
/// for a message, so the messages of the whole stack are counted, too. In the bare model the number
/// of events per message is constant.
fn sample(cli: &Cli, config: &SimConfig, lines: &[Line]) -> Outcome<()> {
    let mut sampled = Vec::new();
    for line in lines {
        let run = line.run(config, cli.size)?;
        let mut add = |what, value| {
            sampled.push(sample::Line::new(format!("{}, {what}", line.name()), value, Unit::PerSecond));
        };
        add("events", run.events_per_second());
        if line.kind == Kind::Stack {
            add("messages", run.messages_per_second());
        }
    }
    Ok(sample::print(&sampled)?)
}

fn run(cli: &Cli) -> Outcome<()> {
    let profile = cli.profile.clone().unwrap_or_default();
    let config = SimConfig { profile, ..SimConfig::seeded(cli.seed) };
    if let Some(path) = &cli.trace {
        return trace(cli, config, path);
    }
    let (lines, with_idle) = (chosen(cli), is_chosen(cli, IDLE) && !cli.sample);
    if lines.is_empty() && !with_idle {
        return Err("no line has that in its name; there are idle, whole stack, bare model".into());
    }
    if cli.sample {
        return sample(cli, &config, &lines);
    }
    if with_idle {
        idle(&config, cli.idle_nodes)?;
    }
    let mut report = begin("sim_rate", "the rate of the simulator, in real time");
    for line in &lines {
        report.rows.push(twice(line, &config, cli.size)?);
    }
    cli.report.write(&report)?;
    if !lines.is_empty() {
        println!("the same seed gave the same run twice");
    }
    Ok(())
}

/// Runs the program `sim_rate`.
pub fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Cli, chosen};

    #[test]
    fn every_option_is_parsed_and_a_sample_excludes_what_changes_its_lines() {
        assert!(testbed::cli::every_option::<Cli>(&[("profile", "vapi-2003"), ("report", "a.json")]) >= 9);
        for other in
            ["--quick", "--nodes=8", "--rounds=3", "--size=8", "--profile=vapi-2003", "--seed=2", "--trace=t.json"]
        {
            assert!(Cli::try_parse_from(["sim_rate", "--sample", other]).is_err(), "{other}");
        }
    }

    #[test]
    fn lines_are_chosen_by_their_names() {
        let names = |args: &[&str]| {
            chosen(&Cli::parse_from(["sim_rate"].iter().chain(args))).iter().map(|line| line.name()).collect::<Vec<_>>()
        };
        let [stack, bare, most] =
            ["sim whole stack, 64 nodes", "sim bare model, 1000 nodes", "sim bare model, 10000 nodes"];
        assert_eq!(names(&["--sample"]), [stack, bare, most]);
        assert_eq!(names(&["--sample", "--only", "Bare Model"]), [bare, most]);
        assert!(names(&["--only", "idle"]).is_empty());
    }
}
