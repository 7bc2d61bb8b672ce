//! How a connection is established, or fails to be.

use bmi_core::transport::{
    ConnId, Event, MAX_PRIVATE_DATA, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus,
};
use bmi_core::{Access, Addr, ErrorKind, RemoteKey, RemoteSlice, Scheme, Time, Transport};

use crate::backend::Backend;
use crate::data::{filled, memory, pattern};
use crate::rig::{A, B, C, Link, Rig};

/// `connect`, `accept` and `Established` carry private data of any length up to the limit, or none.
/// The accepting side's `Established` has none.
pub fn private_data_travels_both_ways(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    for (out, back) in [(0, 0), (1, 0), (0, 1), (MAX_PRIVATE_DATA, MAX_PRIVATE_DATA)] {
        let (out, back) = (pattern(1, out), pattern(2, back));
        let deadline = rig.far_off();
        let near = rig.adapter(A).connect(&addr, &out, deadline).expect("connect");
        let Event::ConnectRequest { conn: far, private, .. } = rig.next(B, "a request") else { panic!("no request") };
        assert_eq!(&private[..], &out[..], "private data of the request");
        rig.adapter(B).accept(far, &back).expect("accept");
        let Event::Established { conn, private, .. } = rig.next(A, "established at the connecting side") else {
            panic!()
        };
        assert_eq!(conn, near);
        assert_eq!(&private[..], &back[..], "private data of the acceptance");
        let Event::Established { conn, private, .. } = rig.next(B, "established at the accepting side") else {
            panic!()
        };
        assert_eq!(conn, far);
        assert!(private.is_empty(), "the accepting side's Established has no private data");
        rig.ping(A, B, Link { near, far }, "after connecting");
    }
}

/// A request and both sides' `Established` tell who is there, as the backend knows it (C18).
pub fn both_sides_are_told_who_is_there(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let deadline = rig.far_off();
    rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    let Event::ConnectRequest { conn, identity: asking, .. } = rig.next(B, "a request") else { panic!("no request") };
    rig.adapter(B).accept(conn, b"").expect("accept");
    let Event::Established { identity: listening, .. } = rig.next(A, "established") else { panic!("no connection") };
    let Event::Established { identity: accepted, .. } = rig.next(B, "established") else { panic!("no connection") };
    let [a, b] = ["a", "b"].map(|node| backend.identity(node));
    assert_eq!((asking, accepted, listening), (a.clone(), a, b));
}

/// Private data over the limit is `Invalid` for `connect` and `accept`, and ignored by `reject`.
/// The request stays acceptable.
pub fn too_long_private_data_is_invalid(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let long = vec![0; MAX_PRIVATE_DATA + 1];
    let deadline = rig.far_off();
    let error = rig.adapter(A).connect(&addr, &long, deadline).expect_err("private data over the limit");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let near = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    let far = rig.request(B, "a request");
    rig.adapter(B).reject(far, &long);
    let error = rig.adapter(B).accept(far, &long).expect_err("private data over the limit");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    rig.adapter(B).accept(far, b"").expect("accept, at the second attempt");
    assert!(matches!(rig.next(A, "established"), Event::Established { conn, .. } if conn == near));
    assert!(matches!(rig.next(B, "established"), Event::Established { conn, .. } if conn == far));
}

/// A rejection reaches the connecting side with its reason. Receives posted on either side complete
/// `Flushed`, once. The rejecting side gets no `Disconnected`, and both names are gone (C4, C6).
pub fn rejection_carries_a_reason(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let deadline = rig.far_off();
    let near = rig.adapter(A).connect(&addr, b"let me in", deadline).expect("connect");
    let (near_region, far_region) = (rig.register(A, &memory(16)), rig.register(B, &memory(16)));
    rig.recv(A, near, 1, &[near_region.segment(0, 16)]).expect("a receive while connecting");
    let far = rig.request(B, "a request");
    rig.recv(B, far, 2, &[far_region.segment(0, 16)]).expect("a receive before the answer");
    rig.adapter(B).reject(far, b"not you");
    let flushed = rig.completion(B, far, "the rejecting side's receive");
    assert_eq!((flushed.work, flushed.status), (WorkId(2), WorkStatus::Flushed));
    let flushed = rig.completion(A, near, "the rejected side's receive");
    assert_eq!((flushed.work, flushed.status), (WorkId(1), WorkStatus::Flushed));
    match rig.next_of(A, near, "the rejection") {
        Event::Rejected { private, .. } => assert_eq!(&private[..], b"not you"),
        other => panic!("expected Rejected, got {other:?}"),
    }
    for (side, conn) in [(A, near), (B, far)] {
        assert_eq!(rig.recv(side, conn, 3, &[]), Err(PostError::NotConnected), "the name is gone");
        rig.nothing_more(side, conn, "rejected");
    }
}

