//! A peer that follows the protocol up to some point and then misbehaves: wrong descriptors, random
//! packets, random words all over its area, no reading. Nothing of that may panic, hang, or touch
//! another connection.

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

use crate::area::{Area, Geometry};
use crate::packet::{Greeting, Hello, MAX_PACKET, Packet, encode_hello};
use crate::{ShmConfig, ShmTransport, socket, sys};

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

/// Descriptors that must be refused, each with the length that is claimed for it.
fn wrong_descriptors(len: u64) -> Vec<(&'static str, Vec<OwnedFd>)> {
    let good = SealFlags::SHRINK | SealFlags::GROW;
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    vec![
        ("none", vec![]),
        ("a file", vec![file.into()]),
        ("a device", vec![File::open("/dev/zero").unwrap().into()]),
        ("a directory", vec![File::open("/").unwrap().into()]),
        ("a socket", vec![std::os::unix::net::UnixDatagram::unbound().unwrap().into()]),
        ("an unsealed memfd", vec![memfd(len, SealFlags::empty())]),
        ("a memfd that may shrink", vec![memfd(len, SealFlags::GROW)]),
        ("a shorter memfd", vec![memfd(len - 1, good)]),
        ("a longer memfd", vec![memfd(len + 4096, good)]),
        ("two memfds", vec![memfd(len, good), memfd(len, good)]),
        ("too many memfds", (0..8).map(|_| memfd(len, good)).collect()),
    ]
}

#[test]
fn wrong_descriptors_in_the_handshake_are_refused() {
    let mut victim = Victim::new();
    for (what, fds) in wrong_descriptors(GEOMETRY.len() as u64) {
        let hostile = Hostile::dial(&victim.path);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        hostile.say(encode_hello(&HELLO, b"").bytes(), &fds);
        for _ in 0..2000 {
            victim.poll();
        }
        assert!(victim.events.is_empty(), "{what}: {:?}", victim.events);
        let mut byte = [0; MAX_PACKET];
        assert!(matches!(socket::receive(&hostile.socket, &mut byte), Ok((0, _)) | Err(_)), "{what}: closed");
    }
    victim.prove_honest();
}

/// Descriptors that come with a refused packet are closed. The reading end of a pipe sees the end
/// once no process holds the writing end.
#[test]
fn descriptors_of_refused_packets_are_closed() {
    let mut victim = Victim::new();
    let hello = encode_hello(&HELLO, b"");
    let pages = Packet::Pages { id: 0, len: 4096 }.encode();
    for (established, packet) in [(false, &hello), (true, &pages), (true, &Packet::Wake.encode())] {
        for count in [1, 2, 8] {
            let hostile = if established { victim.hostile().0 } else { Hostile::dial(&victim.path) };
            let pipes: Vec<_> = (0..count).map(|_| std::io::pipe().unwrap()).collect();
            let fds: Vec<_> = pipes.iter().map(|(_, write)| write.as_fd()).collect();
            hostile.say(packet.bytes(), &fds);
            drop(fds);
            for _ in 0..2000 {
                victim.poll();
            }
            for (mut read, write) in pipes {
                drop(write);
                rustix::io::ioctl_fionbio(&read, true).unwrap();
                assert_eq!(std::io::Read::read(&mut read, &mut [0]).unwrap(), 0, "somebody has the other end");
            }
        }
    }
    victim.events.clear();
    victim.prove_honest();
}

#[test]
fn wrong_descriptors_for_memory_cost_the_connection() {
    let mut victim = Victim::new();
    for (what, fds) in wrong_descriptors(8192) {
        let (hostile, conn) = victim.hostile();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &fds);
        let end = victim.end_of(conn);
        assert_eq!(end.kind(), ErrorKind::Protocol, "{what}: {end}");
    }
    victim.prove_honest();
}

