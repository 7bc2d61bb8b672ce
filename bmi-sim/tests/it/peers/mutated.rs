//! Changed frames of real exchanges: a client whose adapter changes some of the frames that its
//! endpoint posts, against a server that also has an honest client.
//!
//! **Why.** Random bytes seldom get far. Here all frames before the changed one are real: ids,
//! keys, credits and states are those of a running exchange. So the changed one meets the code
//! behind the first checks.
//!
//! **How.** A session is a client with a new connection, which makes calls of every path, sends and
//! receives. Its adapter ([`Mutator`]) is the simulator's. It changes bytes of messages, targets of
//! writes and reads, immediate data and the hello, and repeats messages. A session ends with its
//! connection, or with its program.
//!
//! **Invariants**, which are checked after sessions
//! 1. Nothing panics, and the program of the session ends.
//! 2. The honest client's calls have the right results.
//! 3. What the server's endpoint holds is what it held before any session.
//! 4. What peers park is bounded by their credits, at any time.
//!
//! `BMI_FRAMES` sets the number of changed frames, for `cargo xtask hostile --frames`. `BMI_SEED`
//! sets the first seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Incoming, serve};
use bmi_core::driver::Waiting;
use bmi_core::transport::{ConnId, Payload, PostError, WorkId, WorkOptions, WriteTarget};
use bmi_core::{
    Addr, Config, Endpoint, Engine, Error, Memory, Options, Peer, RemoteKey, RemoteSlice, Segment, Time, Transport,
    forward_transport,
};
use bmi_sim::{Node, Rng, SimTransport, World, drive_with};
use send_wrapper::SendWrapper;

/// Changed frames of an ordinary run.
const FRAMES: u64 = 2_000;
/// Sessions in one world. A new one begins with another seed.
const SESSIONS: u64 = 100;
/// Steps of a session's program.
const STEPS: u64 = 12;
/// The chance of a frame to be changed, in thousandths.
const CHANCE: u64 = 120;
/// Time limit of an operation.
const SOON: Duration = Duration::from_millis(20);
/// Longer than a server waits for memory that a peer does not give back.
const SETTLED: Duration = Duration::from_millis(200);
/// The tag of messages that are not calls.
const TAG: u64 = 7;
/// The longest of these messages in bytes. It is announced, and read by the receiver.
const MESSAGE: usize = 40_000;
/// What all peers may park together in bytes: the credits of the two that are connected, twice.
const MOST_PARKED: u64 = 64 << 10;
/// Sessions after which the server must hold nothing.
const CHECKED: u64 = 10;

/// What draws the changes, and counts them.
struct Dice {
    rng: RefCell<Rng>,
    changed: Cell<u64>,
}

