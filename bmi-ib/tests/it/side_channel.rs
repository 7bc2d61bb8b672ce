//! The side channel: peers that send nothing, too little, too much or nonsense, and two sides that
//! dial each other at once. Needs an RDMA device; `cargo xtask rxe` has one.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::{self, Pair, Side};
use bmi_conformance::Rng;
use bmi_conformance::certificates::{Authority, Says};
use bmi_conformance::log::capture;
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, WorkId, WorkOptions, WorkStatus};
use bmi_core::{Addr, ErrorKind, Memory, Transport};
use bmi_ib::{IbConfig, Security};
use socket2::{Domain, Socket, Type};
use tracing::Level;

const CONNECT: u8 = 1;
const READY: u8 = 4;
const CHECKED: u8 = 7;

/// Returns a message of the side channel, in the layout that the module `greeting` draws. It names
/// a queue pair that does not exist, at this machine's own address. (For an address that no host
/// has, the kernel would look it up and block for a second.)
fn message(kind: u8) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(b"bmi-ib\r\n");
    (bytes[8], bytes[10]) = (1, kind);
    bytes[16..20].copy_from_slice(&0xabcdu32.to_le_bytes());
    (bytes[26], bytes[27], bytes[28], bytes[29]) = (3, 1, 1, 1);
    bytes[42..48].copy_from_slice(&[0xff, 0xff, 192, 168, 77, 1]);
    bytes
}

fn impatient() -> IbConfig {
    let mut config = IbConfig::default();
    config.limits.handshake_timeout = Duration::from_millis(300);
    config
}

/// Side channels leave only because others need their places.
fn patient() -> IbConfig {
    let mut config = IbConfig::default();
    config.limits.handshake_timeout = Duration::from_secs(600);
    config
}

fn raw(side: &mut Side) -> TcpStream {
    let addr = side.listen();
    raw_to(&addr)
}

fn raw_to(addr: &Addr) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Polls until the other end of `socket` is closed. Returns what the other end sent before.
fn until_closed(side: &mut Side, socket: &mut TcpStream, what: &str) -> Vec<u8> {
    let give_up = side.now() + support::PATIENCE;
    let mut said = Vec::new();
    let mut piece = [0; 512];
    loop {
        side.poll();
        match socket.read(&mut piece) {
            Ok(0) => return said,
            Ok(len) => said.extend(&piece[..len]),
            Err(error) if error.kind() == IoKind::WouldBlock => {}
            // Closed while bytes of this side were unread.
            Err(error) if error.kind() == IoKind::ConnectionReset => return said,
            Err(error) => panic!("{what}: {error}"),
        }
        assert!(side.now() < give_up, "{what}: it stays open");
        std::thread::yield_now();
    }
}

