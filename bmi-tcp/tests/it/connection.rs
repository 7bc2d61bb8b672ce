//! Beginning and end of connections, and waiting.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use bmi_conformance::world::{completion, pattern};
use bmi_core::transport::{Armed, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, ErrorKind, Transport};
use bmi_tcp::TcpConfig;

use crate::common::{World, world, world_with};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

#[test]
fn over_ipv6_and_localhost() {
    for host in ["::1", "localhost"] {
        let mut world = world();
        let (ca, cb) = world.connect_at(&Addr::tcp(host, 0));
        let (memory, segment) = world.b.memory(4);
        world.b.transport.post_recv(cb, WorkId(1), &[segment]).unwrap();
        world.a.transport.post_send(ca, WorkId(2), b"over", Payload::EMPTY, SIGNALLED).unwrap();
        world.work_b();
        assert_eq!(memory.to_vec(), b"over");
    }
}

#[test]
fn bad_addresses_are_refused_at_once() {
    let mut world = world();
    let deadline = world.later(5);
    let kind = |result: Result<_, bmi_core::Error>| result.map(|_| ()).unwrap_err().kind();
    assert_eq!(kind(world.a.transport.listen(&Addr::sim("a", 1)).map(|_| ())), ErrorKind::Invalid);
    assert_eq!(kind(world.a.transport.listen(&Addr::tcp("some.name", 1)).map(|_| ())), ErrorKind::Invalid);
    assert_eq!(kind(world.a.transport.listen(&Addr::tcp("203.0.113.1", 0)).map(|_| ())), ErrorKind::Invalid);
    let taken = world.a.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    assert_eq!(kind(world.b.transport.listen(&taken).map(|_| ())), ErrorKind::Invalid);
    assert_eq!(kind(world.a.transport.connect(&Addr::sim("a", 1), &[], deadline).map(|_| ())), ErrorKind::Invalid);
    assert_eq!(kind(world.a.transport.connect(&taken, &[0; 257], deadline).map(|_| ())), ErrorKind::Invalid);
}

#[test]
fn nobody_listening_is_a_refusal() {
    let mut world = world();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let deadline = world.later(5);
    let conn = world.a.transport.connect(&Addr::tcp("127.0.0.1", free.port()), &[], deadline).unwrap();
    let reason = world.until(|world| world.a.take_end(conn));
    assert_eq!(reason.kind(), ErrorKind::Refused, "{reason}");
}

#[test]
fn a_name_that_does_not_exist_ends_in_an_event() {
    let mut world = world();
    let deadline = world.later(3600);
    let conn = world.a.transport.connect(&Addr::tcp("no-such-host.invalid", 1), &[], deadline).unwrap();
    // The lookup may take any time. The time passed in ends it at the latest.
    let mut rounds = 0;
    let reason = world.until(|world| {
        rounds += 1;
        if rounds == 150_000 {
            world.now = deadline;
        }
        world.a.take_end(conn)
    });
    assert!(matches!(reason.kind(), ErrorKind::Refused | ErrorKind::TimedOut), "{reason}");
}

#[test]
fn a_silent_listener_costs_the_deadline_and_no_more() {
    let mut world = world();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deadline = world.later(3);
    let addr = Addr::tcp("127.0.0.1", listener.local_addr().unwrap().port());
    let conn = world.a.transport.connect(&addr, &[], deadline).unwrap();
    world.a.transport.post_recv(conn, WorkId(4), &[]).unwrap();
    world.settle();
    assert!(world.a.events.is_empty());
    assert_eq!(world.a.transport.next_deadline(), Some(deadline));
    world.now = deadline;
    let work = world.work_a();
    assert_eq!(work, completion(conn, 4, WorkKind::Recv, WorkStatus::Flushed, 0));
    assert_eq!(world.a.take_end(conn).unwrap().kind(), ErrorKind::TimedOut);
    world.settle();
    assert_eq!(world.a.transport.next_deadline(), None);
}

#[test]
fn a_rejected_peer_is_told_why() {
    let mut world = world();
    let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let deadline = world.later(5);
    let ca = world.a.transport.connect(&addr, &[3; 256], deadline).unwrap();
    world.a.transport.post_recv(ca, WorkId(1), &[]).unwrap();
    let cb = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    assert_eq!(
        world.b.transport.post_send(cb, WorkId(0), &[], Payload::EMPTY, SIGNALLED),
        Err(PostError::NotConnected)
    );
    world.b.transport.post_recv(cb, WorkId(2), &[]).unwrap();
    world.b.transport.reject(cb, b"full");
    assert_eq!(world.b.transport.accept(cb, &[]).unwrap_err().kind(), ErrorKind::PeerLost);
    assert_eq!(world.work_b(), completion(cb, 2, WorkKind::Recv, WorkStatus::Flushed, 0));
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Recv, WorkStatus::Flushed, 0));
    let private = world.until(|world| {
        world.a.take(|event| if let Event::Rejected { private, .. } = event { Some(private.clone()) } else { None })
    });
    assert_eq!(&private[..], b"full");
    world.settle();
    assert!(world.a.events.is_empty() && world.b.events.is_empty());
}

