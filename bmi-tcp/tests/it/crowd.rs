//! Crowds of raw sockets against a listener: sockets that send nothing, and sockets that send a
//! byte now and then. An honest client connects and exchanges messages all the while. In an earlier
//! version, 256 of either kind kept everybody else out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use bmi_conformance::log::capture;
use bmi_core::transport::{Event, Payload, WorkId, WorkOptions, WorkStatus};
use bmi_core::{Addr, Time, Transport};
use bmi_tcp::{TcpConfig, TcpTransport};
use socket2::{Domain, Socket, Type};
use tracing::Level;

use crate::common::{World, world_with};

/// More than there are places for half-open sockets by default.
const CROWD: usize = 600;

/// Returns a socket to the listener, from an address of this host.
fn socket_from(host: Ipv4Addr, listener: &Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port())).into()).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(true).unwrap();
    socket
}

fn is_open(socket: &TcpStream) -> bool {
    let read = (&mut &*socket).read(&mut [0; 1]);
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Connects to the listener at `b`, sends a message, receives one, and disconnects.
#[track_caller]
fn converse(world: &mut World, listener: &Addr) {
    let deadline = world.later(60);
    let ca = world.a.transport.connect(listener, b"honest", deadline).unwrap();
    let cb = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
    world.b.transport.accept(cb, &[]).unwrap();
    let established = |event: &Event| matches!(event, Event::Established { .. }).then_some(());
    world.until(|world| world.b.take(established));
    world.until(|world| world.a.take(established));
    world.a.transport.post_recv(ca, WorkId(2), &[]).unwrap();
    world.a.transport.post_send(ca, WorkId(3), &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    let work = world.work_b();
    assert_eq!((work.work, work.status), (WorkId(1), WorkStatus::Ok));
    world.b.transport.post_send(cb, WorkId(4), &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    let work = world.work_a();
    assert_eq!((work.work, work.status), (WorkId(2), WorkStatus::Ok));
    world.a.transport.disconnect(ca, deadline);
    world.until(|world| world.a.take_end(ca));
    world.until(|world| world.b.take_end(cb));
}

#[test]
fn silent_sockets_keep_nobody_out() {
    let mut world = world_with(&TcpConfig::default());
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..CROWD / 50 {
        crowd.extend((0..50).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)));
        converse(&mut world, &listener);
    }
    for _ in 0..20 {
        converse(&mut world, &listener);
    }
    let open = crowd.iter().filter(|socket| is_open(socket)).count();
    assert!(open > 200, "{open} of the crowd are left: as many as there are places, not fewer");
}

#[test]
fn trickling_sockets_keep_nobody_out_and_no_byte_prolongs_their_time() {
    let mut config = TcpConfig::default();
    config.limits.handshake_timeout = Duration::from_secs(5);
    let mut world = world_with(&config);
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let mut crowd: Vec<_> = (0..CROWD).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)).collect();
    // The beginning of a good preamble, a byte a second.
    for byte in &b"BMI-"[..] {
        crowd.iter_mut().for_each(|socket| drop(socket.write_all(&[*byte])));
        converse(&mut world, &listener);
        assert!(crowd.iter().any(is_open));
        world.now = world.later(1);
    }
    world.now = world.later(1);
    converse(&mut world, &listener);
    assert!(!crowd.iter().any(is_open), "five seconds are over");
    assert!(world.b.events.is_empty(), "nobody above hears of them");
}

#[test]
fn a_crowd_from_one_address_does_not_push_out_a_slow_peer_at_another() {
    let mut config = TcpConfig::default();
    config.limits.max_half_open = 16;
    let mut world = world_with(&config);
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let mut slow = socket_from(Ipv4Addr::new(127, 0, 0, 2), &listener);
    world.settle();
    let crowd: Vec<_> = (0..100).map(|_| socket_from(Ipv4Addr::new(127, 0, 0, 3), &listener)).collect();
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 15);
    let mut preamble = b"BMI-TCP\n".to_vec();
    preamble.extend([1, 0, 1, 0, 0, 0, 0, 0]);
    slow.write_all(&preamble).unwrap();
    world.until(|world| world.b.take(|event| matches!(event, Event::ConnectRequest { .. }).then_some(())));
}

#[test]
fn half_open_sockets_take_no_place_of_a_connection() {
    let mut config = TcpConfig::default();
    (config.limits.max_half_open, config.limits.max_connections) = (16, 8);
    let mut world = world_with(&config);
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let crowd: Vec<_> = (0..40).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)).collect();
    converse(&mut world, &listener);
    assert!(crowd.iter().filter(|socket| is_open(socket)).count() >= 7);
}

