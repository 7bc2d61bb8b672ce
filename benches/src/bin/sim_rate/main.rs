//! How fast the simulator is, in real time on one core, and the same digest twice.
//!
//! Nodes are paired; each pair sends a small message back and forth over its own connection, all pairs at once. Once through the whole stack
//! (matching, credits, the simulated adapters and the network, as anything else does), once between raw transports: the bare model. Then many nodes
//! that do nothing are made, to see what one of them takes. The program fails if two runs of one seed differ.

mod bare;
mod stack;

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use benches::units;
use bmi_core::Config;
use bmi_sim::{Profile, SimConfig, TraceOptions, World};
use clap::Parser;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How fast the simulator is: events and messages a second, in real time on one core, and memory of an idle node.
///
/// Every line is run twice with one seed, and has to give the same digest. "events" are what the model executes; a message of a few bytes is two,
/// one when it arrives and one when that is acknowledged, and what its processors need besides.
#[derive(Parser)]
#[command(after_help = "Examples:\n  \
                        sim_rate                                   everything, a few seconds\n  \
                        sim_rate --quick --profile vapi-2003       on other machines\n  \
                        sim_rate --quick --nodes 8 --trace t.json  and open t.json in chrome://tracing or ui.perfetto.dev")]
struct Cli {
    /// Nodes of the whole stack, an even number.
    #[arg(long, default_value_t = 64, value_parser = even)]
    nodes: u32,
    /// Nodes of the bare model, an even number.
    #[arg(long, default_value_t = 1000, value_parser = even)]
    bare_nodes: u32,
    /// Idle nodes, and nodes of the bare model's largest run.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    idle_nodes: u32,
    /// Messages there and back for each pair.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    size: u32,
    /// What things cost: a profile of the simulator or a file, +NAME or +FILE for another disk
    /// [default: the simulator's own].
    #[arg(long, value_name = "NAME|FILE", value_parser = Profile::from_name_or_file)]
    profile: Option<Profile>,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tenth of the rounds.
    #[arg(long)]
    quick: bool,
    /// Write the timeline of a run through the whole stack to this file, in Chrome's trace format.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

fn even(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(nodes) if (2..=100_000).contains(&nodes) && nodes % 2 == 0 => Ok(nodes),
        _ => Err("an even number from 2 to 100000".to_owned()),
    }
}

/// What a run came to.
struct Run {
    digest: u64,
    events: u64,
    messages: u64,
    virtual_seconds: f64,
    real_seconds: f64,
}

/// Runs it twice, and prints both.
fn twice(what: &str, nodes: u32, run: impl Fn() -> Outcome<Run>) -> Outcome<()> {
    let runs = [run()?, run()?];
    println!("{what}, {nodes} nodes, {} messages", runs[0].messages);
    for run in &runs {
        println!(
            "  digest {:016x}  {} events in {}, {} events, {} messages; virtual time {}",
            run.digest,
            run.events,
            units::time(run.real_seconds),
            units::rate(run.events as f64 / run.real_seconds),
            units::rate(run.messages as f64 / run.real_seconds),
            units::time(run.virtual_seconds),
        );
    }
    if (runs[0].digest, runs[0].events) == (runs[1].digest, runs[1].events) {
        Ok(())
    } else {
        Err(format!("two runs of {what} with one seed differ").into())
    }
}

/// Bytes of this process that are in memory.
fn resident() -> Outcome<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = statm.split(' ').nth(1).ok_or("no second field in /proc/self/statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Makes nodes that do nothing, bare, and some with an endpoint that waits. To be called before anything else has used memory and given it back.
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
        println!("{count} idle nodes, {with}: {} a node", units::amount(each));
    }
    Ok(())
}

fn run(cli: &Cli) -> Outcome<()> {
    let rounds = if cli.quick { cli.rounds.div_ceil(10) } else { cli.rounds };
    let profile = cli.profile.clone().unwrap_or_default();
    let config = SimConfig { profile, ..SimConfig::seeded(cli.seed) };
    if let Some(path) = &cli.trace {
        let traced = SimConfig { trace: Some(TraceOptions::default()), ..config };
        let (_, world) = stack::run(traced, cli.nodes, rounds, cli.size)?;
        let trace = world.trace(TraceOptions::default());
        trace.write_chrome(File::create(path)?)?;
        let (spans, left_out) = trace.spans();
        println!(
            "{}: {spans} spans, {left_out} left out; open it in chrome://tracing or ui.perfetto.dev",
            path.display()
        );
        return Ok(());
    }
    idle(&config, cli.idle_nodes)?;
    twice("whole stack", cli.nodes, || Ok(stack::run(config.clone(), cli.nodes, rounds, cli.size)?.0))?;
    // As many messages in all as with 64 nodes, so that it takes about as long.
    let bare = (u64::from(rounds) * 64 / u64::from(cli.bare_nodes)).max(1);
    twice("bare model", cli.bare_nodes, || Ok(bare::run(config.clone(), cli.bare_nodes, bare)?))?;
    twice("bare model", cli.idle_nodes / 2 * 2, || {
        let rounds = (bare * u64::from(cli.bare_nodes) / u64::from(cli.idle_nodes)).max(1);
        Ok(bare::run(config.clone(), cli.idle_nodes / 2 * 2, rounds)?)
    })?;
    println!("the same seed gave the same run twice");
    Ok(())
}

fn main() -> ExitCode {
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
    #[test]
    fn every_option_is_parsed() {
        assert!(cli_check::every_option::<super::Cli>(&[("profile", "vapi-2003")]) >= 9);
    }
}
