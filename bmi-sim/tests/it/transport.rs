//! The contract of `bmi_core::transport`, rule by rule, between two raw transports.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bmi_core::transport::{
    Armed, Event, Payload, PostError, Transport, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{Access, Addr, ErrorKind, Memory, RemoteSlice, Time};
use bmi_sim::{SimConfig, World};

use crate::support::{Side, one_event, pair};

use WorkKind::{Read, Recv, Send, Write};
use WorkStatus::{Flushed, Ok as Good, ReceiverNotReady, RemoteAccess, TooLong};

const NEVER: Time = Time::from_nanos(u64::MAX);

fn limited(change: impl FnOnce(&mut bmi_core::Capabilities)) -> World {
    let mut config = SimConfig::seeded(1);
    let mut capabilities = config.capabilities();
    change(&mut capabilities);
    config.capabilities_override = Some(capabilities);
    World::with(config)
}

#[test]
fn capabilities_are_pinned() {
    let capabilities = SimConfig::default().capabilities();
    assert_eq!(capabilities.one_sided, bmi_core::OneSided::Native);
    assert!(capabilities.rdma_read && capabilities.write_with_immediate && !capabilities.event_fd);
    assert_eq!((capabilities.max_segments, capabilities.max_inline, capabilities.max_head), (32, 256, 128));
    assert_eq!((capabilities.send_queue_depth, capabilities.recv_queue_depth), (256, 4096));
    assert_eq!((capabilities.max_outstanding_reads, capabilities.service_levels), (16, 3));
}

#[test]
fn a_message_is_gathered_and_scattered_and_costs_time() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let from = a.region(b"..world..!");
    let to = b.region(&[b'_'; 20]);
    b.t.post_recv(b.conn, WorkId(7), &[to.segment(1, 3), to.segment(10, 9)]).unwrap();
    let gather = [from.segment(2, 5), from.segment(9, 1)];
    let before = world.now();
    a.t.post_send(a.conn, WorkId(8), b"hello ", Payload::Gather(&gather), WorkOptions::SIGNALLED).unwrap();
    world.run();
    assert!(world.now() - before >= 2 * Duration::from_micros(1), "a round trip of 1 µs each way");
    assert_eq!(b.take(), [(7, Recv, Good, 12)]);
    assert_eq!(a.take(), [(8, Send, Good, 12)]);
    assert_eq!(to.memory().to_vec(), b"_hel______lo world!_");
    assert!(world.node("client").cpu_busy() > Duration::ZERO);
}

#[test]
fn inline_payload_may_change_after_the_post() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[0; 8]);
    b.recv(1, &to).unwrap();
    let memory = Memory::from(b"abcd".to_vec());
    let inline = [memory.slice(1, 3)];
    a.t.post_send(a.conn, WorkId(2), b"x", Payload::Inline(&inline), WorkOptions::SIGNALLED).unwrap();
    memory.copy_from(0, b"ZZZZ");
    world.run();
    assert_eq!(b.take(), [(1, Recv, Good, 4)]);
    assert_eq!(to.memory().to_vec(), b"xbcd\0\0\0\0", "C10: the rest of the receive is untouched");
}

