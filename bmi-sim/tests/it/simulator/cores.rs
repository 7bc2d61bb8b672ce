//! What the cores of a program with several event loops take from each other: locks, the memory
//! bus, the work of sending.

use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::{Config, Memory, Options, Time};
use bmi_sim::{DiskProfile, Load, Node, Profile, SimConfig, Usage, World};
use futures_util::future::join_all;

/// A node whose cores take 100 ns for a lock, and 3 lines of 60 ns more after another core.
fn locking(cores: u64) -> (World, Node) {
    let world = World::with(SimConfig::with_profile(Profile { cpu_cores: cores, ..Profile::default() }));
    let node = world.node("node");
    (world, node)
}

fn ns(ns: u64) -> Duration {
    Duration::from_nanos(ns)
}

#[test]
fn a_lock_costs_its_time_and_the_lines_of_another_core() {
    let (world, node) = locking(2);
    let take = |core: usize| {
        world.run_for(ns(1_000));
        let inner = node.clone();
        world.block_on(node.spawn_on(core, async move {
            let start = inner.now();
            inner.locked("turns");
            inner.now() - start
        }))
    };
    assert_eq!([0, 0, 1, 1, 0].map(|core| take(core).unwrap()), [100, 100, 280, 100, 280].map(ns));
    assert_eq!(node.usage(), Usage { locking: ns(860), ..Usage::default() }, "nobody waited");
    assert_eq!(node.load().locks, [("turns", ns(860 - 280))], "the last one is booked");
    world.run_for(ns(1_000));
    assert_eq!(node.load().locks, [("turns", ns(860))]);
}

#[test]
fn a_core_that_waits_for_a_lock_does_nothing_else() {
    let (world, node) = locking(2);
    let take = |core: usize, lock: &'static str| {
        let inner = node.clone();
        node.spawn_on(core, async move {
            inner.locked(lock);
            let end = inner.now();
            drop(inner.compute(ns(50)));
            end
        })
    };
    let tasks = [take(0, "turns"), take(1, "turns"), take(1, "buffers"), take(0, "buffers")];
    let ends: Vec<_> = world.block_on(join_all(tasks)).into_iter().map(|end| end.unwrap() - Time::ZERO).collect();
    // The second waits for 100 ns and fetches lines. The fourth has its lock before the third.
    assert_eq!(ends, [ns(100), ns(380), ns(710), ns(250)]);
    let usage = node.usage();
    assert_eq!((usage.lock_waiting, usage.application), (ns(100), ns(200)));
    assert_eq!(usage.locking, ns(100 + 280 + 280 + 100));
    world.run_for(ns(1_000));
    let load = node.load();
    assert_eq!(load.cores, [ns(300), ns(760)]);
    assert_eq!(load.cores.iter().sum::<Duration>(), usage.busy());
    let of = |name: &str| load.utilisations(ns(1000)).into_iter().find(|(known, _)| known == name).unwrap().1;
    assert!((of("lock of the turns") - 0.38).abs() < 1e-9 && (of("cores") - 0.48).abs() < 1e-9);
}

/// A core whose clock is ahead has booked the lock for later. Another core has it before that.
#[test]
fn a_lock_that_is_wanted_later_does_not_stop_who_wants_it_now() {
    let (world, node) = locking(2);
    let (ahead, now) = (node.clone(), node.clone());
    let first = node.spawn_on(0, async move {
        drop(ahead.compute(ns(10_000)));
        ahead.locked("turns");
        ahead.now()
    });
    let second = node.spawn_on(1, async move {
        now.locked("turns");
        now.now()
    });
    let (first, second) = world.block_on(async { (first.await.unwrap(), second.await.unwrap()) });
    assert_eq!((second - Time::ZERO, first - Time::ZERO), (ns(100), ns(10_100)));
    assert!(node.usage().lock_waiting.is_zero());
}

