//! Resources and their queues: cores, bus, ports of the switch, disks. Also the kinds of work to
//! which a node's processor time is charged.

use std::pin::Pin;
use std::time::Duration;

use bmi_core::driver::Waiting;
use bmi_core::transport::{HostWork, Payload, Transport, WorkId, WorkKind, WorkOptions};
use bmi_core::{Access, Config, Memory, Options, Time};
use bmi_sim::{DiskProfile, Profile, SimConfig, Usage, World};

use crate::support::{Side, pair, pair_between};

const MS: Duration = Duration::from_millis(1);

fn world(profile: Profile) -> World {
    World::with(SimConfig::with_profile(profile))
}

// ---- cores --------------------------------------------------------------------------------------

/// Returns the time of four tasks of one millisecond each.
fn four_tasks(cores: u64, limit: Option<usize>) -> Duration {
    let world = world(Profile { cpu_cores: cores, ..Profile::default() });
    let node = world.node("node");
    if let Some(limit) = limit {
        node.limit_cores(limit);
    }
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            node.spawn({
                let node = node.clone();
                async move { node.compute(MS).await }
            })
        })
        .collect();
    world.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(node.usage(), Usage { application: 4 * MS, ..Usage::default() });
    world.now() - Time::ZERO
}

#[test]
fn tasks_spread_over_cores() {
    assert_eq!(four_tasks(1, None), 4 * MS);
    assert_eq!(four_tasks(2, None), 2 * MS);
    assert_eq!(four_tasks(3, None), 2 * MS, "the fourth comes when the first is done");
    assert_eq!(four_tasks(8, None), MS);
    assert_eq!(four_tasks(8, Some(2)), 2 * MS);
}

/// Tasks that are bound to a core have it in turn, whatever other cores are idle.
#[test]
fn bound_tasks_share_their_core_only() {
    let world = world(Profile { cpu_cores: 4, ..Profile::default() });
    let node = world.node("node");
    let bound = |core: usize, work: Duration| {
        let inner = node.clone();
        node.spawn_on(core, async move {
            drop(inner.compute(work)); // works without waiting for it
            inner.now()
        })
    };
    let tasks = [bound(2, 3 * MS), bound(2, MS), bound(1, 2 * MS), bound(2, MS)];
    let ends = world.block_on(async {
        let mut ends = Vec::new();
        for task in tasks {
            ends.push(task.await.unwrap() - Time::ZERO);
        }
        ends
    });
    assert_eq!(ends, [3 * MS, 4 * MS, 2 * MS, 5 * MS]);
}

/// A task that is woken by another one does not overtake the work that the other did before. A
/// task's own work is done in sequence.
#[test]
fn who_is_woken_comes_after_the_work_that_was_done_before() {
    let world = world(Profile { cpu_cores: 4, ..Profile::default() });
    let node = world.node("node");
    let (inner, outer) = (node.clone(), node.clone());
    let (woken, waker) = world
        .block_on(node.spawn(async move {
            drop(outer.compute(2 * MS)); // works without waiting for it
            let woken = inner.spawn({
                let inner = inner.clone();
                async move { inner.now() }
            });
            drop(outer.compute(3 * MS));
            let end = outer.now();
            (woken.await.unwrap(), end)
        }))
        .unwrap();
    assert_eq!((woken, waker), (Time::ZERO + 2 * MS, Time::ZERO + 5 * MS));
}

// ---- where time is counted ----------------------------------------------------------------------

