//! Inline receives: messages that are handled in the ring itself (C16).

use bmi_core::transport::{
    ConnId, Event, InlineMessage, InlineReceiver, Payload, WorkId, WorkKind, WorkOptions, WorkStatus,
};
use bmi_core::{Memory, Segment, Transport};

use crate::common::{World, world};

/// Records the messages that it is shown, and takes those that it chooses.
struct Choosing<F> {
    shown: Vec<(ConnId, Vec<u8>)>,
    takes: F,
}

impl<F: FnMut(&[u8]) -> bool> InlineReceiver for Choosing<F> {
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool {
        let mut bytes = vec![0; message.len()];
        message.copy_to(0, &mut bytes);
        let takes = (self.takes)(&bytes);
        self.shown.push((conn, bytes));
        takes
    }
}

fn choosing<F: FnMut(&[u8]) -> bool>(takes: F) -> Choosing<F> {
    Choosing { shown: Vec::new(), takes }
}

fn send(world: &mut World, conn: ConnId, message: &[u8], options: WorkOptions) {
    world.a.transport.post_send(conn, WorkId(9), message, Payload::EMPTY, options).unwrap();
}

/// Posts `count` receives of `len` bytes each, one after the other in one memory.
fn receives(world: &mut World, conn: ConnId, count: usize, len: usize) -> Memory {
    let memory = Memory::zeroed(count * len).unwrap();
    let region = world.b.transport.register(&memory).unwrap();
    for number in 0..count {
        let segment = region.segment(number * len, len);
        world.b.transport.post_recv(conn, WorkId(number as u64), &[segment]).unwrap();
    }
    memory
}

/// Polls `b` once. Returns the receives that the poll reports.
fn poll(world: &mut World, receiver: &mut dyn InlineReceiver) -> (bool, Vec<(u64, WorkStatus, u64)>) {
    let now = world.now;
    let moved = world.b.transport.poll_inline(now, &mut world.b.events, receiver);
    let events = std::mem::take(&mut world.b.events).into_iter().filter_map(|event| match event {
        Event::Work(work) if work.kind == WorkKind::Recv => Some((work.work.0, work.status, work.len)),
        _ => None,
    });
    (moved, events.collect())
}

/// A regression test. A connection that was found among the resting ones had two turns in one poll.
/// A message that was not taken in the first turn was overtaken in the second.
#[test]
fn none_is_overtaken_behind_a_rest() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let _memory = receives(&mut world, cb, 3, 8);
    for _ in 0..3000 {
        world.poll();
    }
    (0..3).for_each(|number| send(&mut world, ca, &[number], WorkOptions::UNSIGNALLED));
    let mut receiver = choosing(|message: &[u8]| message[0] > 0);
    let events = loop {
        let (moved, events) = poll(&mut world, &mut receiver);
        if moved {
            break events;
        }
    };
    assert!(!events.is_empty());
    assert_eq!(receiver.shown, [(cb, vec![0])]);
}

/// A regression test. When a connection ended in the middle of a poll, the ones behind it moved up.
/// If the turns did not begin with the first, one connection had two turns. A message that was not
/// taken in its first turn was overtaken in the second.
#[test]
fn none_is_overtaken_behind_a_connection_that_ends_in_the_same_poll() {
    let mut world = world();
    let conns: Vec<_> = (0..4).map(|_| world.connect()).collect();
    let _memories: Vec<_> = conns.iter().map(|(_, cb)| receives(&mut world, *cb, 400, 8)).collect();
    world.settle(); // all rest, and awake in this order:
    for &(ca, cb) in &conns {
        send(&mut world, ca, b"awake", WorkOptions::UNSIGNALLED);
        assert_eq!(world.work_b().conn, cb);
    }
    let mut none = choosing(|_: &[u8]| false);
    (0..50).for_each(|_| assert!(!poll(&mut world, &mut none).0));
    // This poll reports as much as it may before the last connection has had its turn.
    (0..300).for_each(|_| send(&mut world, conns[2].0, b"many", WorkOptions::UNSIGNALLED));
    assert_eq!(poll(&mut world, &mut none).1.len(), 1, "the first of a stream");
    send(&mut world, conns[3].0, b"late", WorkOptions::UNSIGNALLED);
    assert_eq!(poll(&mut world, &mut none).1.len(), 256);
    while poll(&mut world, &mut none).0 {}
    (0..50).for_each(|_| assert!(!poll(&mut world, &mut none).0));
    // So the last connection is served first, and the next one ends behind it.
    (0..2).for_each(|number| send(&mut world, conns[3].0, &[number], WorkOptions::UNSIGNALLED));
    let deadline = world.later(1);
    world.a.transport.disconnect(conns[0].0, deadline);
    let now = world.now;
    while world.a.take_end(conns[0].0).is_none() {
        world.a.transport.poll(now, &mut world.a.events);
    }
    world.now = world.later(1); // so that its socket is looked at
    let mut receiver = choosing(|message: &[u8]| message[0] > 0);
    poll(&mut world, &mut receiver);
    assert_eq!(receiver.shown, [(conns[3].1, vec![0])]);
}

/// Everything that was reported of a connection comes before a message that arrived on it later.
/// That includes a completion that waited for the poll.
#[test]
fn nothing_is_shown_in_a_poll_that_has_reported_something() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let _memory = receives(&mut world, cb, 1, 8);
    let (_, room): (Memory, Segment) = world.a.memory(8);
    world.a.transport.post_recv(ca, WorkId(1), &[room]).unwrap();
    world.b.transport.post_send(cb, WorkId(2), b"out", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    send(&mut world, ca, b"in", WorkOptions::UNSIGNALLED);
    let mut receiver = choosing(|_: &[u8]| true);
    let now = world.now;
    world.b.transport.poll_inline(now, &mut world.b.events, &mut receiver);
    let kinds = world.b.events.iter().map(|event| matches!(event, Event::Work(work) if work.kind == WorkKind::Send));
    assert_eq!((kinds.collect::<Vec<_>>(), receiver.shown), (vec![true, false], vec![]));
}

/// A message that comes in parts, or stays in the sender's memory, consumes its receive. A poll
/// without a receiver gives every message to a receive.
#[test]
fn only_whole_messages_are_shown() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let len = 100_000;
    let _memory = receives(&mut world, cb, 3, len);
    let (_, segment) = world.a.memory(len);
    let segments = [segment];
    world.a.transport.post_send(ca, WorkId(1), b"", Payload::Gather(&segments), WorkOptions::UNSIGNALLED).unwrap();
    send(&mut world, ca, b"", WorkOptions::UNSIGNALLED);
    let (mut receiver, mut ends) = (choosing(|_: &[u8]| true), Vec::new());
    while receiver.shown.is_empty() {
        let now = world.now;
        world.a.transport.poll(now, &mut world.a.events);
        ends.extend(poll(&mut world, &mut receiver).1);
    }
    assert_eq!((ends, receiver.shown), (vec![(0, WorkStatus::Ok, len as u64)], vec![(cb, vec![])]));
    send(&mut world, ca, b"seen", WorkOptions::UNSIGNALLED);
    let work = world.work_b();
    assert_eq!((work.work, work.len), (WorkId(1), 4));
}