/// Without a listener, the attempt ends in `Disconnected` with `Refused`, well before the deadline.
pub fn nobody_listens_is_refused(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.vacant(B);
    let deadline = rig.far_off() + backend.patience();
    let conn = rig.adapter(A).connect(&addr, b"", deadline).expect("connect starts");
    let (completions, reason) = rig.end_of(A, conn, "the refusal");
    assert!(completions.is_empty());
    assert_eq!(reason.kind(), ErrorKind::Refused, "{reason}");
}

/// A listener never answers: the attempt ends `TimedOut`, not before its deadline. The listening
/// side learns that the request is gone (C6, C12).
pub fn silent_listener_ends_in_time_out(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    // Long enough for the request to arrive, on a busy machine too.
    let deadline = rig.now() + backend.patience() / 40;
    let conn = rig.adapter(A).connect(&addr, b"", deadline).expect("connect starts");
    let far = rig.request(B, "the request");
    let next = rig.adapter(A).next_deadline();
    assert!(next.is_some_and(|at| at <= deadline), "next_deadline is {next:?}, the connection's {deadline:?}");
    let (_, reason) = rig.end_of(A, conn, "the time-out");
    assert_eq!(reason.kind(), ErrorKind::TimedOut, "{reason}");
    assert!(rig.now() >= deadline, "timed out before the deadline");
    rig.end_of(B, far, "the listening side hears of it");
    let error = rig.adapter(B).accept(far, b"").expect_err("the request is gone");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
}

/// A deadline that has already passed ends the attempt at the next polls.
pub fn passed_deadline_ends_at_once(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let conn = rig.adapter(A).connect(&addr, b"", Time::ZERO).expect("connect starts");
    let (_, reason) = rig.end_of(A, conn, "the time-out");
    assert_eq!(reason.kind(), ErrorKind::TimedOut, "{reason}");
}