/// C3, C4: a write is in place before the immediate data or the send behind it is delivered, and
/// completions keep the posting order.
#[test]
fn writes_sends_and_immediates_keep_their_order() {
    let world = World::with(SimConfig { jitter_ns: 50_000, ..SimConfig::seeded(3) });
    let (mut a, mut b) = pair(&world);
    let target = b.region(&[0; 4]);
    let sink = b.region(&[0; 8]);
    let remote = b.t.expose(b.conn, &target.segment(0, 4), Access::WRITE).unwrap();
    for round in 0..50u8 {
        b.t.post_recv(b.conn, WorkId(1), &[]).unwrap();
        b.recv(2, &sink).unwrap();
        let source = a.region(&[round; 3]);
        let segments = [source.segment(0, 3)];
        let plain = WriteTarget::from(remote);
        let loud = WriteTarget { remote, immediate: Some(u32::from(round)) };
        a.t.post_write(a.conn, WorkId(10), b"", &segments, plain, WorkOptions::UNSIGNALLED).unwrap();
        a.t.post_write(a.conn, WorkId(11), &[round], &segments, loud, WorkOptions::SIGNALLED).unwrap();
        a.send(12, b"done").unwrap();
        while b.done.is_empty() {
            world.run_for(Duration::from_nanos(100));
            b.poll();
        }
        assert_eq!(target.memory().to_vec(), [round; 4], "the bytes are there before their announcement");
        world.run();
        b.poll();
        let got: Vec<_> = b.done.drain(..).map(|done| (done.work.0, done.len, done.immediate)).collect();
        assert_eq!(got, [(1, 0, Some(u32::from(round))), (2, 4, None)]);
        assert_eq!(a.take(), [(11, Write, Good, 4), (12, Send, Good, 4)], "the unsignalled write says nothing");
    }
}

#[test]
fn a_read_brings_the_bytes_and_no_more_are_outstanding_than_allowed() {
    let world = limited(|capabilities| capabilities.max_outstanding_reads = 1);
    let (mut a, mut b) = pair(&world);
    let source = b.region(b"0123456789");
    let remote = b.t.expose(b.conn, &source.segment(2, 6), Access::READ).unwrap();
    let into = a.region(&[0; 12]);
    for work in 0..4 {
        let at = work as usize * 3;
        let piece = remote.slice(work, 3).unwrap();
        a.t.post_read(a.conn, WorkId(work), &[into.segment(at, 3)], piece, WorkOptions::SIGNALLED).unwrap();
    }
    world.run();
    assert_eq!(a.take(), [(0, Read, Good, 3), (1, Read, Good, 3), (2, Read, Good, 3), (3, Read, Good, 3)]);
    assert_eq!(into.memory().to_vec(), b"234345456567");
}

/// C5, C13: regions are held from post to completion, and are then released.
#[test]
fn memory_is_held_until_the_completion() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[0; 4096]);
    b.recv(1, &to).unwrap();
    let mut memory = Memory::zeroed(4096).unwrap();
    let region = a.t.register(&memory).unwrap();
    assert_eq!(world.node("client").registrations(), 1);
    let gather = [region.segment(0, 4096)];
    a.t.post_send(a.conn, WorkId(2), b"", Payload::Gather(&gather), WorkOptions::SIGNALLED).unwrap();
    drop((region, gather));
    assert!(memory.get_mut().is_none(), "the request holds it");
    a.poll();
    assert_eq!(world.node("client").registrations(), 1);
    world.run();
    assert_eq!(a.take(), [(2, Send, Good, 4096)]);
    assert!(memory.get_mut().is_some());
    assert_eq!(world.node("client").registrations(), 0);
}

/// C6: everything outstanding is flushed, then `Disconnected` comes once. The id is invalid on both
/// sides.
#[test]
fn a_cut_flushes_everything() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let mut memory = Memory::zeroed(64).unwrap();
    let region = a.t.register(&memory).unwrap();
    let remote = RemoteSlice { key: bmi_core::RemoteKey(1), addr: 0, len: 64 };
    a.recv(1, &region).unwrap();
    a.t.post_send(a.conn, WorkId(2), b"x", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    a.t.post_read(a.conn, WorkId(3), &[region.segment(0, 9)], remote, WorkOptions::SIGNALLED).unwrap();
    world.cut(&world.node("client"), &world.node("server"));
    assert_eq!(a.take(), [(2, Send, Flushed, 1), (3, Read, Flushed, 9), (1, Recv, Flushed, 0)]);
    b.poll();
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::PeerLost), Some(ErrorKind::PeerLost)));
    assert_eq!(a.send(4, b"y"), Err(PostError::NotConnected));
    assert_eq!(a.recv(5, &region), Err(PostError::NotConnected));
    world.run();
    assert!(a.take().is_empty() && b.take().is_empty());
    drop(region);
    assert!(memory.get_mut().is_some());
}