#[test]
fn time_is_counted_where_it_was_spent() {
    let profile =
        Profile { deregister_batch_ns: 100, deregister_region_ns: 10, deregister_page_ns: 1, ..Profile::default() };
    let world = world(profile.clone());
    let node = world.node("node");
    let mut transport = node.transport().unwrap();
    let regions = [1, 3].map(|pages| transport.register(&Memory::zeroed(pages * 4096).unwrap()).unwrap());
    let registering = node.usage().registration;
    assert_eq!(registering.as_nanos() as u64, 2 * profile.register_region_ns + 4 * profile.register_page_ns);
    drop(regions);
    transport.poll(Time::ZERO, &mut Vec::new());
    assert_eq!((node.usage().registration - registering).as_nanos(), 100 + 2 * 10 + 4, "one batch");
    transport.charge(HostWork::Copy { bytes: 10_000, pieces: 2 });
    assert_eq!(node.usage().copying, profile.copy(10_000, 2));
    let before = node.usage();
    node.wake_up();
    let woken = node.usage() - before;
    assert_eq!(woken.interrupts.as_nanos() as u64, profile.interrupt_ns + profile.context_switch_ns);
    assert_eq!(woken.system_calls.as_nanos() as u64, profile.system_call_ns);
    let all = node.usage();
    assert_eq!(all.busy(), all.parts()[..7].iter().map(|(_, time)| *time).sum::<Duration>());
    assert_eq!(all.busy(), node.cpu_busy());
    assert!((all.utilisation(all.busy(), 4) - 0.25).abs() < 1e-9);
    assert_eq!((all - all, before + woken), (Usage::default(), all));
}

/// Sends a hundred messages of 10 kB from a client to a server that sleeps between them. Returns
/// the usage of the server's processor.
fn served(profile: Profile) -> Usage {
    let world = world(profile);
    let (server, client) = (world.node("server"), world.node("client"));
    let s = server.endpoint_waiting(Config::default(), Waiting::Event).unwrap();
    let c = client.endpoint(Config::default()).unwrap();
    let addr = s.listen(&server.addr(1)).unwrap();
    let serve = server.spawn(async move {
        let memory = Memory::zeroed(10_000).unwrap();
        let peer = s.next_unexpected().await.peer().clone();
        for _ in 0..100 {
            peer.recv(1, &memory, Options::default()).await.unwrap();
        }
    });
    let node = client.clone();
    client.spawn(async move {
        let peer = c.connect(&addr, Options::default()).await.unwrap();
        peer.send_unexpected(2, Memory::zeroed(1).unwrap(), Options::default()).await.unwrap();
        let memory = Memory::zeroed(10_000).unwrap();
        for _ in 0..100 {
            node.sleep(MS).await;
            peer.send(1, &memory, Options::default()).await.unwrap();
        }
    });
    world.block_on(serve).unwrap();
    server.usage()
}

#[test]
fn tcp_costs_packets_copies_calls_and_interrupts() {
    let profile = Profile::named("gige-2008").unwrap();
    let tcp = served(profile.clone());
    let rdma = served(Profile::named("vapi-2003").unwrap());
    let bytes = Duration::from_nanos(100 * 10_000 * profile.cpu_receive_ps_per_byte / 1000);
    assert!(tcp.copying >= bytes, "{tcp}");
    assert!(tcp.protocol >= Duration::from_nanos(100 * 7 * profile.cpu_receive_packet_ns), "{tcp}");
    assert!(tcp.interrupts >= Duration::from_nanos(100 * (profile.interrupt_ns + profile.context_switch_ns)), "{tcp}");
    assert!(tcp.system_calls > Duration::ZERO && rdma.interrupts > Duration::ZERO, "{tcp}; {rdma}");
    assert!(rdma.protocol * 5 < tcp.protocol, "{tcp}; {rdma}");
    assert_eq!((tcp.registration, rdma.registration > Duration::ZERO), (Duration::ZERO, true));
}

// ---- bus and switch -----------------------------------------------------------------------------

/// Sides with a region of `len` bytes that their peers may write.
struct Writers {
    sides: Vec<Side>,
    remotes: Vec<bmi_core::RemoteSlice>,
    regions: Vec<bmi_core::MemoryRegion>,
}

