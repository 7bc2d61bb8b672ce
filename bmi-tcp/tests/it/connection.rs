//! Beginning and end of connections.

use std::net::TcpStream;
use std::task::Waker;
use std::time::Duration;

use bmi_conformance::world::completion;
use bmi_core::transport::{Armed, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, ErrorKind, Transport};
use bmi_tcp::TcpConfig;

use crate::common::{world, world_with};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

#[test]
fn listening_needs_an_address_of_this_host_or_localhost() {
    let mut world = world();
    for host in ["some.name", "203.0.113.1"] {
        let error = world.a.transport.listen(&Addr::tcp(host, 0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    world.connect_at(&Addr::tcp("localhost", 0));
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
    assert_eq!(world.a.transport.next_deadline(), None);
}

#[test]
fn output_that_could_be_sent_counts_as_work() {
    let mut world = world();
    let (ca, _) = world.connect();
    world.until(|world| (world.a.transport.arm(Waker::noop()) == Armed::Waiting).then_some(()));
    world.a.transport.post_send(ca, WorkId(9), &[], Payload::EMPTY, SIGNALLED).unwrap();
    assert_eq!(world.a.transport.arm(Waker::noop()), Armed::Busy);
}

fn is_closed(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    matches!(std::io::Read::read(&mut &*socket, &mut [0; 1]), Ok(0))
}

#[test]
fn half_open_sockets_are_bounded_and_dropped_in_time() {
    let mut config = TcpConfig::default();
    config.limits.max_half_open = 3;
    config.limits.handshake_timeout = Duration::from_secs(2);
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