impl Dice {
    fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    fn word(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    /// Returns true if the next frame shall be changed, and counts it.
    fn falls(&self) -> bool {
        let falls = self.below(1000) < CHANCE;
        self.changed.set(self.changed.get() + u64::from(falls));
        falls
    }

    /// Returns a number that lengths, keys and ids are replaced by.
    fn extreme(&self, real: u64) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - real,
            3 => 1 << 63,
            4 => real.wrapping_add(1),
            5 => real.wrapping_sub(1),
            6 => real ^ 1 << self.below(64),
            _ => self.word() >> self.below(64),
        }
    }

    /// Changes bytes in one to three ways.
    fn change(&self, bytes: &mut Vec<u8>) {
        for _ in 0..1 + self.below(3) {
            let len = bytes.len();
            if len == 0 {
                bytes.push(self.word() as u8);
                continue;
            }
            // Most checks are about the first bytes.
            let at = self.below(if self.below(3) == 0 { len } else { len.min(60) } as u64) as usize;
            let some = 1 + self.below((len - at).min(40) as u64) as usize;
            match self.below(7) {
                0 | 1 => bytes[at] ^= 1 << self.below(8),
                2 => bytes[at] = self.word() as u8,
                3 | 4 => {
                    // A field of the header or a word of a table.
                    let at = at & !7;
                    if let Some(field) = bytes.get_mut(at..at + 8) {
                        let real = u64::from_le_bytes((&*field).try_into().unwrap());
                        field.copy_from_slice(&self.extreme(real).to_le_bytes());
                    }
                }
                5 => bytes.truncate(at),
                _ => {
                    let part = bytes[at..at + some].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
    }
}

/// The adapter of a hostile client.
struct Mutator {
    inner: SimTransport,
    dice: SendWrapper<Rc<Dice>>,
}

impl Mutator {
    /// Returns the bytes of a message in memory that the adapter can gather.
    fn segment(&mut self, bytes: Vec<u8>) -> Option<Segment> {
        let len = bytes.len();
        let region = self.inner.register(&Memory::from(bytes)).ok()?;
        (len > 0).then(|| region.segment(0, len))
    }

    fn remote(&self, remote: RemoteSlice) -> RemoteSlice {
        // The length is not sent: the adapter compares it with what is written or read.
        let mut remote = remote;
        match self.dice.below(3) {
            0 => remote.key = RemoteKey(self.dice.extreme(remote.key.0)),
            1 => remote.addr = self.dice.extreme(remote.addr),
            _ => remote.addr = remote.addr.wrapping_add(self.dice.below(1 << 20)),
        }
        remote
    }
}

fn gathered(head: &[u8], payload: &Payload<'_>) -> Vec<u8> {
    let mut bytes = head.to_vec();
    match payload {
        Payload::Inline(slices) => slices.iter().for_each(|slice| bytes.extend(slice.to_vec())),
        Payload::Gather(segments) => {
            for segment in *segments {
                bytes.extend(segment.region().memory().slice(segment.offset(), segment.len()).to_vec());
            }
        }
    }
    bytes
}

#[deny(clippy::missing_trait_methods)]
impl Transport for Mutator {
    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        let mut private = private.to_vec();
        // Most sessions shall begin.
        if self.dice.below(8) == 0 && self.dice.falls() {
            self.dice.change(&mut private);
            private.truncate(bmi_core::transport::MAX_PRIVATE_DATA);
        }
        self.inner.connect(addr, &private, deadline)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        if !self.dice.falls() {
            return self.inner.post_send(conn, work, head, payload, options);
        }
        let mut bytes = gathered(head, &payload);
        if self.dice.below(8) == 0 {
            // Once more, before itself.
            let segments = self.segment(bytes.clone());
            let again = Payload::Gather(segments.as_slice());
            self.inner.post_send(conn, WorkId(u64::MAX), &[], again, WorkOptions::UNSIGNALLED)?;
        } else {
            self.dice.change(&mut bytes);
        }
        let segments = self.segment(bytes);
        self.inner.post_send(conn, work, &[], Payload::Gather(segments.as_slice()), options)
    }

    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        if !self.dice.falls() {
            return self.inner.post_write(conn, work, head, segments, target, options);
        }
        let (mut target, mut bytes) = (target, gathered(head, &Payload::Gather(segments)));
        match (self.dice.below(3), target.immediate) {
            (0, Some(real)) => target.immediate = Some(self.dice.extreme(real.into()) as u32),
            (1, _) => target.remote = self.remote(target.remote),
            _ => {
                let len = bytes.len();
                self.dice.change(&mut bytes);
                // The adapter itself refuses more than the target has.
                bytes.truncate(len);
            }
        }
        let segments = self.segment(bytes);
        self.inner.post_write(conn, work, &[], segments.as_slice(), target, options)
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let remote = if self.dice.falls() { self.remote(remote) } else { remote };
        self.inner.post_read(conn, work, segments, remote, options)
    }

    forward_transport!(self => self.inner; except connect, post_send, post_write, post_read);
}

/// A small window, so that its ends are met.
fn config() -> Config {
    Config::default()
        .eager_limit(2048)
        .credit_messages(8)
        .fence_grace(Duration::from_millis(10))
        .transfer_unit(16 << 10)
}

/// Answers calls: `w` takes data, `r` returns some, `s` receives a message, `t` sends one.
async fn answer(call: Incoming) -> Result<(), Error> {
    /// The server's own limit. A peer may claim any length.
    const MOST: u64 = 1 << 20;
    let soon = call.within(SOON);
    let kind = call.request().first().copied().unwrap_or(0);
    let len = call.len();
    if len > MOST {
        return call.reply(b"too long", None, soon).await;
    }
    match kind {
        b'w' => {
            let memory = Memory::zeroed(len as usize)?;
            call.fetch(0, &memory, soon).await?;
            let sum: u64 = memory.to_vec().iter().map(|byte| u64::from(*byte)).sum();
            call.reply(&sum.to_le_bytes(), None, soon).await
        }
        b'r' => {
            let memory = Memory::from(vec![b'r'; len as usize]);
            call.reply(b"read", Some(memory.into()), soon).await
        }
        b's' => {
            let memory = Memory::zeroed(MESSAGE)?;
            let done = call.peer().recv(TAG, &memory, soon).await?;
            call.reply(&done.len.to_le_bytes(), None, soon).await
        }
        b't' => {
            call.peer().send(TAG, vec![b't'; MESSAGE], soon).await?;
            call.reply(b"sent", None, soon).await
        }
        _ => {
            let request = call.request().to_vec();
            call.reply(&request, None, soon).await
        }
    }
}