/// C7: a wrong key, bound or right, or a revoked exposure, changes no byte and ends the connection
/// on both sides.
#[test]
fn forbidden_accesses_end_the_connection() {
    type Forge = fn(RemoteSlice) -> RemoteSlice;
    let same: Forge = |remote| remote;
    let cases: [(&str, Access, Forge, usize, bool, bool); 7] = [
        (
            "wrong key",
            Access::READ_WRITE,
            |r| RemoteSlice { key: bmi_core::RemoteKey(r.key.0 ^ 1), ..r },
            4,
            true,
            false,
        ),
        ("behind the end", Access::READ_WRITE, |r| RemoteSlice { addr: r.addr + 5, ..r }, 4, true, false),
        ("before the start", Access::READ_WRITE, |r| RemoteSlice { addr: r.addr.wrapping_sub(1), ..r }, 4, true, false),
        ("no right to write", Access::READ, same, 4, true, false),
        ("no right to read", Access::WRITE, same, 4, false, false),
        ("revoked", Access::READ_WRITE, same, 4, true, true),
        ("nothing, without a right", Access::READ, same, 0, true, false),
    ];
    for (name, access, forge, len, write, revoke) in cases {
        let world = World::new(1);
        let (mut a, mut b) = pair(&world);
        let target = b.region(&[7; 16]);
        let local = a.region(&[1; 16]);
        let remote = b.t.expose(b.conn, &target.segment(4, 8), access).unwrap();
        if revoke {
            b.t.revoke(b.conn, remote.key);
        }
        let segments = [local.segment(0, len)];
        let forged = forge(remote);
        let kind = if write {
            a.t.post_write(a.conn, WorkId(1), b"", &segments, forged.into(), WorkOptions::UNSIGNALLED).unwrap();
            Write
        } else {
            a.t.post_read(a.conn, WorkId(1), &segments, forged, WorkOptions::SIGNALLED).unwrap();
            Read
        };
        a.send(2, b"behind it").unwrap();
        world.run();
        assert_eq!(a.take(), [(1, kind, RemoteAccess, len as u64), (2, Send, Flushed, 9)], "{name}");
        b.poll();
        assert_eq!((a.ended, b.ended), (Some(ErrorKind::PeerLost), Some(ErrorKind::Protocol)), "{name}");
        assert_eq!((target.memory().to_vec(), local.memory().to_vec()), (vec![7; 16], vec![1; 16]), "{name}");
    }
}

/// C7: a key is useless on another connection, even of the same two transports.
#[test]
fn keys_are_scoped_to_their_connection() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let addr = b.t.listen(&world.node("server").addr(9)).unwrap();
    let second = a.t.connect(&addr, b"", NEVER).unwrap();
    world.run();
    let Event::ConnectRequest { conn, .. } = one_event(&mut b.t) else { panic!("no request") };
    b.t.accept(conn, b"").unwrap();
    world.run();
    one_event(&mut a.t);
    one_event(&mut b.t);
    let target = b.region(&[7; 8]);
    let remote = b.t.expose(b.conn, &target.segment(0, 8), Access::WRITE).unwrap();
    let local = a.region(&[1; 8]);
    a.t.post_write(second, WorkId(1), b"", &[local.segment(0, 8)], remote.into(), WorkOptions::SIGNALLED).unwrap();
    world.run();
    assert_eq!(a.take(), [(1, Write, RemoteAccess, 8)]);
    assert_eq!(target.memory().to_vec(), [7; 8]);
    a.ended = None;
    a.send(2, b"x").unwrap(); // the first connection lived until now: no receive has been posted
    world.run();
    assert_eq!(a.take(), [(2, Send, ReceiverNotReady, 1)]);
}

