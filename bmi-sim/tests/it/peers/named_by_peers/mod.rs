//! Operations that a peer names: announcements that it cancels, and offers that it makes and
//! withdraws.
//!
//! **Why.** A peer chooses its names, and it may have thousands of messages and offers parked, and
//! thousands of messages that it does not say to have seen. One more short message of it must not
//! make this side look through all of them. And a name that it gives twice must mean nothing worse
//! than one of the two.
//!
//! The peer is a bare adapter whose messages are made here. `frames.rs` has what each kind of
//! message costs at most.

#[cfg(feature = "mutants")]
mod frames;

use std::collections::VecDeque;
use std::time::Duration;

use bmi_core::transport::{Event, Payload, PostError, Transport, WorkId, WorkKind, WorkOptions};
use bmi_core::{
    Access, Config, ErrorKind, Memory, MemoryRegion, Options, Peer, PeerEvent, RemoteKey, RemoteSlice, Time,
};
use bmi_sim::World;

use crate::support::{Side, one_event};

const EAGER: u8 = 1;
#[cfg(feature = "mutants")]
const UNEXPECTED: u8 = 2;
const ANNOUNCE: u8 = 3;
const FINISH: u8 = 4;
const CANCEL: u8 = 5;
const CREDIT: u8 = 6;
const READY: u8 = 7;
const WRITTEN: u8 = 8;
const WITHDRAW: u8 = 9;
const WITHDRAWN: u8 = 10;
#[cfg(feature = "mutants")]
const FAST_SLOTS: u8 = 11;
const CLEAR_TO_WRITE: u8 = 12;
#[cfg(feature = "mutants")]
const GO_AWAY: u8 = 13;
#[cfg(feature = "mutants")]
const PROBE: u8 = 15;

/// Longest message without a payload apart, in bytes.
const HEAD: usize = 128;
/// Number of receives of the peer.
const RECEIVES: u16 = 64;
/// Room in each of them, in bytes.
const ROOM: usize = 32 + 256;
/// Message credits that an endpoint grants by default.
const CREDITS: u16 = 124;

/// A message of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heard {
    kind: u8,
    tag: u64,
    len: u64,
    op: u64,
}

/// A peer that says what a test wants, as long as it has the credits.
struct Talker<'a> {
    world: &'a World,
    side: Side,
    landing: MemoryRegion,
    /// The payloads that have no room in a head.
    long: Vec<MemoryRegion>,
    credits: u16,
    /// Credits that the next message gives back.
    messages: u16,
    control: u8,
    heard: VecDeque<Heard>,
}

impl Talker<'_> {
    /// Says something, and lets the endpoint handle it.
    fn say(&mut self, kind: u8, tag: u64, len: u64, op: u64, payload: &[u8]) {
        self.poll();
        while self.credits == 0 {
            self.pause();
        }
        let mut wire = vec![kind | self.control << 4, 0];
        wire.extend(self.messages.to_le_bytes());
        wire.extend([0; 4]);
        wire.extend([tag, len, op].into_iter().flat_map(u64::to_le_bytes));
        let fits = wire.len() + payload.len() <= HEAD;
        let rest = if fits { &[] } else { payload };
        wire.extend(if fits { payload } else { &[] });
        self.long.extend((!rest.is_empty()).then(|| self.side.region(rest)));
        let segment = if fits { None } else { self.long.last().map(|region| region.segment(0, rest.len())) };
        let (conn, rest) = (self.side.conn, Payload::Gather(segment.as_slice()));
        while let Err(refused) = self.side.t.post_send(conn, WorkId(u64::MAX), &wire, rest, WorkOptions::SIGNALLED) {
            assert_eq!(refused, PostError::QueueFull);
            self.pause();
        }
        (self.credits, self.messages, self.control) = (self.credits - 1, 0, 0);
    }

    fn announce(&mut self, tag: u64, op: u64, memory: RemoteSlice) {
        self.say(ANNOUNCE, tag, memory.len, op, &memory.to_wire());
    }

    fn cancel(&mut self, op: u64) {
        self.say(CANCEL, 0, 0, op, &[]);
    }

    /// Offers a receive before any message.
    fn offer(&mut self, tag: u64, op: u64, memory: RemoteSlice) {
        self.say(READY, tag, 0, op, &memory.to_wire());
    }

    fn withdraw(&mut self, op: u64) {
        self.say(WITHDRAW, 0, 0, op, &[]);
    }

    /// Lets the endpoint handle everything. The registration of a long message takes some 100 µs.
    fn pause(&mut self) {
        self.world.run_for(Duration::from_millis(1));
        self.poll();
    }

    fn poll(&mut self) {
        self.side.poll();
        let received: Vec<_> = self.side.done.drain(..).filter(|done| done.kind == WorkKind::Recv).collect();
        for done in received {
            let wire = self.landing.memory().slice(done.work.0 as usize * ROOM, 32).to_vec();
            let word = |at: usize| u64::from_le_bytes(wire[at..at + 8].try_into().unwrap());
            let heard = Heard { kind: wire[0] & 15, tag: word(8), len: word(16), op: word(24) };
            self.credits += u16::from_le_bytes([wire[2], wire[3]]);
            if heard.kind == CREDIT {
                self.control += 1;
            } else {
                self.messages += 1;
                self.heard.push_back(heard);
            }
            self.post(done.work.0);
        }
    }

    fn post(&mut self, slot: u64) {
        let segment = self.landing.segment(slot as usize * ROOM, ROOM);
        self.side.t.post_recv(self.side.conn, WorkId(slot), &[segment]).unwrap();
    }

    /// Returns what the endpoint has said since the last call, beside credits.
    fn hear(&mut self) -> Vec<Heard> {
        self.pause();
        self.heard.drain(..).collect()
    }

    /// Exposes memory to the endpoint.
    fn expose(&mut self, len: usize, access: Access) -> (Memory, RemoteSlice) {
        let region = self.side.region(&vec![7; len]);
        let remote = self.side.t.expose(self.side.conn, &region.segment(0, len), access).unwrap();
        (region.memory().clone(), remote)
    }
}