impl Writers {
    /// Creates it from pairs: each side can write to the other.
    fn new(world: &World, pairs: Vec<(Side, Side)>, len: usize) -> Writers {
        let mut sides: Vec<Side> = pairs.into_iter().flat_map(|(a, b)| [a, b]).collect();
        let regions: Vec<_> =
            sides.iter_mut().map(|side| side.t.register(&Memory::zeroed(len).unwrap()).unwrap()).collect();
        let exposed = |(side, region): (&mut Side, &bmi_core::MemoryRegion)| {
            side.t.expose(side.conn, &region.segment(0, len), Access::READ_WRITE).unwrap()
        };
        let remotes = sides.iter_mut().zip(&regions).map(exposed).collect();
        world.run_for(Duration::from_secs(1));
        Writers { sides, remotes, regions }
    }

    /// Lets every side in `from` write `count` times to its peer. Returns how long it takes until
    /// all writes are complete.
    fn write(&mut self, world: &World, from: &[usize], count: usize) -> Duration {
        self.post(from, count);
        self.wait(world, from, count)
    }

    fn post(&mut self, from: &[usize], count: usize) {
        for _ in 0..count {
            for at in from {
                let (segments, target) =
                    ([self.regions[*at].segment(0, self.regions[*at].memory().len())], self.remotes[at ^ 1]);
                let side = &mut self.sides[*at];
                side.t.post_write(side.conn, WorkId(1), &[], &segments, target.into(), WorkOptions::SIGNALLED).unwrap();
            }
        }
    }

    fn wait(&mut self, world: &World, from: &[usize], count: usize) -> Duration {
        let start = world.now();
        let done = |side: &mut Side| {
            side.poll();
            side.done.iter().filter(|done| done.kind == WorkKind::Write).count() >= count
        };
        while !from.iter().all(|at| done(&mut self.sides[*at])) {
            assert!(world.step(Time::from_nanos(u64::MAX)), "the world stands still");
        }
        self.sides.iter_mut().for_each(|side| side.done.clear());
        world.now() - start
    }
}

#[test]
fn a_shared_bus_carries_both_directions_in_turn() {
    let took = |half_duplex: bool, from: &[usize]| {
        let profile = Profile { bus_half_duplex: half_duplex, bus_ps_per_byte: 1_100, ..Profile::vapi_2003() };
        let world = world(profile);
        let sides = vec![pair(&world)];
        Writers::new(&world, sides, 1 << 20).write(&world, from, 16).as_secs_f64()
    };
    let (one, both) = (took(true, &[0]), took(true, &[0, 1]));
    assert!((1.8..2.1).contains(&(both / one)), "PCI-X: {one} s in one direction, {both} s in both");
    let (one, both) = (took(false, &[0]), took(false, &[0, 1]));
    assert!((0.95..1.1).contains(&(both / one)), "PCIe: {one} s in one direction, {both} s in both");
}

/// Returns the additional cost of a copy of 64 MiB by side `copies`, while side 0 writes `count`
/// times 1 MiB to side 1.
fn slowed(profile: &Profile, copies: usize, count: usize) -> Duration {
    let world = world(profile.clone());
    let mut writers = Writers::new(&world, vec![pair(&world)], 1 << 20);
    let node = world.node(["client", "server"][copies]);
    let before = node.usage().copying;
    writers.post(&[0], count);
    let (bytes, pieces) = (64 << 20, 1);
    writers.sides[copies].t.charge(HostWork::Copy { bytes, pieces });
    let took = writers.wait(&world, &[0], count);
    assert!(took < profile.copy(bytes, pieces), "the stream is over before the copy");
    node.usage().copying - before - profile.copy(bytes, pieces)
}

