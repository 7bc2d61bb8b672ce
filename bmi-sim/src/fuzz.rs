//! The body of the fuzz target of an endpoint: a peer that breaks the protocol after a valid hello.
//!
//! The program in `fuzz/` calls it with the fuzzer's bytes, the test below with the committed
//! corpus (`fuzz/corpus/endpoint`). The body panics if the endpoint breaks one of its rules.
//!
//! **Layout.** The bytes are steps, one after the other: a byte for the kind and the bytes of its
//! fields. A field that runs out of bytes is 0. A number below 128 is itself. A larger one is a
//! word that the endpoint has sent before (an operation, a tag, a length), so that the fuzzer can
//! answer.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bmi_core::transport::{ConnId, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{
    Access, Addr, Completion, Config, Engine, Exposure, Memory, MemoryRegion, OpId, Options, PeerEvent, PeerId, Posted,
    RemoteKey, RemoteSlice, ResourceUsage, Time, Transport, Unexpected,
};

use crate::{SimConfig, SimTransport, World};

/// Length of the header of a message.
const HEADER: usize = 32;
/// Number of receives of the intruder, and the room in each.
const RECEIVES: usize = 12;
const ROOM: usize = 2048;
/// Most words and most memories of the endpoint that the intruder remembers.
const REMEMBERED: usize = 128;
/// Most steps that one input is taken for.
const STEPS: usize = 64;
/// Longest message or memory of an operation of the endpoint, in bytes.
const LONGEST: usize = 8192;

/// The settings of the endpoint: small, so that their limits are met.
fn settings() -> Config {
    Config::named("victim")
        .eager_limit(1024)
        .credit_messages(4)
        .credit_bytes(4 * (1024 + 64))
        .transfer_unit(4096)
        .in_flight_bytes(8192)
        .max_pieces(8)
        .max_message(1 << 20)
        .fence_grace(Duration::from_millis(200))
}

/// Reads the fields of steps.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *byte
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.to_vec()
    }

    fn len(&mut self) -> usize {
        (usize::from(self.byte()) * 33).min(LONGEST)
    }
}

/// An endpoint, and a bare adapter that is connected to it.
struct Scene {
    world: World,
    victim: Engine,
    peer: Option<PeerId>,
    /// What the endpoint holds without a peer.
    idle: ResourceUsage,
    /// Operations of the endpoint that have not ended.
    running: BTreeSet<OpId>,
    unexpected: VecDeque<Unexpected>,
    exposures: Vec<Exposure>,
    intruder: SimTransport,
    conn: ConnId,
    landing: MemoryRegion,
    /// Words and memories of which the endpoint has told.
    words: Vec<u64>,
    slices: Vec<RemoteSlice>,
    established: bool,
    over: bool,
}

impl Scene {
    /// Creates a scene whose adapters can read remote memory or not.
    fn new(rdma_read: bool) -> Scene {
        let mut config = SimConfig::seeded(1);
        let mut capabilities = config.capabilities();
        capabilities.rdma_read = rdma_read;
        config.capabilities_override = Some(capabilities);
        let world = World::with(config);
        let hello = hello(&world);
        let transport = world.node("victim").transport().expect("the node is alive");
        let mut victim = Engine::new(Box::new(transport), settings(), world.now()).expect("an endpoint");
        let addr = victim.listen(&Addr::sim("victim", 1)).expect("listen");
        let mut intruder = world.node("intruder").transport().expect("the node is alive");
        let landing = intruder.register(&Memory::zeroed(RECEIVES * ROOM).expect("memory")).expect("register");
        let conn = intruder.connect(&addr, &hello, world.now() + Duration::from_secs(60)).expect("connect");
        let mut scene = Scene {
            idle: victim.resource_usage(),
            world,
            victim,
            peer: None,
            running: BTreeSet::new(),
            unexpected: VecDeque::new(),
            exposures: Vec::new(),
            intruder,
            conn,
            landing,
            words: Vec::new(),
            slices: Vec::new(),
            established: false,
            over: false,
        };
        (0..RECEIVES).for_each(|work| scene.post_receive(work));
        scene.settle();
        assert!(scene.established && scene.peer.is_some(), "a valid hello is accepted");
        scene
    }

    fn post_receive(&mut self, work: usize) {
        let segment = self.landing.segment(work * ROOM, ROOM);
        // The connection may have ended.
        let _ = self.intruder.post_recv(self.conn, WorkId(work as u64), &[segment]);
    }