/// Each of 100,000 garbage connections wrote a line.
#[test]
fn a_flood_of_garbage_is_a_few_log_lines() {
    let mut world = world_with(&TcpConfig::default());
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let ((), lines) = capture(|| {
        for _ in 0..1000 {
            let mut socket = socket_from(Ipv4Addr::LOCALHOST, &listener);
            socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            world.until(|_| (!is_open(&socket)).then_some(()));
        }
        let at = world.b.transport.next_deadline().unwrap();
        assert!(at <= world.later(10));
        world.now = at;
        world.settle();
        assert_eq!(world.b.transport.next_deadline(), None, "nothing more is to be reported");
    });
    let lines: Vec<_> = lines.into_iter().filter(|line| line.level <= Level::INFO).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[..5].iter().all(|line| line.text.contains("not those of this protocol")), "{lines:?}");
    assert!(lines[5].text.contains("left_out=995") && lines[5].text.contains("127.0.0.1"), "{lines:?}");
}

#[test]
fn a_crowd_of_silent_sockets_is_a_few_log_lines() {
    let mut world = world_with(&TcpConfig::default());
    let listener = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let (crowd, lines) = capture(|| {
        let crowd: Vec<_> = (0..CROWD).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)).collect();
        world.settle();
        world.now = world.later(5);
        world.settle();
        world.now = world.later(10);
        world.settle();
        crowd
    });
    assert!(!crowd.iter().any(is_open));
    let lines: Vec<_> = lines.into_iter().filter(|line| line.level <= Level::INFO).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[5].text.contains("left_out=595"), "{lines:?}");
}

/// A group of three behind one address: the first one, which listens, and the others.
fn group(config: &TcpConfig) -> (World, Vec<TcpTransport>, Addr) {
    let mut members = TcpTransport::shards(config.clone(), 3).unwrap();
    let listener = members.remove(0);
    let mut world = World::new(TcpTransport::new(config.clone()).unwrap(), listener, || Addr::tcp("127.0.0.1", 0));
    let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    (world, members, addr)
}

/// Polls the members that are not in the world.
fn poll(members: &mut [TcpTransport], now: Time) -> Vec<Event> {
    let mut events = Vec::new();
    for member in members {
        member.poll(now, &mut events);
    }
    events
}

#[test]
fn silent_sockets_take_the_places_of_each_member_of_a_group_and_no_more() {
    let mut config = TcpConfig::default();
    config.limits.max_half_open = 16;
    let (mut world, mut members, listener) = group(&config);
    let mut crowd = Vec::new();
    for _ in 0..10 {
        crowd.extend((0..20).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)));
        let deadline = world.later(60);
        let honest = world.a.transport.connect(&listener, b"honest", deadline).unwrap();
        world.until(|world| {
            world.b.events.extend(poll(&mut members, world.now));
            world.b.take(|event| matches!(event, Event::ConnectRequest { .. }).then_some(()))
        });
        world.a.transport.disconnect(honest, Time::ZERO);
        world.until(|world| {
            world.b.events.extend(poll(&mut members, world.now));
            world.b.take(|event| matches!(event, Event::Disconnected { .. }).then_some(()))
        });
    }
    let open = crowd.iter().filter(|socket| is_open(socket)).count();
    // A quarter of the places of each is for sockets that wait to be handed over.
    assert!((30..=3 * 12).contains(&open), "{open} of the crowd are left");
}

/// The sockets that wait for a member which does not poll are bounded, and the others serve the
/// newcomers.
#[test]
fn silent_sockets_at_a_member_that_does_not_poll_keep_nobody_out() {
    let mut config = TcpConfig::default();
    config.limits.max_half_open = 16;
    let (mut world, mut members, listener) = group(&config);
    let crowd: Vec<_> = (0..100).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)).collect();
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 12 + 4 + 4, "two members do not poll");
    converse(&mut world, &listener);
    // The time of those that waited counts from their arrival.
    world.now = world.later(6);
    assert!(poll(&mut members, world.now).is_empty());
    poll(&mut members, world.now);
    world.settle();
    assert!(!crowd.iter().any(is_open), "five seconds are over");
}

/// A group has as many connections as its members together, and each member no more than its own.
#[test]
fn each_member_of_a_group_has_its_own_limit_of_connections() {
    let mut config = TcpConfig::default();
    (config.limits.max_half_open, config.limits.max_connections) = (16, 4);
    let (mut world, mut members, listener) = group(&config);
    let crowd: Vec<_> = (0..40).map(|_| socket_from(Ipv4Addr::LOCALHOST, &listener)).collect();
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 12, "those that wait count as well");
    poll(&mut members, world.now);
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 12);
    converse(&mut world, &listener);
}