/// Addresses of another backend are `Invalid` for `listen` and `connect`.
pub fn foreign_scheme_is_invalid(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let foreign = match rig.vacant(B).scheme() {
        Scheme::Sim => Addr::tcp("127.0.0.1", 7000),
        Scheme::Tcp | Scheme::Ib | Scheme::Shm | Scheme::Custom(_) => Addr::sim("b", 7000),
    };
    let deadline = rig.far_off();
    let error = rig.adapter(A).listen(&foreign).expect_err("listen at a foreign address");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = rig.adapter(A).connect(&foreign, b"", deadline).expect_err("connect to a foreign address");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// An adapter listens at several addresses, each with its own port. An address that is in use is
/// `Invalid`.
pub fn several_listeners(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let (first, second) = (rig.listen(B), rig.listen(B));
    assert_ne!(first, second);
    let has_ports = first.scheme() != Scheme::Shm;
    assert!(!has_ports || first.port() != 0 && second.port() != 0, "the address names the port that was taken");
    let error = rig.adapter(B).listen(&first).expect_err("the address is taken");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for addr in [&first, &second] {
        let link = rig.link_at(A, B, addr);
        rig.ping(A, B, link, "over each listener");
    }
}

/// Receives may be posted at once, on both sides, and take the first messages. Sends wait for
/// `Established`.
pub fn receives_are_posted_before_established(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let deadline = rig.far_off();
    let near = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    let (near_region, far_region) = (rig.register(A, &memory(16)), rig.register(B, &memory(16)));
    rig.recv(A, near, 1, &[near_region.segment(0, 16)]).expect("a receive while connecting");
    let refused = rig.send(A, near, 9, b"early", Payload::EMPTY, WorkOptions::SIGNALLED);
    assert_eq!(refused, Err(PostError::NotConnected), "a send before Established");
    let far = rig.request(B, "a request");
    rig.recv(B, far, 2, &[far_region.segment(0, 16)]).expect("a receive before accept");
    let refused = rig.send(B, far, 9, b"early", Payload::EMPTY, WorkOptions::SIGNALLED);
    assert_eq!(refused, Err(PostError::NotConnected), "a send before accept");
    rig.adapter(B).accept(far, b"").expect("accept");
    for (side, conn) in [(A, near), (B, far)] {
        assert!(matches!(rig.next_of(side, conn, "established"), Event::Established { .. }));
        rig.send(side, conn, 3, b"hello", Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
    }
    let got = rig.done(A, near, 1, WorkKind::Recv, "the early receive of the connecting side");
    assert_eq!(got.len, 5);
    let got = rig.done(B, far, 2, WorkKind::Recv, "the early receive of the accepting side");
    assert_eq!(got.len, 5);
}

/// Posts a send, a write and, if the backend has reads, a read. Returns the results. The key of the
/// write and of the read is made up.
fn post_work(rig: &mut Rig<'_>, side: usize, conn: ConnId) -> Vec<Result<(), PostError>> {
    let reads = rig.adapter(side).capabilities().rdma_read;
    let list = [rig.register(side, &memory(16)).segment(0, 16)];
    let remote = RemoteSlice { key: RemoteKey(1), addr: 0, len: 16 };
    let mut results = vec![
        rig.send(side, conn, 9, b"too soon or too late", Payload::EMPTY, WorkOptions::SIGNALLED),
        rig.write(side, conn, 9, &list, remote),
    ];
    if reads {
        results.push(rig.read(side, conn, 9, &list, remote));
    }
    results
}

/// Before `Established`, a connection takes receives and exposures, and these stay valid. Other
/// work is `NotConnected`, except that a backend may accept sends after `accept` already. After
/// `disconnect` a connection takes nothing (C6).
pub fn what_each_phase_takes(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let deadline = rig.far_off();
    let near = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    let prepare = |rig: &mut Rig<'_>, side, conn| {
        let (landing, exposed) = (rig.register(side, &memory(16)), memory(16));
        rig.recv(side, conn, 1, &[landing.segment(0, 16)]).expect("a receive before Established");
        let (_region, remote) = rig.expose(side, conn, &exposed, Access::READ_WRITE);
        let refused = post_work(rig, side, conn);
        assert!(refused.iter().all(|result| *result == Err(PostError::NotConnected)), "side {side}: {refused:?}");
        (exposed, remote)
    };
    let (at_a, to_a) = prepare(&mut rig, A, near);
    let far = rig.request(B, "a request");
    let (at_b, to_b) = prepare(&mut rig, B, far);
    rig.adapter(B).accept(far, b"").expect("accept");
    let early = rig.send(B, far, 2, b"early", Payload::EMPTY, WorkOptions::UNSIGNALLED);
    assert!(matches!(early, Ok(()) | Err(PostError::NotConnected)), "between accept and Established: {early:?}");
    for (side, conn) in [(A, near), (B, far)] {
        assert!(matches!(rig.next_of(side, conn, "established"), Event::Established { .. }));
    }
    if early.is_err() {
        rig.send(B, far, 2, b"early", Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
    }
    assert_eq!(rig.done(A, near, 1, WorkKind::Recv, "the first message").len, 5);
    rig.send(A, near, 2, b"first", Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
    assert_eq!(rig.done(B, far, 1, WorkKind::Recv, "the first message").len, 5);

    for (side, conn, remote) in [(A, near, to_b), (B, far, to_a)] {
        let list = [rig.register(side, &filled(7, 16)).segment(0, 16)];
        rig.write(side, conn, 3, &list, remote).expect("write");
        rig.done(side, conn, 3, WorkKind::Write, "a write to what was exposed before Established");
    }
    rig.ping(A, B, Link { near, far }, "behind the writes");
    assert_eq!((at_a.to_vec(), at_b.to_vec()), (pattern(7, 16), pattern(7, 16)));

    let segment = rig.register(A, &memory(16)).segment(0, 16);
    let deadline = rig.far_off();
    rig.adapter(A).disconnect(near, deadline);
    let mut refused = post_work(&mut rig, A, near);
    refused.push(rig.recv(A, near, 9, &[]));
    assert!(refused.iter().all(|result| *result == Err(PostError::NotConnected)), "after disconnect: {refused:?}");
    let error = rig.adapter(A).expose(near, &segment, Access::READ).expect_err("after disconnect");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    rig.end_of(A, near, "the end");
    rig.end_of(B, far, "the end");
}

/// Many connections between two adapters at a time: each has its own name, and messages arrive on
/// the connection on which they were sent.
pub fn many_connections(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let links: Vec<Link> = (0..16).map(|_| rig.link_at(A, B, &addr)).collect();
    let landing = memory(16);
    let region = rig.register(B, &landing);
    for (index, link) in links.iter().enumerate() {
        assert!(links[..index].iter().all(|other| other.near != link.near && other.far != link.far));
        rig.recv(B, link.far, index as u64, &[region.segment(index, 1)]).expect("receive");
    }
    for (index, link) in links.iter().enumerate().rev() {
        let head = [index as u8 + 100];
        rig.send(A, link.near, index as u64, &head, Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    }
    for (index, link) in links.iter().enumerate() {
        rig.done(B, link.far, index as u64, WorkKind::Recv, "a message on each connection");
        rig.done(A, link.near, index as u64, WorkKind::Send, "a send on each connection");
    }
    let expected: Vec<u8> = (100..116).collect();
    assert_eq!(landing.to_vec(), expected);
}

/// Connecting again works, and names are never reused (C6).
pub fn names_are_never_used_twice(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let mut seen: Vec<Link> = Vec::new();
    for _ in 0..12 {
        let link = rig.link_at(A, B, &addr);
        assert!(seen.iter().all(|old| old.near != link.near && old.far != link.far), "a name came back: {link:?}");
        seen.push(link);
        let deadline = rig.far_off();
        rig.adapter(A).disconnect(link.near, deadline);
        rig.end_of(A, link.near, "the end");
        rig.end_of(B, link.far, "the end");
        let stale = rig.send(A, link.near, 1, b"", Payload::EMPTY, WorkOptions::SIGNALLED);
        assert_eq!(stale, Err(PostError::NotConnected), "a post to an old name");
    }
    assert!(seen.iter().all(|link| link.near.slot < 12 && link.far.slot < 12), "slots are small and dense: {seen:?}");
}

/// A slot is not reused before the end of its connection was reported. A caller that indexes a
/// table by slot never sees two connections in one place (C6).
pub fn slots_are_used_again_after_the_end(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    for _ in 0..8 {
        let link = rig.link_at(A, B, &addr);
        rig.adapter(A).disconnect(link.near, Time::ZERO);
        let deadline = rig.far_off();
        // Nothing was polled, so the end has not been reported.
        let next = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
        assert_ne!(next.slot, link.near.slot, "two connections in one slot");
        rig.end_of(A, link.near, "the end");
        rig.end_of(B, link.far, "the end");
        let far = rig.request(B, "a request");
        rig.adapter(B).reject(far, b"");
        assert!(matches!(rig.next_of(A, next, "the rejection"), Event::Rejected { .. }));
    }
}

/// Three adapters connected in a ring do not disturb each other.
pub fn three_adapters(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let ring = [(A, B), (B, C), (C, A)].map(|(from, to)| (from, to, rig.link(from, to)));
    for (from, to, link) in ring {
        rig.ping(from, to, link, "around the ring");
    }
    rig.drop_adapter(C);
    rig.end_of(B, ring[1].2.near, "the neighbour is gone");
    rig.end_of(A, ring[2].2.far, "the neighbour is gone");
    rig.ping(A, B, ring[0].2, "between those that are left");
}
