//! Inline receives (C16): messages that a receiver takes in the adapter's own buffer, mixed with
//! messages that arrive as events.
//!
//! A backend without inline receives passes too, because all messages arrive as events then. A
//! backend whose [`Backend::has_inline_receives`] returns true must show some.

use std::cell::RefCell;
use std::rc::Rc;

use bmi_core::transport::{
    ConnId, Event, InlineMessage, InlineReceiver, Payload, PostError, WorkCompletion, WorkId, WorkKind, WorkOptions,
    WorkStatus, WriteTarget,
};
use bmi_core::{Access, Memory, MemoryRegion, RemoteSlice, Transport};

use super::channel::segments;
use crate::backend::Backend;
use crate::data::{GUARD, Guarded, filled, memory, pattern};
use crate::rig::{A, B, Link, Rig};
use crate::rng::Rng;

/// Number of receives that a connection has posted. More messages than that arrive, so each receive
/// has to stay posted, or to be posted again.
const WINDOW: usize = 6;
/// Number of messages of a connection.
const MESSAGES: usize = 150;
/// Room of a receive, in bytes.
const ROOM: usize = 9000;

/// One item that is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sent {
    Message(Vec<u8>),
    /// A write of no bytes.
    Immediate(u32),
}

/// One direction of a connection, as its receiver sees it.
struct Stream {
    side: usize,
    conn: ConnId,
    sent: Vec<Sent>,
    /// How many of them were taken or received. The others are still to come, in this order.
    next: usize,
    shown: usize,
    taken: usize,
    received: usize,
}

impl Stream {
    fn new(side: usize, conn: ConnId, sent: Vec<Sent>) -> Stream {
        Stream { side, conn, sent, next: 0, shown: 0, taken: 0, received: 0 }
    }

    /// Compares an item that arrived with the one that was sent.
    fn check(&self, got: &Sent, how: &str) {
        let expected = self.sent.get(self.next);
        let short = |sent: &Sent| match sent {
            Sent::Message(bytes) => format!("{} bytes {:02x?}…", bytes.len(), &bytes[..bytes.len().min(8)]),
            Sent::Immediate(number) => format!("immediate data {number}"),
        };
        let expected_text = expected.map_or("nothing".to_owned(), short);
        assert!(expected == Some(got), "{how} number {} is {}, not {expected_text}", self.next, short(got));
    }
}

/// The items that all receivers of a rig have seen.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<Stream>>>);

impl Log {
    /// Runs `f` on the stream that a connection brings to a side, and on its number.
    fn with<R>(&self, side: usize, conn: ConnId, f: impl FnOnce(usize, &mut Stream) -> R) -> R {
        let mut streams = self.0.borrow_mut();
        let at = streams.iter().position(|stream| (stream.side, stream.conn) == (side, conn));
        let at = at.unwrap_or_else(|| panic!("side {side} has no {conn:?}, or not yet, or no longer"));
        f(at, &mut streams[at])
    }

    fn progress(&self) -> usize {
        self.0.borrow().iter().map(|stream| stream.next).sum()
    }
}

/// Decides which messages are taken, from the number of their stream and from how many of its
/// messages were shown before.
type Choice = fn(usize, usize) -> bool;

/// Compares everything that it is shown with what was sent, and takes the messages that it is told
/// to take.
struct Watcher {
    side: usize,
    log: Log,
    choice: Choice,
}

impl InlineReceiver for Watcher {
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool {
        self.log.with(self.side, conn, |number, stream| {
            let mut bytes = vec![0; message.len()];
            message.copy_to(0, &mut bytes);
            stream.check(&Sent::Message(bytes), "the message that is shown as");
            let takes = (self.choice)(number, stream.shown);
            stream.shown += 1;
            stream.taken += usize::from(takes);
            stream.next += usize::from(takes);
            takes
        })
    }
}

