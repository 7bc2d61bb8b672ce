//! One seed gives one run: the same digest twice. Another seed, with jitter, gives another digest.
//! Whatever is posted, cut and killed, in any order, every request ends exactly once and every
//! region is released.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi_core::transport::{Payload, PostError, Transport, WorkId, WorkOptions};
use bmi_core::{Access, Memory, RemoteSlice, Time};
use bmi_sim::{SimConfig, World};
use proptest::prelude::*;

use crate::support::{Side, pair};

/// One action of a test.
#[derive(Clone, Debug)]
enum Step {
    Recv { side: bool, len: usize },
    Send { side: bool, len: usize, signalled: bool, inline: bool },
    Write { side: bool, len: usize, signalled: bool, immediate: bool, forge: bool },
    Read { side: bool, len: usize },
    Run { ns: u64 },
    Poll { side: bool },
    Revoke { side: bool },
    Disconnect { side: bool, grace_ns: u64 },
    Cut,
    Kill { side: bool },
    Partition,
    Heal,
}

fn step() -> impl Strategy<Value = Step> {
    let side = any::<bool>();
    let flag = any::<bool>();
    prop_oneof![
        8 => (side, 1usize..64).prop_map(|(side, len)| Step::Recv { side, len }),
        6 => (side, 0usize..48, flag, flag).prop_map(|(side, len, signalled, inline)| Step::Send { side, len, signalled, inline }),
        6 => (side, 0usize..64, flag, flag, 0u8..20).prop_map(|(side, len, signalled, immediate, forge)| Step::Write {
            side, len, signalled, immediate, forge: forge == 0,
        }),
        5 => (side, 0usize..64).prop_map(|(side, len)| Step::Read { side, len }),
        10 => (1u64..20_000).prop_map(|ns| Step::Run { ns }),
        6 => side.prop_map(|side| Step::Poll { side }),
        1 => side.prop_map(|side| Step::Revoke { side }),
        1 => (side, 0u64..5_000).prop_map(|(side, grace_ns)| Step::Disconnect { side, grace_ns }),
        1 => Just(Step::Cut),
        1 => side.prop_map(|side| Step::Kill { side }),
        1 => Just(Step::Partition),
        2 => Just(Step::Heal),
    ]
}

/// The state of one side's requests.
struct Book {
    side: Side,
    memory: Memory,
    remote: Option<RemoteSlice>,
    /// Requests posted and not yet completed, and whether each must complete.
    open: BTreeMap<u64, bool>,
    next: u64,
}

impl Book {
    fn posted(&mut self, result: Result<(), PostError>, must_complete: bool) {
        match result {
            Ok(()) => {
                self.open.insert(self.next, must_complete);
            }
            Err(PostError::Invalid(why)) => panic!("{why}"),
            Err(_) => {}
        }
        self.next += 1;
    }

    fn poll(&mut self) {
        for (work, ..) in self.side.take() {
            assert!(self.open.remove(&work).is_some(), "request {work} completed twice, or was never posted");
        }
    }
}

fn config(seed: u64) -> SimConfig {
    let mut config = SimConfig { jitter_ns: 3_000, ..SimConfig::seeded(seed) };
    let mut capabilities = config.capabilities();
    (capabilities.send_queue_depth, capabilities.recv_queue_depth, capabilities.max_outstanding_reads) = (8, 8, 2);
    config.capabilities_override = Some(capabilities);
    config
}

/// Runs the steps, checks that everything ended well, and returns the digest.
fn run(seed: u64, steps: &[Step]) -> u64 {
    let world = World::with(config(seed));
    let nodes = [world.node("client"), world.node("server")];
    let (a, b) = pair(&world);
    let mut books = [a, b].map(|side| {
        let memory = Memory::zeroed(64).unwrap();
        Book { side, memory, remote: None, open: BTreeMap::new(), next: 0 }
    });
    let regions: Vec<_> = books.iter_mut().map(|book| book.side.t.register(&book.memory).unwrap()).collect();
    for to in 0..2 {
        let conn = books[to].side.conn;
        let remote = books[to].side.t.expose(conn, &regions[to].segment(0, 64), Access::READ_WRITE).unwrap();
        books[1 - to].remote = Some(remote);
    }
    for step in steps {
        perform(&world, &nodes, &mut books, &regions, step);
    }
    for book in &mut books {
        book.side.t.disconnect(book.side.conn, world.now() + Duration::from_micros(50));
    }
    world.heal(&nodes[0], &nodes[1]);
    world.run();
    drop(regions);
    for mut book in books {
        book.poll();
        assert!(book.side.ended.is_some(), "no Disconnected");
        assert!(!book.open.values().any(|must| *must), "requests without an end: {:?}", book.open);
        assert!(book.memory.get_mut().is_some(), "a region was leaked");
        book.side.poll();
    }
    assert!(nodes.iter().all(|node| node.registrations() == 0));
    world.digest()
}