    /// Polls both sides until nothing more happens. No time passes beyond that of the messages.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            let limit = self.world.now() + Duration::from_millis(1);
            let busy = self.poll();
            if !self.world.step(limit) && !busy {
                return;
            }
        }
        panic!("the endpoint and its peer never come to rest");
    }

    fn poll(&mut self) -> bool {
        let (now, mut events) = (self.world.now(), Vec::new());
        let mut busy = self.intruder.poll(now, &mut events);
        busy |= self.victim.poll(now);
        events.into_iter().for_each(|event| self.notice(event));
        let mut ended = Vec::new();
        self.victim.poll_all(&mut ended);
        ended.into_iter().for_each(|completion| self.end(&completion));
        self.unexpected.extend(std::iter::from_fn(|| self.victim.poll_unexpected()));
        while let Some(event) = self.victim.poll_event() {
            match event {
                PeerEvent::Connected { peer, .. } => self.peer = Some(peer),
                PeerEvent::Lost { peer, .. } => assert_eq!(self.peer.take(), Some(peer), "lost twice"),
            }
        }
        busy
    }

    fn end(&mut self, completion: &Completion) {
        assert!(self.running.remove(&completion.op), "{completion:?} ends twice, or was never posted");
        assert!(completion.len <= LONGEST as u64 || completion.status.is_err(), "{completion:?}");
    }

    /// Handles an event of the intruder: remembers what the endpoint has told.
    fn notice(&mut self, event: Event) {
        match event {
            Event::Established { .. } => self.established = true,
            Event::Disconnected { .. } | Event::Rejected { .. } => self.over = true,
            Event::Work(done) if done.kind == WorkKind::Recv && done.status == WorkStatus::Ok => {
                let at = done.work.0 as usize * ROOM;
                let message = self.landing.memory().slice(at, done.len as usize).to_vec();
                self.remember(&message);
                self.post_receive(done.work.0 as usize);
            }
            _ => {}
        }
    }

    fn remember(&mut self, message: &[u8]) {
        let Some((head, payload)) = message.split_at_checked(HEADER) else { return };
        let words = head[8..].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        self.words.extend(words.filter(|word| *word >= 128));
        let slices = payload.as_chunks::<{ RemoteSlice::WIRE_LEN }>().0;
        self.slices.extend(slices.iter().take(8).map(RemoteSlice::from_wire));
        let surplus = self.words.len().saturating_sub(REMEMBERED);
        self.words.drain(..surplus);
        let surplus = self.slices.len().saturating_sub(REMEMBERED);
        self.slices.drain(..surplus);
    }

    /// Reads a number: a small one, or a word of the endpoint, the newest first.
    fn number(&self, steps: &mut Steps<'_>) -> u64 {
        let byte = steps.byte();
        let known = byte.checked_sub(128).and_then(|at| self.words.iter().rev().nth(usize::from(at)));
        known.copied().unwrap_or_else(|| u64::from(byte))
    }

    fn say(&mut self, message: &[u8]) {
        let memory = Memory::from(message.to_vec());
        let region = self.intruder.register(&memory).expect("register");
        let segments = [region.segment(0, message.len())];
        let options = WorkOptions::UNSIGNALLED;
        let posted = self.intruder.post_send(self.conn, WorkId(99), &[], Payload::Gather(&segments), options);
        assert!(matches!(posted, Ok(()) | Err(PostError::NotConnected | PostError::QueueFull)), "{posted:?}");
    }

    /// Sends a message with a header of the protocol.
    fn say_header(&mut self, steps: &mut Steps<'_>) {
        let mut message = vec![steps.byte(), steps.byte()];
        message.extend(u16::from(steps.byte()).to_le_bytes());
        message.extend((u32::from(steps.byte()) * 16).to_le_bytes());
        let words = [self.number(steps), self.number(steps), self.number(steps)];
        let mut payload = steps.bytes();
        if message[1] & 128 != 0 {
            // A memory of the endpoint, or one that does not exist.
            let place = usize::from(steps.byte());
            let made_up = RemoteSlice { key: RemoteKey(place as u64), addr: 0, len: words[1] };
            payload = self.slices.get(place).copied().unwrap_or(made_up).to_wire().to_vec();
        }
        message[1] &= 127;
        words.iter().for_each(|word| message.extend(word.to_le_bytes()));
        // The right length is more useful than a random one.
        if words[1] == 127 {
            message[16..24].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        }
        message.extend(payload);
        self.say(&message);
    }

    /// Writes into memory of the endpoint, perhaps with immediate data.
    fn write(&mut self, steps: &mut Steps<'_>) {
        let (place, offset, immediate) = (usize::from(steps.byte()), self.number(steps), steps.byte());
        let bytes = steps.bytes();
        let Some(slice) = self.slices.get(place).copied() else { return };
        let slice = RemoteSlice { addr: slice.addr.wrapping_add(offset), len: bytes.len() as u64, ..slice };
        let immediate = (immediate & 1 == 1).then(|| u32::from(immediate >> 1) | (self.number(steps) as u32) << 8);
        let memory = Memory::from(bytes);
        let region = self.intruder.register(&memory).expect("register");
        let segments = [region.segment(0, memory.len())];
        let target = WriteTarget { remote: slice, immediate };
        let _ = self.intruder.post_write(self.conn, WorkId(98), &[], &segments, target, WorkOptions::UNSIGNALLED);
    }

    /// Posts an operation of the endpoint.
    fn post(&mut self, steps: &mut Steps<'_>) {
        let Some(peer) = self.peer else { return };
        let (what, tag, len) = (steps.byte(), u64::from(steps.byte()), steps.len());
        let memory = Memory::zeroed(len).expect("memory");
        let options = Options::within(self.world.now(), Duration::from_millis(50 + u64::from(what >> 4) * 100));
        let posted = match what & 15 {
            0..4 => self.victim.post_recv(peer, tag, memory, options),
            4..7 => self.victim.post_send(peer, tag, memory, options),
            7 => self.victim.post_send_unexpected(peer, tag, memory, options),
            8 => self.victim.post_discard(peer, tag, options),
            9 | 10 => {
                let access = if what & 1 == 1 { Access::READ } else { Access::WRITE };
                if let Ok(exposure) = self.victim.expose(peer, memory, access) {
                    self.slices.extend(exposure.descriptor().pieces());
                    self.exposures.push(exposure);
                }
                return;
            }
            11 => return drop(self.exposures.pop()),
            12 => return drop(self.unexpected.pop_front()),
            _ => {
                let op = self.running.iter().nth(usize::from(what >> 4)).copied();
                return op.into_iter().for_each(|op| self.victim.cancel(op));
            }
        };
        if let Ok(Posted::Pending(op)) = posted {
            assert!(self.running.insert(op), "an id twice");
        }
    }

    fn step(&mut self, steps: &mut Steps<'_>) {
        match steps.byte() & 7 {
            0 => {
                let bytes = steps.bytes();
                self.say(&bytes);
            }
            1..4 => self.say_header(steps),
            4 => self.write(steps),
            5 | 6 => self.post(steps),
            _ => {
                self.settle();
                let until = self.world.now() + Duration::from_millis(u64::from(steps.byte()));
                self.world.run_until(until);
            }
        }
    }

    /// Lets the intruder leave. The endpoint must then hold what it held before.
    fn finish(mut self) {
        self.settle();
        self.intruder.disconnect(self.conn, Time::ZERO);
        self.unexpected.clear();
        self.exposures.clear();
        for _ in 0..40 {
            self.settle();
            let until = self.world.now() + Duration::from_millis(100);
            self.world.run_until(until);
        }
        self.settle();
        self.unexpected.clear();
        self.settle();
        assert!(self.over, "the intruder is not told");
        assert!(self.running.is_empty(), "operations without an end: {:?}", self.running);
        assert_eq!(self.peer, None, "a peer without an end");
        assert_eq!(self.victim.resource_usage(), self.idle, "left behind");
    }
}

