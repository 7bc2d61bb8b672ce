//! How fast the simulator is: events a second for a ping-pong of 64 nodes through the whole stack, and the same digest twice.
//!
//! Nodes are paired; each pair sends a small message back and forth over its own connection, all pairs at once. Every message goes through
//! matching, credits, the simulated adapters and the network, as anything else does. The program fails if two runs of one seed differ.

use std::process::ExitCode;
use std::time::Instant;

use benches::units;
use bmi_core::{Addr, AsyncEndpoint, Config, Error, Memory, Options, PeerEvent, Tag};
use bmi_sim::{SimTransport, World};
use clap::Parser;

/// How fast the simulator is: events a second for a ping-pong between many nodes, real time.
#[derive(Parser)]
struct Cli {
    /// Nodes, an even number.
    #[arg(long, default_value_t = 64, value_parser = even)]
    nodes: u32,
    /// Messages there and back for each pair.
    #[arg(long, default_value_t = 5000)]
    rounds: u32,
    /// Bytes of a message.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    size: u32,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A tenth of the rounds.
    #[arg(long)]
    quick: bool,
}

fn even(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(nodes) if (2..=4096).contains(&nodes) && nodes % 2 == 0 => Ok(nodes),
        _ => Err("an even number from 2 to 4096".to_owned()),
    }
}

const PING: Tag = 1;
const PONG: Tag = 2;

/// What a run came to.
struct Run {
    digest: u64,
    events: u64,
    messages: u64,
    virtual_seconds: f64,
    real_seconds: f64,
}

#[expect(clippy::disallowed_methods, reason = "measures how long the simulation takes in real time")]
fn run(cli: &Cli) -> Result<Run, Error> {
    let rounds = if cli.quick { cli.rounds.div_ceil(10) } else { cli.rounds };
    let world = World::new(cli.seed);
    let mut pairs = Vec::new();
    for pair in 0..cli.nodes / 2 {
        let (left, right) = (world.node(&format!("left{pair}")), world.node(&format!("right{pair}")));
        let server = right.endpoint(Config::named("right"))?;
        let addr = server.listen(&right.addr(1))?;
        let client = left.endpoint(Config::named("left"))?;
        let size = cli.size as usize;
        pairs.push(right.spawn(async move { pong(&server, size, rounds).await }));
        pairs.push(left.spawn(async move { ping(&client, &addr, size, rounds).await }));
    }
    let begin = Instant::now();
    world.block_on(async {
        for task in pairs {
            task.await.map_err(|killed| Error::new(bmi_core::ErrorKind::Io, killed.to_string()))??;
        }
        Ok::<(), Error>(())
    })?;
    Ok(Run {
        digest: world.digest(),
        events: world.events(),
        messages: u64::from(cli.nodes) * u64::from(rounds),
        virtual_seconds: world.now().as_nanos() as f64 / 1e9,
        real_seconds: begin.elapsed().as_secs_f64(),
    })
}

async fn ping(endpoint: &AsyncEndpoint<SimTransport>, addr: &Addr, size: usize, rounds: u32) -> Result<(), Error> {
    let peer = endpoint.connect(addr, Options::default()).await?;
    let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
    for _ in 0..rounds {
        let answer = endpoint.recv(peer, PONG, &back, Options::default());
        endpoint.send(peer, PING, &out, Options::default()).await?;
        answer.await?;
    }
    Ok(())
}

async fn pong(endpoint: &AsyncEndpoint<SimTransport>, size: usize, rounds: u32) -> Result<(), Error> {
    let peer = match endpoint.next_event().await {
        PeerEvent::Connected { peer, .. } => peer,
        PeerEvent::Lost { reason, .. } => return Err(reason),
    };
    let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
    for _ in 0..rounds {
        endpoint.recv(peer, PING, &back, Options::default()).await?;
        endpoint.send(peer, PONG, &out, Options::default()).await?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let (first, again) = match run(&cli).and_then(|first| Ok((first, run(&cli)?))) {
        Ok(runs) => runs,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("{} nodes, {} messages of {} B, seed {}", cli.nodes, first.messages, cli.size, cli.seed);
    for run in [&first, &again] {
        println!(
            "digest {:016x}  {} events in {}, {} events, {} messages; virtual time {}",
            run.digest,
            run.events,
            units::time(run.real_seconds),
            units::rate(run.events as f64 / run.real_seconds),
            units::rate(run.messages as f64 / run.real_seconds),
            units::time(run.virtual_seconds),
        );
    }
    if (first.digest, first.events) == (again.digest, again.events) {
        println!("the same seed gave the same run twice");
        ExitCode::SUCCESS
    } else {
        eprintln!("error: two runs of seed {} differ", cli.seed);
        ExitCode::FAILURE
    }
}
