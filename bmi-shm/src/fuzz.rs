//! Bodies of the fuzz targets of this crate: packets of the socket, and what a peer writes into the
//! memory that both sides have mapped.
//!
//! The programs in `fuzz/` call them with the fuzzer's bytes, the tests below with the committed
//! corpora (`fuzz/corpus`). A body panics if a decoder breaks one of its rules.

use std::sync::atomic::{AtomicU64, Ordering};

use bmi_backend::Regions;
use bmi_backend::software::{self, Exposures, Keys};
use bmi_core::mem::copy;
use bmi_core::transport::{ConnId, Event, InlineMessage, InlineReceiver, MAX_PRIVATE_DATA, WorkId, WorkOptions};
use bmi_core::{Access, Memory, RemoteKey, RemoteSlice, Segment};

use crate::ShmConfig;
use crate::life::{MAX_PACKET, Packet};
use crate::os::sys;
use crate::passed::{Mapped, Room};
use crate::records::{Context, Inbound, Link, Pass};
use crate::shared::ring::Writer;
use crate::shared::{Area, Geometry, RingSpace};
use crate::work::QueuePair;

/// A packet of the socket. One that decodes has one encoding, which is not too long.
pub fn packet(bytes: &[u8]) {
    let Ok(packet) = Packet::decode(bytes) else { return };
    assert!(bytes.len() <= MAX_PACKET);
    if let Packet::Hello(hello, private) = &packet {
        assert!(private.len() <= MAX_PRIVATE_DATA);
        assert!(hello.geometry.is_sane() || hello.greeting == crate::life::Greeting::Reject);
    }
    assert_eq!(packet.encode().bytes(), bytes);
}

const GEOMETRY: Geometry = Geometry { ring_len: 64 << 10, exposures: 4 };
/// Bytes of each memory that a peer can reach, and of those before and behind it that it cannot.
const ROOM: usize = 600;
const MARGIN: usize = 64;
/// In place of the keys of the two exposures: nobody can guess the real ones.
const KEYS: [[u8; 8]; 2] = [*b"KEY-READ", *b"KEY-WRIT"];
/// The number of the memory that the peer has passed, and its length.
const PAGES: u32 = 1;
const PAGES_LEN: usize = 4096;
/// Number of receives and reads.
const RECEIVES: u64 = 6;
const READS: u64 = 2;
/// Most steps that one input is taken for.
const STEPS: usize = 200;

/// Takes every other message.
struct Taker(bool);

impl InlineReceiver for Taker {
    fn take(&mut self, _conn: ConnId, message: InlineMessage<'_>) -> bool {
        self.0 = !self.0;
        assert!(message.len() <= GEOMETRY.ring_len);
        self.0
    }
}

/// The receiving half of a connection, and the peer's end of its ring.
struct Scene {
    link: Link,
    queues: QueuePair,
    exposures: Exposures,
    inbound: Inbound,
    events: Vec<Event>,
    taker: Taker,
    /// The peer's area, as the peer sees it.
    area: Area,
    writer: Writer<RingSpace>,
    keys: [u64; 2],
    memories: [Memory; 2],
}

impl Scene {
    fn new() -> Scene {
        let config = ShmConfig::scarce();
        let area = || Area::new(sys::new_area(GEOMETRY.len()).expect("an area").1, GEOMETRY);
        let (own, peer) = (area(), area());
        let mut mapped = Mapped::new(4, Room::new((4, 2 << 20)));
        mapped.insert(PAGES, sys::new_area(PAGES_LEN).expect("pages").1).expect("room");
        let (mut regions, mut keys) = (Regions::new(software::REGIONS), Keys::new(software::EXPOSURES));
        let mut segment = |len: usize| -> Segment {
            regions.register(&Memory::zeroed(len).expect("memory")).expect("register").segment(0, len)
        };
        let mut queues = QueuePair::new(ConnId { slot: 0, generation: 0 }, &config);
        for work in 0..RECEIVES {
            let segments = [segment(3 + work as usize), segment(ROOM)];
            let count = 1 + (work as usize & 1);
            queues.post_recv(WorkId(work), &segments[2 - count..]).expect("post a receive");
        }
        for work in 0..READS {
            let remote = RemoteSlice { key: RemoteKey(9), addr: 0, len: ROOM as u64 };
            queues.add_read(WorkId(work), &[segment(ROOM)], remote, WorkOptions::SIGNALLED);
            queues.issued += 1;
        }
        let mut exposures = Exposures::default();
        let mut expose = |access| {
            let whole = segment(ROOM + 2 * MARGIN);
            let key = exposures.add(&mut keys, &whole.slice(MARGIN, ROOM), access).expect("expose").key.0;
            (whole.region().memory().clone(), key)
        };
        let [(readable, read), (writable, write)] = [expose(Access::READ), expose(Access::WRITE)];
        Scene {
            writer: Writer::new(peer.ring()),
            link: Link::new(own, peer.clone(), None, mapped),
            queues,
            exposures,
            inbound: Inbound::default(),
            events: Vec::new(),
            taker: Taker(false),
            area: peer,
            keys: [read, write],
            memories: [readable, writable],
        }
    }

