//! The micro-benchmarks of a profile, in virtual time: what `perf_main` and `ttcp` would measure on
//! such machines.
//!
//! **Why.** A measured time is a sum of many prices, and queues hide some of them. So a profile is
//! not compared with measurements price by price. Instead the same measurements are made in the
//! simulator, over the backend itself. [`crate::fit`] changes the prices until they agree.
//!
//! **Invariants.** No measurement can count the effects of another one: each takes a new [`Micro`]
//! and consumes it. When a measurement ends, each request that it posted has ended once and was
//! waited for ([`Micro::ended`]).
//!
//! Tested by `tests/it/profiles/fit.rs`, against the prices themselves and not against another
//! measurement.

use std::time::Duration;

use bmi_core::mem::MemoryRegion;
use bmi_core::transport::{
    ConnId, Event, HostWork, Payload, Transport, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{Access, Error, Memory, RemoteSlice, Time};

use crate::adapter::SimTransport;
use crate::config::SimConfig;
use crate::model::Node;
use crate::prices::Profile;
use crate::world::World;

const MB: f64 = 1_048_576.0;
/// The message size of a stream, the number of messages in flight at a time, and the total number.
const LONG: usize = 256 << 10;
const WINDOW: usize = 4;
const MESSAGES: usize = 64;
/// Number of round trips of a latency measurement.
const ROUNDS: u8 = 20;
const FOREVER: Time = Time::from_nanos(u64::MAX);

struct Side {
    node: Node,
    transport: SimTransport,
    conn: ConnId,
    region: MemoryRegion,
    /// Completions that have not been waited for yet.
    done: Vec<WorkKind>,
    events: Vec<Event>,
}

impl Side {
    fn poll(&mut self) {
        while self.transport.poll(Time::ZERO, &mut self.events) {}
        for event in self.events.drain(..) {
            if let Event::Work(done) = event {
                assert_eq!(done.status, WorkStatus::Ok, "{:?}", done.kind);
                self.done.push(done.kind);
            }
        }
    }
}

/// Two connected sides, each with memory that the other may access, for one measurement.
pub(crate) struct Micro {
    world: World,
    sides: [Side; 2],
    /// The exposed memory of each side, for the other side.
    remotes: [RemoteSlice; 2],
    /// Requests that were posted and not yet waited for, without receives.
    outstanding: usize,
    software: bool,
}

/// Runs the world until the transport reports an event.
fn next_event(world: &World, transport: &mut SimTransport) -> Result<Event, Error> {
    let mut events = Vec::new();
    while !transport.poll(Time::ZERO, &mut events) || events.is_empty() {
        if !world.step(FOREVER) {
            return Err(Error::new(bmi_core::ErrorKind::Io, "the world stands still"));
        }
    }
    Ok(events.remove(0))
}

impl Micro {
    pub(crate) fn new(profile: &Profile) -> Result<Micro, Error> {
        let world = World::with(SimConfig::with_profile(profile.clone()));
        let nodes = [world.node("client"), world.node("server")];
        let (mut client, mut server) = (nodes[0].transport()?, nodes[1].transport()?);
        let addr = server.listen(&nodes[1].addr(0))?;
        let conn = client.connect(&addr, &[], FOREVER)?;
        let Event::ConnectRequest { conn: accepted, .. } = next_event(&world, &mut server)? else {
            return Err(Error::new(bmi_core::ErrorKind::Io, "no connection request"));
        };
        server.accept(accepted, &[])?;
        next_event(&world, &mut client)?;
        next_event(&world, &mut server)?;
        let side = |node: &Node, mut transport: SimTransport, conn: ConnId| {
            let region = transport.register(&Memory::zeroed(LONG)?)?;
            let remote = transport.expose(conn, &region.segment(0, LONG), Access::READ_WRITE)?;
            let node = node.clone();
            Ok::<_, Error>((Side { node, transport, conn, region, done: Vec::new(), events: Vec::new() }, remote))
        };
        let (client, at_client) = side(&nodes[0], client, conn)?;
        let (server, at_server) = side(&nodes[1], server, accepted)?;
        // The costs of the preparations are over.
        world.run_for(Duration::from_secs(10));
        Ok(Micro {
            world,
            sides: [client, server],
            remotes: [at_client, at_server],
            outstanding: 0,
            software: profile.software,
        })
    }

    fn step(&mut self) {
        assert!(self.world.step(FOREVER), "a request that was posted ends");
        self.sides.iter_mut().for_each(Side::poll);
    }

    fn wait(&mut self, side: usize, kind: WorkKind) {
        loop {
            let done = &mut self.sides[side].done;
            if let Some(at) = done.iter().position(|known| *known == kind) {
                done.remove(at);
                self.outstanding -= usize::from(kind != WorkKind::Recv);
                return;
            }
            self.step();
        }
    }

    fn wait_for(&mut self, count: usize, side: usize, kind: WorkKind) {
        (0..count).for_each(|_| self.wait(side, kind));
    }

    /// Ends the measurement. Checks that every posted request has ended, and that every completion
    /// was waited for.
    fn ended(self) {
        assert_eq!(self.outstanding, 0, "a measurement leaves requests");
        let left = [&self.sides[0].done, &self.sides[1].done];
        assert!(left.iter().all(|done| done.is_empty()), "a measurement leaves completions: {left:?}");
    }

    fn receive(&mut self, at: usize) {
        let Side { transport, conn, region, .. } = &mut self.sides[at];
        let segments = [region.segment(0, LONG)];
        transport.post_recv(*conn, WorkId(0), &segments).expect("few receives, on an open connection");
    }

    fn send(&mut self, at: usize, len: usize) {
        self.outstanding += 1;
        let Side { transport, conn, region, .. } = &mut self.sides[at];
        let segments = [region.segment(0, len)];
        let posted = transport.post_send(*conn, WorkId(1), &[], Payload::Gather(&segments), WorkOptions::SIGNALLED);
        posted.expect("few sends, on an open connection");
    }

    fn write(&mut self, at: usize, len: usize) {
        self.outstanding += 1;
        let target: WriteTarget = self.remotes[1 - at].into();
        let Side { transport, conn, region, .. } = &mut self.sides[at];
        let segments = [region.segment(0, len)];
        let posted = transport.post_write(*conn, WorkId(1), &[], &segments, target, WorkOptions::SIGNALLED);
        posted.expect("few writes, within the peer's memory");
    }

    fn read(&mut self, len: usize) {
        self.outstanding += 1;
        let remote = self.remotes[1];
        let Side { transport, conn, region, .. } = &mut self.sides[0];
        let segments = [region.segment(0, len)];
        let posted = transport.post_read(*conn, WorkId(1), &segments, remote, WorkOptions::SIGNALLED);
        posted.expect("few reads, within the peer's memory");
    }

    /// Returns the one-way time of a send of 4 bytes, in µs. Over TCP the reader sleeps until data
    /// arrives.
    pub(crate) fn send_one_way_us(mut self) -> f64 {
        self.receive(0);
        self.receive(1);
        let start = self.world.now();
        for _ in 0..ROUNDS {
            for from in [0, 1] {
                self.send(from, 4);
                self.wait(1 - from, WorkKind::Recv);
                if self.software {
                    self.sides[1 - from].node.wake_up();
                }
                self.receive(1 - from);
            }
        }
        let took = self.world.now() - start;
        [0, 1].into_iter().for_each(|side| self.wait_for(ROUNDS.into(), side, WorkKind::Send));
        self.ended();
        micros(took) / f64::from(2 * ROUNDS)
    }

    /// Returns the one-way time of an RDMA write of 4 bytes into memory that the peer polls, in µs.
    pub(crate) fn write_one_way_us(mut self) -> f64 {
        let start = self.world.now();
        for round in 1..=ROUNDS {
            for from in [0, 1] {
                let word = [2 * round + from as u8; 4];
                self.sides[from].region.memory().copy_from(0, &word);
                self.write(from, 4);
                while self.sides[1 - from].region.memory().slice(0, 4).to_vec() != word {
                    self.step();
                }
            }
        }
        let took = self.world.now() - start;
        [0, 1].into_iter().for_each(|side| self.wait_for(ROUNDS.into(), side, WorkKind::Write));
        self.ended();
        micros(took) / f64::from(2 * ROUNDS)
    }

    /// Returns the time from posting an RDMA read of 4 bytes to having taken its completion, in µs.
    pub(crate) fn read_round_trip_us(mut self) -> f64 {
        let start = self.sides[0].node.now();
        for _ in 0..ROUNDS {
            self.read(4);
            self.wait(0, WorkKind::Read);
        }
        let took = self.sides[0].node.now() - start;
        self.ended();
        micros(took) / f64::from(ROUNDS)
    }

    /// Returns the bandwidth of a stream, in MB/s. `post` starts a message, `ended` waits for the
    /// end of one.
    fn stream(&mut self, mut post: impl FnMut(&mut Micro), mut ended: impl FnMut(&mut Micro)) -> f64 {
        let start = self.world.now();
        for message in 0..MESSAGES + WINDOW {
            if message >= WINDOW {
                ended(self);
            }
            if message < MESSAGES {
                post(self);
            }
        }
        (MESSAGES * LONG) as f64 / MB / (self.world.now() - start).as_secs_f64()
    }

    pub(crate) fn send_mb_per_s(mut self) -> f64 {
        (0..WINDOW).for_each(|_| self.receive(1));
        let post = |micro: &mut Micro| micro.send(0, LONG);
        let rate = self.stream(post, |micro| {
            micro.wait(1, WorkKind::Recv);
            micro.receive(1);
        });
        self.wait_for(MESSAGES, 0, WorkKind::Send);
        self.ended();
        rate
    }

    pub(crate) fn write_mb_per_s(mut self) -> f64 {
        let rate = self.stream(|micro| micro.write(0, LONG), |micro| micro.wait(0, WorkKind::Write));
        self.ended();
        rate
    }

    pub(crate) fn read_mb_per_s(mut self) -> f64 {
        let rate = self.stream(|micro| micro.read(LONG), |micro| micro.wait(0, WorkKind::Read));
        self.ended();
        rate
    }

    /// Returns the time for registering and deregistering `count` regions of `bytes` bytes, in µs.
    pub(crate) fn register_us(mut self, count: usize, bytes: usize) -> Result<f64, Error> {
        let memory = Memory::zeroed(bytes)?;
        let Side { node, transport, events, .. } = &mut self.sides[0];
        let start = node.now();
        for _ in 0..count {
            drop(transport.register(&memory)?);
            transport.poll(Time::ZERO, events);
        }
        Ok(micros(node.now() - start))
    }

    /// Returns the bandwidth of a copy of `bytes` bytes, in MB/s.
    pub(crate) fn copy_mb_per_s(mut self, bytes: u64) -> f64 {
        let Side { node, transport, .. } = &mut self.sides[0];
        let start = node.now();
        transport.charge(HostWork::Copy { bytes, pieces: 1 });
        bytes as f64 / MB / (node.now() - start).as_secs_f64()
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