#[test]
fn a_copy_beside_a_stream_takes_longer_by_the_bytes_that_pass() {
    // A copied byte crosses the memory bus three times, which leaves no idle time.
    let vapi = Profile { copy_cached_bytes: 0, copy_ps_per_byte: 3 * 533, copy_piece_ns: 0, ..Profile::vapi_2003() };
    let unit = Duration::from_nanos(vapi.wire_unit_bytes * vapi.memory_ps_per_byte).div_f64(1e3);
    let all = |count: usize| unit * (count as u32 * (1 << 20) / vapi.wire_unit_bytes as u32);
    for count in [1, 16] {
        let (to, from) = (slowed(&vapi, 1, count), slowed(&vapi, 0, count));
        let rounding = Duration::from_nanos(count as u64 * 128);
        assert!(to >= all(count) && to <= all(count) + rounding, "received: {to:?}, not {:?}", all(count));
        // The copy began when all writes were posted and the first units had left.
        assert!(from + 4 * unit >= all(count) && from <= all(count) + rounding, "sent: {from:?}, not {:?}", all(count));
    }
    assert_eq!(slowed(&vapi, 1, 0), Duration::ZERO, "alone");
    assert_eq!(slowed(&Profile { memory_ps_per_byte: 0, ..vapi.clone() }, 1, 16), Duration::ZERO, "never in the way");
    // Work other than a copy is not slowed, and no copy is charged.
    let world = world(vapi.clone());
    let mut writers = Writers::new(&world, vec![pair(&world)], 1 << 20);
    let node = world.node("server");
    drop(node.compute(100 * MS));
    writers.write(&world, &[0], 16);
    assert_eq!((node.usage().application, node.usage().copying), (100 * MS, Duration::ZERO));
}

/// A disk in memory is a copy, and a task that waits for it notices the slowdown: the adapter's
/// need of the memory bus, beyond the time that the copy leaves idle.
#[test]
fn a_disk_in_memory_is_slowed_by_a_stream() {
    let took = |crossings: u64, count: usize| {
        let mut profile = Profile::vapi_2003().on_ramfs();
        profile.disk = DiskProfile { write_ps_per_byte: 1_599, write_crossings: crossings, ..profile.disk };
        let world = world(profile);
        let mut writers = Writers::new(&world, vec![pair(&world)], 1 << 20);
        let (node, start) = (world.node("server"), world.now());
        let write = node.spawn({
            let disk = node.disk();
            async move { disk.write(64 << 20).await }
        });
        writers.post(&[0], count);
        world.block_on(write).unwrap().unwrap();
        world.now() - start
    };
    let least = Duration::from_nanos((16 << 20) * 533 / 1_000);
    let more = took(3, 16) - took(3, 0);
    assert!(more >= least.mul_f64(0.99) && more <= least.mul_f64(1.01), "{more:?}, not {least:?}");
    assert_eq!(took(2, 16), took(2, 0), "the bus is idle for a third of this copy");
}

/// Lets `clients` clients write to one server. Returns the world and the time.
fn incast(profile: Profile, clients: usize) -> (World, Duration) {
    let world = world(profile);
    let pairs = (0..clients).map(|at| pair_between(&world, &format!("client{at}"), "server")).collect();
    let mut writers = Writers::new(&world, pairs, 1 << 18);
    let from: Vec<usize> = (0..clients).map(|at| 2 * at).collect();
    let took = writers.write(&world, &from, 8);
    (world, took)
}

#[test]
fn a_full_port_lets_senders_wait_and_loses_nothing() {
    let profile = Profile { bus_ps_per_byte: 0, ..Profile::vapi_2003() };
    let least = |clients: u64| Duration::from_nanos(((clients * 8) << 18) * profile.adapter_ps_per_byte / 1000);
    for clients in [1, 2, 6] {
        let (world, took) = incast(profile.clone(), clients as usize);
        assert!(took >= least(clients) && took < least(clients).mul_f64(1.05) + MS, "{clients}: {took:?}");
        assert_eq!(world.node("server").lost_units(), 0);
    }
}