/// Sends a message from `a` to `b` on a connection that either side asked for.
fn works(a: &mut Side, near: ConnId, b: &mut Side, far: ConnId, what: &str) {
    let memory = Memory::zeroed(8).unwrap();
    let region = b.transport.register(&memory).unwrap();
    b.transport.post_recv(far, WorkId(5), &[region.segment(0, 8)]).unwrap();
    a.transport.post_send(near, WorkId(6), b"hello", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    let Event::Work(done) = b.next_beside(&mut [a], what) else { panic!("{what}: an end") };
    assert_eq!((done.work, done.status, done.len), (WorkId(5), WorkStatus::Ok, 5), "{what}");
    assert_eq!(&memory.to_vec()[..5], b"hello", "{what}");
}

/// Silent side channels are bounded in number and in time. A peer that sends its greeting is served
/// when they are gone.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn silent_side_channels_are_bounded_and_dropped_in_time() {
    let clock = MonotonicClock::new();
    let mut config = impatient();
    config.limits.max_half_open = 2;
    let mut b = Side::new(clock, config);
    let addr = b.listen();
    let mut sockets: Vec<TcpStream> = (0..5).map(|_| raw_to(&addr)).collect();
    // The last one sends half of its greeting and then stops. It gets no more time than the others.
    sockets[4].write_all(&message(CONNECT)[..40]).unwrap();
    for socket in &mut sockets {
        let said = until_closed(&mut b, socket, "a silent side channel");
        assert!(said.is_empty(), "{said:?}");
    }
    assert!(b.events.is_empty(), "nobody above hears of them: {:?}", b.events);
    assert_eq!(b.transport.next_deadline(), None);
    let mut a = Side::new(clock, IbConfig::default());
    let (near, far) = support::link(&mut a, &mut b, &addr);
    works(&mut a, near, &mut b, far, "after them");
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_side_channel_in_the_clear_and_one_behind_tls_tell_both_sides() {
    let authority = Authority::new("friends");
    let issued = authority.issue("own", &Says::names(&[]));
    let mut secure = IbConfig::default();
    secure.security = Some(Security::mutual(&issued.certificate, &issued.key, authority.certificate()).unwrap());
    let clear = IbConfig::default();
    for (near, far, words) in [
        (&clear, &secure, ["it requires TLS, and this side has no certificate", "it speaks without TLS"]),
        (&secure, &clear, ["it speaks without TLS, and this side requires it", "it speaks TLS, and this side"]),
    ] {
        let clock = MonotonicClock::new();
        let (mut a, mut b) = (Side::new(clock, near.clone()), Side::new(clock, far.clone()));
        let (reason, log) = capture(|| {
            let addr = b.listen();
            let conn = a.dial(&addr);
            a.end_of(conn, &mut [&mut b], "the refusal").1
        });
        assert_eq!(reason.kind(), ErrorKind::Denied, "{reason}");
        assert!(reason.to_string().contains(words[0]), "{reason}");
        assert!(log.iter().any(|line| line.text.contains(words[1])), "{log:?}");
        assert!(b.events.is_empty());
    }
}

/// Returns a raw socket to the listener, from an address of this machine.
fn raw_from(host: Ipv4Addr, addr: &Addr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((host, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, addr.port())).into()).unwrap();
    let socket = TcpStream::from(socket);
    socket.set_nonblocking(true).unwrap();
    socket
}

fn is_open(mut socket: &TcpStream) -> bool {
    matches!(socket.read(&mut [0; 1]), Err(error) if error.kind() == IoKind::WouldBlock)
}

/// In an earlier version, as many silent side channels as there are places kept everybody else out.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn silent_side_channels_keep_nobody_out() {
    let clock = MonotonicClock::new();
    let mut config = patient();
    (config.limits.max_half_open, config.limits.max_connections) = (16, 8);
    let mut b = Side::new(clock, config);
    let mut a = Side::new(clock, IbConfig::default());
    let addr = b.listen();
    let mut crowd = Vec::new();
    for round in 0..5 {
        crowd.extend((0..10).map(|_| raw_from(Ipv4Addr::LOCALHOST, &addr)));
        let (near, far) = support::link(&mut a, &mut b, &addr);
        works(&mut a, near, &mut b, far, &format!("round {round}"));
        a.transport.disconnect(near, bmi_core::Time::ZERO);
        a.end_of(near, &mut [&mut b], "its end");
        b.end_of(far, &mut [&mut a], "its end");
    }
    let open = crowd.iter().filter(|socket| is_open(socket)).count();
    assert!((5..8).contains(&open), "{open} of the crowd are left: as many as there are places");
}

/// The crowd loses its own oldest side channels, not those of others.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_crowd_from_one_address_does_not_push_out_a_slow_peer_at_another() {
    let mut config = patient();
    config.limits.max_half_open = 4;
    let mut b = Side::new(MonotonicClock::new(), config);
    let addr = b.listen();
    let mut slow = raw_from(Ipv4Addr::new(127, 0, 0, 2), &addr);
    let mut crowd: Vec<_> = (0..20).map(|_| raw_from(Ipv4Addr::new(127, 0, 0, 3), &addr)).collect();
    for socket in &mut crowd[..17] {
        until_closed(&mut b, socket, "one of the crowd");
    }
    slow.write_all(&message(CONNECT)).unwrap();
    assert!(matches!(b.next("a request"), Event::ConnectRequest { .. }));
    assert!(crowd[17..].iter().all(is_open));
}

/// Each of many garbage connections wrote a line.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_flood_of_garbage_is_a_few_log_lines() {
    let mut b = Side::new(MonotonicClock::new(), IbConfig::default());
    let addr = b.listen();
    let ((), lines) = capture(|| {
        for _ in 0..100 {
            let mut socket = raw_to(&addr);
            socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            until_closed(&mut b, &mut socket, "garbage");
        }
        // What was left out is also reported when the transport goes.
        drop(b);
    });
    let lines: Vec<_> = lines.into_iter().filter(|line| line.level <= Level::WARN).collect();
    assert_eq!(lines.len(), 6, "{lines:?}");
    assert!(lines[..5].iter().all(|line| line.text.contains("not those of this protocol")), "{lines:?}");
    assert!(lines[5].text.contains("left_out=95") && lines[5].text.contains("127.0.0.1"), "{lines:?}");
}