    /// Writes a record in the usual way, with any kind and body.
    fn write(&mut self, kind: u8, body: &[u8]) {
        let mut body = body.to_vec();
        for (known, key) in KEYS.iter().zip(self.keys) {
            let found = body.windows(8).position(|window| window == known);
            found.into_iter().for_each(|at| body[at..at + 8].copy_from_slice(&key.to_le_bytes()));
        }
        let Some(reservation) = self.writer.reserve(body.len()) else { return };
        // SAFETY: the reservation lies in the ring, which `self.writer` keeps mapped. Others access
        // the ring only through `mem::copy` and atomically.
        unsafe { copy::copy_in(self.writer.space().ptr(reservation.at), &body) };
        self.writer.publish(reservation, kind);
    }

    /// Handles what is in the ring. Returns false when the connection is over.
    fn receive(&mut self, quick: bool) -> bool {
        let mut pass = Pass {
            events: &mut self.events,
            limit: usize::MAX,
            early: 0..0,
            shows: quick,
            receiver: &mut self.taker,
            moved: false,
        };
        let before = self.link.reader.position();
        if quick {
            self.inbound.take_in(&mut self.link, &mut self.queues, &mut pass);
        }
        let mut context =
            Context { link: &mut self.link, queues: &mut self.queues, exposures: &self.exposures, pass: &mut pass };
        let alive = self.inbound.receive(&mut context).is_ok();
        let position = self.link.reader.position();
        assert!(position >= before && position.is_multiple_of(64));
        self.link.reader.tell(self.link.own.consumed());
        alive
    }

    /// Writes a word anywhere into the peer's area.
    fn scribble(&self, at: usize, value: u64) {
        let word = at * 8 % GEOMETRY.len();
        let raw: &AtomicU64 = self.area.raw(word);
        raw.store(value, Ordering::Relaxed);
    }

    fn check(&self) {
        assert!(self.events.len() as u64 <= RECEIVES + READS, "more completions than work");
        let [readable, writable] = self.memories.each_ref().map(Memory::to_vec);
        assert!(readable.iter().all(|byte| *byte == 0), "memory that may only be read was written");
        let (before, rest) = writable.split_at(MARGIN);
        assert!(before.iter().chain(&rest[ROOM..]).all(|byte| *byte == 0), "memory beside an exposure was written");
    }
}

/// Reads the fields of steps. A field that runs out of bytes is 0.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn bytes(&mut self, len: usize) -> &[u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn word<const N: usize>(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(N);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
}

/// Records of a hostile peer, and words that it changes. The bytes are steps: a byte for the kind,
/// and the bytes of its fields.
///
/// No step reaches memory that the peer may not reach, or completes work that was not posted. The
/// reader only moves forward, by whole lines.
pub fn records(bytes: &[u8]) {
    let mut steps = Steps(bytes);
    let mut scene = Scene::new();
    for _ in 0..STEPS {
        if steps.0.is_empty() {
            break;
        }
        let alive = match steps.word::<1>() as u8 {
            kind @ 0..16 => {
                let len = steps.word::<1>() as usize;
                let body = steps.bytes(len).to_vec();
                scene.write(kind, &body);
                true
            }
            16 => {
                let long = vec![7; steps.word::<2>() as usize % Writer::<RingSpace>::max_body(GEOMETRY.ring_len)];
                scene.write(steps.word::<1>() as u8, &long);
                true
            }
            17 => {
                scene.scribble(steps.word::<2>() as usize, steps.word::<8>());
                true
            }
            18 => {
                // The word of the record that the reader looks at next.
                let ring = scene.area.ring_at() / 8;
                let next = scene.link.reader.position() as usize % GEOMETRY.ring_len / 8;
                scene.scribble(ring + next + steps.word::<1>() as usize, steps.word::<8>());
                true
            }
            19 => {
                let refreshed = scene.link.refresh().is_ok() && scene.link.refresh_taken().is_ok();
                let _ = scene.writer.refresh(scene.link.own.consumed());
                refreshed
            }
            step => scene.receive(step & 1 == 1),
        };
        if !alive {
            break;
        }
    }
    scene.receive(false);
    scene.check();
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("shm_packet", super::packet);
        replay("shm_records", super::records);
    }
}