#[test]
fn disconnecting_hands_over_what_was_posted() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, source) = world.a.pattern(3_000_000);
    let (target, segment) = world.b.memory(3_000_000);
    world.b.transport.post_recv(cb, WorkId(1), &[segment]).unwrap();
    world.b.transport.post_recv(cb, WorkId(2), &[]).unwrap();
    world.a.transport.post_recv(ca, WorkId(3), &[]).unwrap();
    world.a.transport.post_send(ca, WorkId(4), &[], Payload::Gather(&[source]), SIGNALLED).unwrap();
    let deadline = world.later(10);
    world.a.transport.disconnect(ca, deadline);
    assert_eq!(
        world.a.transport.post_send(ca, WorkId(5), &[], Payload::EMPTY, SIGNALLED),
        Err(PostError::NotConnected)
    );
    assert_eq!(world.work_a(), completion(ca, 3, WorkKind::Recv, WorkStatus::Flushed, 0));
    assert_eq!(world.work_a(), completion(ca, 4, WorkKind::Send, WorkStatus::Ok, 3_000_000));
    assert_eq!(world.until(|world| world.a.take_end(ca)).kind(), ErrorKind::Cancelled);
    assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, 3_000_000));
    assert_eq!(world.work_b(), completion(cb, 2, WorkKind::Recv, WorkStatus::Flushed, 0));
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::PeerLost);
    assert!(target.to_vec() == pattern(3_000_000));
    world.settle();
    assert!(world.a.events.is_empty() && world.b.events.is_empty());
    assert_eq!(world.a.transport.next_deadline(), None);
}

/// Closing a connection does not wait for the reply to a read of the peer. In an earlier version,
/// revoking the read's exposure ended the connection at once, and work posted before it was never
/// sent.
#[test]
fn revoking_after_a_disconnect_does_not_drop_what_was_posted() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (large, small) = (world.b.memory(64 << 20).1, world.b.memory(10).1);
    let slices = [large, small].map(|segment| world.b.transport.expose(cb, &segment, Access::READ).unwrap());
    for slice in slices {
        let (_, local) = world.a.memory(slice.len as usize);
        world.a.transport.post_read(ca, WorkId(1), &[local], slice, WorkOptions::SIGNALLED).unwrap();
    }
    world.a.transport.post_recv(ca, WorkId(2), &[]).unwrap();
    let now = world.now;
    world.a.transport.poll(now, &mut world.a.events);
    // The large reply fills the socket, and the small one waits after it.
    for _ in 0..1000 {
        world.b.transport.poll(now, &mut world.b.events);
    }
    world.b.transport.post_send(cb, WorkId(3), &[], Payload::EMPTY, SIGNALLED).unwrap();
    let deadline = world.later(10);
    world.b.transport.disconnect(cb, deadline);
    world.b.transport.revoke(cb, slices[1].key);
    assert_eq!(world.work_b(), completion(cb, 3, WorkKind::Send, WorkStatus::Ok, 0));
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Recv, WorkStatus::Ok, 0));
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::Cancelled);
}

#[test]
fn both_sides_disconnect_at_once() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let deadline = world.later(10);
    world.a.transport.disconnect(ca, deadline);
    world.b.transport.disconnect(cb, deadline);
    assert_eq!(world.until(|world| world.a.take_end(ca)).kind(), ErrorKind::Cancelled);
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::Cancelled);
}

