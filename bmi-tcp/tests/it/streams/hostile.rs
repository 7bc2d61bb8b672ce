//! Sockets that would join a connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use bmi_core::transport::{ConnId, Event, WorkId, WorkStatus};
use bmi_core::{Access, ErrorKind, Transport};

use super::world;
use crate::common::{World, preamble, raw};

fn header(kind: u8, flags: u8, here: u32, value: u64, key: u64, detail: u32) -> Vec<u8> {
    let mut bytes = vec![kind, flags, 0, 0];
    bytes.extend(here.to_le_bytes());
    bytes.extend([value, key, 0, detail.into()].map(u64::to_le_bytes).concat());
    bytes
}

/// The first bytes of a connection that asks for 3 further streams, or that agrees to them.
fn spread(kind: u8, private: &[u8]) -> Vec<u8> {
    let mut bytes = preamble(kind, private);
    bytes[11] = 3;
    bytes
}

fn read(world: &mut World, socket: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    world.until(|_| matches!(socket.peek(&mut bytes), Ok(n) if n == len).then_some(()));
    socket.read_exact(&mut bytes).unwrap();
    bytes
}

/// Returns an established connection that has places for 3 further streams, and its token.
fn established(world: &mut World) -> (TcpStream, ConnId, Vec<u8>) {
    let mut socket = raw(world);
    socket.write_all(&spread(1, b"raw")).unwrap();
    let conn = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.accept(conn, b"ok").unwrap();
    world.until(|world| world.b.take(|event| matches!(event, Event::Established { .. }).then_some(())));
    let answer = read(world, &mut socket, 38);
    assert_eq!(answer[..18], spread(2, b"ok"));
    (socket, conn, answer[18..].to_vec())
}

