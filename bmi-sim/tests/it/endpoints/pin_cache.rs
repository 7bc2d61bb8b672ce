//! The pin-down cache under real transfers: how often memory is registered, and what happens when
//! the adapter refuses.
//!
//! Hit rates of 0 % and 100 % are from [PVFS-IB §3.3.3, §6.5]. The tile of 768 rows, with 1
//! registration if there are hints, is from [PVFS-IB §5, §6.8].

use std::ptr::NonNull;
use std::time::Duration;

use bmi_core::mem::{Extent, Foreign};
use bmi_core::{Access, Config, Counters, Endpoint, Error, ErrorKind, MemList, Memory, Options, Peer, PeerEvent};
use bmi_sim::{Node, SimConfig, World};

const SECOND: Duration = Duration::from_secs(1);
/// Longer than a dropped registration waits to be released.
const SETTLED: Duration = Duration::from_millis(50);

/// Two connected endpoints.
struct Pair {
    world: World,
    nodes: (Node, Node),
    to_b: Peer,
    to_a: Peer,
    /// The number of registrations of each adapter before anything has happened.
    idle: (usize, usize),
}

fn pair(sim: SimConfig, config: &Config) -> Pair {
    let world = World::with(sim);
    let nodes = (world.node("a"), world.node("b"));
    let (a, b) = (nodes.0.endpoint(config.clone()).unwrap(), nodes.1.endpoint(config.clone()).unwrap());
    let addr = b.listen(&nodes.1.addr(1)).unwrap();
    let to_b = world.block_on(a.connect(&addr, Options::default())).unwrap();
    let PeerEvent::Connected { peer: to_a, .. } = world.block_on(b.next_event()) else { panic!("no peer") };
    world.run_for(SETTLED);
    let idle = (nodes.0.registrations(), nodes.1.registrations());
    Pair { world, nodes, to_b, to_a, idle }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

impl Pair {
    fn a(&self) -> &Endpoint {
        self.to_b.endpoint()
    }

    fn b(&self) -> &Endpoint {
        self.to_a.endpoint()
    }

    /// Sends `from` to `into`. Returns the results of both sides.
    async fn send(
        &self,
        tag: u64,
        from: impl Into<MemList>,
        into: impl Into<MemList>,
    ) -> (Result<(), Error>, Result<(), Error>) {
        let receive = self.to_a.recv(tag, into, self.to_a.within(SECOND));
        let send = self.to_b.send(tag, from, self.to_b.within(SECOND));
        (send.await.map(drop), receive.await.map(drop))
    }

    /// Checks that nothing is in use, and that nothing is registered except by the cache.
    fn settled(&self, what: &str) {
        self.world.run_for(SETTLED);
        let (a, b) = &self.nodes;
        for (node, endpoint, idle) in [(a, self.a(), self.idle.0), (b, self.b(), self.idle.1)] {
            let resource_usage = endpoint.resource_usage();
            assert_eq!(resource_usage, bmi_core::ResourceUsage { peers: 1, ..Default::default() }, "{what}");
            let pinned = endpoint.with(|engine| engine.pinned());
            assert_eq!(pinned.in_use, 0, "{what}");
            // Staging buffers and fast-RDMA slots are created when they are needed and stay.
            let own = node.registrations() - pinned.entries;
            assert!((idle..=idle + 17).contains(&own), "{what}: {own} registrations are not in the cache; {idle} were");
            assert_eq!(endpoint.counters().violations, 0, "{what}");
        }
    }
}

/// Returns the time and the counters of 50 messages of 1 MiB, each from the memory that `memory`
/// returns.
fn fifty(config: &Config, memory: impl Fn(usize) -> Memory) -> (Duration, Counters) {
    let pair = pair(SimConfig::vapi_2003(), config);
    let into = Memory::zeroed(1 << 20).unwrap();
    let start = pair.world.now();
    pair.world.block_on(async {
        for round in 0..50 {
            let (sent, received) = pair.send(1, memory(round), &into).await;
            sent.and(received).unwrap();
        }
    });
    let took = pair.world.now() - start;
    pair.settled("after fifty messages");
    (took, pair.a().counters())
}

#[test]
fn every_use_after_the_first_is_a_hit() {
    let (same, config) = (Memory::zeroed(1 << 20).unwrap(), Config::default());
    let (cached, counters) = fifty(&config, |_| same.clone());
    assert_eq!((counters.pin_hits, counters.pin_misses, counters.pin_evictions), (49, 1, 0));
    let (fresh, counters) = fifty(&config, |_| Memory::zeroed(1 << 20).unwrap());
    assert_eq!((counters.pin_hits, counters.pin_misses), (0, 50), "other memory each time: nothing to hit");
    let none = Config::default().pin_cache_entries(0);
    let (without, counters) = fifty(&none, |_| same.clone());
    assert_eq!((counters.pin_hits, counters.pin_misses), (0, 50), "nothing is kept");
    // A MiB costs 120 µs and 256 pages of 4.1 µs to register, and 1.2 ms to move.
    let price = Duration::from_nanos(49 * (120_000 + 256 * 4_100));
    assert!(fresh >= cached + price && without >= cached + price, "{cached:?} {fresh:?} {without:?}");
}

#[test]
fn a_cached_registration_leaves_the_program_its_exclusive_access() {
    let pair = pair(SimConfig::seeded(1), &Config::default());
    let mut memory = Memory::zeroed(1 << 20).unwrap();
    let into = Memory::zeroed(1 << 20).unwrap();
    for round in 1..5u8 {
        memory.get_mut().expect("no operation is outstanding").fill(round);
        pair.world.block_on(pair.send(1, &memory, &into)).0.unwrap();
        assert!(into.to_vec().iter().all(|byte| *byte == round));
        assert!(pair.a().with(|engine| engine.is_registered(&memory)));
    }
    assert_eq!(pair.a().counters().pin_misses, 1);
    drop((memory, into));
    pair.settled("the program has dropped its memory");
    assert_eq!([pair.a(), pair.b()].map(|endpoint| endpoint.with(|engine| engine.pinned()).entries), [0, 0]);
}

#[test]
fn memory_dropped_while_the_endpoint_sleeps_is_deregistered() {
    let pair = pair(SimConfig::seeded(1), &Config::default());
    let memories: Vec<Memory> = (0..20).map(|_| Memory::zeroed(1 << 20).unwrap()).collect();
    let into = Memory::zeroed(1 << 20).unwrap();
    pair.world.block_on(async {
        for memory in &memories {
            pair.send(1, memory, &into).await.0.unwrap();
        }
    });
    pair.world.run_for(SECOND);
    let (before, batches) = (pair.nodes.0.registrations(), pair.a().counters().pin_batches);
    drop(memories);
    pair.world.run_for(SECOND);
    assert_eq!(
        (pair.nodes.0.registrations(), pair.a().counters().pin_batches),
        (before - 20, batches + 1),
        "let go, and together"
    );
}

/// Returns a list for a random transfer, with pieces of these lengths. If `apart` is true, each
/// piece is a memory of its own.
fn list(seed: usize, lens: &[usize], apart: bool, fill: bool) -> MemList {
    let total: usize = lens.iter().sum();
    let bytes = if fill { pattern(seed, total) } else { vec![0; total] };
    let mut at = 0;
    let mut cut = |len: usize| {
        at += len;
        at - len..at
    };
    if apart {
        return lens.iter().map(|len| Memory::from(bytes[cut(*len)].to_vec()).all()).collect();
    }
    // Neighbours with gaps.
    let memory = Memory::zeroed(total + 64 * lens.len()).unwrap();
    let mut place = 0;
    lens.iter()
        .map(|len| {
            let slice = memory.slice(place, *len);
            slice.copy_from(&bytes[cut(*len)]);
            place += len + 64;
            slice
        })
        .collect()
}

/// Makes one transfer of `lens` by every path and checks the bytes. Before each, the next
/// registrations of both sides are set to fail, as many as `failing` says.
async fn every_path(
    pair: &Pair,
    seed: usize,
    lens: &[usize],
    apart: bool,
    failing: (usize, usize),
) -> Result<(), Error> {
    let trouble = || {
        pair.nodes.0.fail_registrations(failing.0);
        pair.nodes.1.fail_registrations(failing.1);
    };
    let total: usize = lens.iter().sum();
    let expected = pattern(seed, total);
    let (from, into) = (list(seed, lens, apart, true), list(seed, &[total / 3, total - total / 3], apart, false));
    trouble();
    let (sent, received) = pair.send(1, from.clone(), into.clone()).await;
    sent?;
    received?;
    assert!(into.to_vec() == expected, "send, seed {seed}");
    // One piece to receive into, and time for the offer. It is written directly if it is of middle
    // size.
    let one = Memory::zeroed(total).unwrap();
    pair.nodes.1.fail_registrations(0);
    let receive = pair.to_a.recv(2, &one, pair.to_a.within(SECOND));
    pair.world.sleep(Duration::from_millis(1)).await;
    trouble();
    pair.to_b.send(2, from.clone(), pair.to_b.within(SECOND)).await?;
    receive.await?;
    assert!(one.to_vec() == expected, "send to an offer, seed {seed}");
    // Memory that the program exposes cannot be copied without its knowledge. So it is exposed
    // while registration works.
    pair.nodes.1.fail_registrations(0);
    let target = list(seed, lens, apart, false);
    let exposed = pair.to_a.expose(target.clone(), Access::READ_WRITE)?;
    trouble();
    pair.to_b.push(exposed.descriptor(), 0, from.clone(), pair.to_b.within(SECOND)).await?;
    assert!(target.to_vec() == expected, "push, seed {seed}");
    let back = list(seed, &[total / 2, total - total / 2], apart, false);
    trouble();
    pair.to_b.pull(exposed.descriptor(), 0, back.clone(), pair.to_b.within(SECOND)).await?;
    assert!(back.to_vec() == expected, "pull, seed {seed}");
    Ok(())
}

/// Lengths from inline to several units.
const LENGTHS: [&[usize]; 6] =
    [&[200], &[3000, 5000], &[20_000], &[40_000, 1, 0, 30_000], &[300_000, 5], &[1 << 20, 700_000, 4097]];

#[test]
fn registrations_that_fail_now_and_then_cost_a_copy_at_most() {
    let pair = pair(SimConfig::seeded(7), &Config::default());
    for seed in 0..120 {
        let lens = LENGTHS[seed % LENGTHS.len()];
        // A send that is announced needs one registration of its whole length. With nothing to
        // evict, the second refusal is final.
        let long = lens.iter().sum::<usize>() > 256 << 10;
        let failing = (seed / 3 % if long { 2 } else { 5 }, seed / 7 % 4);
        let outcome = pair.world.block_on(every_path(&pair, seed, lens, seed % 2 == 0, failing));
        outcome.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    pair.nodes.0.fail_registrations(0);
    pair.nodes.1.fail_registrations(0);
    pair.settled("after registrations that failed");
    let (a, b) = (pair.a().counters(), pair.b().counters());
    assert!(a.pin_failures > 50 && b.pin_failures > 20, "{a:?} {b:?}");
    assert!(a.offered > 0 && a.fast > 0 && a.rendezvous > 0, "{a:?}");
}

#[test]
fn an_adapter_that_registers_nothing_any_more_still_moves_everything_but_long_announcements() {
    let pair = pair(SimConfig::seeded(8), &Config::default());
    let never = (usize::MAX, usize::MAX);
    for (seed, lens) in LENGTHS.into_iter().enumerate() {
        let total: usize = lens.iter().sum();
        let outcome = pair.world.block_on(every_path(&pair, seed, lens, seed % 2 == 0, never));
        // A send that is announced must be in one piece, and no fallback buffer is long enough for
        // it.
        match outcome {
            Ok(()) => assert!(total <= 256 << 10, "{total} bytes were announced out of nowhere"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
                assert!(total > 256 << 10, "{total} bytes: {error}");
            }
        }
    }
    // Pulls and pushes of any length work, unit by unit.
    let (from, into) = (list(3, &[900_000, 800_000], true, true), list(3, &[1_700_000], true, false));
    pair.nodes.1.fail_registrations(0);
    let exposed = pair.to_a.expose(into.clone(), Access::READ_WRITE).unwrap();
    pair.nodes.0.fail_registrations(usize::MAX);
    let push = pair.to_b.push(exposed.descriptor(), 0, from.clone(), pair.to_b.within(SECOND));
    pair.world.block_on(push).unwrap();
    assert!(into.to_vec() == pattern(3, 1_700_000));
    drop((exposed, from, into));
    pair.nodes.0.fail_registrations(0);
    pair.nodes.1.fail_registrations(0);
    pair.settled("after nothing could be registered");
    assert!(pair.a().counters().bounced > 5, "{:?}", pair.a().counters());
}

#[test]
fn transfers_without_registration_take_turns_and_may_be_cancelled_or_cut() {
    for end in ["wait", "cancel", "cut"] {
        let pair = pair(SimConfig::seeded(9), &Config::default());
        const LEN: usize = 900_000;
        let source = Memory::from(pattern(1, LEN));
        let exposed = pair.to_a.expose(&source, Access::READ).unwrap();
        pair.nodes.0.fail_registrations(usize::MAX);
        let targets: Vec<Memory> = (0..8).map(|_| Memory::zeroed(LEN).unwrap()).collect();
        let pull = |into| pair.to_b.pull(exposed.descriptor(), 0, into, pair.to_b.within(SECOND));
        let pulls: Vec<_> = targets.iter().map(pull).collect();
        pair.world.run_for(Duration::from_micros(30));
        assert!(pair.a().resource_usage().work > 0);
        match end {
            "cancel" => pulls.iter().step_by(2).for_each(|pull| pull.cancel()),
            "cut" => pair.world.cut(&pair.nodes.0, &pair.nodes.1),
            _ => {}
        }
        let mut whole = 0;
        for (pull, target) in pulls.into_iter().zip(&targets) {
            if pair.world.block_on(pull).is_ok() {
                assert!(target.to_vec() == pattern(1, LEN), "{end}");
                whole += 1;
            }
        }
        assert_eq!(
            whole,
            match end {
                "wait" => 8,
                "cancel" => 4,
                _ => 0,
            },
            "{end}"
        );
        drop(exposed);
        pair.world.run_for(SETTLED);
        let held = pair.a().resource_usage();
        assert_eq!((held.fallback_buffers, held.work, held.operations), (0, 0, 0), "{end}");
        assert_eq!(pair.a().with(|engine| engine.pinned()).in_use, 0, "{end}");
    }
}

#[test]
fn a_small_adapter_is_shared_by_what_is_in_use() {
    // Learn how many registrations the endpoints themselves need, then leave room for six more.
    let config = Config::default().fast_slots(0);
    let idle = pair(SimConfig::seeded(3), &config).idle;
    let sim = SimConfig { max_registrations: idle.0.max(idle.1) + 6, ..SimConfig::seeded(3) };
    let pair = pair(sim, &config);
    let memories: Vec<Memory> = (0..40).map(|at| Memory::from(pattern(at, 300_000))).collect();
    let into = Memory::zeroed(300_000).unwrap();
    pair.world.block_on(async {
        for round in 0..3 {
            for (at, memory) in memories.iter().enumerate() {
                let (sent, received) = pair.send(round, memory, &into).await;
                sent.and(received).unwrap();
                assert!(into.to_vec() == pattern(at, 300_000));
            }
        }
    });
    let counters = pair.a().counters();
    assert_eq!((counters.pin_misses, counters.bounced), (120, 0), "the cache gives way: {counters:?}");
    assert!(counters.pin_evictions >= 114 && counters.pin_failures >= 100, "{counters:?}");
    // A new connection finds room too.
    let addr = pair.b().listen(&pair.nodes.1.addr(2)).unwrap();
    let again = pair.world.block_on(pair.a().connect(&addr, Options::default())).unwrap();
    pair.world.block_on(again.disconnect(again.within(SECOND))).unwrap();
    pair.settled("after a small adapter was shared");
}

const WIDTH: usize = 2048;
const ELEMENT: usize = 64;
const TILE: (usize, usize) = (1024, 768);

/// Reads a tile of [PVFS-IB, Figure 6(a)] into an array of the program, with or without hints about
/// the memory that contains the rows. Returns how many registrations and exposures that took.
fn read_tile(hints: bool, expose_groups: bool) -> (u64, usize) {
    let pair = pair(SimConfig::seeded(4), &Config::default().expose_groups(expose_groups));
    let mut array = vec![0u8; WIDTH * 1536 * ELEMENT];
    let base = NonNull::new(array.as_mut_ptr()).unwrap();
    let parent = Extent::new(base, (WIDTH * (TILE.1 - 1) + TILE.0) * ELEMENT);
    let foreign = Foreign::new();
    let row_len = TILE.0 * ELEMENT;
    let rows = || {
        // SAFETY: within the array.
        let row = |row: usize| Extent::new(unsafe { base.add(row * WIDTH * ELEMENT) }, row_len);
        let list = (0..TILE.1).map(|at| (row(at), hints.then_some(parent)));
        // SAFETY: the array lives to the end of this function, is not touched while there are
        // lists, and is forgotten at the end.
        unsafe { foreign.list(list) }.unwrap()
    };
    let data = Memory::from(pattern(5, TILE.1 * row_len));
    let before = pair.nodes.1.registrations();
    let mut exposures = 0;
    for round in 0..3 {
        let list = rows();
        let exposed = pair.to_a.expose(list, Access::WRITE).unwrap();
        if round == 0 {
            exposures = pair.b().resource_usage().exposures;
        }
        pair.world.block_on(pair.to_b.push(exposed.descriptor(), 0, &data, pair.to_b.within(SECOND))).unwrap();
        assert_eq!(pair.nodes.1.registrations() - before, if hints { 1 } else { TILE.1 }, "round {round}");
    }
    let counters = pair.b().counters();
    assert_eq!(counters.pin_hits > 0, counters.pin_misses > 0);
    pair.world.run_for(SETTLED);
    foreign.forget_all();
    pair.settled("after the tile");
    assert_eq!(pair.nodes.1.registrations(), before, "what was forgotten is deregistered");
    drop((foreign, pair));
    let expected = data.to_vec();
    for row in 0..1536 {
        let bytes = &array[row * WIDTH * ELEMENT..][..WIDTH * ELEMENT];
        let (tile, rest) = bytes.split_at(if row < TILE.1 { row_len } else { 0 });
        assert!(tile == &expected[(row % TILE.1) * row_len..][..tile.len()], "row {row}");
        assert!(rest.iter().all(|byte| *byte == 0), "beside the tile in row {row}");
    }
    (counters.pin_misses, exposures)
}

#[test]
fn a_tile_needs_one_registration_with_hints_and_768_without() {
    assert_eq!(read_tile(true, true), (1, 1));
    assert_eq!(read_tile(true, false), (1, 768), "narrow exposures share the registration");
    assert_eq!(read_tile(false, true), (768, 768));
}

#[test]
fn the_gaps_are_the_peers_only_where_hulls_are_allowed() {
    for expose_groups in [true, false] {
        let pair = pair(SimConfig::seeded(5), &Config::default().expose_groups(expose_groups));
        let memory = Memory::from(vec![7; 1000]);
        let list: MemList = [memory.slice(100, 10), memory.slice(500, 10)].into_iter().collect();
        let exposed = pair.to_a.expose(list, Access::READ).unwrap();
        let first = exposed.descriptor().pieces()[0];
        // The peer lies about the length of the first piece.
        let lie = bmi_core::BulkDescriptor::try_from(vec![bmi_core::RemoteSlice { len: 400, ..first }]).unwrap();
        let into = Memory::zeroed(400).unwrap();
        let read = pair.world.block_on(pair.to_b.pull(&lie, 0, &into, pair.to_b.within(SECOND)));
        assert_eq!(read.is_ok(), expose_groups);
    }
}

#[test]
fn what_is_longer_than_the_cache_is_registered_for_each_use() {
    let config = Config::default().pin_cache_bytes(1 << 20);
    let pair = pair(SimConfig::seeded(6), &config);
    let (long, short) = (Memory::zeroed(2 << 20).unwrap(), Memory::zeroed(600 << 10).unwrap());
    let into = Memory::zeroed(600 << 10).unwrap();
    pair.world.block_on(async {
        for _ in 0..4 {
            pair.send(1, &short, &into).await.0.unwrap();
            pair.send(1, long.slice(5, 600 << 10), &into).await.0.unwrap();
        }
    });
    let counters = pair.a().counters();
    assert_eq!((counters.pin_misses, counters.pin_hits, counters.pin_evictions), (5, 3, 0));
    pair.settled("after a long memory");
    assert_eq!(pair.a().with(|engine| engine.pinned()).entries, 1, "the short one");
}