#[test]
fn lengths_that_cannot_be_mapped_cost_nothing_but_the_connection() {
    let mut victim = Victim::new();
    for len in [0, 1 << 46, u64::MAX] {
        let (hostile, conn) = victim.hostile();
        let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
        hostile.say(Packet::Pages { id: 0, len }.encode().bytes(), &[fd.as_fd()]);
        assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol, "{len}");
    }
    victim.prove_honest();
}

/// The peer cannot change what the victim wrote: it can neither write, nor map writable, nor
/// truncate the victim's area.
#[test]
fn a_victims_area_is_out_of_reach() {
    let mut victim = Victim::new();
    let (hostile, _) = victim.hostile();
    let fd = hostile.victims_fd.as_ref().unwrap();
    let len = victim.transport.config.geometry().len();
    assert!(sys::map_peer(fd, len as u64, true).unwrap().is_err(), "mapped writable");
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err(), "written");
    assert!(rustix::fs::ftruncate(fd, 0).is_err(), "cut");
    assert!(
        rustix::fs::fallocate(
            fd,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            4096
        )
        .is_err(),
        "punched"
    );
    victim.prove_honest();
}

#[test]
fn random_packets_cost_at_most_the_connection() {
    let mut victim = Victim::new();
    let mut rng = Rng::new(5);
    for round in 0..300 {
        let hostile = if round % 2 == 0 { Hostile::dial(&victim.path) } else { victim.hostile().0 };
        for _ in 0..rng.index(4) {
            let mut bytes: Vec<u8> = (0..rng.index(80)).map(|_| rng.below(256) as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = rng.below(8) as u8;
            }
            let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
            let fds = [fd.as_fd()];
            hostile.say(&bytes, if rng.below(3) == 0 { &fds } else { &[] });
            victim.poll();
        }
        drop(hostile);
        for _ in 0..300 {
            victim.poll();
        }
        victim.events.clear();
    }
    victim.prove_honest();
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

/// Writes a record to the first line of the hostile ring. Its word is stored last.
fn put_record(hostile: &Hostile, kind: u64, body: &[u64]) {
    let at = hostile.area.ring_at();
    for (index, word) in body.iter().enumerate() {
        hostile.area.raw(at + 8 + index * 8).store(*word, Ordering::Relaxed);
    }
    hostile.area.raw(at).store(kind << 32 | (body.len() * 8) as u64, Ordering::Release);
}

/// Takes the message that it is shown. The peer overwrites it before each of two copies.
struct Overwritten<'a> {
    hostile: &'a Hostile,
    copies: Vec<[u8; 16]>,
}

impl InlineReceiver for Overwritten<'_> {
    fn take(&mut self, _: ConnId, message: InlineMessage<'_>) -> bool {
        for word in [7, 8] {
            (0..3).for_each(|index| {
                self.hostile.area.raw(self.hostile.area.ring_at() + index * 8).store(word, Ordering::Relaxed);
            });
            let mut bytes = [0; 16];
            message.copy_to(0, &mut bytes[..message.len()]);
            self.copies.push(bytes);
        }
        true
    }
}

/// A message that is taken in place may change in the meantime, and so may its length in the ring.
/// The checked length counts.
#[test]
fn a_message_that_changes_while_it_is_taken_is_as_long_as_it_was() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 100)]).unwrap();
    put_record(&hostile, 1, &[1, 2]);
    let mut receiver = Overwritten { hostile: &hostile, copies: Vec::new() };
    while !victim.transport.poll_inline(victim.now, &mut victim.events, &mut receiver) {}
    let copied = |word: u64| std::array::from_fn(|at| if at % 8 == 0 { word as u8 } else { 0 });
    assert_eq!(receiver.copies, [copied(7), copied(8)]);
    // The next record is looked for in the line behind it.
    hostile.area.raw(hostile.area.ring_at() + 64).store(1 << 32, Ordering::Release);
    let arrived = victim.take("the next message", |event| match event {
        Event::Work(work) if work.conn == conn => Some((work.work, work.status, work.len)),
        _ => None,
    });
    assert_eq!(arrived, (WorkId(1), WorkStatus::Ok, 0));
    victim.prove_honest();
}