/// Returns a further socket to the same listener, after it has said this.
fn another(first: &TcpStream, bytes: &[u8]) -> TcpStream {
    let mut socket = TcpStream::connect(first.peer_addr().unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.write_all(bytes).unwrap();
    socket
}

/// Returns a stream that has joined.
fn joined(world: &mut World, first: &TcpStream, token: &[u8]) -> TcpStream {
    let mut socket = another(first, &preamble(4, token));
    assert_eq!(read(world, &mut socket, 16), preamble(2, &[]));
    socket.write_all(&preamble(2, &[])).unwrap();
    socket
}

fn assert_closed(world: &mut World, mut socket: TcpStream) {
    world.until(|_| match socket.read(&mut [0; 100]) {
        Ok(0) => Some(()),
        Ok(n) => panic!("{n} bytes"),
        Err(error) => (error.kind() != std::io::ErrorKind::WouldBlock).then_some(()),
    });
}

#[test]
fn only_who_has_the_token_joins_and_only_as_many_as_were_agreed() {
    let mut world = world(4);
    let (first, conn, token) = established(&mut world);
    for at in 0..token.len() {
        let mut wrong = token.clone();
        wrong[at] ^= 1;
        let socket = another(&first, &preamble(4, &wrong));
        assert_closed(&mut world, socket);
    }
    for wrong in
        [preamble(4, &token[1..]), preamble(4, &[]), spread(4, &token), [preamble(4, &token), vec![0]].concat()]
    {
        let socket = another(&first, &wrong);
        assert_closed(&mut world, socket);
    }
    let streams = [(); 3].map(|()| joined(&mut world, &first, &token));
    let fourth = another(&first, &preamble(4, &token));
    assert_closed(&mut world, fourth);
    assert!(world.b.events.is_empty(), "the connection goes on");
    drop(streams);
    assert_eq!(world.until(|world| world.b.take_end(conn)).kind(), ErrorKind::PeerLost);
    let late = another(&first, &preamble(4, &token));
    assert_closed(&mut world, late);
}

/// A place that was given up before its stream joined is free again.
#[test]
fn half_a_join_holds_a_place_only_while_its_socket_lives() {
    let mut world = world(4);
    let (first, _, token) = established(&mut world);
    for _ in 0..3 {
        let mut half = [(); 3].map(|()| another(&first, &preamble(4, &token)));
        half.iter_mut().for_each(|socket| drop(read(&mut world, socket, 16)));
        let fourth = another(&first, &preamble(4, &token));
        assert_closed(&mut world, fourth);
        drop(half);
        world.settle();
    }
    // As any socket that does not introduce itself.
    let cut = another(&first, &preamble(4, &token)[..20]);
    world.settle();
    world.now = world.later(6);
    assert_closed(&mut world, cut);
    let garbage = [(); 3].map(|()| {
        let mut socket = another(&first, &preamble(4, &token));
        drop(read(&mut world, &mut socket, 16));
        socket.write_all(&[7; 16]).unwrap();
        socket
    });
    garbage.into_iter().for_each(|socket| assert_closed(&mut world, socket));
    joined(&mut world, &first, &token);
}

#[test]
fn what_has_no_place_on_a_further_stream_ends_the_connection() {
    const PIECE: u32 = 256 << 10;
    for (what, bytes) in [
        ("a message", header(1, 0, 0, 0, 0, 0)[..16].to_vec()),
        ("an announcement", header(8, 0, 0, 1 << 20, 5, 0)),
        ("the end", header(6, 0, 0, 0, 0, 0)[..16].to_vec()),
        ("a part of no read", header(9, 0, 0, 0, 0, 0)),
        ("a part of a read that was done", header(9, 0, 0, 0, 0, u32::MAX)),
        ("a part of a write that was done", header(9, 1, 0, 0, 0, u32::MAX)),
        ("a part at an odd place", header(9, 1, 100, 100, 0, 0)),
        ("a short part", header(9, 1, 100, 0, 0, 0)),
        ("a part behind the end", header(9, 1, 0, 3 << 20, 0, 0)),
        ("a part twice", [header(9, 1, PIECE, 0, 0, 0), vec![0; PIECE as usize]].concat().repeat(5)),
    ] {
        let mut world = world(4);
        let (mut first, conn, token) = established(&mut world);
        let mut further = joined(&mut world, &first, &token);
        let (_, segment) = world.b.memory(1 << 20);
        let remote = world.b.transport.expose(conn, &segment, Access::WRITE).unwrap();
        world.b.transport.post_recv(conn, WorkId(1), &[]).unwrap();
        first.write_all(&header(8, 0, 0, 1 << 20, remote.key.0, 0)).unwrap();
        world.settle();
        let mut sent = 0;
        let reason = world.until(|world| {
            sent += further.write(&bytes[sent..]).unwrap_or(0);
            world.b.take_end(conn)
        });
        assert_eq!(reason.kind(), ErrorKind::Protocol, "{what}: {reason}");
        assert_eq!(world.work_b().status, WorkStatus::Flushed, "{what}");
    }
}

/// A part whose announcement never comes waits, and holds up nobody.
#[test]
fn a_part_without_its_announcement_waits() {
    let mut world = world(4);
    let (mut first, conn, token) = established(&mut world);
    let mut further = joined(&mut world, &first, &token);
    further.write_all(&header(9, 1, 100, 0, 0, 0)).unwrap();
    further.write_all(&[7; 100]).unwrap();
    world.settle();
    let (there, segment) = world.b.memory(100);
    let remote = world.b.transport.expose(conn, &segment, Access::WRITE).unwrap();
    world.b.transport.post_recv(conn, WorkId(1), &[]).unwrap();
    first.write_all(&header(1, 0, 0, 0, 0, 0)[..16]).unwrap();
    assert_eq!(world.work_b().status, WorkStatus::Ok);
    assert_eq!(there.to_vec(), [0; 100]);
    first.write_all(&header(8, 0, 0, 100, remote.key.0, 0)).unwrap();
    world.settle();
    assert!(world.b.events.is_empty(), "{:?}", world.b.events);
    assert_eq!(there.to_vec(), [7; 100]);
}

/// Without several streams their frames have no meaning.
#[test]
fn frames_of_several_streams_need_several_streams() {
    for bytes in [header(8, 0, 0, 1 << 20, 5, 0), header(9, 0, 0, 0, 0, 0), header(9, 1, 0, 0, 0, 0)] {
        let mut world = world(1);
        let (mut socket, conn) = crate::common::established(&mut world);
        socket.write_all(&bytes).unwrap();
        assert_eq!(world.until(|world| world.b.take_end(conn)).kind(), ErrorKind::Protocol);
    }
}