/// Bytes that are not a greeting close their side channel and affect nothing else. A peer of
/// another version is told this side's version.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn nonsense_costs_its_sender_the_side_channel() {
    const TRIES: usize = 200;
    let mut pair = Pair::new();
    let mut rng = Rng::new(5);
    for round in 0..TRIES {
        let mut bytes = message(CONNECT).to_vec();
        match round % 5 {
            // Another version.
            0 => bytes[8] = 2 + rng.below(200) as u8,
            // Another protocol.
            1 => bytes[rng.below(8) as usize] ^= 1 + rng.below(255) as u8,
            // A message that may not come first.
            2 => bytes[10] = 2 + rng.below(250) as u8,
            // More private data than allowed.
            3 => bytes[12..14].copy_from_slice(&(257 + rng.below(60_000) as u16).to_le_bytes()),
            // No queue pair has such a number, and no port has such an MTU.
            _ if rng.chance(500) => bytes[19] = 1 + rng.below(255) as u8,
            _ => bytes[26] = 6 + rng.below(250) as u8,
        }
        let mut socket = raw_to(&pair.addr);
        socket.write_all(&bytes).unwrap();
        let said = until_closed(&mut pair.b, &mut socket, "nonsense");
        if round % 5 == 0 {
            assert_eq!((&said[..8], said[8]), (&b"bmi-ib\r\n"[..], 1), "it is told our version");
        }
    }
    assert!(pair.b.events.is_empty(), "nobody above hears of it: {:?}", pair.b.events);
    let (near, far) = (pair.near, pair.far);
    works(&mut pair.a, near, &mut pair.b, far, "the connection beside is as it was");
}

/// A peer that was accepted and never confirms gets no longer than the handshake may take. The same
/// holds for a peer that only dials.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_handshake_that_is_never_finished_ends() {
    let clock = MonotonicClock::new();
    let mut b = Side::new(clock, impatient());
    let mut socket = raw(&mut b);
    socket.write_all(&message(CONNECT)).unwrap();
    let Event::ConnectRequest { conn, .. } = b.next("a request") else { panic!("no request") };
    b.transport.accept(conn, b"").unwrap();
    let (_, reason) = b.end_of(conn, &mut [], "the end of one who does not confirm");
    assert_eq!(reason.kind(), ErrorKind::TimedOut, "{reason}");
    until_closed(&mut b, &mut socket, "the side channel of one who does not confirm");

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = Addr::ib(None, "127.0.0.1", silent.local_addr().unwrap().port());
    let deadline = b.now() + Duration::from_millis(200);
    let conn = b.transport.connect(&addr, b"", deadline).unwrap();
    let (_, reason) = b.end_of(conn, &mut [], "the end of dialing one who is silent");
    assert_eq!(reason.kind(), ErrorKind::TimedOut, "{reason}");
    assert!(b.now() >= deadline, "not before its deadline");
}

