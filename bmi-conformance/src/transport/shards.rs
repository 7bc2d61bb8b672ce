//! Several adapters behind one listening address (C17).
//!
//! These tests are for backends whose adapters can share an address ([`Backend::shards`]). Side `A`
//! connects. The members of the group are the sides behind it, and the first of them listens.

use std::ops::RangeInclusive;

use bmi_core::transport::{Armed, ConnId, Event, WorkKind};
use bmi_core::{Access, Addr, ErrorKind, Time, Transport};

use super::waiting::Sleeper;
use crate::backend::Backend;
use crate::data::{filled, memory};
use crate::rig::{A, Link, Rig};

/// The member that listens.
const FIRST: usize = 1;
const SECOND: usize = 2;
const THIRD: usize = 3;

/// Returns the sides of the first `count` members.
fn members(count: usize) -> RangeInclusive<usize> {
    FIRST..=count
}

/// Begins to connect. The private data tells the connections apart.
fn dial(rig: &mut Rig<'_>, addr: &Addr, private: &[u8]) -> ConnId {
    let deadline = rig.far_off();
    rig.adapter(A).connect(addr, private, deadline).expect("connect")
}

/// Waits for a request of this private data at any of the first `count` members.
fn request_at_any(rig: &mut Rig<'_>, count: usize, private: &[u8]) -> (usize, ConnId) {
    rig.wait("a request at any member", |rig| {
        members(count).find_map(|member| Some((member, rig.take_request(member, private)?)))
    })
}

/// Accepts a request, and waits until both sides are established.
fn accept(rig: &mut Rig<'_>, near: ConnId, member: usize, far: ConnId) -> Link {
    rig.adapter(member).accept(far, b"").expect("accept");
    for (side, conn) in [(A, near), (member, far)] {
        let event = rig.next_of(side, conn, "both sides established");
        assert!(matches!(event, Event::Established { .. }), "{event:?}");
    }
    Link { near, far }
}

/// Connects to the group of `count` members. Returns the member that has the connection.
fn link(rig: &mut Rig<'_>, count: usize, addr: &Addr) -> (usize, Link) {
    let near = dial(rig, addr, b"link");
    let (member, far) = request_at_any(rig, count, b"link");
    (member, accept(rig, near, member, far))
}

/// Connects twice while `absent` does not poll, and returns the names of the two connections: one
/// that `FIRST` has, as the second of the group to be served, and one that waits for `absent`. The
/// caller has made the group such that `absent` is next, and `FIRST` then.
fn one_that_waits(rig: &mut Rig<'_>, addr: &Addr) -> (Link, ConnId, &'static [u8]) {
    let nears = [(dial(rig, addr, b"x"), &b"x"[..]), (dial(rig, addr, b"y"), &b"y"[..])];
    let (at, far) = rig.wait("a request at the member that listens", |rig| {
        nears.iter().enumerate().find_map(|(at, (_, private))| Some((at, rig.take_request(FIRST, private)?)))
    });
    let served = accept(rig, nears[at].0, FIRST, far);
    let (near, private) = nears[1 - at];
    (served, near, private)
}

/// Connections go to the member that has fewest, one by one and in a burst. Where members have the
/// same number, the one that listens has precedence.
pub fn connections_are_spread_evenly(backend: &dyn Backend) {
    const COUNT: usize = 3;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    let (first, _) = link(&mut rig, COUNT, &addr);
    assert_eq!(first, FIRST, "the member that listens has precedence");
    let mut has = [0; COUNT + 1];
    has[first] += 1;
    for _ in 1..2 * COUNT {
        has[link(&mut rig, COUNT, &addr).0] += 1;
    }
    assert_eq!(has[FIRST..], [2; COUNT], "one by one");

    let nears: Vec<_> = (0..4 * COUNT).map(|_| dial(&mut rig, &addr, b"burst")).collect();
    for _ in &nears {
        let (member, far) = request_at_any(&mut rig, COUNT, b"burst");
        rig.adapter(member).accept(far, b"").expect("accept");
        has[member] += 1;
    }
    for near in nears {
        let event = rig.next_of(A, near, "established");
        assert!(matches!(event, Event::Established { .. }), "{event:?}");
    }
    assert_eq!(has[FIRST..], [6; COUNT], "in a burst");
}