/// In-place messages with wrong places: outside of the memory, in more pieces than allowed, with
/// sums that overflow or do not match.
#[test]
fn messages_left_out_of_bounds_cost_the_connection() {
    let mut victim = Victim::new();
    for (what, body) in [
        ("behind the end", vec![100, 1 << 32, 0, 8100, 100]),
        ("an offset that overflows", vec![100, 1 << 32, 0, u64::MAX - 50, 100]),
        ("a length that overflows", vec![99, 2 << 32, 0, 0, 100, 0, u64::MAX]),
        ("longer than its pieces", vec![101, 1 << 32, 0, 0, 100]),
        ("too many pieces", vec![5, 5 << 32, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        ("more pieces than stand there", vec![100, 4 << 32, 0, 0, 100]),
        ("a head that is not there", vec![108, 1 << 32 | 8, 0, 0, 100]),
        ("a number that is none", vec![100, 1 << 32, 1 << 32, 0, 100]),
        ("longer than any work", vec![1 << 41, 1 << 32, 0, 0, 1 << 41]),
    ] {
        // Once while the connection is busy with packets from the socket, and once when it has come
        // to rest.
        for settles in [false, true] {
            let (hostile, conn) = victim.hostile();
            victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
            let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
            hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
            (0..if settles { 600 } else { 0 }).for_each(|_| victim.poll());
            put_record(&hostile, 9, &body);
            assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol, "{what}");
        }
    }
    victim.events.clear();
    victim.prove_honest();
}

/// An in-place message in memory that never comes. The memory is asked for once, no other
/// connection waits, and the connection can be closed.
#[test]
fn a_message_left_in_memory_that_never_comes_holds_up_nobody() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
    put_record(&hostile, 9, &[100, 1 << 32, 3, 0, 100]);
    for _ in 0..1000 {
        victim.poll();
    }
    let mut asked = 0;
    let mut bytes = [0; MAX_PACKET];
    while let Ok((len, _)) = socket::receive(&hostile.socket, &mut bytes) {
        assert_ne!(len, 0, "it was cut");
        asked += u32::from(Packet::decode(&bytes[..len]) == Ok(Packet::Ask { id: 3 }));
    }
    assert_eq!(asked, 1);
    victim.prove_honest();
    assert!(victim.events.is_empty(), "{:?}", victim.events);
    // The peer announces that it has ended, and then passes the memory. The bytes in it are no
    // message.
    hostile.area.raw(448).store(1, Ordering::Relaxed);
    let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
    hostile.say(Packet::Pages { id: 3, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::PeerLost);
    assert!(victim.events.iter().all(|event| !matches!(event, Event::Work(work) if work.status == WorkStatus::Ok)));
}

/// Replays a bug: a peer passed memory of 64 GiB that took no pages. Whoever touches such memory
/// first is charged for its pages, and that was this side, up to all of it. Now no memory is mapped
/// that would exceed `ShmConfig::max_mapped_in_all`, nor half of it for one connection. A message
/// that a peer leaves in such memory costs its own connection, and the error says why.
#[test]
fn memory_without_pages_is_charged_to_this_side_only_within_the_bound() {
    const MIB: u64 = 1 << 20;
    let small = ShmConfig { max_mapped_in_all: (100, 8 * MIB), ..ShmConfig::default() };
    // With the default, one connection maps at most 8 GiB.
    for (config, sizes) in [(ShmConfig::default(), vec![64 << 30]), (small, vec![5 * MIB, 3 * MIB, 3 * MIB, 3 * MIB])] {
        let bound = config.max_mapped_in_all.1;
        let mut victim = Victim::with(config);
        let (mut hostiles, mut mapped) = (Vec::new(), 0);
        for len in sizes {
            let (hostile, conn) = victim.hostile();
            victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 50_000)]).unwrap();
            let fd = memfd(len, SealFlags::SHRINK | SealFlags::GROW);
            let pass = || hostile.say(Packet::Pages { id: 0, len }.encode().bytes(), &[fd.as_fd()]);
            pass();
            (0..600).for_each(|_| victim.poll());
            put_record(&hostile, 9, &[50_000, 1 << 32, 0, 0, 50_000]);
            (0..600).for_each(|_| victim.poll());
            let charged = rustix::fs::fstat(&fd).unwrap().st_blocks * 512;
            if len <= (bound / 2).min(8 << 30) && mapped + len <= bound {
                mapped += len;
                victim.take("message", |event| matches!(event, Event::Work(work) if work.conn == conn).then_some(()));
                assert!(charged >= 50_000, "the test touches memory without pages: {charged}");
            } else {
                pass(); // it was asked for again
                let end = victim.end_of(conn);
                assert!(end.to_string().contains("ShmConfig::max_mapped"), "{end}");
                victim.events.clear();
                assert_eq!(charged, 0, "{len} bytes");
            }
            hostiles.push((hostile, fd));
            victim.prove_honest();
        }
    }
}

