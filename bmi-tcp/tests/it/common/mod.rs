//! Two TCP adapters in one process, and raw sockets to them.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its part")]

use std::io::{Read, Write};
use std::net::TcpStream;

use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Transport};
use bmi_tcp::{TcpConfig, TcpTransport};

pub(crate) type World = bmi_conformance::world::World<TcpTransport>;

/// Returns a world with the default configuration.
pub(crate) fn world() -> World {
    world_with(&TcpConfig::default())
}

pub(crate) fn world_with(config: &TcpConfig) -> World {
    let transport = || TcpTransport::new(config.clone()).unwrap();
    World::new(transport(), transport(), || Addr::tcp("127.0.0.1", 0))
}

/// Returns a preamble of the wire format.
pub(crate) fn preamble(kind: u8, private: &[u8]) -> Vec<u8> {
    let mut bytes = b"BMI-TCP\n".to_vec();
    bytes.extend([1, 0, kind, 0]);
    bytes.extend((private.len() as u16).to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(private);
    bytes
}

/// Returns a raw socket to the listener `b`.
pub(crate) fn raw(world: &mut World) -> TcpStream {
    let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let socket = TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Returns an established connection with a raw socket at the other end.
pub(crate) fn established(world: &mut World) -> (TcpStream, ConnId) {
    let mut socket = raw(world);
    socket.write_all(&preamble(1, b"raw")).unwrap();
    let conn = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.accept(conn, b"ok").unwrap();
    world.until(|world| world.b.take(|event| matches!(event, Event::Established { .. }).then_some(())));
    let mut answer = [0; 18];
    world.until(|_| matches!(socket.peek(&mut answer), Ok(18)).then_some(()));
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..], preamble(2, b"ok"));
    (socket, conn)
}