/// One step of a client: a call of a kind, with data of one of the lengths that take different
/// paths. Returns true if the result is right, or the error of the first operation that failed.
async fn step(peer: &Peer, number: u64) -> Result<bool, Error> {
    const LENGTHS: [usize; 4] = [100, 3000, 30_000, 100_000];
    let soon = || peer.within(SOON);
    let len = LENGTHS[(number / 5) as usize % LENGTHS.len()];
    match number % 5 {
        0 => {
            let data = Memory::from(vec![3; len]);
            let reply = peer.call(b"w", Body::Out(data.into()), soon())?.reply().await?;
            Ok(reply.bytes[..] == (3 * len as u64).to_le_bytes())
        }
        1 => {
            let data = Memory::zeroed(len)?;
            let reply = peer.call(b"r", Body::In((&data).into()), soon())?.reply().await?;
            Ok(reply.bytes[..] == b"read"[..] && data.to_vec() == vec![b'r'; len])
        }
        2 => {
            let (call, len) = (peer.call(b"s", Body::None, soon())?, len.min(MESSAGE));
            peer.send(TAG, vec![1; len], soon()).await?;
            Ok(call.reply().await?.bytes[..] == (len as u64).to_le_bytes())
        }
        3 => {
            let data = Memory::zeroed(MESSAGE)?;
            let receive = peer.recv(TAG, &data, soon());
            let reply = peer.call(b"t", Body::None, soon())?.reply().await?;
            Ok(reply.bytes[..] == b"sent"[..] && receive.await?.len == MESSAGE as u64)
        }
        _ => {
            let request = vec![b'e'; 40 + (number as usize * 97) % 1500];
            let reply = peer.call(&request, Body::None, soon())?.reply().await?;
            Ok(reply.bytes[..] == request)
        }
    }
}

/// A client whose results may be wrong, because its own frames are. It goes on until an operation
/// fails.
async fn session(endpoint: &Endpoint, server: &Addr, first: u64) -> Result<(), Error> {
    let peer = endpoint.connect(server, endpoint.within(SOON)).await?;
    let mut result = Ok(());
    for number in first..first + STEPS {
        result = step(&peer, number).await.map(drop);
        if result.is_err() {
            break;
        }
    }
    // The connection may be gone.
    let _ = peer.disconnect(peer.within(SOON)).await;
    result
}

/// Runs the sessions of one world. Returns the number of changed frames, and of sessions that ended
/// by an error.
fn run(seed: u64, most: u64) -> (u64, u64) {
    let world = World::new(seed);
    let (serving, honest, hostile) = (world.node("server"), world.node("honest"), world.node("hostile"));
    let server = serving.endpoint(config()).unwrap();
    let addr = server.listen(&serving.addr(1)).unwrap();
    {
        let server = server.clone();
        serving.spawn(async move { match serve(&server, 64, answer).await {} });
    }
    let client = honest.endpoint(config()).unwrap();
    let peer = world.block_on(client.connect(&addr, Options::default())).unwrap();
    let dice = Rc::new(Dice { rng: RefCell::new(Rng::new(seed)), changed: Cell::new(0) });
    (0..20).for_each(|number| honest_step(&world, &peer, number));
    world.run_for(SETTLED);
    let idle = server.resource_usage();
    let (mut failed, hostile) = (0, hostile_client(&hostile, &dice));
    for number in 1..=SESSIONS {
        failed += u64::from(world.block_on(session(&hostile, &addr, dice.below(20))).is_err());
        // The honest client's call meets what the session has left.
        honest_step(&world, &peer, number);
        let usage = server.resource_usage();
        assert!(usage.parked_bytes <= MOST_PARKED, "seed {seed}, session {number}: {usage:?}");
        let is_last = dice.changed.get() >= most || number == SESSIONS;
        if is_last || number.is_multiple_of(CHECKED) {
            world.run_for(SETTLED);
            while server.with(|engine| engine.poll_event()).is_some() {}
            assert_eq!(server.resource_usage(), idle, "seed {seed}, session {number}");
        }
        if is_last {
            break;
        }
    }
    (0..20).for_each(|number| honest_step(&world, &peer, number));
    (dice.changed.get(), failed)
}

/// Makes a call of the honest client.
fn honest_step(world: &World, peer: &Peer, number: u64) {
    match world.block_on(step(peer, number)) {
        Ok(is_right) => assert!(is_right, "the honest client's step {number} has a wrong result"),
        Err(error) => panic!("the honest client's step {number}: {error}"),
    }
}

fn hostile_client(node: &Node, dice: &Rc<Dice>) -> Endpoint {
    let transport = Mutator { inner: node.transport().unwrap(), dice: SendWrapper::new(dice.clone()) };
    let endpoint = Endpoint::new(Engine::new(Box::new(transport), config(), node.now()).unwrap(), node.clock());
    node.spawn(drive_with(node.clone(), endpoint.clone(), Waiting::Busy));
    endpoint
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn changed_frames_cost_only_the_connection() {
    let frames = number("BMI_FRAMES").unwrap_or(FRAMES);
    let (mut changed, mut failed, mut seed) = (0, 0, number("BMI_SEED").unwrap_or(1));
    let first = seed;
    while changed < frames {
        let (more, ended) = run(seed, frames - changed);
        (changed, failed, seed) = (changed + more, failed + ended, seed + 1);
    }
    println!("{changed} changed frames, {failed} sessions that ended by an error, seeds {first} to {}", seed - 1);
    assert!(failed > changed / 50, "changed frames are noticed: {failed} of {changed}");
}