/// C9: a send or immediate data without a receive.
#[test]
fn no_receive_ends_the_connection() {
    for immediate in [false, true] {
        let world = World::new(1);
        let (mut a, mut b) = pair(&world);
        let target = b.region(&[7; 8]);
        let remote = b.t.expose(b.conn, &target.segment(0, 8), Access::WRITE).unwrap();
        if immediate {
            let target = WriteTarget { remote, immediate: Some(1) };
            a.t.post_write(a.conn, WorkId(1), b"abc", &[], target, WorkOptions::SIGNALLED).unwrap();
        } else {
            a.send(1, b"abc").unwrap();
        }
        world.run();
        let kind = if immediate { Write } else { Send };
        assert_eq!(a.take(), [(1, kind, ReceiverNotReady, 3)]);
        b.poll();
        assert_eq!((a.ended, b.ended), (Some(ErrorKind::PeerLost), Some(ErrorKind::Protocol)));
    }
}

/// C10
#[test]
fn a_message_longer_than_its_receive_ends_the_connection() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[7; 2]);
    b.recv(1, &to).unwrap();
    a.send(2, b"abc").unwrap();
    world.run();
    assert_eq!(a.take(), [(2, Send, TooLong, 3)]);
    assert_eq!(b.take(), [(1, Recv, TooLong, 0)]);
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::PeerLost), Some(ErrorKind::Protocol)));
    assert_eq!(to.memory().to_vec(), [7; 2]);
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// C11
#[test]
fn arming_wakes_for_whatever_comes() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let woken = || count.0.swap(0, Ordering::Relaxed);
    let to = b.region(&[0; 8]);
    b.recv(1, &to).unwrap();
    assert_eq!(b.t.arm(&waker), Armed::Waiting);
    a.send(2, b"x").unwrap();
    assert_eq!(woken(), 0);
    world.run();
    assert_eq!(woken(), 1, "for the receive");
    assert_eq!(b.t.arm(&waker), Armed::Busy);
    b.poll();
    assert_eq!(b.t.arm(&waker), Armed::Waiting);
    b.t.waker().wake();
    assert_eq!(woken(), 1, "by hand");
    assert_eq!(b.t.arm(&waker), Armed::Busy);
    b.poll();
    assert_eq!(b.t.arm(&waker), Armed::Waiting);
    a.t.disconnect(a.conn, NEVER);
    world.run();
    assert_eq!(woken(), 1, "for the end");
}

/// C11: a place that an unsignalled success frees wakes the owner, if a post was refused before.
#[test]
fn a_full_queue_wakes_its_owner_when_there_is_room() {
    let world = limited(|capabilities| (capabilities.send_queue_depth, capabilities.recv_queue_depth) = (2, 4));
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[0; 8]);
    for work in 0..4 {
        b.recv(work, &to).unwrap();
    }
    assert_eq!(b.recv(9, &to), Err(PostError::QueueFull));
    for _ in 0..2 {
        a.t.post_send(a.conn, WorkId(1), b"x", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    }
    assert_eq!(a.send(2, b"y"), Err(PostError::QueueFull));
    let count = Arc::new(Count(AtomicUsize::new(0)));
    assert_eq!(a.t.arm(&Waker::from(count.clone())), Armed::Waiting);
    world.run();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(a.t.poll(Time::ZERO, &mut Vec::new()));
    a.send(2, b"y").unwrap();
    a.send(3, b"z").unwrap();
    world.run();
    assert_eq!(a.send(4, b"!"), Err(PostError::QueueFull), "completions that are not polled keep their places");
    assert_eq!(a.take().len(), 2);
    assert_eq!(b.recv(9, &to), Err(PostError::QueueFull), "nor are these polled");
    assert_eq!(b.take().len(), 4);
    b.recv(9, &to).unwrap();
}