/// The kernel looks up the address of a peer's adapter, and gives up after a second if no host has
/// it. In an earlier version no other connection moved meanwhile.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn an_address_of_no_host_delays_nobody_else() {
    let mut pair = Pair::new();
    let mut greeting = message(CONNECT);
    greeting[47] = 222;
    let mut ends = Vec::new();
    for deadline in [None, Some(bmi_core::Time::ZERO)] {
        let mut socket = raw_to(&pair.addr);
        socket.write_all(&greeting).unwrap();
        let Event::ConnectRequest { conn, .. } = pair.b.next("a request") else { panic!("no request") };
        let landing = Memory::zeroed(8).unwrap();
        let region = pair.b.transport.register(&landing).unwrap();
        pair.b.transport.post_recv(conn, WorkId(1), &[region.segment(0, 8)]).unwrap();
        pair.b.transport.accept(conn, b"").unwrap();
        pair.b.poll();
        assert!(pair.b.events.is_empty(), "the outcome was waited for: {:?}", pair.b.events);
        // An end that is asked for meanwhile comes when the look-up is over.
        deadline.into_iter().for_each(|deadline| pair.b.transport.disconnect(conn, deadline));
        ends.push((conn, socket));
    }
    // They are looked up at the same time, and may end in any order.
    let (mut flushed, mut reasons) = (Vec::new(), Vec::new());
    while reasons.len() < 2 {
        match pair.b.next_beside(&mut [&mut pair.a], "the ends of those that cannot be reached") {
            Event::Work(end) => flushed.push((end.conn, end.work, end.status)),
            Event::Disconnected { conn, reason } => {
                let at = flushed.iter().position(|(of, ..)| *of == conn).expect("its receive ends before it");
                assert_eq!(flushed.swap_remove(at), (conn, WorkId(1), WorkStatus::Flushed));
                reasons.push((conn, reason));
            }
            other => panic!("{other:?}"),
        }
    }
    for (kind, (conn, mut socket)) in [ErrorKind::Io, ErrorKind::Cancelled].into_iter().zip(ends) {
        let (_, reason) = reasons.iter().find(|(ended, _)| *ended == conn).unwrap();
        assert_eq!(reason.kind(), kind, "{reason}");
        until_closed(&mut pair.b, &mut socket, "its side channel");
    }
    let (near, far) = (pair.near, pair.far);
    works(&mut pair.a, near, &mut pair.b, far, "the connection beside is as it was");
}

/// A message at a point where it is not allowed ends the connection, with all posted work.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_message_out_of_order_ends_the_connection() {
    for second in [CONNECT, READY, CHECKED, 99] {
        let mut b = Side::new(MonotonicClock::new(), impatient());
        let mut socket = raw(&mut b);
        socket.write_all(&message(CONNECT)).unwrap();
        let Event::ConnectRequest { conn, .. } = b.next("a request") else { panic!("no request") };
        let landing = Memory::zeroed(8).unwrap();
        let region = b.transport.register(&landing).unwrap();
        b.transport.post_recv(conn, WorkId(1), &[region.segment(0, 8)]).unwrap();
        socket.write_all(&message(second)).unwrap();
        let (completions, reason) = b.end_of(conn, &mut [], "the end of one who speaks out of order");
        assert_eq!(reason.kind(), ErrorKind::Protocol, "{second}: {reason}");
        let ends: Vec<_> = completions.iter().map(|completion| (completion.work, completion.status)).collect();
        assert_eq!(ends, [(WorkId(1), WorkStatus::Flushed)], "{second}");
        until_closed(&mut b, &mut socket, "the side channel");
    }
}

/// Two sides that dial each other at once get two connections, and both carry messages.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn two_that_dial_each_other_at_once() {
    let clock = MonotonicClock::new();
    let (mut a, mut b) = (Side::new(clock, IbConfig::default()), Side::new(clock, IbConfig::default()));
    let (at_a, at_b) = (a.listen(), b.listen());
    for round in 0..20 {
        let (from_a, from_b) = (a.dial(&at_b), b.dial(&at_a));
        let (mut to_a, mut to_b) = (None, None);
        let mut established = 0;
        let give_up = a.now() + support::PATIENCE;
        while established < 4 {
            assert!(a.now() < give_up, "round {round}: {established} of 4 sides are established");
            for (side, asked) in [(&mut a, &mut to_a), (&mut b, &mut to_b)] {
                side.poll();
                while let Some(event) = side.events.pop_front() {
                    match event {
                        Event::ConnectRequest { conn, .. } => {
                            side.transport.accept(conn, b"").unwrap();
                            *asked = Some(conn);
                        }
                        Event::Established { .. } => established += 1,
                        other => panic!("round {round}: {other:?}"),
                    }
                }
            }
        }
        let (to_a, to_b) = (to_a.unwrap(), to_b.unwrap());
        works(&mut a, from_a, &mut b, to_b, "the one that a dialed");
        works(&mut b, from_b, &mut a, to_a, "the one that b dialed");
        for (side, conns) in [(&mut a, [from_a, to_a]), (&mut b, [from_b, to_b])] {
            conns.into_iter().for_each(|conn| side.transport.disconnect(conn, bmi_core::Time::ZERO));
        }
        ends(&mut a, &mut b);
        ends(&mut b, &mut a);
    }
}

/// Waits until both connections of `side` have ended.
fn ends(side: &mut Side, other: &mut Side) {
    let mut ended = 0;
    while ended < 2 {
        ended += u32::from(matches!(side.next_beside(&mut [other], "the ends"), Event::Disconnected { .. }));
    }
}
