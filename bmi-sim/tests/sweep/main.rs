//! Random programs of two nodes over the real protocol: everything that the message interface can
//! do, at the same time, over adapters and with settings drawn from the seed.
//!
//! **Why.** The conformance suite shows each behaviour alone. Bugs of a protocol appear where
//! behaviours meet. Nothing fails in these worlds, so everything that a program asks for must
//! happen: the right bytes in the right place and nowhere else, each operation ended as it had to,
//! nothing held afterwards, and the connection still established. Worlds in which things fail are
//! in `bmi-sim/tests/chaos.rs`.
//!
//! **Layout.** A seed draws the world ([`settings`]), some forty exchanges ([`script::Script`]),
//! and two streams of messages each way. Each exchange has its own tags, and both nodes begin it at
//! random times. The module `ends` has the tests that end a connection. To run one seed again:
//! `BMI_SEED=17 cargo test -p bmi-sim --test sweep`. To run more of them: `BMI_SEEDS=0..5000`.
//!
//! `cargo xtask mutants` also measures these sweeps: they must find the bugs that are seeded in the
//! code.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod ends;
mod play;
mod script;

use std::time::Duration;

use bmi_core::comm::{Direction, Path, PathCounters};
use bmi_core::{Capabilities, Config, Endpoint, Peer, PeerEvent, ResourceUsage};
use bmi_sim::check::seeds;
use bmi_sim::{Node, Rng, SimConfig, World};

/// Longer than any operation takes that does not have to wait.
const SOON: Duration = Duration::from_secs(1);
/// How long an operation that was asked to end may wait for the peer.
const GRACE: Duration = Duration::from_millis(300);

/// One side of a connection.
#[derive(Clone)]
struct Side {
    node: Node,
    peer: Peer,
}

/// Prints the failing seed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: BMI_SEED={} cargo test -p bmi-sim --test sweep", self.0);
        }
    }
}

/// Returns the world of a seed: adapters with much or little room, registration free or expensive,
/// varying times.
fn world(rng: &mut Rng, seed: u64) -> World {
    let mut config = SimConfig::drawn(seed);
    config.jitter_ns = [0, 2_000, 30_000][rng.below(3) as usize];
    config.time_limit = Duration::from_secs(60);
    if rng.below(2) == 0 {
        (config.profile.register_region_ns, config.profile.register_page_ns) = (0, 0);
    }
    let mut capabilities = config.capabilities();
    if rng.below(2) == 0 {
        let least = Capabilities::minimal();
        capabilities.max_segments = [2, 16][rng.below(2) as usize];
        capabilities.max_inline = least.max_inline;
        capabilities.send_queue_depth = [8, 128][rng.below(2) as usize];
        capabilities.recv_queue_depth = least.recv_queue_depth;
        capabilities.max_outstanding_reads = 1 + rng.below(2) as usize;
    }
    capabilities.rdma_read = rng.below(4) > 0;
    config.capabilities_override = Some(capabilities);
    World::with(config)
}

/// Draws the settings of an endpoint.
fn settings(rng: &mut Rng) -> Config {
    let mut one_of = |values: &[usize]| values[rng.below(values.len() as u64) as usize];
    let eager_limit = one_of(&[256, 1024, 8192]);
    let transfer_unit = one_of(&[4096, 16 << 10, 256 << 10]);
    Config::default()
        .eager_limit(eager_limit)
        .credit_messages(one_of(&[8, 16, 124]) as u16)
        .credit_bytes((one_of(&[4, 10, 100]) * (eager_limit + 64)) as u32)
        .fast_slots(one_of(&[0, 1, 4]) as u8)
        .fast_slot_bytes(one_of(&[8192, 68 << 10]))
        .transfer_unit(transfer_unit)
        .in_flight_bytes((one_of(&[1, 4]) * transfer_unit) as u64)
        .peer_in_flight_bytes((one_of(&[1, 2]) * transfer_unit) as u64)
        .expose_groups(one_of(&[0, 1]) == 0)
        .pin_cache_entries(one_of(&[0, 2, 4096]))
        .fence_grace(GRACE)
}

fn endpoint(world: &World, name: &str, config: Config) -> (Node, Endpoint) {
    let node = world.node(name);
    let endpoint = node.endpoint(config).unwrap();
    (node, endpoint)
}

/// Returns two connected nodes.
fn pair(world: &World, rng: &mut Rng, names: [&str; 2]) -> [Side; 2] {
    let settings = [settings(rng), settings(rng)];
    pair_with(world, settings, names)
}

fn pair_with(world: &World, [one, other]: [Config; 2], names: [&str; 2]) -> [Side; 2] {
    let (near, a) = endpoint(world, names[0], one);
    let (far, b) = endpoint(world, names[1], other);
    let addr = b.listen(&far.addr(1)).unwrap();
    let (to_b, to_a) = world.block_on(async {
        let to_b = a.connect(&addr, a.within(SOON)).await.unwrap();
        let PeerEvent::Connected { peer: to_a, .. } = b.next_event().await else { panic!("no peer") };
        (to_b, to_a)
    });
    [Side { node: near, peer: to_b }, Side { node: far, peer: to_a }]
}

/// Checks that an endpoint holds nothing but `peers` connections.
fn check_idle(side: &Side, peers: usize, what: &str) {
    let endpoint = side.peer.endpoint();
    let held = endpoint.resource_usage();
    assert_eq!(held, ResourceUsage { peers, ..ResourceUsage::default() }, "{what}, {}", side.node.name());
    assert_eq!(endpoint.counters().violations, 0, "{what}, {}", side.node.name());
    assert_eq!(endpoint.with(|engine| engine.pinned().in_use), 0, "{what}, {}", side.node.name());
}

#[test]
fn what_was_asked_for_happens() {
    let mut paths = PathCounters::default();
    let range = seeds(0..150);
    for seed in range.clone() {
        let _named = Named(seed);
        let mut rng = Rng::new(seed);
        let world = world(&mut rng, seed);
        let sides = pair(&world, &mut rng, ["a", "b"]);
        paths = paths.plus(&play::play(&world, &sides, &mut rng));
        for side in &sides {
            assert!(side.peer.limits().is_some(), "the connection was lost");
            check_idle(side, 1, "after all exchanges");
        }
        ends::an_orderly_end(&world, &sides, &mut rng);
    }
    for (direction, path) in Direction::ALL.into_iter().flat_map(|way| Path::TAKEN.map(|path| (way, path))) {
        let (taken, runs) = (paths.requests(direction, path), range.end - range.start);
        assert!(runs < 20 || taken > runs / 4, "{direction} by {path}: {taken} times in {runs} worlds");
    }
}

#[test]
fn what_is_over_stays_over() {
    for seed in seeds(0..150) {
        let _named = Named(seed);
        let mut rng = Rng::new(seed);
        let world = world(&mut rng, seed);
        ends::stale_keys(&world, &mut rng);
        ends::a_lost_peer(&world, &mut rng);
        ends::deadlines(&world, &mut rng);
        ends::both_run_out_of_credits(seed, &mut rng);
        ends::long_streams_of_short_messages(seed, &mut rng);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let mut rng = Rng::new(seed);
        let world = world(&mut rng, seed);
        let sides = pair(&world, &mut rng, ["a", "b"]);
        play::play(&world, &sides, &mut rng);
        (world.digest(), world.events())
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