#[test]
fn limits_of_the_capabilities_are_checked() {
    let world = limited(|capabilities| (capabilities.max_segments, capabilities.max_work_len) = (1, 100));
    let (mut a, mut b) = pair(&world);
    let region = a.region(&[0; 200]);
    let foreign = b.region(&[0; 8]);
    let remote = RemoteSlice { key: bmi_core::RemoteKey(1), addr: 0, len: 4 };
    let invalid = |result| assert!(matches!(result, Err(PostError::Invalid(_))), "{result:?}");
    let two = [region.segment(0, 1), region.segment(1, 1)];
    invalid(a.t.post_recv(a.conn, WorkId(1), &two));
    invalid(a.t.post_recv(a.conn, WorkId(1), &[foreign.segment(0, 1)]));
    let signalled = WorkOptions::SIGNALLED;
    invalid(a.t.post_send(a.conn, WorkId(1), &[0; 129], Payload::EMPTY, signalled));
    invalid(a.t.post_send(a.conn, WorkId(1), b"", Payload::Gather(&[region.segment(0, 101)]), signalled));
    let long = Memory::zeroed(257).unwrap();
    invalid(a.t.post_send(a.conn, WorkId(1), b"", Payload::Inline(&[long.all()]), signalled));
    invalid(a.t.post_write(a.conn, WorkId(1), b"12345", &[], remote.into(), signalled));
    invalid(a.t.post_read(a.conn, WorkId(1), &[region.segment(0, 5)], remote, WorkOptions::SIGNALLED));
    world.run();
    assert!(a.take().is_empty() && a.ended.is_none(), "nothing happened");
}

fn refusal(world: &World, t: &mut impl Transport, addr: &Addr, deadline: Time) -> (ErrorKind, Time) {
    let conn = t.connect(addr, b"", deadline).unwrap();
    world.run();
    let mut events = Vec::new();
    while t.poll(Time::ZERO, &mut events) {}
    match events.as_slice() {
        [Event::Disconnected { conn: ended, reason }] if *ended == conn => (reason.kind(), world.now()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn connecting_to_nobody_is_refused_and_to_a_silent_one_times_out() {
    let world = World::new(1);
    let mut a = world.node("client").transport().unwrap();
    assert_eq!(refusal(&world, &mut a, &Addr::sim("nowhere", 1), NEVER).0, ErrorKind::Refused);
    let server = world.node("server");
    assert_eq!(refusal(&world, &mut a, &server.addr(1), NEVER).0, ErrorKind::Refused);
    let mut b = server.transport().unwrap();
    let addr = b.listen(&server.addr(1)).unwrap();
    assert_eq!(b.listen(&addr).unwrap_err().kind(), ErrorKind::Invalid, "in use");
    assert_eq!(a.listen(&server.addr(2)).unwrap_err().kind(), ErrorKind::Invalid, "not its node");
    assert_eq!(a.connect(&Addr::tcp("x", 1), b"", NEVER).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(a.connect(&addr, &[0; 257], NEVER).unwrap_err().kind(), ErrorKind::Invalid);
    let deadline = world.now() + Duration::from_secs(1);
    let (kind, when) = refusal(&world, &mut a, &addr, deadline);
    assert_eq!(kind, ErrorKind::TimedOut);
    assert!(when >= deadline && when - deadline < Duration::from_millis(1));
    let mut events = Vec::new();
    while b.poll(Time::ZERO, &mut events) {}
    let [Event::ConnectRequest { conn, .. }, Event::Disconnected { conn: gone, .. }] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(conn, gone);
    assert_eq!(b.accept(conn, b"").unwrap_err().kind(), ErrorKind::PeerLost);
    server.kill();
    assert_eq!(refusal(&world, &mut a, &addr, NEVER).0, ErrorKind::Refused);
}

#[test]
fn a_rejection_carries_its_reason() {
    let world = World::new(1);
    let (client, server) = (world.node("client"), world.node("server"));
    let (mut a, mut b) = (client.transport().unwrap(), server.transport().unwrap());
    let addr = b.listen(&server.addr(0)).unwrap();
    let to = b.register(&Memory::zeroed(8).unwrap()).unwrap();
    let conn = a.connect(&addr, b"", NEVER).unwrap();
    world.run();
    let Event::ConnectRequest { conn: request, .. } = one_event(&mut b) else { panic!("no request") };
    b.post_recv(request, WorkId(5), &[to.segment(0, 8)]).unwrap();
    let send = b.post_send(request, WorkId(6), b"x", Payload::EMPTY, WorkOptions::SIGNALLED);
    assert_eq!(send, Err(PostError::NotConnected), "until accepted it takes receives only");
    b.reject(request, b"go away");
    let Event::Work(flushed) = one_event(&mut b) else { panic!("not flushed") };
    assert_eq!((flushed.work, flushed.status), (WorkId(5), Flushed));
    world.run();
    let Event::Rejected { conn: rejected, private } = one_event(&mut a) else { panic!("not rejected") };
    assert_eq!((rejected, &*private), (conn, &b"go away"[..]));
}

#[test]
fn a_disconnect_hands_over_what_was_posted_and_flushes_what_waits() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let (to, from) = (b.region(&[0; 1 << 20]), a.region(&[1; 1 << 20]));
    b.recv(1, &to).unwrap();
    a.recv(2, &from).unwrap();
    let gather = [from.segment(0, 1 << 20)];
    a.t.post_send(a.conn, WorkId(3), b"", Payload::Gather(&gather), WorkOptions::SIGNALLED).unwrap();
    a.t.disconnect(a.conn, NEVER);
    assert_eq!(a.send(4, b"late"), Err(PostError::NotConnected));
    assert_eq!(a.take(), [(2, Recv, Flushed, 0)]);
    assert_eq!(a.ended, None);
    world.run();
    assert_eq!(a.take(), [(3, Send, Good, 1 << 20)]);
    assert_eq!(b.take(), [(1, Recv, Good, 1 << 20)]);
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::Cancelled), Some(ErrorKind::PeerLost)));
    assert_eq!(to.memory().to_vec(), vec![1; 1 << 20]);
}

