//! Sockets that send nothing, against a listener. An honest client connects all the while. In an
//! earlier version, 256 of them kept everybody else out.

use std::os::fd::OwnedFd;

use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Time, Transport};
use bmi_shm::{ShmConfig, ShmTransport};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with};

use crate::common::{World, world_with};

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
    config.limits.max_half_open = 64;
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

/// Three adapters behind one address, of which two do not poll. Silent sockets take the places that
/// wait for those two and the places of the third, and no more. A newcomer is served all the same.
/// When the two poll again, the time of what waited for them is over: it counts from the arrival.
#[test]
fn silent_sockets_at_members_that_do_not_poll_keep_nobody_out() {
    let mut config = ShmConfig::default();
    config.limits.max_half_open = 16;
    let mut world = world_with(&config);
    let mut members = ShmTransport::shards(config, 3).unwrap();
    world.b.transport = members.remove(0);
    let addr = world.addr();
    let listener = world.b.transport.listen(&addr).unwrap();
    let crowd: Vec<_> = (0..100).map(|_| silent(&mut world, &listener)).collect();
    world.settle();
    assert_eq!(crowd.iter().filter(|socket| is_open(socket)).count(), 12 + 4 + 4);
    visit(&mut world, &listener);

    world.now = world.later(6);
    let poll = |members: &mut Vec<ShmTransport>, now: Time| {
        let mut events = Vec::new();
        for member in members {
            member.poll(now, &mut events);
        }
        events
    };
    assert!(poll(&mut members, world.now).is_empty());
    world.now = world.later(1);
    assert!(poll(&mut members, world.now).is_empty());
    world.settle();
    assert!(!crowd.iter().any(is_open), "five seconds are over");
}
