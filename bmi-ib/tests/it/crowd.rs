//! Silent side channels against a group of adapters behind one address (C17). Needs an RDMA device;
//! `cargo xtask rxe` has one. For an adapter that is alone see [`crate::side_channel`].

use std::io::{ErrorKind as IoKind, Read};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{self, Side};
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::Event;
use bmi_core::{Addr, Time, Transport};
use bmi_ib::{IbConfig, IbTransport};

/// The places of each member. A quarter of them is for sockets that wait to be handed over.
const PLACES: usize = 16;

/// A group of three: the first one, which listens, the others, and the address.
fn group(clock: MonotonicClock, mut config: IbConfig) -> (Side, Vec<IbTransport>, Addr) {
    config.limits.max_half_open = PLACES;
    // Side channels leave only because others need their places, or when a test says so.
    config.limits.handshake_timeout = Duration::from_secs(600);
    let mut members = IbTransport::shards(config, 3).expect("this machine has an RDMA device");
    let mut listener = Side::over(clock, members.remove(0));
    let addr = listener.listen();
    (listener, members, addr)
}

fn silent(addr: &Addr) -> TcpStream {
    let socket = TcpStream::connect(("127.0.0.1", addr.port())).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn is_open(mut socket: &TcpStream) -> bool {
    matches!(socket.read(&mut [0; 1]), Err(error) if error.kind() == IoKind::WouldBlock)
}

fn open(crowd: &[TcpStream]) -> usize {
    crowd.iter().filter(|socket| is_open(socket)).count()
}

/// Polls the members that do not listen, as if it were `now`.
fn poll(members: &mut [IbTransport], now: Time) -> Vec<Event> {
    let mut events = Vec::new();
    members.iter_mut().for_each(|member| {
        member.poll(now, &mut events);
    });
    events
}

/// Polls until so many of the crowd are left, and checks that it stays so.
fn until_left(listener: &mut Side, crowd: &[TcpStream], left: usize) {
    let give_up = listener.now() + support::PATIENCE;
    while open(crowd) != left {
        assert!(listener.now() < give_up, "{} of the crowd are left, not {left}", open(crowd));
        listener.poll();
        std::thread::yield_now();
    }
    for _ in 0..100 {
        listener.poll();
    }
    assert_eq!(open(crowd), left);
}

/// A newcomer connects by the member that listens, and disconnects.
fn visit(listener: &mut Side, guest: &mut Side, addr: &Addr) {
    let (near, far) = support::link(guest, listener, addr);
    guest.transport.disconnect(near, Time::ZERO);
    guest.end_of(near, &mut [listener], "the end of the visit");
    listener.end_of(far, &mut [guest], "the end of the visit");
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn silent_sockets_take_the_places_of_each_member_and_no_more() {
    let clock = MonotonicClock::new();
    let (mut listener, mut members, addr) = group(clock, IbConfig::default());
    let mut guest = Side::new(clock, IbConfig::default());
    let mut crowd = Vec::new();
    for _ in 0..10 {
        crowd.extend((0..20).map(|_| silent(&addr)));
        let near = guest.dial(&addr);
        let give_up = listener.now() + support::PATIENCE;
        let mut requests = 0;
        while requests == 0 {
            assert!(listener.now() < give_up, "the newcomer is not served");
            guest.poll();
            listener.poll();
            let now = listener.now();
            let events = listener.events.drain(..).chain(poll(&mut members, now));
            requests += events.filter(|event| matches!(event, Event::ConnectRequest { .. })).count();
            std::thread::yield_now();
        }
        guest.transport.disconnect(near, Time::ZERO);
        guest.end_of(near, &mut [&mut listener], "its end");
    }
    let left = open(&crowd);
    assert!((30..=3 * PLACES * 3 / 4).contains(&left), "{left} of the crowd are left");
}

/// The sockets that wait for members which do not poll are bounded, and the member that polls
/// serves newcomers. When the others poll again, the time of what waited for them is over: it
/// counts from the arrival.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn silent_sockets_at_members_that_do_not_poll_keep_nobody_out() {
    let clock = MonotonicClock::new();
    let (mut listener, mut members, addr) = group(clock, IbConfig::default());
    let mut guest = Side::new(clock, IbConfig::default());
    let crowd: Vec<_> = (0..100).map(|_| silent(&addr)).collect();
    until_left(&mut listener, &crowd, 12 + 4 + 4);
    visit(&mut listener, &mut guest, &addr);
    let before = open(&crowd);
    assert!(before >= 4 + 4, "{before}: those that wait for the others are left");
    let later = listener.now() + Duration::from_secs(601);
    assert!(poll(&mut members, later).is_empty());
    poll(&mut members, later);
    until_left(&mut listener, &crowd, before - (4 + 4));
}

/// A group has as many connections as its members together, and each member no more than its own.
/// Sockets that wait count as well.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn each_member_has_its_own_limit_of_connections() {
    let clock = MonotonicClock::new();
    let mut config = IbConfig::default();
    config.limits.max_connections = 4;
    let (mut listener, mut members, addr) = group(clock, config);
    let crowd: Vec<_> = (0..40).map(|_| silent(&addr)).collect();
    until_left(&mut listener, &crowd, 3 * 4);
    let now = listener.now();
    assert!(poll(&mut members, now).is_empty());
    until_left(&mut listener, &crowd, 3 * 4);
    visit(&mut listener, &mut Side::new(clock, IbConfig::default()), &addr);
}