fn perform(
    world: &World,
    nodes: &[bmi_sim::Node; 2],
    books: &mut [Book; 2],
    regions: &[bmi_core::MemoryRegion],
    step: &Step,
) {
    let options = |signalled| if signalled { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED };
    match *step {
        Step::Recv { side, len } => {
            let book = &mut books[usize::from(side)];
            let segments = [regions[usize::from(side)].segment(0, len)];
            let result = book.side.t.post_recv(book.side.conn, WorkId(book.next), &segments);
            book.posted(result, true);
        }
        Step::Send { side, len, signalled, inline } => {
            let book = &mut books[usize::from(side)];
            let (slices, segments) = ([book.memory.slice(0, len)], [regions[usize::from(side)].segment(0, len)]);
            let payload = if inline { Payload::Inline(&slices) } else { Payload::Gather(&segments) };
            let result = book.side.t.post_send(book.side.conn, WorkId(book.next), b"h", payload, options(signalled));
            book.posted(result, signalled);
        }
        Step::Write { side, len, signalled, immediate, forge } => {
            let book = &mut books[usize::from(side)];
            let mut remote = book.remote.expect("exposed at the start");
            remote.key.0 ^= u64::from(forge);
            let target = bmi_core::transport::WriteTarget { remote, immediate: immediate.then_some(5) };
            let segments = [regions[usize::from(side)].segment(0, len)];
            let work = WorkId(book.next);
            let result = book.side.t.post_write(book.side.conn, work, b"", &segments, target, options(signalled));
            book.posted(result, signalled);
        }
        Step::Read { side, len } => {
            let book = &mut books[usize::from(side)];
            let segments = [regions[usize::from(side)].segment(0, len)];
            let remote = book.remote.expect("exposed at the start");
            let work = WorkId(book.next);
            let result = book.side.t.post_read(book.side.conn, work, &segments, remote, WorkOptions::SIGNALLED);
            book.posted(result, true);
        }
        Step::Run { ns } => world.run_for(Duration::from_nanos(ns)),
        Step::Poll { side } => books[usize::from(side)].poll(),
        Step::Revoke { side } => {
            let key = books[usize::from(!side)].remote.expect("exposed at the start").key;
            let side = &mut books[usize::from(side)].side;
            side.t.revoke(side.conn, key);
        }
        Step::Disconnect { side, grace_ns } => {
            let side = &mut books[usize::from(side)].side;
            side.t.disconnect(side.conn, world.now() + Duration::from_nanos(grace_ns));
        }
        Step::Cut => world.cut(&nodes[0], &nodes[1]),
        Step::Kill { side } => nodes[usize::from(side)].kill(),
        Step::Partition => world.partition(&nodes[0], &nodes[1]),
        Step::Heal => world.heal(&nodes[0], &nodes[1]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn everything_ends_once_and_comes_back_and_a_run_repeats(
        seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 0..80),
    ) {
        prop_assert_eq!(run(seed, &steps), run(seed, &steps));
    }
}

#[test]
fn another_seed_is_another_run() {
    let steps: Vec<Step> = (0..8)
        .flat_map(|_| {
            let send = Step::Send { side: false, len: 8, signalled: true, inline: false };
            [Step::Recv { side: true, len: 64 }, send, Step::Run { ns: 9_000 }, Step::Poll { side: true }]
        })
        .collect();
    assert_eq!(run(1, &steps), run(1, &steps));
    assert_ne!(run(1, &steps), run(2, &steps));
}

/// The digest of this run is pinned. It must be the same in debug and in release, on every machine,
/// and change only when the model does.
#[test]
fn the_digest_is_pinned() {
    let world = World::with(SimConfig { jitter_ns: 1_000, ..SimConfig::seeded(42) });
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[0; 128]);
    for round in 0..100u8 {
        b.recv(1, &to).unwrap();
        a.send(2, &vec![round; usize::from(round)]).unwrap();
        world.run();
        assert_eq!((a.take().len(), b.take().len()), (1, 1));
    }
    assert!(world.now() > Time::ZERO);
    assert_eq!((world.events(), format!("{:016x}", world.digest())), (203, "956e60ab310ccde1".to_owned()));
}