/// Memory of the peer that nobody accesses.
fn nowhere(len: u64) -> RemoteSlice {
    RemoteSlice { key: RemoteKey(0x1234_5678), addr: 0, len }
}

/// The hello of the peer, as `bmi_core` documents it: without optional features. It grants so many
/// messages.
fn hello(messages: u16) -> Vec<u8> {
    let mut wire = b"BMIh\x02\0\x02\0".to_vec();
    [15u64, 15].iter().for_each(|word| wire.extend(word.to_le_bytes()));
    wire.extend(256u32.to_le_bytes());
    wire.extend(messages.to_le_bytes());
    wire.extend([4, 0]);
    wire.extend((1u32 << 30).to_le_bytes());
    wire.extend(16u32.to_le_bytes());
    wire.extend((1u64 << 30).to_le_bytes());
    wire.extend(0u32.to_le_bytes());
    wire.push(0);
    wire
}

/// Creates an endpoint with a peer that has connected.
fn scene(world: &World) -> (Peer, Talker<'_>) {
    scene_granting(world, RECEIVES - 4)
}

/// Creates an endpoint with a peer that has connected, and granted so many messages.
fn scene_granting(world: &World, messages: u16) -> (Peer, Talker<'_>) {
    let (node, other) = (world.node("server"), world.node("client"));
    let endpoint = node.endpoint(Config::default()).unwrap();
    let addr = endpoint.listen(&node.addr(1)).unwrap();
    let mut t = other.transport().unwrap();
    let landing = t.register(&Memory::zeroed(ROOM * usize::from(RECEIVES)).unwrap()).unwrap();
    let conn = t.connect(&addr, &hello(messages), Time::from_nanos(u64::MAX)).unwrap();
    let side = Side { t, conn, done: Vec::new(), ended: None };
    let (credits, heard) = (CREDITS, VecDeque::new());
    let long = Vec::new();
    let mut talker = Talker { world, side, landing, long, credits, messages: 0, control: 0, heard };
    (0..RECEIVES).for_each(|slot| talker.post(slot.into()));
    let connected = world.block_on(endpoint.next_event());
    let PeerEvent::Connected { peer, .. } = connected else { panic!("{connected:?}") };
    world.run_for(Duration::from_millis(1));
    assert!(matches!(one_event(&mut talker.side.t), Event::Established { .. }));
    (peer, talker)
}

fn parked(peer: &Peer) -> usize {
    peer.endpoint().resource_usage().parked
}

const fn cancelled(op: u64) -> Heard {
    Heard { kind: FINISH, tag: 2, len: 0, op }
}

const fn withdrawn(op: u64) -> Heard {
    Heard { kind: WITHDRAWN, tag: 0, len: 0, op }
}

/// Longer than an offer. It takes long enough to be stopped.
const LONG: usize = 4 << 20;