/// A receiver that must not be shown anything.
struct Nobody(&'static str);

impl InlineReceiver for Nobody {
    fn take(&mut self, _: ConnId, message: InlineMessage<'_>) -> bool {
        panic!("{message:?} was shown: {}", self.0);
    }
}

/// One direction of a connection: its sender, its receiver, and the memory for the messages.
struct Way {
    from: usize,
    near: ConnId,
    to: usize,
    far: ConnId,
    landing: Memory,
    region: MemoryRegion,
    /// The target of writes with immediate data.
    target: RemoteSlice,
    sent: usize,
    /// Number of completions that its sender still waits for.
    unfinished: usize,
}

impl Way {
    fn new(rig: &mut Rig<'_>, (from, near): (usize, ConnId), (to, far): (usize, ConnId)) -> Way {
        let landing = memory(ROOM * WINDOW);
        let region = rig.register(to, &landing);
        let (_, remote) = rig.expose(to, far, &memory(8), Access::WRITE);
        let target = remote.slice(0, 0).expect("within");
        let mut way = Way { from, near, to, far, landing, region, target, sent: 0, unfinished: 0 };
        (0..WINDOW).for_each(|slot| way.recv(rig, slot));
        way
    }

    /// Posts the receive of a slot, without a poll. Messages taken by a poll would overtake events
    /// that the test has not read.
    fn recv(&mut self, rig: &mut Rig<'_>, slot: usize) {
        let list = [self.region.segment(slot * ROOM, ROOM)];
        let posted = rig.try_post(self.to, |t| t.post_recv(self.far, WorkId(slot as u64), &list));
        assert!(posted, "no room for {WINDOW} receives");
    }

    /// Sends as much as the receiver has receives for.
    fn go_on(&mut self, rig: &mut Rig<'_>, log: &Log) {
        let (next, sent) = log.with(self.to, self.far, |_, stream| (stream.next, stream.sent.clone()));
        while self.sent < sent.len() && self.sent < next + WINDOW {
            let number = self.sent;
            let signalled = number % 5 == 4 || number + 1 == sent.len();
            let options = WorkOptions { signalled, ..WorkOptions::UNSIGNALLED };
            let (near, work) = (self.near, WorkId(number as u64));
            let posted = match &sent[number] {
                Sent::Immediate(number) => {
                    let target = WriteTarget { remote: self.target, immediate: Some(*number) };
                    rig.try_post(self.from, |t| t.post_write(near, work, &[], &[], target, options))
                }
                Sent::Message(bytes) if bytes.len() <= rig.adapter(self.from).capabilities().max_head => {
                    rig.try_post(self.from, |t| t.post_send(near, work, bytes, Payload::EMPTY, options))
                }
                Sent::Message(bytes) => {
                    let (head, rest) = bytes.split_at(bytes.len() % 32);
                    let payload = memory(rest.len());
                    payload.copy_from(0, rest);
                    let list = [rig.register(self.from, &payload).segment(0, rest.len())];
                    rig.try_post(self.from, |t| t.post_send(near, work, head, Payload::Gather(&list), options))
                }
            };
            if !posted {
                break;
            }
            self.sent += 1;
            self.unfinished += usize::from(signalled);
        }
    }

    /// Handles a completion of the receiver.
    fn received(&mut self, rig: &mut Rig<'_>, log: &Log, done: WorkCompletion) {
        assert_eq!(done.status, WorkStatus::Ok, "{done:?}");
        let slot = usize::try_from(done.work.0).expect("a slot");
        let got = match done.immediate {
            Some(number) => Sent::Immediate(number),
            None => Sent::Message(self.landing.slice(slot * ROOM, done.len as usize).to_vec()),
        };
        log.with(self.to, self.far, |_, stream| {
            stream.check(&got, "the receive");
            stream.next += 1;
            stream.received += 1;
        });
        self.recv(rig, slot);
    }
}

/// Returns `MESSAGES` messages of all sizes, with immediate data in between if `immediates` is
/// true.
fn messages(seed: u64, immediates: bool) -> Vec<Sent> {
    let mut rng = Rng::new(seed);
    let sent = (0..MESSAGES).map(|number| {
        if immediates && rng.chance(300) {
            return Sent::Immediate(number as u32);
        }
        let most = [16, 16, 300, ROOM][rng.index(4)];
        Sent::Message(pattern(seed << 32 | number as u64, rng.index(most + 1)))
    });
    sent.collect()
}

/// Handles all unread events, in order.
fn handle(rig: &mut Rig<'_>, ways: &mut [Way], log: &Log) {
    for side in [A, B] {
        while let Some(event) = rig.take_unread(side) {
            let Event::Work(done) = event else { panic!("side {side}: {event:?}") };
            let received = done.kind == WorkKind::Recv;
            let of = |way: &&mut Way| match received {
                true => (way.to, way.far) == (side, done.conn),
                false => (way.from, way.near) == (side, done.conn),
            };
            let way = ways.iter_mut().find(of).expect("a way of the test");
            if received {
                way.received(rig, log, done);
            } else {
                assert_eq!(done.status, WorkStatus::Ok, "{done:?}");
                way.unfinished -= 1;
            }
        }
    }
}

/// Sends everything over `links` connections, from A to B or both ways. Each receiver takes
/// messages as `choice` says. Compares every message with what was sent. Checks that each
/// connection has as many receives posted at its end as at its beginning. Returns how many messages
/// each direction was shown, took, and received, those from A to B first.
fn exchange(
    backend: &dyn Backend,
    links: usize,
    both_ways: bool,
    immediates: bool,
    choice: Choice,
) -> Vec<(usize, usize, usize)> {
    let mut rig = Rig::new(backend);
    let log = Log::default();
    let links: Vec<Link> = (0..links).map(|_| rig.link(A, B)).collect();
    let mut ways: Vec<Way> = links.iter().map(|link| Way::new(&mut rig, (A, link.near), (B, link.far))).collect();
    if both_ways {
        ways.extend(links.iter().map(|link| Way::new(&mut rig, (B, link.far), (A, link.near))));
    }
    for (number, way) in ways.iter().enumerate() {
        log.0.borrow_mut().push(Stream::new(way.to, way.far, messages(100 + number as u64, immediates)));
    }
    for side in [A, B] {
        rig.set_inline_receiver(side, Watcher { side, log: log.clone(), choice });
    }
    let (total, give_up, mut rng) = (ways.len() * MESSAGES, rig.far_off(), Rng::new(7));
    while log.progress() < total || ways.iter().any(|way| way.unfinished > 0) {
        let before = log.progress();
        assert!(rig.now() < give_up, "{before} of {total} messages have come, and no more do");
        ways.iter_mut().for_each(|way| way.go_on(&mut rig, &log));
        // Sometimes a side is not polled for a while, so that one poll finds many events.
        let absent = [A, B][rng.index(2)];
        rig.pause(absent, rng.chance(500));
        for _ in 0..rng.index(30) {
            rig.turn();
            handle(&mut rig, &mut ways, &log);
        }
        rig.pause(absent, false);
        rig.wait("the next message", |rig| {
            let finished = log.progress() == total && ways.iter().all(|way| way.unfinished == 0);
            let news = finished || log.progress() > before || !rig.unread(A).is_empty() || !rig.unread(B).is_empty();
            let room = |way: &Way| log.with(way.to, way.far, |_, stream| stream.next + WINDOW > way.sent);
            (news || ways.iter().any(|way| way.sent < MESSAGES && room(way))).then_some(())
        });
        handle(&mut rig, &mut ways, &log);
    }
    for link in &links {
        let deadline = rig.far_off();
        rig.adapter(A).disconnect(link.near, deadline);
    }
    for way in &ways {
        let (completions, _) = rig.end_of(way.to, way.far, "the end");
        let mut flushed: Vec<u64> = completions.iter().map(|done| done.work.0).collect();
        flushed.sort_unstable();
        assert!(completions.iter().all(|done| done.status == WorkStatus::Flushed), "{completions:?}");
        assert_eq!(flushed, (0..WINDOW as u64).collect::<Vec<_>>(), "the receives that stayed posted, each once");
    }
    log.0.borrow().iter().map(|stream| (stream.shown, stream.taken, stream.received)).collect()
}

/// Messages of all sizes arrive exactly once and in order, whether they are taken or received. N
/// receives are enough for more than N messages, since the receives of taken messages stay posted.
/// A receiver that never takes a message gets all of them as events.
pub fn taken_or_received_each_comes_once(backend: &dyn Backend) {
    let (shown, taken, received) = exchange(backend, 1, false, false, |_, _| true)[0];
    assert_eq!((taken, taken + received), (shown, MESSAGES));
    assert!(shown > 0 || !backend.has_inline_receives(), "{} showed nothing", backend.name());
    let (_, taken, received) = exchange(backend, 1, false, false, |_, _| false)[0];
    assert_eq!((taken, received), (0, MESSAGES));
}

/// Messages are alternately taken and not taken. A message that was not taken is an event before
/// the next one is shown.
pub fn every_other_is_taken(backend: &dyn Backend) {
    let (shown, taken, received) = exchange(backend, 1, false, false, |_, shown| shown % 2 == 1)[0];
    assert_eq!((taken, taken + received), (shown / 2, MESSAGES));
    assert!(taken > 0 || !backend.has_inline_receives(), "{} showed {shown}", backend.name());
}

/// Taking messages of one connection does not affect another.
pub fn one_connection_takes_and_one_does_not(backend: &dyn Backend) {
    let streams = exchange(backend, 2, false, false, |number, _| number % 2 == 0);
    assert!(streams.iter().all(|(_, taken, received)| taken + received == MESSAGES), "{streams:?}");
    assert_eq!(streams[1].1, 0, "{streams:?}");
    assert!(streams[0].1 > 0 || !backend.has_inline_receives(), "{streams:?}");
}

/// Both sides send and take on two connections, so that completions of sends come between the
/// messages.
pub fn both_sides_take(backend: &dyn Backend) {
    let streams = exchange(backend, 2, true, false, |_, shown| shown % 7 != 6);
    assert_eq!(streams.len(), 4);
    assert!(streams.iter().all(|(_, taken, received)| taken + received == MESSAGES), "{streams:?}");
    assert!(streams.iter().all(|(_, taken, _)| *taken > 0) || !backend.has_inline_receives(), "{streams:?}");
}

/// Immediate data is not a message, so it is never shown. It keeps its place in the order (C3).
/// Needs `write_with_immediate`; without it such a write is `Invalid`.
pub fn immediate_data_beside_messages_that_are_taken(backend: &dyn Backend) {
    if !backend.expected_capabilities().write_with_immediate {
        let mut rig = Rig::new(backend);
        let link = rig.link(A, B);
        let (_region, remote) = rig.expose(B, link.far, &memory(8), Access::WRITE);
        let target = WriteTarget { remote, immediate: Some(1) };
        let refused = rig.write(A, link.near, 1, &[], target);
        assert!(matches!(refused, Err(PostError::Invalid(_))), "{refused:?}");
        return;
    }
    for choice in [(|_, _| true) as Choice, |_, shown| shown % 3 != 0] {
        let (_, taken, received) = exchange(backend, 1, false, true, choice)[0];
        assert_eq!(taken + received, MESSAGES);
        assert!(taken > 0 || !backend.has_inline_receives(), "{taken} taken");
    }
}

/// No message of a connection is shown before an earlier poll has reported its `Established`, nor
/// after its end, even if it was sent at once.
pub fn nothing_is_shown_outside_a_connections_life(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let log = Log::default();
    rig.set_inline_receiver(B, Watcher { side: B, log: log.clone(), choice: |_, _| true });
    let addr = rig.listen(B);
    let landing = rig.register(B, &memory(64));
    for round in 0..20u64 {
        let deadline = rig.far_off();
        let near = rig.adapter(A).connect(&addr, &[], deadline).expect("connect");
        let far = rig.request(B, "a connection request");
        for slot in 0..4 {
            rig.recv(B, far, slot, &[landing.segment(slot as usize * 16, 16)]).expect("receive");
        }
        rig.adapter(B).accept(far, &[]).expect("accept");
        // As far as the backend allows, everything arrives before the first poll.
        let (mut turns, absence) = (0, [0, 40][round as usize % 2]);
        let sent: Vec<Sent> = (0..3).map(|number| Sent::Message(pattern(round * 3 + number, 16))).collect();
        let mut stream = Some(Stream::new(B, far, sent.clone()));
        let (mut sending, mut heads) = (
            false,
            sent.iter()
                .map(|sent| match sent {
                    Sent::Message(bytes) => bytes,
                    Sent::Immediate(_) => unreachable!("only messages"),
                })
                .peekable(),
        );
        rig.wait("all messages", |rig| {
            rig.pause(B, turns < absence);
            turns += 1;
            while let Some(event) = rig.take_unread(B) {
                match event {
                    Event::Established { .. } => log.0.borrow_mut().extend(stream.take()),
                    Event::Work(done) => log.with(B, far, |_, stream| {
                        assert_eq!((done.status, done.len), (WorkStatus::Ok, 16), "{done:?}");
                        stream.next += 1;
                    }),
                    other => panic!("{other:?}"),
                }
            }
            while let Some(event) = rig.take_unread(A) {
                sending |= matches!(event, Event::Established { .. });
            }
            while sending && let Some(head) = heads.peek() {
                let options = WorkOptions::UNSIGNALLED;
                if !rig.try_post(A, |t| t.post_send(near, WorkId(0), head, Payload::EMPTY, options)) {
                    break;
                }
                heads.next();
            }
            (stream.is_none() && log.with(B, far, |_, stream| stream.next == 3)).then_some(())
        });
        let deadline = rig.far_off();
        rig.adapter(A).disconnect(near, deadline);
        rig.end_of(B, far, "the receiver's end");
        rig.end_of(A, near, "the sender's end");
        log.0.borrow_mut().clear();
    }
}

/// A message for which its receive has no room is not shown. The receive completes with `TooLong`,
/// and the connection ends (C10).
pub fn too_long_is_not_shown(backend: &dyn Backend) {
    for (len, room) in [(10usize, 9usize), (1, 0), (70_000, 4096)] {
        let mut rig = Rig::new(backend);
        let link = rig.link(A, B);
        rig.set_inline_receiver(B, Nobody("its receive has no room for it"));
        let target = Guarded::new(&[room]);
        let scatter = segments(&mut rig, B, &target);
        rig.recv(B, link.far, 1, &scatter).expect("receive");
        rig.recv(B, link.far, 2, &scatter).expect("a second receive, to be flushed");
        let list = [rig.register(A, &filled(1, len)).segment(0, len)];
        rig.send(A, link.near, 1, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
        let (completions, _) = rig.end_of(B, link.far, "the receiver's end");
        let statuses: Vec<_> = completions.iter().map(|c| (c.work.0, c.status)).collect();
        assert_eq!(statuses, [(1, WorkStatus::TooLong), (2, WorkStatus::Flushed)], "{len} bytes into {room}");
        rig.end_of(A, link.near, "the sender's end");
        let image = target.memory().to_vec();
        let piece = &target.pieces()[0];
        let outside = image[..piece.offset()].iter().chain(&image[piece.offset() + room..]);
        assert!(outside.copied().all(|byte| byte == GUARD), "bytes outside the receive were touched");
    }
}

/// A message without a receive is not shown and ends the connection (C9). This happens at once, or
/// when the only receive, which stayed posted for some taken messages, is used up.
pub fn a_message_without_a_receive_is_not_shown(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    rig.set_inline_receiver(B, Nobody("no receive was posted"));
    rig.send(A, link.near, 1, b"anybody there?", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    rig.end_of(A, link.near, "the sender's end");
    let (completions, _) = rig.end_of(B, link.far, "the receiver's end");
    assert!(completions.is_empty(), "{completions:?}");

    let (link, log) = (rig.link(A, B), Log::default());
    let sent = (0..8).map(|number| Sent::Message(pattern(number, 16))).collect();
    log.0.borrow_mut().push(Stream::new(B, link.far, sent));
    rig.set_inline_receiver(B, Watcher { side: B, log: log.clone(), choice: |_, shown| shown < 3 });
    let landing = rig.register(B, &memory(16));
    rig.recv(B, link.far, 1, &[landing.segment(0, 16)]).expect("the only receive");
    for number in 0.. {
        assert!(number < 4, "one receive, three messages that could be taken, and still no event");
        rig.send(A, link.near, number, &pattern(number, 16), Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
        let used = rig.wait("the message", |rig| match rig.take_unread(B) {
            Some(Event::Work(done)) => {
                assert_eq!((done.work, done.status, done.len), (WorkId(1), WorkStatus::Ok, 16), "{done:?}");
                Some(true)
            }
            Some(other) => panic!("{other:?}"),
            None => (log.progress() as u64 > number).then_some(false),
        });
        if used {
            break;
        }
    }
    rig.send(A, link.near, 9, b"one too many", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    let (completions, _) = rig.end_of(A, link.near, "the sender's end");
    assert_eq!(completions.len(), 1, "{completions:?}");
    let (completions, _) = rig.end_of(B, link.far, "the receiver's end");
    assert!(completions.is_empty(), "{completions:?}");
}