/// Members that are left out get no connection until they take part, and keep those that they have.
pub fn members_are_left_out(backend: &dyn Backend) {
    const COUNT: usize = 3;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    rig.adapter(THIRD).spread(1);
    let taken = |rig: &mut Rig<'_>, number: usize| {
        let links: Vec<_> = (0..number).map(|_| link(rig, COUNT, &addr)).collect();
        links.iter().for_each(|(member, link)| rig.ping(A, *member, *link, "at a member that takes part"));
        links.into_iter().map(|(member, _)| member).collect::<Vec<_>>()
    };
    assert_eq!(taken(&mut rig, 3), [FIRST; 3], "it alone takes part");
    rig.adapter(FIRST).spread(2);
    assert_eq!(taken(&mut rig, 5), [SECOND, SECOND, SECOND, FIRST, SECOND], "until both have the same number");
    rig.adapter(SECOND).spread(COUNT);
    assert_eq!(taken(&mut rig, 4), [THIRD; 4]);
}

/// A connection that ends makes room at its member.
pub fn the_end_of_a_connection_counts(backend: &dyn Backend) {
    const COUNT: usize = 2;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    let links: Vec<_> = (0..4).map(|_| link(&mut rig, COUNT, &addr)).collect();
    for (member, link) in links.iter().filter(|(member, _)| *member == SECOND) {
        rig.adapter(A).disconnect(link.near, Time::ZERO);
        rig.end_of(A, link.near, "the end");
        rig.end_of(*member, link.far, "the end");
    }
    for _ in 0..2 {
        assert_eq!(link(&mut rig, COUNT, &addr).0, SECOND, "it has fewest");
    }
    // A connection that a member makes itself counts as well.
    let elsewhere = rig.listen(A);
    for _ in 0..2 {
        let near = rig.link_at(FIRST, A, &elsewhere);
        rig.ping(FIRST, A, near, "a connection of a member's own");
    }
    for _ in 0..2 {
        assert_eq!(link(&mut rig, COUNT, &addr).0, SECOND, "it has fewest");
    }
}

/// Messages and writes go both ways on the connections of each member. The names and the memory of
/// one member are of no use at another.
pub fn each_member_is_an_adapter(backend: &dyn Backend) {
    const COUNT: usize = 3;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    let links: Vec<_> = (0..2 * COUNT).map(|_| link(&mut rig, COUNT, &addr)).collect();
    for (number, (member, link)) in links.iter().enumerate() {
        rig.ping(A, *member, *link, "on each member");
        let (source, target) = (filled(number as u64, 5000), memory(5000));
        let from = rig.register(A, &source).segment(0, 5000);
        let (_region, remote) = rig.expose(*member, link.far, &target, Access::WRITE);
        rig.write(A, link.near, 7, &[from], remote).expect("write");
        rig.done(A, link.near, 7, WorkKind::Write, "the write");
        rig.ping(A, *member, *link, "behind the write");
        assert!(target.to_vec() == source.to_vec(), "the bytes at member {member}");
    }
    let foreign = rig.register(FIRST, &memory(8)).segment(0, 8);
    let (member, link) = links.iter().find(|(member, _)| *member == SECOND).expect("two for each");
    assert!(rig.recv(*member, link.far, 1, &[foreign]).is_err(), "memory of another member");
}

/// Each member may listen, at an address of its own, and all serve it. An address at which one
/// member listens is in use for the others.
pub fn each_member_may_listen(backend: &dyn Backend) {
    const COUNT: usize = 2;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addrs = [rig.listen(FIRST), rig.listen(SECOND)];
    let error = rig.adapter(SECOND).listen(&addrs[0]).expect_err("the address is taken");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let mut has = [0; COUNT + 1];
    for addr in addrs.iter().cycle().take(6) {
        let (member, link) = link(&mut rig, COUNT, addr);
        rig.ping(A, member, link, "over each listener");
        has[member] += 1;
    }
    assert_eq!(has[FIRST..], [3; COUNT]);
}

/// A group of one is an adapter like any other.
pub fn a_group_of_one(backend: &dyn Backend) {
    let mut rig = Rig::with_shards(backend, 1);
    let addr = rig.listen(FIRST);
    for _ in 0..3 {
        let (member, link) = link(&mut rig, 1, &addr);
        rig.ping(A, member, link, "in a group of one");
    }
}