/// Each of `cores` cores writes a megabyte to a disk in memory, of which each byte takes 2 ns and
/// crosses the bus, 0.5 ns, three times. Returns how long that takes.
fn copies(cores: usize, shared: bool) -> (Duration, Load) {
    let disk = DiskProfile {
        memory: true,
        write_latency_ns: 0,
        write_ps_per_byte: 2_000,
        write_crossings: 3,
        ..DiskProfile::default()
    };
    let profile = Profile { cpu_cores: cores as u64, memory_ps_per_byte: 500, ..Profile::default() };
    let world = World::with(SimConfig::with_profile(profile.with_disk(disk)));
    let node = world.node("node");
    let _members = if shared { node.shards(&Config::default(), Waiting::Busy, cores).unwrap() } else { Vec::new() };
    world.run_for(Duration::from_millis(1));
    let (begin, before) = (world.now(), node.load());
    let tasks = (0..cores).map(|core| {
        let disk = node.disk();
        node.spawn_on(core, async move {
            for _ in 0..10 {
                disk.write(100_000).await.unwrap();
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    world.block_on(join_all(tasks)).into_iter().for_each(|done| done.unwrap());
    (world.now() - begin, node.load().since(&before))
}

#[test]
fn copies_of_several_cores_share_the_memory_bus() {
    let (one, load) = copies(1, true);
    assert_eq!((one, load.memory_bus), (ns(2_000_000), ns(1_500_000)), "a core alone is not slowed");
    let (four, load) = copies(4, true);
    assert_eq!(load.memory_bus, ns(6_000_000));
    // A copy ends with its bytes on the bus, or half a nanosecond for each of them later.
    assert!((ns(6_000_000)..=ns(6_050_000)).contains(&four), "{four:?}");
    assert_eq!(copies(4, false).0, ns(2_000_000), "without loops of their own, cores do not share it");
}

/// A server with a loop for each core sends the same bytes over TCP to each of four clients.
fn sent(cores: usize) -> (Duration, Usage, Load) {
    let profile = Profile::named("ibnice-2003").unwrap();
    let world = World::with(SimConfig::with_profile(profile));
    let node = world.node("server");
    node.set_cores(cores);
    let members = node.shards(&Config::default(), Waiting::Busy, cores).unwrap();
    let addr = members[0].listen(&node.addr(1)).unwrap();
    for (core, member) in members.into_iter().enumerate() {
        node.spawn_on(core, async move {
            loop {
                let request = member.next_unexpected().await;
                let data = Memory::zeroed(256 << 10).unwrap();
                let send = request.peer().send(request.tag(), data, Options::default());
                send.await.unwrap();
            }
        });
    }
    let clients: Vec<_> =
        (0..4).map(|number| world.node(&format!("client{number}")).endpoint(Config::default()).unwrap()).collect();
    let peers = world.block_on(join_all(clients.iter().map(|client| client.connect(&addr, Options::default()))));
    world.run_for(Duration::from_millis(1));
    let (start, used, before) = (world.now(), node.usage(), node.load());
    world.block_on(join_all(peers.iter().map(async |peer| {
        let peer = peer.as_ref().unwrap();
        let memory = Memory::zeroed(256 << 10).unwrap();
        let answer = peer.recv(7, &memory, Options::default());
        peer.send_unexpected(7, Memory::from(vec![1]), Options::default()).await.unwrap();
        answer.await.unwrap();
    })));
    let took = world.now() - start;
    world.run_for(Duration::from_millis(1));
    (took, node.usage() - used, node.load().since(&before))
}

#[test]
fn each_core_sends_over_tcp_for_its_own_loop() {
    let ((one, alone, _), (four, used, load)) = (sent(1), sent(4));
    assert!(four < one / 2, "{one:?} {four:?}");
    assert!(used.protocol > Duration::from_millis(2), "{used}");
    let (more, less) = (used.protocol.max(alone.protocol), used.protocol.min(alone.protocol));
    assert!(more - less < more / 20, "the same work: {used}; alone {alone}");
    let all: Duration = load.cores.iter().sum();
    assert_eq!(all, used.busy());
    assert!(load.cores.iter().all(|core| *core > all / 8), "on all cores: {load:?}");
    assert_eq!(sent(4), (four, used, load));
}