#[test]
fn a_full_ethernet_port_loses_what_comes_and_it_is_sent_again() {
    let profile = Profile::named("gige-2008").unwrap();
    let (world, alone) = incast(profile.clone(), 1);
    assert_eq!(world.node("server").lost_units(), 0);
    assert!(alone < Duration::from_nanos(profile.retransmit_ns));
    let (world, took) = incast(profile.clone(), 8);
    assert!(world.node("server").lost_units() > 0);
    assert!(took > Duration::from_nanos(profile.retransmit_ns), "{took:?}: somebody had to wait for a retransmission");
    assert!(took < Duration::from_secs(10), "{took:?}: and all arrived");
}

/// Each piece of a gather list costs the sending adapter time. For an adapter that chains
/// operations this is `adapter_segment_ns`.
#[test]
fn each_piece_of_a_gather_list_costs() {
    let took = |pieces: usize| {
        let world = world(Profile { adapter_segment_ns: 1_000, ..Profile::default() });
        let (mut a, mut b) = pair(&world);
        let (from, to) = (a.region(&[1; 160]), b.region(&[0; 160]));
        b.recv(1, &to).unwrap();
        world.run();
        let (start, segments) =
            (world.now(), Vec::from_iter((0..pieces).map(|at| from.segment(at * 160 / pieces, 160 / pieces))));
        a.t.post_send(a.conn, WorkId(1), &[], Payload::Gather(&segments), WorkOptions::SIGNALLED).unwrap();
        world.run() - start
    };
    assert_eq!(took(16) - took(1), Duration::from_nanos(15_000));
}

// ---- disks --------------------------------------------------------------------------------------

type Request = Pin<Box<dyn Future<Output = Result<(), bmi_core::Error>>>>;

/// Returns the time of `count` requests made at once, and of a sync after them.
fn disk(profile: DiskProfile, count: usize, write: bool) -> (Duration, Duration) {
    let world = world(Profile::default().with_disk(profile));
    let disk = world.node("node").disk();
    let mut requests: Vec<Request> = Vec::new();
    for _ in 0..count {
        requests.push(if write { Box::pin(disk.write(1 << 20)) } else { Box::pin(disk.read(1 << 20)) });
    }
    let done = world.block_on(async {
        for request in requests {
            request.await.unwrap();
        }
        world.now() - Time::ZERO
    });
    world.block_on(disk.sync()).unwrap();
    (done, world.now() - Time::ZERO)
}

#[test]
fn latencies_overlap_in_a_deep_queue() {
    let flash = |queue_depth| DiskProfile {
        queue_depth,
        read_latency_ns: 1_000_000,
        write_latency_ns: 0,
        read_ps_per_byte: 100,
        ..DiskProfile::default()
    };
    let bytes = Duration::from_nanos(104_858);
    assert_eq!(disk(flash(1), 4, false).0, 4 * (MS + bytes));
    assert_eq!(disk(flash(4), 4, false).0, MS + 4 * bytes);
    assert_eq!(disk(flash(2), 4, false).0, 2 * MS + 3 * bytes);
}

#[test]
fn a_cache_takes_writes_until_it_is_full_and_a_sync_waits_for_the_disk() {
    let cached = |cache_bytes| DiskProfile {
        cache_bytes,
        cache_ps_per_byte: 1_000,
        write_latency_ns: 0,
        read_latency_ns: 0,
        sync_ns: 0,
        write_ps_per_byte: 40_000,
        ..DiskProfile::default()
    };
    let (copy, write) = (Duration::from_nanos(1_048_576), Duration::from_nanos(41_943_040));
    let (done, synced) = disk(cached(8 << 20), 4, true);
    assert_eq!((done, synced), (4 * copy, copy + 4 * write));
    let (done, synced) = disk(cached(1 << 20), 4, true);
    assert_eq!((done, synced), (copy + 3 * write, copy + 4 * write), "the last is taken when there is room for it");
}