/// A member sleeps, and is woken when a connection is handed to it (C11), each time. It does not go
/// to sleep while one waits.
pub fn a_handed_over_connection_wakes(backend: &dyn Backend) {
    const COUNT: usize = 2;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    for _ in 0..4 {
        assert_eq!(link(&mut rig, COUNT, &addr).0, FIRST, "both have the same number");
        let sleeper = Sleeper::asleep(&mut rig, SECOND, "idle before a connection is handed over");
        let near = dial(&mut rig, &addr, b"wake up");
        rig.wait("woken by a connection", |rig| sleeper.is_woken(rig.adapter(SECOND)).then_some(()));
        rig.pause(SECOND, false);
        let (member, far) = request_at_any(&mut rig, COUNT, b"wake up");
        assert_eq!(member, SECOND);
        let link = accept(&mut rig, near, member, far);
        rig.ping(A, SECOND, link, "after waking");
    }
    assert_eq!(link(&mut rig, COUNT, &addr).0, FIRST);
    rig.pause(SECOND, true);
    let (_, near, private) = one_that_waits(&mut rig, &addr);
    let sleeper = Sleeper::new();
    let armed = rig.adapter(SECOND).arm(&sleeper.waker());
    assert!(armed == Armed::Busy || sleeper.is_woken(rig.adapter(SECOND)), "asleep while a connection waits");
    rig.pause(SECOND, false);
    let far = rig.wait("the connection that waited", |rig| rig.take_request(SECOND, private));
    accept(&mut rig, near, SECOND, far);
}

/// A member stops polling. A connection that waits for it ends at its deadline, or is served when
/// the member polls again. The connections of the others go on, and so do new ones.
pub fn a_member_that_does_not_poll_stalls_nobody(backend: &dyn Backend) {
    const COUNT: usize = 2;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    let (_, before) = link(&mut rig, COUNT, &addr);
    rig.pause(SECOND, true);
    let (served, near, private) = one_that_waits(&mut rig, &addr);
    let deadline = rig.now() + backend.patience() / 40;
    let late = rig.adapter(A).connect(&addr, b"late", deadline).expect("connect");
    let (_, reason) = rig.end_of(A, late, "the deadline");
    assert_eq!(reason.kind(), ErrorKind::TimedOut, "{reason}");
    for link in [before, served] {
        rig.ping(A, FIRST, link, "beside a member that does not poll");
    }
    // Both members have two connections now, so the one that listens has precedence.
    let (member, next) = link(&mut rig, 1, &addr);
    rig.ping(A, member, next, "a new one beside a member that does not poll");

    rig.pause(SECOND, false);
    let far = rig.wait("the connection that waited", |rig| rig.take_request(SECOND, private));
    let link = accept(&mut rig, near, SECOND, far);
    rig.ping(A, SECOND, link, "it polls again");
}

/// A member is dropped while a connection waits for it. The others get the connection, and they
/// share those that come later.
pub fn what_waits_for_a_dropped_member_is_served(backend: &dyn Backend) {
    const COUNT: usize = 3;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    for expected in members(2) {
        assert_eq!(link(&mut rig, COUNT, &addr).0, expected);
    }
    rig.pause(THIRD, true);
    let (_, near, private) = one_that_waits(&mut rig, &addr);
    let sleeper = Sleeper::asleep(&mut rig, SECOND, "idle before it gets the connection");
    rig.drop_adapter(THIRD);
    rig.wait("woken by the connection", |rig| sleeper.is_woken(rig.adapter(SECOND)).then_some(()));
    rig.pause(SECOND, false);
    let far = rig.wait("the connection that waited", |rig| rig.take_request(SECOND, private));
    let waited = accept(&mut rig, near, SECOND, far);
    rig.ping(A, SECOND, waited, "at another member");
    for expected in [FIRST, SECOND, FIRST, SECOND] {
        assert_eq!(link(&mut rig, COUNT, &addr).0, expected, "two are left");
    }
    rig.drop_adapter(SECOND);
    for _ in 0..3 {
        assert_eq!(link(&mut rig, COUNT, &addr).0, FIRST, "one is left");
    }
}

/// The member that listens is dropped. Its connections end and nobody listens any more. What it has
/// handed over is served.
pub fn a_dropped_listener_leaves_what_it_handed_over(backend: &dyn Backend) {
    const COUNT: usize = 2;
    let mut rig = Rig::with_shards(backend, COUNT);
    let addr = rig.listen(FIRST);
    let (_, first) = link(&mut rig, COUNT, &addr);
    rig.pause(SECOND, true);
    let (_, near, private) = one_that_waits(&mut rig, &addr);
    rig.drop_adapter(FIRST);
    rig.pause(SECOND, false);
    let far = rig.wait("the connection that waited", |rig| rig.take_request(SECOND, private));
    let waited = accept(&mut rig, near, SECOND, far);
    rig.ping(A, SECOND, waited, "without the member that listened");
    let (_, reason) = rig.end_of(A, first.near, "the end");
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    let refused = dial(&mut rig, &addr, b"");
    let (_, reason) = rig.end_of(A, refused, "the refusal");
    assert_eq!(reason.kind(), ErrorKind::Refused, "{reason}");
}