#[test]
fn a_name_that_was_announced_twice_is_cancelled_one_at_a_time() {
    let world = World::new(1);
    let (peer, mut talker) = scene(&world);
    talker.announce(1, 7, nowhere(1000));
    talker.announce(2, 7, nowhere(2000));
    talker.announce(3, 7, nowhere(3000));
    talker.cancel(7);
    assert_eq!((talker.hear(), parked(&peer)), (vec![cancelled(7)], 2));
    // The message of the last tag still has its announcement, and is too long.
    let receive = peer.recv(3, Memory::zeroed(8).unwrap(), Options::default());
    assert_eq!(world.block_on(receive).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(talker.hear(), [Heard { kind: FINISH, tag: 1, len: 0, op: 7 }]);
    talker.cancel(7);
    assert_eq!((talker.hear(), parked(&peer)), (vec![cancelled(7)], 0));
    talker.cancel(7);
    assert_eq!(talker.hear(), []);
}

#[test]
fn the_name_of_an_announcement_that_was_received_cancels_no_other_message() {
    let world = World::new(1);
    let (peer, mut talker) = scene(&world);
    talker.announce(1, 7, nowhere(1000));
    talker.pause();
    let receive = peer.recv(1, Memory::zeroed(8).unwrap(), Options::default());
    assert_eq!(world.block_on(receive).unwrap_err().kind(), ErrorKind::TooLarge);
    talker.hear();
    // An eager message takes the place of the announcement.
    talker.say(EAGER, 2, 5, 0, b"hello");
    talker.cancel(7);
    assert_eq!((talker.hear(), parked(&peer)), (vec![], 1));
    let text = Memory::zeroed(5).unwrap();
    assert_eq!(world.block_on(peer.recv(2, &text, Options::default())).unwrap().len, 5);
    assert_eq!(text.to_vec(), b"hello");
}

#[test]
fn a_name_that_was_offered_twice_is_withdrawn_one_at_a_time() {
    let world = World::new(1);
    let (peer, mut talker) = scene(&world);
    let (memory, remote) = talker.expose(1000, Access::WRITE);
    talker.offer(1, 9, nowhere(1000));
    talker.offer(2, 9, remote);
    talker.withdraw(9);
    assert_eq!(talker.hear(), [withdrawn(9)]);
    let send = |tag| peer.send(tag, Memory::from(vec![tag as u8; 1000]), Options::default());
    world.block_on(send(2)).unwrap();
    assert_eq!(talker.hear(), [Heard { kind: WRITTEN, tag: 0, len: 1000, op: 9 }]);
    assert_eq!(memory.to_vec(), [2; 1000]);
    // The offer of tag 1 is gone, so the message is announced. So is the other one's, which was
    // used.
    talker.withdraw(9);
    assert_eq!(talker.hear(), [withdrawn(9)]);
    for tag in [1, 2] {
        let sending = send(tag);
        let [announced] = talker.hear()[..] else { panic!("one message") };
        assert_eq!((announced.kind, announced.tag, announced.len), (ANNOUNCE, tag, 1000));
        talker.say(FINISH, 0, 1000, announced.op, &[]);
        world.block_on(sending).unwrap();
    }
}

#[test]
fn a_cancel_takes_a_parked_message_of_its_name_before_one_that_is_read() {
    let world = World::new(1);
    let (peer, mut talker) = scene(&world);
    let (_memory, remote) = talker.expose(LONG, Access::READ);
    let idle = peer.endpoint().resource_usage();
    let receives = [1, 2].map(|tag| peer.recv(tag, Memory::zeroed(LONG).unwrap(), Options::default()));
    talker.announce(1, 7, remote);
    talker.announce(2, 7, remote);
    talker.announce(3, 7, nowhere(1000));
    talker.cancel(7);
    talker.cancel(7);
    let results = receives.map(|receive| world.block_on(receive).map(|done| done.len).map_err(|error| error.kind()));
    assert_eq!(results, [Err(ErrorKind::Cancelled), Ok(LONG as u64)]);
    let read = Heard { kind: FINISH, tag: 0, len: LONG as u64, op: 7 };
    assert_eq!(talker.hear(), [cancelled(7), cancelled(7), read]);
    talker.cancel(7);
    assert_eq!((talker.hear(), peer.endpoint().resource_usage()), (vec![], idle));
}

#[test]
fn a_withdraw_stops_one_of_the_messages_that_are_written_for_its_name() {
    let world = World::new(1);
    let (peer, mut talker) = scene(&world);
    let (_memory, remote) = talker.expose(LONG, Access::WRITE);
    let idle = peer.endpoint().resource_usage();
    let sends = [1, 2].map(|tag| peer.send(tag, Memory::zeroed(LONG).unwrap(), Options::default()));
    for announced in talker.hear() {
        talker.say(CLEAR_TO_WRITE, 9, LONG as u64, announced.op, &remote.to_wire());
    }
    // What is written cannot be cancelled as if it were read.
    talker.cancel(9);
    talker.withdraw(9);
    let results = sends.map(|send| world.block_on(send).map(|done| done.len).map_err(|error| error.kind()));
    assert_eq!(results, [Err(ErrorKind::Cancelled), Ok(LONG as u64)]);
    assert_eq!(talker.hear(), [withdrawn(9), Heard { kind: WRITTEN, tag: 0, len: LONG as u64, op: 9 }]);
    talker.withdraw(9);
    assert_eq!((talker.hear(), peer.endpoint().resource_usage()), (vec![withdrawn(9)], idle));
}
