//! Sockets that send nothing, against a listener. An honest client connects all the while. In an
//! earlier version, 256 of them kept everybody else out.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::os::fd::OwnedFd;

use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Transport};
use bmi_shm::ShmConfig;
use common::{World, world_with};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};

/// Returns a socket to the listener that sends nothing.
fn silent(world: &mut World, listener: &Addr) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
    // The system's queue of connections may be short.
    while connect(&socket, &SocketAddrUnix::new(listener.host()).unwrap()).is_err() {
        world.poll();
    }
    socket
}

fn is_open(socket: &OwnedFd) -> bool {
    matches!(recv(socket, &mut [0; 1][..], RecvFlags::empty()), Err(rustix::io::Errno::AGAIN))
}

/// Connects to the listener at `b`, and disconnects.
#[track_caller]
fn visit(world: &mut World, listener: &Addr) {
    let deadline = world.later(60);
    let ca = world.a.transport.connect(listener, b"honest", deadline).unwrap();
    let cb: ConnId = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.accept(cb, &[]).unwrap();
    world.until(|world| world.a.take(|event| matches!(event, Event::Established { .. }).then_some(())));
    world.a.transport.disconnect(ca, deadline);
    world.until(|world| world.a.take_end(ca));
    world.until(|world| world.b.take_end(cb));
    world.b.events.clear();
}

#[test]
fn silent_sockets_keep_nobody_out() {
    let mut config = ShmConfig::default();
    config.max_half_open = 64;
    let mut world = world_with(&config);
    let addr = world.addr();
    let listener = world.b.transport.listen(&addr).unwrap();
    let mut crowd = Vec::new();
    for _ in 0..8 {
        crowd.extend((0..25).map(|_| silent(&mut world, &listener)).collect::<Vec<_>>());
        visit(&mut world, &listener);
    }
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 63, "all places but the one of the last visitor");
    assert!(crowd[..130].iter().all(|socket| !is_open(socket)), "the oldest are gone");
}
