//! A peer that follows the protocol up to some point and then misbehaves: wrong descriptors, random
//! packets, random words all over its area, no reading. Nothing of that may panic, hang, or touch
//! another connection.

mod handshake;
mod in_place;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi_conformance::Rng;
use bmi_core::transport::{
    ConnId, Event, InlineMessage, InlineReceiver, Payload, PostError, WorkId, WorkOptions, WorkStatus,
};
use bmi_core::{Access, Addr, ErrorKind, Memory, MemoryRegion, RemoteKey, RemoteSlice, Time, Transport};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::life::{Greeting, Hello, MAX_PACKET, Packet, encode_hello};
use crate::os::{socket, sys};
use crate::shared::{Area, Geometry};
use crate::{ShmConfig, ShmTransport};

const GEOMETRY: Geometry = Geometry { ring_len: 64 << 10, exposures: 16 };
const HELLO: Hello = Hello { greeting: Greeting::Connect, geometry: GEOMETRY, cookie: 1, address: 0x1000 };

/// The side under test, with one honest peer besides the hostile one.
struct Victim {
    transport: ShmTransport,
    honest: ShmTransport,
    /// The honest connection: the victim's id for it and the peer's.
    link: (ConnId, ConnId),
    path: PathBuf,
    _folder: tempfile::TempDir,
    region: MemoryRegion,
    events: Vec<Event>,
    now: Time,
}

impl Victim {
    fn new() -> Victim {
        Victim::with(ShmConfig::default())
    }

    fn with(mut config: ShmConfig) -> Victim {
        config.tuning.ring_len = 64 << 10;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names/victim");
        let mut transport = ShmTransport::new(config.clone()).unwrap();
        let mut honest = ShmTransport::new(config).unwrap();
        let addr = Addr::shm(path.to_str().unwrap());
        transport.listen(&addr).unwrap();
        let now = Time::from_nanos(1 << 40);
        let near = honest.connect(&addr, b"", Time::from_nanos(1 << 50)).unwrap();
        let region = transport.register(&Memory::shareable(64 << 10).unwrap()).unwrap();
        let link = (near, near);
        let mut victim = Victim { transport, honest, link, path, _folder: folder, region, events: Vec::new(), now };
        let far = victim.request();
        victim.transport.accept(far, b"").unwrap();
        victim.link = (far, near);
        victim.take("establishment", |event| matches!(event, Event::Established { .. }).then_some(()));
        victim.prove_honest();
        victim
    }

    fn poll(&mut self) {
        self.now = self.now + Duration::from_micros(10);
        self.transport.poll(self.now, &mut self.events);
        self.honest.poll(self.now, &mut Vec::new());
    }

    fn take<R>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<R>) -> R {
        for _ in 0..200_000 {
            if let Some((at, found)) = self.events.iter().enumerate().find_map(|(at, event)| Some((at, wanted(event)?)))
            {
                self.events.remove(at);
                return found;
            }
            self.poll();
        }
        panic!("no {what}: {:?}", self.events);
    }

    fn request(&mut self) -> ConnId {
        self.take("request", |event| match event {
            Event::ConnectRequest { conn, .. } => Some(*conn),
            _ => None,
        })
    }

    fn end_of(&mut self, wanted: ConnId) -> bmi_core::Error {
        self.take("end", |event| match event {
            Event::Disconnected { conn, reason } if *conn == wanted => Some(reason.clone()),
            _ => None,
        })
    }

    /// Proves that the honest connection works.
    fn prove_honest(&mut self) {
        let (far, near) = self.link;
        self.transport.post_recv(far, WorkId(77), &[self.region.segment(0, 8)]).unwrap();
        for _ in 0..1000 {
            self.poll();
        }
        self.honest.post_send(near, WorkId(1), b"honest", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
        self.take("honest message", |event| match event {
            Event::Work(work) if work.conn == far && work.work == WorkId(77) => {
                assert_eq!(work.status, WorkStatus::Ok);
                Some(())
            }
            _ => None,
        });
    }

    /// Creates a hostile peer with an established connection.
    fn hostile(&mut self) -> (Hostile, ConnId) {
        let mut hostile = Hostile::dial(&self.path);
        hostile.say(encode_hello(&HELLO, b"").bytes(), &[hostile.area_fd.as_fd()]);
        let conn = self.request();
        self.transport.accept(conn, b"").unwrap();
        hostile.read_acceptance();
        self.take("establishment", |event| matches!(event, Event::Established { .. }).then_some(()));
        (hostile, conn)
    }
}

