//! Which bytes have their turn when, and what is told of them on the way.

use bmi_conformance::world::{completion, pattern};
use bmi_core::transport::{Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Transport};

use crate::common::{World, world};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

#[test]
fn reads_of_several_frames_bring_what_is_there_many_at_once() {
    const LENGTHS: [usize; 8] = [0, 1, 262_143, 262_144, 262_145, 300_000, 1 << 20, 5_000_001];
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, source) = world.b.pattern(5_000_100);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let targets = LENGTHS.map(|len| world.a.memory(len));
    for (at, (target, segment)) in (0..).zip(&targets) {
        let (len, half) = (target.len(), target.len() / 2);
        let list = [segment.slice(0, half), segment.slice(half, 0), segment.slice(half, len - half)];
        let part = remote.slice(at, len as u64).unwrap();
        world.a.transport.post_read(ca, WorkId(at), &list, part, SIGNALLED).unwrap();
    }
    for (at, (target, _)) in targets.iter().enumerate() {
        let len = target.len();
        assert_eq!(world.work_a(), completion(ca, at as u64, WorkKind::Read, WorkStatus::Ok, len as u64));
        assert!(target.to_vec() == pattern(5_000_100)[at..at + len], "{len} bytes");
    }
}

#[test]
fn a_message_passes_between_the_pieces_of_a_reply() {
    let mut world = world();
    let (ca, cb) = world.connect();
    const LEN: usize = 64 << 20;
    let (_, source) = world.b.memory(LEN);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let (_, target) = world.a.memory(LEN);
    let (_, small) = world.a.memory(4);
    world.a.transport.post_read(ca, WorkId(1), &[target], remote, WorkOptions::SIGNALLED).unwrap();
    world.a.transport.post_recv(ca, WorkId(2), &[small]).unwrap();
    for _ in 0..4 {
        world.poll();
    }
    world.b.transport.post_send(cb, WorkId(3), b"ping", Payload::EMPTY, SIGNALLED).unwrap();
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Recv, WorkStatus::Ok, 4));
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Read, WorkStatus::Ok, LEN as u64));
}

/// A caller can tell a slow peer from one that has stopped.
#[test]
fn the_bytes_of_a_request_under_way_are_counted() {
    const LEN: usize = 32 << 20;
    let mut world = world();
    let (ca, cb) = world.connect();
    let ((_, source), (_, target)) = (world.a.memory(LEN), world.b.memory(LEN));
    let remote = world.b.transport.expose(cb, &target, Access::WRITE).unwrap();
    world.a.transport.post_write(ca, WorkId(1), &[], &[source], remote.into(), SIGNALLED).unwrap();
    // The peer takes nothing, so the buffers of the system are full at some time.
    while world.a.transport.poll(world.now, &mut world.a.events) {}
    let full = world.a.transport.moved_bytes(ca);
    assert!(full > 0 && full < LEN as u64, "{full}");
    assert_eq!(world.a.take_work(), None);
    let mut counts = vec![full];
    let done = world.until(|world| {
        let count = world.a.transport.moved_bytes(ca);
        assert!(count >= counts[counts.len() - 1]);
        counts.push(count);
        world.a.take_work()
    });
    assert_eq!(done.status, WorkStatus::Ok);
    counts.dedup();
    assert!(counts.len() > 3, "it grows while the write is in flight: {counts:?}");
    world.settle();
    assert!(world.b.transport.moved_bytes(cb) > LEN as u64, "with the headers");
    world.a.transport.disconnect(ca, world.now);
    world.settle();
    assert_eq!(world.a.transport.moved_bytes(ca), 0, "an unknown connection");
}

/// A regression test. Sockets that recently had bytes are read without asking the system which have
/// some, and two that always have bytes hid all others for up to 32 polls.
#[test]
fn two_busy_sockets_do_not_hide_a_third() {
    const ROUNDS: u64 = 32;
    let mut world = world();
    let busy = [world.connect(), world.connect()];
    let quiet = world.connect();
    let (_, bulk) = world.a.pattern(64 << 10);
    let (_, room) = world.b.memory(64 << 10);
    // A poll of the sender, and one of the receiver.
    let round = |world: &mut World| {
        for (from, to) in busy {
            world.b.transport.post_recv(to, WorkId(1), std::slice::from_ref(&room)).unwrap();
            let payload = Payload::Gather(std::slice::from_ref(&bulk));
            world.a.transport.post_send(from, WorkId(2), &[], payload, WorkOptions::UNSIGNALLED).unwrap();
        }
        world.a.transport.poll(world.now, &mut world.a.events);
        world.b.transport.poll(world.now, &mut world.b.events);
        world.b.take(|event| matches!(event, Event::Work(work) if work.conn == quiet.1).then_some(()))
    };
    let mut polls = 0;
    for _ in 0..ROUNDS {
        (0..4).for_each(|_| assert_eq!(round(&mut world), None));
        world.b.transport.post_recv(quiet.1, WorkId(1), &[]).unwrap();
        world.a.transport.post_send(quiet.0, WorkId(2), &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
        polls += 1;
        while round(&mut world).is_none() {
            polls += 1;
        }
    }
    // One or two each. The system may deliver some later.
    assert!(polls < 3 * ROUNDS, "{polls} polls until {ROUNDS} messages were seen");
}
