//! What connections take from the system, and what is given back when they have ended: descriptors,
//! mappings and memory.

use bmi_conformance::allocation::{self, Counting};
use bmi_conformance::data::memory;
use bmi_conformance::idle_memory::{self, Bounds};
use bmi_conformance::net::{Net, SOON, soon};
use bmi_conformance::world::{Side, alone};
use bmi_core::transport::{ConnId, Payload, WorkId, WorkOptions};
use bmi_core::{Access, Addr, Config, Memory, Transport};
use bmi_shm::{ShmConfig, ShmTransport};

use crate::common::{World, local, world, world_with};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

const CONNECTIONS: usize = 50;

/// A connection costs each side its socket and no other descriptor.
#[test]
fn a_connection_has_one_descriptor_at_each_side() {
    if !alone(|| ()) {
        return;
    }
    for config in [ShmConfig::default(), without_pages()] {
        let mut world = world_with(&config);
        let addr = world.addr();
        world.connect_at(&addr);
        world.settle();
        let before = descriptors();
        let connections: Vec<_> = (0..CONNECTIONS).map(|_| world.connect()).collect();
        world.settle();
        // Each connection has a listener of its own here, which `World` makes.
        let taken = descriptors() - before - CONNECTIONS;
        assert_eq!(taken, 2 * CONNECTIONS, "for {CONNECTIONS} connections, both of whose ends are here");
        drop(connections);
    }
}

fn without_pages() -> ShmConfig {
    let mut config = ShmConfig::default();
    config.share_pages = false;
    config
}

/// A connection between endpoints costs each side its socket and no other descriptor, also when
/// its slots for fast RDMA are in use and other memory is exposed and registered.
#[test]
fn a_peer_has_one_descriptor_at_each_side() {
    if !alone(|| ()) {
        return;
    }
    let config = ShmConfig::default();
    let capabilities = ShmTransport::new(config.clone()).unwrap().capabilities().clone();
    let backend = local("shm", config, capabilities);
    let net = Net::new(&backend);
    net.run(async {
        let pair = net.pair(&Config::default()).await;
        let (near, far) = (memory(100_000), memory(100_000));
        pair.ping(&net, "before counting").await;
        // The memory of its messages is gone when the peers have been told to unmap it.
        net.turns(1000).await;
        let before = descriptors();
        for _ in 0..CONNECTIONS {
            let (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
            net.ping(&to_b, &to_a, "a new peer").await;
            // A message of middle size goes through a slot for fast RDMA, a long one is read.
            to_b.send(1, vec![7; 20_000], soon(&pair.a)).await.unwrap();
            to_a.recv(1, &far, soon(&pair.b)).await.unwrap();
            let received = to_a.recv(1, &far, soon(&pair.b));
            to_b.send(1, vec![7; 100_000], soon(&pair.a)).await.unwrap();
            received.await.unwrap();
            let exposure = to_a.expose(&far, Access::READ).unwrap();
            to_b.pull(exposure.descriptor(), 0, &near, soon(&pair.a)).await.unwrap();
        }
        assert!(pair.a.counters().fast >= CONNECTIONS as u64, "{:?}", pair.a.counters());
        // The memory of the messages is gone when the peers have been told to unmap it.
        net.until("one descriptor for each end", || (descriptors() - before <= 2 * CONNECTIONS).then_some(())).await;
        let taken = descriptors() - before;
        assert_eq!(taken, 2 * CONNECTIONS, "for {CONNECTIONS} connections, both of whose ends are here");
    });
}

/// Returns the number of mappings of shared memory that this process has, and its resident memory
/// in bytes.
fn mappings_and_resident_bytes() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    (maps.lines().filter(|line| line.contains("memfd:bmi-")).count(), pages * rustix::param::page_size())
}

/// Sends a message through the ring: its memory is not shareable.
fn send(from: &mut Side<ShmTransport>, to: &mut Side<ShmTransport>, near: ConnId, far: ConnId) {
    let memory = Memory::zeroed(8000).unwrap();
    let target = to.transport.register(&memory).unwrap().segment(0, 8000);
    to.transport.post_recv(far, WorkId(1), &[target]).unwrap();
    let source = [from.transport.register(&memory).unwrap().segment(0, 8000)];
    from.transport.post_send(near, WorkId(2), &[], Payload::Gather(&source), WorkOptions::UNSIGNALLED).unwrap();
}

