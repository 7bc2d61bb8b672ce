//! Raw sockets against a transport (C8): garbage, and truncated, oversized and misplaced frames.
//! The connection ends with a reason, and other connections continue.

use std::io::{Read, Write};
use std::net::TcpStream;

use bmi_core::transport::{Event, WorkId, WorkStatus};
use bmi_core::{Access, Addr, ErrorKind, Transport};

use crate::common::{World, established, preamble, raw, world, world_with};

fn header(kind: u8, flags: u8, here: u32, value: u64) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend(here.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    bytes
}

fn long_header(kind: u8, flags: u8, here: u32, value: u64, key: u64, addr: u64, detail: u32) -> Vec<u8> {
    let mut bytes = header(kind, flags, here, value);
    bytes.extend(key.to_le_bytes());
    bytes.extend(addr.to_le_bytes());
    bytes.extend(u64::from(detail).to_le_bytes());
    bytes
}

/// Returns the bytes that the socket receives until its end.
fn read_to_end(world: &mut World, socket: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    world.until(|_| {
        let mut more = [0; 4096];
        match socket.read(&mut more) {
            Ok(0) => Some(()),
            Ok(n) => {
                bytes.extend(&more[..n]);
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(()),
        }
    });
    bytes
}

#[test]
fn garbage_instead_of_a_preamble() {
    let mut oversized = preamble(1, &[]);
    oversized[12..14].copy_from_slice(&257u16.to_le_bytes());
    let mut extra = preamble(1, b"x");
    extra.push(1);
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0], preamble(2, &[]), preamble(9, &[]), oversized, extra] {
        let mut world = world();
        let mut socket = raw(&mut world);
        socket.write_all(&bytes).unwrap();
        read_to_end(&mut world, &mut socket);
        assert!(world.b.events.is_empty(), "{bytes:?}");
    }
}

#[test]
fn another_version_is_told_ours() {
    let mut world = world();
    let mut socket = raw(&mut world);
    let mut bytes = preamble(1, &[]);
    bytes[8] = 2;
    socket.write_all(&bytes).unwrap();
    assert_eq!(read_to_end(&mut world, &mut socket), preamble(3, &[]));
    assert!(world.b.events.is_empty());
}

/// Each socket of another version is kept for a while, so that the peer sees the answer. Without a
/// bound on their number, a peer that only dials used up all descriptors, although the number of
/// half-open sockets stayed below its limit.
#[test]
fn sockets_of_another_version_do_not_pile_up() {
    let mut config = bmi_tcp::TcpConfig::default();
    config.limits.max_half_open = 3;
    let mut world = world_with(&config);
    let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let mut bytes = preamble(1, &[]);
    bytes[8] = 2;
    let mut sockets = Vec::new();
    for _ in 0..8 {
        let mut socket = TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.write_all(&bytes).unwrap();
        assert_eq!(read_to_end(&mut world, &mut socket), preamble(3, &[]), "all are told");
        sockets.push(socket);
    }
    // A socket that was released answers a byte with a reset.
    let is_held = |socket: &mut TcpStream| socket.write_all(&[0]).and_then(|()| socket.write_all(&[0])).is_ok();
    assert_eq!(sockets.iter_mut().filter_map(|socket| is_held(socket).then_some(())).count(), 3);
}

#[test]
fn a_listener_of_another_version_or_protocol() {
    for (bytes, kind) in [
        (
            {
                let mut bytes = preamble(3, &[]);
                bytes[8] = 7;
                bytes
            },
            ErrorKind::Incompatible,
        ),
        (b"SSH-2.0-OpenSSH".to_vec(), ErrorKind::Protocol),
        (preamble(1, &[]), ErrorKind::Protocol),
    ] {
        let mut world = world();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = Addr::tcp("127.0.0.1", listener.local_addr().unwrap().port());
        let deadline = world.later(5);
        let conn = world.a.transport.connect(&addr, &[], deadline).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&bytes).unwrap();
        let reason = world.until(|world| world.a.take_end(conn));
        assert_eq!(reason.kind(), kind, "{reason}");
    }
}

#[test]
fn speaking_before_being_accepted() {
    let mut world = world();
    let mut socket = raw(&mut world);
    socket.write_all(&preamble(1, &[])).unwrap();
    let conn = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    socket.write_all(&header(1, 0, 0, 0)).unwrap();
    let reason = world.until(|world| world.b.take_end(conn));
    assert_eq!(reason.kind(), ErrorKind::Protocol);
}

