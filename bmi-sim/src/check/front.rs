//! The front of a sweep, for tests that need no settings.

use std::future::Future;

use super::{Case, Report, Verdict, sweep};
use crate::config::SimConfig;
use crate::faults::{Kind, Swarm};
use crate::world::World;

/// The node that the test itself runs at.
const TESTER: &str = "test";
/// Seeds of a test.
const SEEDS: u64 = 100;
/// One of so many seeds is run twice, and must be the same. The first one is.
const TWICE_EVERY: u64 = 8;

/// Runs a test of a program in a hundred worlds, each with its own seed and faults: losses, delays,
/// partitions, pauses, power failures of every node but that of the test.
///
/// The test starts its servers with [`Case::boot`](crate::Sim::boot), each at a node that it names,
/// and is itself a client at a node called `test`. All use `bmi`'s `Server`, `Client`, `spawn`,
/// `sleep`, `timeout` and `Instant`, and the addresses of the real world, in which the name of a
/// host is that of a node. A first run without faults finds out what the nodes are called.
///
/// The variables of the environment are those of [every sweep](crate::check). For other faults,
/// seeds and limits, use [`check::sweep`](crate::check::sweep).
///
/// # Panics
/// If a run fails, with what failed, the faults that it needs, and a command that repeats it.
pub fn test<V: Verdict, F: Future<Output = V>>(test: impl Fn(Case) -> F) -> Report {
    let at_node = |case: Case| {
        let (tester, running) = (case.node(TESTER), test(case));
        async move { tester.run(running).await }
    };
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let sweep = sweep(&name).named(&[TESTER]).seeds(0..SEEDS).twice_every(TWICE_EVERY);
    // Whether it passes is for the sweep to find out.
    let limits = (sweep.limit, sweep.events);
    let world = World::with(SimConfig { time_limit: limits.0, event_limit: limits.1, ..SimConfig::drawn(0) });
    let case = Case::new(&world, 0, &[TESTER.to_owned()], &crate::faults::Plan::default());
    let _ = super::panic_hook::catch(|| world.try_block_on(at_node(case)).is_ok());
    let names = world.names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    sweep.named(&names).faults(Swarm::all().sparing(Kind::Crash, TESTER)).run(at_node)
}