#[test]
fn a_deadline_ends_a_disconnect_that_the_peer_does_not_answer() {
    let mut world = world();
    let (ca, _) = world.connect();
    let (_, source) = world.a.memory(64 << 20);
    world.a.transport.post_send(ca, WorkId(4), &[], Payload::Gather(&[source]), SIGNALLED).unwrap();
    let deadline = world.later(10);
    world.a.transport.disconnect(ca, deadline);
    let now = world.now;
    for _ in 0..1000 {
        world.a.transport.poll(now, &mut world.a.events);
    }
    assert!(world.a.events.is_empty());
    assert_eq!(world.a.transport.next_deadline(), Some(deadline));
    world.a.transport.poll(deadline, &mut world.a.events);
    assert_eq!(world.a.take_work(), Some(completion(ca, 4, WorkKind::Send, WorkStatus::Flushed, 64 << 20)));
    assert_eq!(world.a.take_end(ca).unwrap().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_passed_deadline_cuts_at_once_and_flushes_everything() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, memory) = world.b.memory(10);
    let remote = world.b.transport.expose(cb, &memory, Access::READ).unwrap();
    let (_, target) = world.a.memory(10);
    world.a.transport.post_recv(ca, WorkId(1), &[]).unwrap();
    world.a.transport.post_read(ca, WorkId(2), &[target], remote, WorkOptions::SIGNALLED).unwrap();
    world.a.transport.post_send(ca, WorkId(3), &[1], Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    let now = world.now;
    world.a.transport.disconnect(ca, now);
    let mut flushed: Vec<u64> = (0..3)
        .map(|_| {
            let work = world.work_a();
            assert_eq!(work.status, WorkStatus::Flushed);
            work.work.0
        })
        .collect();
    flushed.sort_unstable();
    assert_eq!(flushed, [1, 2, 3]);
    assert_eq!(world.a.take_end(ca).unwrap().kind(), ErrorKind::Cancelled);
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::PeerLost);
    let again = world.a.transport.expose(ca, &memory, Access::READ);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::PeerLost);
}

#[test]
fn a_dropped_transport_is_a_lost_peer() {
    let mut world = world();
    let (_, cb) = world.connect();
    world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
    world.a.transport = bmi_tcp::TcpTransport::new(TcpConfig::default()).unwrap();
    assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Flushed, 0));
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::PeerLost);
}

#[test]
fn a_slot_used_again_has_another_name() {
    let mut world = world();
    let (ca, _) = world.connect();
    let now = world.now;
    world.a.transport.disconnect(ca, now);
    world.until(|world| world.a.take_end(ca));
    let (soon, _) = world.connect();
    assert_ne!(soon.slot, ca.slot, "the slot rests until the next poll");
    let (again, _) = world.connect();
    assert_eq!(again.slot, ca.slot);
    assert_ne!(again.generation, ca.generation);
}

/// Returns true if the transport's descriptor is readable now.
fn readable(world: &World) -> bool {
    readable_fd(world.b.transport.event_fd().unwrap().as_raw_fd())
}

#[test]
fn the_descriptor_says_when_to_poll_again() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.memory(100);
    for work in 0..3 {
        world.b.transport.post_recv(cb, WorkId(work), std::slice::from_ref(&segment)).unwrap();
    }
    let waker = world.b.transport.waker();
    world.until(|world| (world.b.transport.arm(&waker) == Armed::Waiting).then_some(()));
    assert!(!readable(&world));
    // Arriving bytes wake the transport.
    world.a.transport.post_send(ca, WorkId(0), &[1], Payload::EMPTY, SIGNALLED).unwrap();
    let now = world.now;
    world.a.transport.poll(now, &mut world.a.events);
    until_readable(|| readable_fd(world.b.transport.event_fd().unwrap().as_raw_fd()));
    world.work_b();
    world.until(|world| (world.b.transport.arm(&waker) == Armed::Waiting).then_some(()));
    assert!(!readable(&world), "polling makes it unreadable");
    // The waker wakes it, from another thread too.
    let other = waker.clone();
    std::thread::Builder::new().spawn(move || other.wake()).unwrap().join().unwrap();
    assert!(readable(&world));
    world.poll();
    world.until(|world| (world.b.transport.arm(&waker) == Armed::Waiting).then_some(()));
    // Output that could be sent counts as work.
    world.b.transport.post_send(cb, WorkId(9), &[], Payload::EMPTY, SIGNALLED).unwrap();
    assert_eq!(world.b.transport.arm(&waker), Armed::Busy);
}

fn readable_fd(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live `pollfd`.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

/// Waits for something that another thread or the kernel does.
fn until_readable(mut done: impl FnMut() -> bool) {
    assert!((0..1_000_000).any(|_| done()), "never readable");
}

fn is_closed(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    matches!(std::io::Read::read(&mut &*socket, &mut [0; 1]), Ok(0))
}

#[test]
fn half_open_sockets_are_bounded_and_dropped_in_time() {
    let mut config = TcpConfig::default();
    config.max_half_open = 3;
    config.handshake_timeout = Duration::from_secs(2);
    let mut world = world_with(&config);
    let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let sockets: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(("127.0.0.1", addr.port())).unwrap()).collect();
    world.settle();
    assert_eq!(sockets.iter().map(is_closed).collect::<Vec<_>>(), [true, true, false, false, false], "the oldest go");
    assert_eq!(world.b.transport.next_deadline(), Some(world.later(2)));
    world.now = world.later(2);
    world.settle();
    assert!(sockets.iter().all(is_closed));
    assert!(world.b.events.is_empty(), "nobody above hears of them");
    world.connect();
}