#[test]
fn a_disconnect_whose_deadline_has_passed_cuts() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let to = b.region(&[0; 8]);
    b.recv(1, &to).unwrap();
    a.send(3, b"x").unwrap();
    a.t.disconnect(a.conn, NEVER);
    a.t.disconnect(a.conn, world.now());
    world.run();
    assert_eq!(a.take(), [(3, Send, Flushed, 1)]);
    assert_eq!(b.take(), [(1, Recv, Flushed, 0)]);
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::Cancelled), Some(ErrorKind::PeerLost)));
}

#[test]
fn both_may_disconnect_at_once() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let drop_here = |side: &mut Side| {
        side.send(1, b"x").unwrap();
        side.t.disconnect(side.conn, NEVER);
    };
    drop_here(&mut a);
    drop_here(&mut b);
    world.run();
    assert!(a.take().len() == 1 && b.take().len() == 1);
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::Cancelled), Some(ErrorKind::Cancelled)));
}

/// C13
#[test]
fn a_dropped_transport_ends_its_connections() {
    let world = World::new(1);
    let (a, mut b) = pair(&world);
    drop(a);
    world.run();
    b.poll();
    assert_eq!(b.ended, Some(ErrorKind::PeerLost));
}

#[test]
fn a_killed_node_is_noticed_after_the_detection_time() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let (client, server) = (world.node("client"), world.node("server"));
    a.send(1, b"x").unwrap();
    let killed = world.now();
    server.kill();
    assert!(server.transport().is_err());
    b.poll();
    assert_eq!(b.ended, Some(ErrorKind::Io), "its own side, for whoever still holds it");
    world.run_for(Duration::from_millis(9));
    a.poll();
    assert_eq!(a.ended, None);
    world.run();
    assert_eq!(a.take(), [(1, Send, Flushed, 1)]);
    assert_eq!(a.ended, Some(ErrorKind::PeerLost));
    assert_eq!(world.now() - killed, Duration::from_millis(10));
    server.restart();
    drop((a, b));
    let mut c = server.transport().unwrap();
    c.listen(&server.addr(1)).unwrap();
    let mut d = client.transport().unwrap();
    d.connect(&server.addr(1), b"again", NEVER).unwrap();
    world.run();
    assert!(matches!(one_event(&mut c), Event::ConnectRequest { .. }));
}