/// Reads the count of copied messages at each line of the log. The end of the connection logs a
/// line between the refusal and the end of the area.
struct Said {
    area: Area,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl tracing::Subscriber for Said {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.seen.lock().unwrap().push(self.area.taken().load(Ordering::Acquire));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A regression test. An in-place message was delivered, and the one behind it was refused in the
/// same turn. The acknowledgement of the first came last. A peer that had read the refusal by then
/// took it for a refusal of the first message.
#[test]
fn what_was_copied_is_said_before_what_comes_behind_it_is_refused() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
    let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
    hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
    (0..600).for_each(|_| victim.poll());
    // No receive is left for the second message.
    hostile.area.raw(hostile.area.ring_at() + 64).store(1 << 32, Ordering::Relaxed);
    put_record(&hostile, 9, &[100, 1 << 32, 0, 0, 100]);
    let geometry = victim.transport.config.geometry();
    let mapping = sys::map_peer(hostile.victims_fd.as_ref().unwrap(), geometry.len() as u64, false).unwrap().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let said = Said { area: Area::new(mapping, geometry), seen: seen.clone() };
    // Other work, so that both messages are handled in one turn.
    victim.transport.post_send(conn, WorkId(2), b"out", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    let end = tracing::subscriber::with_default(said, || victim.end_of(conn));
    assert_eq!(end.kind(), ErrorKind::Protocol);
    let arrived =
        |event: &Event| matches!(event, Event::Work(work) if work.work == WorkId(1) && work.status == WorkStatus::Ok);
    assert!(victim.events.iter().any(arrived), "{:?}", victim.events);
    assert_eq!(seen.lock().unwrap()[..], [1]);
}

/// A count of copies above the number of in-place messages, or below an earlier count, is a
/// violation. So is a wrong proof.
#[test]
fn lies_about_messages_left_cost_the_connection() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    // The memory was exposed, so it is passed. The peer confirms that it has it.
    victim.transport.expose(conn, &victim.region.segment(0, 100), Access::READ).unwrap();
    hostile.say(Packet::Have { id: 0 }.encode().bytes(), &[]);
    for _ in 0..1000 {
        victim.poll();
    }
    let segments = [victim.region.segment(0, 8000)];
    victim.transport.post_send(conn, WorkId(5), b"", Payload::Gather(&segments), WorkOptions::SIGNALLED).unwrap();
    for _ in 0..1000 {
        victim.poll();
    }
    assert!(victim.events.is_empty(), "it ends when the peer has copied it: {:?}", victim.events);
    hostile.area.raw(384).store(2, Ordering::Relaxed);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol);
    assert!(matches!(&victim.events[..], [Event::Work(work)] if work.status == WorkStatus::Flushed));
    victim.events.clear();
    let (hostile, conn) = victim.hostile();
    hostile.say(Packet::Proof { secret: 0 }.encode().bytes(), &[]);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol);
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