/// Opens connections, moves messages both ways on each through all of its ring, and closes them.
/// Returns the mappings and the resident memory that there were while they were open.
fn open_and_close(world: &mut World, count: usize) -> (usize, usize) {
    let connections: Vec<_> = (0..count).map(|_| world.connect()).collect();
    for (ca, cb) in &connections {
        for _ in 0..40 {
            let World { a, b, .. } = &mut *world;
            send(a, b, *ca, *cb);
            send(b, a, *cb, *ca);
            world.until(|world| world.a.take_work());
            world.until(|world| world.b.take_work());
        }
    }
    let open = mappings_and_resident_bytes();
    for (ca, cb) in connections {
        world.a.transport.disconnect(ca, world.now);
        world.until(|world| world.a.take_end(ca));
        world.until(|world| world.b.take_end(cb));
    }
    open
}

/// Connections that have ended leave no mapping behind, and their memory is given back.
#[test]
fn what_connections_took_is_given_back_when_they_have_ended() {
    const MANY: usize = 200;
    /// What the allocator may keep of 200 connections, in bytes.
    const MOST_LEFT: usize = 8 << 20;
    if !alone(|| ()) {
        return;
    }
    let mut world = world();
    open_and_close(&mut world, 10);
    let before = mappings_and_resident_bytes();
    let open = open_and_close(&mut world, MANY);
    let after = mappings_and_resident_bytes();
    assert_eq!(open.0 - before.0, 4 * MANY, "both areas, mapped at both sides");
    assert!(open.1 - before.1 > MANY * (1 << 20), "the rings were not used: {before:?}, {open:?}");
    assert_eq!(after.0, before.0, "mappings remain");
    assert!(after.1 < before.1 + MOST_LEFT, "memory remains: {before:?}, {open:?}, {after:?}");
}

/// Peers that have gone leave no shared memory and no descriptor behind.
#[test]
fn what_peers_shared_is_given_back_when_they_have_gone() {
    if !alone(|| ()) {
        return;
    }
    let config = ShmConfig::default();
    let capabilities = ShmTransport::new(config.clone()).unwrap().capabilities().clone();
    let backend = local("shm", config, capabilities);
    let net = Net::new(&backend);
    net.run(async {
        let pair = net.pair(&Config::default()).await;
        let (near, far) = (memory(100_000), memory(100_000));
        let mut before = None;
        for round in 0..3 {
            let mut peers = Vec::new();
            for _ in 0..CONNECTIONS {
                let (to_b, to_a) = net.connect(&pair.a, &pair.b, &pair.addr).await;
                for (to, from, into) in [(&to_b, &to_a, &far), (&to_a, &to_b, &near)] {
                    for size in [100, 20_000, 100_000] {
                        let received = from.recv(1, into, from.within(SOON));
                        to.send(1, memory(size), to.within(SOON)).await.unwrap();
                        received.await.unwrap();
                    }
                }
                peers.push((to_b, to_a));
            }
            let open = mappings_and_resident_bytes().0;
            for (to_b, to_a) in peers {
                to_b.disconnect(soon(&pair.a)).await.unwrap();
                net.lost(&to_b).await;
                net.lost(&to_a).await;
            }
            let after = (mappings_and_resident_bytes().0, descriptors());
            assert!(open >= after.0 + 4 * CONNECTIONS, "round {round}: {open} while open, {after:?} afterwards");
            assert_eq!(*before.get_or_insert(after), after, "round {round}");
        }
    });
}

/// The rings of both directions are resident at both ends, and the slots that the peer may write
/// into. Receive slots are not.
const BOUNDS: Bounds = Bounds { busy: 900_000, chatted: 2 << 20, idle: 600 << 10, left: 16 << 10 };

#[test]
fn idle_connections_cost_little_and_leave_nothing() {
    if !alone(|| ()) {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let addr = Addr::shm(folder.path().join("own/server").to_str().expect("a name"));
    let transport = || ShmTransport::new(ShmConfig::default()).expect("transport");
    idle_memory::idle_connections_cost_little_and_leave_nothing(transport, &addr, 100, BOUNDS);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_data_path_allocates_nothing_in_the_steady_state() {
    allocation::data_path(&mut world());
}

#[test]
fn messages_allocate_nothing_in_the_steady_state() {
    let mut world = world();
    let addr = world.addr();
    allocation::messages(world.a.transport, world.b.transport, &addr);
}
