//! Hosts that answer nothing, and programs that only do not read (`TcpConfig::peer_timeout`).
//!
//! A filter at a socket that drops all it would receive makes that end a dead host: its kernel sees
//! no byte, and answers nothing.

use std::net::TcpStream;
use std::time::Duration;

use bmi_conformance::world::{completion, pattern};
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Clock, Error, ErrorKind, Time, Transport};
use bmi_tcp::TcpConfig;
use socket2::{SockFilter, SockRef};

use crate::common::{World, established, world_with};

/// More than the buffers of both ends take.
const BULK: usize = 24 << 20;
const TIMEOUT: Duration = Duration::from_secs(1);

fn impatient() -> World {
    let mut config = TcpConfig::default();
    config.peer_timeout = TIMEOUT;
    config.tuning.send_buffer = Some(64 << 10);
    world_with(&config)
}

/// Real time, in that of a world.
struct Watch {
    clock: MonotonicClock,
    started: Time,
    then: Time,
}

impl Watch {
    fn start(world: &World) -> Watch {
        let clock = MonotonicClock::new();
        Watch { started: clock.now(), then: world.now, clock }
    }

    fn now(&self) -> Time {
        self.then + (self.clock.now() - self.started)
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel's timers are in real time")]
fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

/// A host whose program is stopped for three times the timeout answers all the time.
#[test]
fn a_program_that_does_not_read_for_long_keeps_its_connection() {
    let mut world = impatient();
    let (ca, cb) = world.connect();
    let (target, room) = world.b.memory(BULK);
    let (_, source) = world.a.pattern(BULK);
    world.b.transport.post_recv(cb, WorkId(1), &[room]).unwrap();
    world.a.transport.post_send(ca, WorkId(2), &[], Payload::Gather(&[source]), WorkOptions::SIGNALLED).unwrap();
    let (watch, start) = (Watch::start(&world), world.now);
    while watch.now() - start < 3 * TIMEOUT {
        world.a.transport.poll(watch.now(), &mut world.a.events);
        assert!(world.a.events.is_empty(), "{:?}", world.a.events);
        sleep(Duration::from_millis(10));
    }
    world.now = watch.now();
    assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, BULK as u64));
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Send, WorkStatus::Ok, BULK as u64));
    assert!(target.to_vec() == pattern(BULK));
    // All is acknowledged. After one more check, nothing is due.
    let arrived = watch.now();
    while watch.now() - arrived < TIMEOUT {
        for side in [&mut world.a, &mut world.b] {
            side.transport.poll(watch.now(), &mut side.events);
        }
        sleep(Duration::from_millis(10));
    }
    assert_eq!((world.a.transport.next_deadline(), world.b.transport.next_deadline()), (None, None));
}

/// The host of this socket is dead.
fn kill(socket: &TcpStream) {
    const RETURN_CONSTANT: u16 = 6;
    SockRef::from(socket).attach_filter(&[SockFilter::new(RETURN_CONSTANT, 0, 0, 0)]).unwrap();
}

/// Polls when something is due, and returns the end of the connection and how long it took.
fn end(world: &mut World, conn: ConnId, with_deadlines: bool) -> (Error, Duration) {
    let (watch, start) = (Watch::start(world), world.now);
    loop {
        let due = world.b.transport.next_deadline();
        assert!(due.is_some() || !with_deadlines, "nothing would wake the owner");
        sleep(due.map_or(Duration::from_millis(50), |due| due - watch.now()));
        let now = watch.now();
        world.b.transport.poll(now, &mut world.b.events);
        if let Some(reason) = world.b.take_end(conn) {
            return (reason, now - start);
        }
        assert!(now - start < Duration::from_secs(30), "a dead host is not given up");
    }
}

#[test]
fn a_dead_host_with_full_buffers_is_given_up() {
    let mut world = impatient();
    let (socket, conn) = established(&mut world);
    let (_, source) = world.b.pattern(BULK);
    world.b.transport.post_send(conn, WorkId(1), &[], Payload::Gather(&[source]), WorkOptions::SIGNALLED).unwrap();
    world.settle();
    assert_eq!(world.b.take_work(), None, "the buffers are full");
    kill(&socket);
    let (reason, after) = end(&mut world, conn, true);
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    assert!(reason.to_string().contains("answers nothing"), "not the system's own limit: {reason}");
    assert!(after >= TIMEOUT, "{after:?}");
    assert_eq!(world.work_b().status, WorkStatus::Flushed);
}

#[test]
fn a_dead_host_that_was_sent_one_small_request_is_given_up() {
    let mut world = impatient();
    let (socket, conn) = established(&mut world);
    kill(&socket);
    world.b.transport.post_send(conn, WorkId(1), b"?", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    assert_eq!(world.work_b().status, WorkStatus::Ok, "the kernel has it");
    let (reason, after) = end(&mut world, conn, true);
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    assert!(reason.to_string().contains("answers nothing"), "not the system's own limit: {reason}");
    assert!(after >= TIMEOUT, "{after:?}");
}

/// Keep-alive finds it, with no work for the owner.
#[test]
fn a_dead_host_that_was_sent_nothing_is_given_up() {
    let mut world = impatient();
    let (socket, conn) = established(&mut world);
    kill(&socket);
    let (reason, _) = end(&mut world, conn, false);
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
}