/// The other side, in separate pieces.
struct Hostile {
    socket: OwnedFd,
    area_fd: OwnedFd,
    area: Area,
    victims_fd: Option<OwnedFd>,
}

impl Hostile {
    fn dial(path: &Path) -> Hostile {
        let (area_fd, mapping) = sys::new_area(GEOMETRY.len()).unwrap();
        Hostile {
            socket: socket::connect(path).unwrap(),
            area_fd,
            area: Area::new(mapping, GEOMETRY),
            victims_fd: None,
        }
    }

    fn say(&self, bytes: &[u8], fds: &[std::os::fd::BorrowedFd<'_>]) {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        // The victim may have cut the connection already.
        let _ = rustix::net::sendmsg(&self.socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    fn read_acceptance(&mut self) {
        let mut bytes = [0; MAX_PACKET];
        let (len, passed) = socket::receive(&self.socket, &mut bytes).unwrap();
        assert!(
            matches!(Packet::decode(&bytes[..len]), Ok(Packet::Hello(hello, _)) if hello.greeting == Greeting::Accept)
        );
        self.victims_fd = passed.only().ok();
    }
}

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("hostile", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Words that are more often nearly valid than random.
fn word(rng: &mut Rng, keys: &[u64]) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => rng.below(10) << 32 | rng.below(200),
        2 => 0xff << 32,
        3 => keys[rng.index(keys.len())],
        4 => rng.below(1 << 18),
        _ => rng.next_u64(),
    }
}

/// A hostile peer writes random words to its ring, its positions, its table and its claims, while
/// the victim sends, receives, reads and writes. The victim neither panics nor hangs, each of its
/// requests ends once, and the honest connection goes on.
#[test]
fn scribbling_over_shared_memory_costs_at_most_the_connection() {
    let mut victim = Victim::new();
    let mut rng = Rng::new(1);
    let (mut cut, mut left, mut at_once) = (0, 0, 0);
    for _ in 0..400 {
        let (hostile, conn) = victim.hostile();
        let exposed = [Access::READ, Access::WRITE, Access::READ_WRITE].map(|access| {
            let segment = victim.region.segment(rng.index(1000), 2000);
            victim.transport.expose(conn, &segment, access).unwrap()
        });
        let keys: Vec<u64> = exposed.iter().map(|slice| slice.key.0).collect();
        let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
        hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
        if rng.below(2) == 0 {
            // Advance the clock so that the victim looks at the socket, where the peer's pages
            // arrive.
            victim.now = victim.now + Duration::from_millis(1);
            victim.poll();
        }
        let mut posted = 0u64;
        for _ in 0..rng.index(60) {
            match rng.below(10) {
                0..=3 => {
                    // A record on one of the first lines; its word is stored last.
                    let at = hostile.area.ring_at() + rng.index(8) * 64;
                    for offset in 1..6 {
                        hostile.area.raw(at + offset * 8).store(word(&mut rng, &keys), Ordering::Relaxed);
                    }
                    hostile.area.raw(at).store(word(&mut rng, &keys), Ordering::Release);
                }
                4 => {
                    // Anywhere before the ring: positions, announcements, claims, the table.
                    let at = rng.index(hostile.area.ring_at() / 8) * 8;
                    hostile.area.raw(at).store(word(&mut rng, &keys), Ordering::Relaxed);
                }
                5 => {
                    let (at, len) = (rng.index(1000), rng.index(3000));
                    let segments = [victim.region.segment(at, len)];
                    let accepted = match rng.below(4) {
                        0 => victim.transport.post_recv(conn, WorkId(posted), &segments),
                        1 => victim.transport.post_send(
                            conn,
                            WorkId(posted),
                            b"head",
                            Payload::Gather(&segments),
                            WorkOptions::SIGNALLED,
                        ),
                        kind => {
                            // A key of the hostile table, whose entry may hold anything.
                            let slot = rng.index(GEOMETRY.exposures);
                            let key = 1 << 20 | slot as u64;
                            let pages = if rng.below(2) == 0 { 0 } else { word(&mut rng, &keys) };
                            let offset = rng.below(10_000) >> rng.below(8);
                            let place = [key, rng.below(8), pages, offset, rng.below(10_000)];
                            for (field, value) in place.into_iter().enumerate() {
                                hostile.area.raw(512 + slot * 64 + field * 8).store(value, Ordering::Relaxed);
                            }
                            let remote =
                                RemoteSlice { key: RemoteKey(key), addr: rng.below(9000) >> rng.below(8), len: 3000 };
                            let pieces = [victim.region.memory().slice(at, len)];
                            if match kind {
                                2 => victim.transport.write_now(conn, &pieces, remote),
                                _ => victim.transport.read_now(conn, &pieces, remote),
                            } {
                                at_once += 1;
                                continue;
                            }
                            if kind == 2 {
                                let options = WorkOptions::SIGNALLED;
                                victim.transport.post_write(
                                    conn,
                                    WorkId(posted),
                                    &[],
                                    &segments,
                                    remote.into(),
                                    options,
                                )
                            } else {
                                victim.transport.post_read(
                                    conn,
                                    WorkId(posted),
                                    &segments,
                                    remote,
                                    WorkOptions::SIGNALLED,
                                )
                            }
                        }
                    };
                    match accepted {
                        Ok(()) => posted += 1,
                        Err(PostError::NotConnected | PostError::QueueFull) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                6 => victim.transport.revoke(conn, exposed[rng.index(3)].key),
                _ => victim.poll(),
            }
        }
        for _ in 0..20 {
            victim.poll();
        }
        cut += usize::from(victim.events.iter().any(|event| matches!(event, Event::Disconnected { .. })));
        drop(hostile);
        let mut completed = Vec::new();
        loop {
            let over = victim.take("the end", |event| match event {
                Event::Work(work) if work.conn == conn => {
                    completed.push(work.work.0);
                    Some(false)
                }
                Event::Disconnected { conn: ended, .. } if *ended == conn => Some(true),
                _ => None,
            });
            if over {
                break;
            }
        }
        left += 1;
        completed.sort_unstable();
        assert_eq!(completed, (0..posted).collect::<Vec<_>>(), "every request ends once");
        assert!(victim.events.is_empty(), "{:?}", victim.events);
    }
    assert!(cut > 50 && cut < left, "both kinds of ends were seen: {cut} of {left} cut");
    assert!(at_once > 5, "some entries are good enough: {at_once}");
    victim.prove_honest();
}

/// A peer that never reads fills only its own queue. The connection ends at the deadline.
#[test]
fn a_peer_that_never_reads_holds_up_nobody() {
    let mut victim = Victim::new();
    let (_hostile, conn) = victim.hostile();
    let segments = [victim.region.segment(0, 30_000)];
    let mut posted = 0;
    let refusal = loop {
        let payload = Payload::Gather(&segments);
        match victim.transport.post_send(conn, WorkId(posted), b"", payload, WorkOptions::SIGNALLED) {
            Ok(()) => posted += 1,
            Err(refusal) => break refusal,
        }
        assert!(posted < 10_000, "a queue without an end");
        victim.poll();
    };
    assert_eq!(refusal, PostError::QueueFull);
    victim.prove_honest();
    victim.events.clear();
    let deadline = victim.now + std::time::Duration::from_secs(1);
    victim.transport.disconnect(conn, deadline);
    for _ in 0..1000 {
        victim.poll();
    }
    assert!(victim.events.is_empty(), "not before the deadline");
    victim.now = deadline;
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Cancelled);
    victim.prove_honest();
}

/// A peer claims as many keys as it can, known and invented ones, and never gives a claim up. It
/// costs the exposures that it claims, and no other. Others are served as before.
#[test]
fn claims_that_are_never_given_up_hold_what_they_name() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    let mut memories: Vec<_> = (0..100).map(|_| Memory::shareable(4096).unwrap()).collect();
    let expose = |memory: &Memory| {
        let segment = victim.transport.register(memory).unwrap().segment(0, 4096);
        victim.transport.expose(conn, &segment, Access::WRITE).unwrap().key
    };
    let keys: Vec<RemoteKey> = memories.iter().map(expose).collect();
    (0..20).for_each(|number| hostile.area.claim(number, keys[5 * number].0));
    (20..32).for_each(|number| hostile.area.claim(number, keys[number].0 ^ 1 << 40));
    victim.transport.revoke(conn, keys[0]);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Cancelled);
    for _ in 0..100 {
        victim.now = victim.now + Duration::from_secs(60);
        victim.poll();
        assert_eq!(victim.transport.retired_memory().exposures, 20);
    }
    let held: Vec<_> = (0..100).filter(|at| memories[*at].get_mut().is_none()).collect();
    assert_eq!(held, (0..20).map(|number| 5 * number).collect::<Vec<_>>());
    drop(hostile); // the claims remain
    victim.prove_honest();
    victim.now = victim.now + Duration::from_secs(60);
    victim.poll();
    assert_eq!(victim.transport.retired_memory().bytes, 20 * 4096);
}