#[test]
fn every_malformed_or_misplaced_frame_ends_the_connection() {
    let piece = 256 << 10;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("unknown kind", header(0, 0, 0, 0)),
        ("unknown kind", header(200, 0, 0, 0)),
        ("flags", header(1, 1, 0, 0)),
        ("write flags", long_header(2, 2, 0, 0, 0, 0, 0)),
        ("immediate without its flag", long_header(2, 0, 0, 0, 0, 0, 9)),
        ("reserved", vec![1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("piece shorter than the rule", header(1, 0, 3, 10)),
        ("piece longer than the message", header(1, 0, 11, 10)),
        ("piece longer than a frame", header(1, 0, piece + 1, u64::from(piece) + 1)),
        ("8 EiB message", header(1, 0, piece, u64::MAX)),
        ("write of 16 EiB", long_header(2, 0, piece, u64::MAX, 0, 1, 0)),
        ("read of 16 EiB", long_header(4, 0, 0, u64::MAX, 0, u64::MAX, 0)),
        ("data of no message", header(3, 0, 5, 0)),
        ("reply to no read", header(5, 0, 5, 0)),
        ("empty reply to no read", header(5, 0, 0, 0)),
        ("read with payload", long_header(4, 0, 1, 1, 0, 0, 0)),
        ("close with payload", header(6, 0, 1, 0)),
        ("error of no known code", header(7, 0, 0, 99)),
    ];
    for (what, bytes) in cases {
        let mut world = world();
        let (mut socket, conn) = established(&mut world);
        let (memory, segment) = world.b.memory(100);
        world.b.transport.post_recv(conn, WorkId(1), &[segment]).unwrap();
        socket.write_all(&bytes).unwrap();
        let work = world.work_b();
        assert!(matches!(work.status, WorkStatus::Flushed | WorkStatus::TooLong), "{what}: {work:?}");
        let reason = world.until(|world| world.b.take_end(conn));
        assert_eq!(reason.kind(), ErrorKind::Protocol, "{what}: {reason}");
        let last = read_to_end(&mut world, &mut socket);
        assert_eq!((last.len(), last[0]), (16, 7), "{what}: the peer is told");
        assert_eq!(memory.to_vec(), [0; 100], "{what}");
    }
}

#[test]
fn a_message_within_a_message_and_a_wrong_next_piece() {
    let len = 600_000u64;
    let mut first = header(1, 0, 256 << 10, len);
    first.extend(vec![5; 256 << 10]);
    for next in [header(1, 0, 0, 0), header(3, 0, 1, 0), long_header(2, 0, 0, 0, 0, 0, 0)] {
        let mut world = world();
        let (mut socket, conn) = established(&mut world);
        let (_, segment) = world.b.memory(len as usize);
        world.b.transport.post_recv(conn, WorkId(1), &[segment]).unwrap();
        world.b.transport.post_recv(conn, WorkId(2), &[]).unwrap();
        let mut bytes = first.clone();
        bytes.extend(next);
        let mut sent = 0;
        world.until(|_| {
            sent += socket.write(&bytes[sent..]).unwrap_or(0);
            (sent == bytes.len()).then_some(())
        });
        let reason = world.until(|world| world.b.take_end(conn));
        assert_eq!(reason.kind(), ErrorKind::Protocol, "{reason}");
    }
}

#[test]
fn too_many_reads_end_the_connection() {
    let mut world = world();
    let (mut socket, conn) = established(&mut world);
    let (_, segment) = world.b.memory(1 << 20);
    let remote = world.b.transport.expose(conn, &segment, Access::READ).unwrap();
    // The test never reads the socket, so the replies pile up.
    let bytes: Vec<u8> = (0..200).flat_map(|id| long_header(4, 0, 0, 1 << 20, remote.key.0, 0, id)).collect();
    socket.write_all(&bytes).unwrap();
    // Bytes on the wire cannot be taken back. The linger time ends the connection.
    world.settle();
    world.now = world.later(1);
    let reason = world.until(|world| world.b.take_end(conn));
    assert_eq!(reason.kind(), ErrorKind::Protocol, "{reason}");
}

#[test]
fn frames_cut_at_every_byte_arrive_whole() {
    let mut world = world();
    let (mut socket, conn) = established(&mut world);
    let (memory, segment) = world.b.memory(64);
    let remote = world.b.transport.expose(conn, &segment.slice(32, 32), Access::WRITE).unwrap();
    let mut bytes = header(1, 0, 5, 5);
    bytes.extend(b"hello");
    bytes.extend(long_header(2, 1, 3, 3, remote.key.0, 4, 42));
    bytes.extend(b"abc");
    for cut in 0..=bytes.len() {
        memory.copy_from(0, &[0; 64]);
        world.b.transport.post_recv(conn, WorkId(1), &[segment.slice(0, 8)]).unwrap();
        world.b.transport.post_recv(conn, WorkId(2), &[]).unwrap();
        socket.write_all(&bytes[..cut]).unwrap();
        for _ in 0..200 {
            world.poll();
        }
        socket.write_all(&bytes[cut..]).unwrap();
        let (first, second) = (world.work_b(), world.work_b());
        assert_eq!((first.work, first.len, first.status), (WorkId(1), 5, WorkStatus::Ok));
        assert_eq!((second.work, second.immediate), (WorkId(2), Some(42)));
        assert_eq!(memory.to_vec()[..6], *b"hello\0");
        assert_eq!(memory.to_vec()[35..40], *b"\0abc\0");
    }
}

#[test]
fn a_socket_that_ends_within_a_frame() {
    let mut world = world();
    let (mut socket, conn) = established(&mut world);
    let (_, segment) = world.b.memory(100);
    world.b.transport.post_recv(conn, WorkId(1), &[segment]).unwrap();
    socket.write_all(&header(1, 0, 50, 50)).unwrap();
    socket.write_all(&[1; 20]).unwrap();
    drop(socket);
    assert_eq!(world.work_b().status, WorkStatus::Flushed);
    assert_eq!(world.until(|world| world.b.take_end(conn)).kind(), ErrorKind::PeerLost);
}

#[test]
fn a_hostile_connection_does_not_disturb_another() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (mut socket, conn) = established(&mut world);
    socket.write_all(&[0xff; 5000]).unwrap();
    world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
    let options = bmi_core::transport::WorkOptions::UNSIGNALLED;
    world.a.transport.post_send(ca, WorkId(1), &[], bmi_core::transport::Payload::EMPTY, options).unwrap();
    assert_eq!(world.work_b().status, WorkStatus::Ok);
    assert_eq!(world.until(|world| world.b.take_end(conn)).kind(), ErrorKind::Protocol);
}