#[test]
fn a_short_partition_costs_time_and_a_long_one_the_connection() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let (client, server) = (world.node("client"), world.node("server"));
    let to = b.region(&[0; 8]);
    for work in 1..=3 {
        b.recv(work, &to).unwrap();
    }
    world.partition(&client, &server);
    a.send(11, b"x").unwrap();
    a.send(12, b"yy").unwrap();
    world.run_for(Duration::from_millis(9));
    assert!(b.take().is_empty());
    world.heal(&client, &server);
    world.run();
    assert_eq!(b.take(), [(1, Recv, Good, 1), (2, Recv, Good, 2)]);
    assert_eq!(a.take(), [(11, Send, Good, 1), (12, Send, Good, 2)]);
    world.partition(&client, &server);
    a.send(13, b"z").unwrap();
    world.run();
    assert_eq!(a.take(), [(13, Send, Flushed, 1)]);
    assert_eq!(b.take(), [(3, Recv, Flushed, 0)]);
    assert_eq!((a.ended, b.ended), (Some(ErrorKind::PeerLost), Some(ErrorKind::PeerLost)));
}

#[test]
fn registrations_are_limited_and_can_fail() {
    let world = World::with(SimConfig { max_registrations: 2, ..SimConfig::default() });
    let node = world.node("n");
    let mut t = node.transport().unwrap();
    let memory = Memory::zeroed(1).unwrap();
    let (first, _second) = (t.register(&memory).unwrap(), t.register(&memory).unwrap());
    assert_eq!(t.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
    drop(first);
    t.poll(Time::ZERO, &mut Vec::new());
    let third = t.register(&memory).unwrap();
    drop(third);
    t.poll(Time::ZERO, &mut Vec::new());
    node.fail_registrations(1);
    assert_eq!(t.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
    assert!(t.register(&memory).is_ok());
}

/// Two senders to one receiver share its bandwidth. A lone message costs its bytes once.
#[test]
fn bandwidth_is_a_resource() {
    let world = World::new(1);
    let len = 10_000_000u64; // 0.8 ms at 12.5 GB/s
    let time = |sides: &mut [(Side, Side)]| {
        let mut regions = Vec::new();
        let start = world.now();
        for (a, b) in sides.iter_mut() {
            let (from, to) = (a.region(&vec![1; len as usize]), b.region(&vec![0; len as usize]));
            b.recv(1, &to).unwrap();
            let gather = [from.segment(0, len as usize)];
            a.t.post_send(a.conn, WorkId(1), b"", Payload::Gather(&gather), WorkOptions::SIGNALLED).unwrap();
            regions.push((from, to));
        }
        world.run();
        for (a, b) in sides.iter_mut() {
            assert_eq!((a.take().len(), b.take().len()), (1, 1));
        }
        (world.now() - start).as_micros()
    };
    let mut one = [pair(&world)];
    let alone = time(&mut one);
    assert!((800..1_800).contains(&alone), "{alone} µs with the registration");
    let mut two = [pair(&world), pair(&world)];
    let both = time(&mut two);
    assert!(both >= 1_600, "{both} µs");
}

/// Regression: a poll that found nothing cleared the notification. Room that was made later, by
/// sends without a completion, was never reported, and a caller whose post had been refused waited
/// without end. The sweep found it at one seed in three thousand.
#[test]
fn room_in_a_full_queue_is_told_also_after_a_poll_that_found_nothing() {
    let world = World::new(1);
    let (mut a, mut b) = pair(&world);
    let landing = b.region(&[0; 64]);
    let depth = a.t.capabilities().send_queue_depth;
    (0..depth as u64).for_each(|work| b.recv(work, &landing).unwrap());
    let send =
        |a: &mut crate::support::Side| a.t.post_send(a.conn, WorkId(1), b"x", Payload::EMPTY, WorkOptions::UNSIGNALLED);
    (0..depth).for_each(|_| send(&mut a).unwrap());
    assert_eq!(send(&mut a), Err(PostError::QueueFull));
    let mut events = Vec::new();
    assert!(!a.t.poll(Time::ZERO, &mut events), "nothing has happened yet");
    world.run();
    assert!(a.t.poll(Time::ZERO, &mut events) && events.is_empty(), "there is room, and nothing else to report");
    send(&mut a).unwrap();
}
