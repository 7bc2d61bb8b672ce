//! Runs the ticket protocol (`examples/src/tickets.rs`, with its unit tests) in the simulator.
//! Prints virtual time, events, processor time, and the digest, which is the same for the same
//! seed.
//!
//! ```text
//! cargo run -p examples --bin protocol_in_sim
//! cargo run -p examples --bin protocol_in_sim -- --trace ticket.json   # open it in ui.perfetto.dev
//! cargo test -p examples
//! ```

use bmi::{Config, Error, ErrorKind, Options};
use bmi_sim::{TraceOptions, World};
use examples::tickets::{dispense, take};

/// Runs a taker and a dispenser on two nodes. Returns the last ticket and the run's digest.
fn run(seed: u64, trace: Option<&str>) -> Result<(u64, u64), Error> {
    let world = World::new(seed);
    // Recording does not change the run.
    let timeline = trace.map(|path| (path, world.trace(TraceOptions::default())));
    let (office, home) = (world.node("office"), world.node("home"));

    // `Node::endpoint` opens an endpoint over the simulated adapter, with a task that drives it.
    let server = office.endpoint(Config::named("dispenser"))?;
    let addr = server.listen(&office.addr(1))?;
    office.spawn(async move { dispense(&server).await });

    let client = home.endpoint(Config::named("taker"))?;
    let last = world.block_on(async {
        let dispenser = client.connect(&addr, Options::default()).await?;
        let mut last = 0;
        for tag in 1..=1000 {
            last = take(&dispenser, tag).await?;
        }
        Ok::<u64, Error>(last)
    })?;
    println!("seed {seed}: last ticket {last}, virtual time {}, {} events", world.now(), world.events());
    println!("  dispenser: {}", office.usage());
    println!("  taker: {}", home.usage());
    println!("  digest {:016x}", world.digest());
    if let Some((path, timeline)) = timeline {
        let file =
            std::fs::File::create(path).map_err(|error| Error::new(ErrorKind::Io, format!("{path}: {error}")))?;
        timeline.write_chrome(file).map_err(|error| Error::new(ErrorKind::Io, format!("{path}: {error}")))?;
    }
    Ok((last, world.digest()))
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let trace = match &arguments[..] {
        [] => None,
        [option, path] if option == "--trace" => Some(path.as_str()),
        _ => return Err(Error::new(ErrorKind::Invalid, "usage: protocol_in_sim [--trace FILE]")),
    };
    let (first, again) = (run(1, trace)?, run(1, None)?);
    assert_eq!(first, again, "the same seed must give the same run");
    assert_eq!(first.0, 1000, "nothing was disturbed, so no ticket was lost");
    Ok(())
}