/// Returns the hello of an endpoint with the settings of the scene.
fn hello(world: &World) -> Vec<u8> {
    let mut listener = world.node("listener").transport().expect("the node is alive");
    let addr = listener.listen(&Addr::sim("listener", 1)).expect("listen");
    let transport = world.node("model").transport().expect("the node is alive");
    let mut model = Engine::new(Box::new(transport), settings(), world.now()).expect("an endpoint");
    model.connect(&addr, Options::default()).expect("connect");
    let mut events = Vec::new();
    for _ in 0..1000 {
        model.poll(world.now());
        listener.poll(world.now(), &mut events);
        if let Some(Event::ConnectRequest { private, .. }) = events.first() {
            return private.to_vec();
        }
        world.step(world.now() + Duration::from_millis(1));
    }
    panic!("no request arrives");
}

/// An endpoint and a peer that sends what it likes after a valid hello.
///
/// Each operation ends exactly once. When the peer is gone, nothing is left behind.
pub fn endpoint(bytes: &[u8]) {
    let mut steps = Steps(bytes);
    let kind = steps.byte();
    let mut scene = Scene::new(kind & 1 == 0);
    for _ in 0..STEPS {
        if steps.0.is_empty() {
            break;
        }
        scene.step(&mut steps);
        // Without it, steps meet in one poll.
        if kind & 2 == 0 {
            scene.settle();
        }
    }
    scene.finish();
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("endpoint", super::endpoint);
    }
}
