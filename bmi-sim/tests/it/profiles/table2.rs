//! The profiles reproduce the micro-benchmarks that they were calibrated on, end to end and each
//! within 3 %: [PVFS-IB, Table 2, §5]; [Unifier-PVFS, Table 1] (memory copy). They are measured as
//! `perf_main` and `ttcp` do: a ping-pong of 4 bytes, and a stream of long messages. MB are 2^20
//! bytes.

use std::time::Duration;

use bmi_core::transport::{HostWork, Payload, Transport, WorkId, WorkKind, WorkOptions};
use bmi_core::{Access, Memory, MemoryRegion, OneSided, Registration, RemoteSlice};
use bmi_sim::{Profile, SimConfig, World};

use crate::support::{Side, pair};

const MB: f64 = 1_048_576.0;
/// The length of a stream's messages, how many are posted at a time, and how many there are.
const LONG: usize = 1 << 20;
const WINDOW: u64 = 8;
const MESSAGES: u64 = 64;

fn within_3_percent(what: &str, got: f64, wanted: f64) {
    println!("{what}: {got:.2}, wanted {wanted}");
    assert!((got / wanted - 1.0).abs() < 0.03, "{what}: {got:.2}, wanted {wanted}");
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Two connected sides of a testbed, each with a registered buffer that the other may read and
/// write.
struct Bed {
    world: World,
    sides: [Side; 2],
    regions: [MemoryRegion; 2],
    remotes: [RemoteSlice; 2],
}

fn bed(config: SimConfig, len: usize) -> Bed {
    let world = World::with(config);
    let (mut a, mut b) = pair(&world);
    let regions = [&mut a, &mut b].map(|side| side.t.register(&Memory::zeroed(len).unwrap()).unwrap());
    let mut sides = [a, b];
    let remotes = [0, 1].map(|at| {
        let conn = sides[at].conn;
        sides[at].t.expose(conn, &regions[at].segment(0, len), Access::READ_WRITE).unwrap()
    });
    // The costs of the preparations are over.
    world.run_for(Duration::from_secs(1));
    Bed { world, sides, regions, remotes }
}

impl Bed {
    fn step(&mut self) {
        assert!(self.world.step(bmi_core::Time::from_nanos(u64::MAX)), "the world stands still");
        self.sides.iter_mut().for_each(Side::poll);
    }

    /// Waits for a completion of that kind on a side.
    fn wait(&mut self, side: usize, kind: WorkKind) {
        loop {
            let done = &mut self.sides[side].done;
            if let Some(at) = done.iter().position(|done| done.kind == kind) {
                done.remove(at);
                return;
            }
            self.step();
        }
    }

    fn post_receive(&mut self, side: usize) {
        let region = self.regions[side].clone();
        self.sides[side].recv(0, &region).unwrap();
    }

    /// Returns the one-way time, averaged over round trips.
    fn ping_pong(&mut self, mut one_way: impl FnMut(&mut Bed, usize, u8)) -> Duration {
        let start = self.world.now();
        for round in 1..=50 {
            one_way(self, 0, round);
            one_way(self, 1, round);
        }
        (self.world.now() - start) / 100
    }

    /// Returns the MB/s of a stream from side 0. `post` starts a message, `ended` waits for the end
    /// of one.
    fn stream(&mut self, mut post: impl FnMut(&mut Bed), mut ended: impl FnMut(&mut Bed)) -> f64 {
        let start = self.world.now();
        for message in 0..MESSAGES + WINDOW {
            if message >= WINDOW {
                ended(self);
            }
            if message < MESSAGES {
                post(self);
            }
        }
        MESSAGES as f64 * LONG as f64 / MB / (self.world.now() - start).as_secs_f64()
    }
}

/// Returns the one-way time of a send. With `blocking` the reader sleeps until data arrives, as
/// ttcp does; otherwise it polls.
fn send_latency(config: SimConfig, blocking: bool) -> Duration {
    let mut bed = bed(config, 64);
    let nodes = ["client", "server"].map(|name| bed.world.node(name));
    bed.post_receive(0);
    bed.post_receive(1);
    bed.ping_pong(|bed, from, round| {
        bed.sides[from].send(1, &[round; 4]).unwrap();
        bed.wait(1 - from, WorkKind::Recv);
        if blocking {
            nodes[1 - from].wake_up();
        }
        bed.post_receive(1 - from);
    })
}

fn send_bandwidth(config: SimConfig) -> f64 {
    let mut bed = bed(config, LONG);
    (0..WINDOW).for_each(|_| bed.post_receive(1));
    let post = |bed: &mut Bed| {
        let (segments, conn) = ([bed.regions[0].segment(0, LONG)], bed.sides[0].conn);
        let payload = Payload::Gather(&segments);
        bed.sides[0].t.post_send(conn, WorkId(1), &[], payload, WorkOptions::SIGNALLED).unwrap();
    };
    bed.stream(post, |bed| {
        bed.wait(1, WorkKind::Recv);
        bed.post_receive(1);
    })
}

#[test]
fn send_and_receive() {
    within_3_percent("send/receive, µs", micros(send_latency(SimConfig::vapi_2003(), false)), 9.2);
    within_3_percent("send/receive, MB/s", send_bandwidth(SimConfig::vapi_2003()), 825.0);
}

#[test]
fn tcp_over_the_same_network() {
    within_3_percent("IBNice, µs", micros(send_latency(SimConfig::ibnice_2003(), true)), 40.1);
    within_3_percent("IBNice, MB/s", send_bandwidth(SimConfig::ibnice_2003()), 185.0);
}

#[test]
fn rdma_write() {
    let mut bed = bed(SimConfig::vapi_2003(), LONG);
    let write = |bed: &mut Bed, from: usize, len: usize, signalled: bool| {
        let (segments, conn) = ([bed.regions[from].segment(0, len)], bed.sides[from].conn);
        let options = if signalled { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED };
        let target = bed.remotes[1 - from].into();
        bed.sides[from].t.post_write(conn, WorkId(1), &[], &segments, target, options).unwrap();
    };
    let latency = bed.ping_pong(|bed, from, round| {
        let word = [2 * round + from as u8; 4];
        bed.regions[from].memory().copy_from(0, &word);
        write(bed, from, 4, false);
        // The receiving program polls its memory.
        while bed.regions[1 - from].memory().slice(0, 4).to_vec() != word {
            bed.step();
        }
    });
    within_3_percent("RDMA write, µs", micros(latency), 6.0);
    let bandwidth = bed.stream(|bed| write(bed, 0, LONG, true), |bed| bed.wait(0, WorkKind::Write));
    within_3_percent("RDMA write, MB/s", bandwidth, 827.0);
}

#[test]
fn rdma_read() {
    let mut bed = bed(SimConfig::vapi_2003(), LONG);
    let read = |bed: &mut Bed, len: usize| {
        let (segments, conn) = ([bed.regions[0].segment(0, len)], bed.sides[0].conn);
        let remote = bed.remotes[1];
        bed.sides[0].t.post_read(conn, WorkId(1), &segments, remote, WorkOptions::SIGNALLED).unwrap();
    };
    let start = bed.world.now();
    for _ in 0..100 {
        read(&mut bed, 4);
        bed.wait(0, WorkKind::Read);
    }
    // The last completion is polled when the processor has taken it.
    let latency = (bed.world.node("client").now() - start) / 100;
    within_3_percent("RDMA read, µs", micros(latency), 12.4);
    let bandwidth = bed.stream(|bed| read(bed, LONG), |bed| bed.wait(0, WorkKind::Read));
    within_3_percent("RDMA read, MB/s", bandwidth, 816.0);
}

/// Returns the time of the node's clock that `work` takes.
fn host_time(work: impl FnOnce(&mut bmi_sim::SimTransport)) -> Duration {
    let world = World::with(SimConfig::vapi_2003());
    let node = world.node("host");
    let mut transport = node.transport().unwrap();
    let start = node.now();
    work(&mut transport);
    assert_eq!(node.now() - start, node.cpu_busy());
    node.now() - start
}

#[test]
fn registration_and_copies() {
    let register = |count: usize, len: usize| {
        host_time(|transport| (0..count).for_each(|_| drop(transport.register(&Memory::zeroed(len).unwrap()).unwrap())))
    };
    within_3_percent("400 kB, µs", micros(register(1, 400 << 10)), 530.0);
    within_3_percent("100 times 4 kB, µs", micros(register(100, 4 << 10)), 12_400.0);
    let len = 20 << 20;
    let copy = host_time(|transport| transport.charge(HostWork::Copy { bytes: len, pieces: 1 }));
    within_3_percent("copy, MB/s", len as f64 / MB / copy.as_secs_f64(), 596.0);
}

#[test]
fn capabilities_follow_the_profile() {
    let (vapi, tcp) = (SimConfig::vapi_2003().capabilities(), SimConfig::ibnice_2003().capabilities());
    assert_eq!((vapi.one_sided, tcp.one_sided), (OneSided::Native, OneSided::Emulated));
    assert!(matches!(vapi.registration, Registration::Pins { .. }));
    assert_eq!(tcp.registration, Registration::Free);
}

/// With TCP both processors move every byte; with RDMA neither does.
#[test]
fn bytes_cost_processor_time_only_over_tcp() {
    let busy = |config: SimConfig| {
        let mut bed = bed(config, LONG);
        let before = ["client", "server"].map(|node| bed.world.node(node).cpu_busy());
        let (segments, conn) = ([bed.regions[0].segment(0, LONG)], bed.sides[0].conn);
        let target = bed.remotes[1].into();
        bed.sides[0].t.post_write(conn, WorkId(1), &[], &segments, target, WorkOptions::SIGNALLED).unwrap();
        bed.wait(0, WorkKind::Write);
        let world = &bed.world;
        [0, 1].map(|at| world.node(["client", "server"][at]).cpu_busy() - before[at])
    };
    let [client, server] = busy(SimConfig::vapi_2003());
    assert_eq!(server, Duration::ZERO);
    assert!(client < Duration::from_micros(2), "{client:?}");
    let bytes = Duration::from_nanos(LONG as u64 * Profile::ibnice_2003().cpu_receive_ps_per_byte / 1_000);
    assert!(busy(SimConfig::ibnice_2003()).into_iter().all(|busy| busy >= bytes));
}
