//! How connections end, and what is released then.

use std::time::Duration;

use bmi_core::transport::{ConnId, Payload, PostError, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, ErrorKind, RemoteKey, Time, Transport};

use crate::backend::Backend;
use crate::data::{filled, memory};
use crate::rig::{A, B, C, Rig};

/// `disconnect` flushes receives on both sides. Each side gets one `Disconnected`, with `Cancelled`
/// at the side that asked for it. Names are invalid afterwards (C6).
pub fn disconnect_flushes_receives(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let mut memories = [memory(64), memory(64)];
    for (side, conn) in [(A, link.near), (B, link.far)] {
        let region = rig.register(side, &memories[side]);
        for work in 0..3 {
            rig.recv(side, conn, work, &[region.segment(0, 64)]).expect("receive");
        }
    }
    let deadline = rig.far_off();
    rig.adapter(A).disconnect(link.near, deadline);
    for (side, conn) in [(A, link.near), (B, link.far)] {
        let (completions, reason) = rig.end_of(side, conn, "the end");
        let seen: Vec<_> = completions.iter().map(|c| (c.work.0, c.kind, c.status)).collect();
        let expected = [0, 1, 2].map(|work| (work, WorkKind::Recv, WorkStatus::Flushed));
        assert_eq!(seen, expected, "receives complete once, in posting order");
        let kind = if side == A { ErrorKind::Cancelled } else { ErrorKind::PeerLost };
        assert_eq!(reason.kind(), kind, "{reason}");
        rig.released(&mut memories[side], "the memory of the flushed receives");
        let dead = rig.send(side, conn, 9, b"", Payload::EMPTY, WorkOptions::SIGNALLED);
        assert_eq!(dead, Err(PostError::NotConnected));
    }
    for (side, conn) in [(A, link.near), (B, link.far)] {
        rig.nothing_more(side, conn, "after the end");
    }
}

/// Everything posted before `disconnect` still arrives, large and small, in order.
pub fn disconnect_hands_over_what_was_posted(backend: &dyn Backend) {
    const MESSAGES: usize = 40;
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let len = 60_000;
    let (source, target) = (filled(1, len), memory(len * MESSAGES));
    let (from, to) = (rig.register(A, &source), rig.register(B, &target));
    for number in 0..MESSAGES {
        rig.recv(B, link.far, number as u64, &[to.segment(number * len, len)]).expect("receive");
    }
    for number in 0..MESSAGES {
        let list = [from.segment(0, if number % 2 == 0 { len } else { 10 })];
        let options = WorkOptions::SIGNALLED;
        rig.send(A, link.near, number as u64, &[], Payload::Gather(&list), options).expect("send");
    }
    let deadline = rig.far_off();
    rig.adapter(A).disconnect(link.near, deadline);
    for number in 0..MESSAGES {
        let got = rig.done(B, link.far, number as u64, WorkKind::Recv, "what was posted before");
        let len = if number % 2 == 0 { len } else { 10 };
        assert_eq!(got.len, len as u64);
        let arrived = target.slice(number * 60_000, len).to_vec();
        assert!(arrived == source.to_vec()[..len], "bytes of message {number}");
    }
    rig.end_of(B, link.far, "the end behind the messages");
    let (completions, _) = rig.end_of(A, link.near, "the end");
    let seen: Vec<_> = completions.iter().map(|c| (c.work.0, c.status)).collect();
    let expected: Vec<_> = (0..MESSAGES as u64).map(|work| (work, WorkStatus::Ok)).collect();
    assert_eq!(seen, expected, "sends complete");
}

/// A deadline that has passed cuts at once, with work of every kind outstanding. Each request
/// completes exactly once and its memory is released (C4, C5, C6).
pub fn passed_deadline_cuts(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let reads = backend.expected_capabilities().rdma_read;
    let len = 2 << 20;
    let (mut here, mut there) = (filled(1, len), memory(len));
    let (_, remote) = rig.expose(B, link.far, &there, Access::READ_WRITE);
    {
        let region = rig.register(A, &here);
        let list = [region.segment(0, len)];
        let landing = rig.register(B, &there);
        rig.recv(B, link.far, 0, &[landing.segment(0, len)]).expect("receive");
        rig.recv(A, link.near, 1, &list).expect("receive");
        rig.send(A, link.near, 2, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
        rig.write(A, link.near, 3, &list, remote).expect("write");
        if reads {
            rig.read(A, link.near, 4, &list, remote).expect("read");
        }
    }
    rig.adapter(A).disconnect(link.near, Time::ZERO);
    let (completions, reason) = rig.end_of(A, link.near, "the cut");
    assert_eq!(reason.kind(), ErrorKind::Cancelled, "{reason}");
    let mut seen: Vec<_> = completions.iter().map(|c| c.work.0).collect();
    seen.sort_unstable();
    assert_eq!(seen, if reads { vec![1, 2, 3, 4] } else { vec![1, 2, 3] }, "each request completes once");
    let receive = completions.iter().find(|c| c.work.0 == 1).expect("counted above");
    assert_eq!(receive.status, WorkStatus::Flushed);
    let (completions, _) = rig.end_of(B, link.far, "the peer hears of it");
    assert_eq!(completions.len(), 1, "the peer's receive completes once: {completions:?}");
    rig.released(&mut here, "this side's memory");
    rig.released(&mut there, "the peer's memory");
}

/// The earlier of two deadlines counts. There is one `Disconnected`, however often `disconnect` is
/// called.
pub fn disconnect_twice(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let late = rig.now() + 1000 * backend.patience();
    rig.adapter(A).disconnect(link.near, late);
    rig.adapter(A).disconnect(link.near, Time::ZERO);
    rig.adapter(A).disconnect(link.near, late);
    rig.end_of(A, link.near, "the end");
    rig.end_of(B, link.far, "the end");
    rig.nothing_more(A, link.near, "disconnected three times");
}

/// A peer that does not poll does not delay the end. More is outstanding than the way to it can
/// hold, and `Disconnected` still comes by the deadline (C6).
pub fn disconnect_from_a_stalled_peer(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    // Limited to the maximum of one request, if that is less.
    let len = usize::try_from(backend.expected_capabilities().max_work_len).unwrap_or(usize::MAX).min(16 << 20);
    let target = memory(len);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::READ_WRITE);
    let mut source = filled(1, len);
    rig.pause(B, true);
    {
        let list = [rig.register(A, &source).segment(0, len)];
        for work in 0..4 {
            rig.write(A, link.near, work, &list, remote).expect("write");
        }
    }
    let deadline = rig.now() + Duration::from_millis(100);
    rig.adapter(A).disconnect(link.near, deadline);
    let (completions, _) = rig.end_of(A, link.near, "the end, by the deadline");
    assert_eq!(completions.len(), 4, "each write completes once: {completions:?}");
    rig.released(&mut source, "the memory of the writes");
    rig.pause(B, false);
    rig.end_of(B, link.far, "the stalled peer hears of it");
}

/// When an adapter is dropped, its peers' connections end, with everything outstanding on them
/// flushed (C6, C13).
pub fn dropped_adapter_ends_its_connections(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let links = [rig.link(A, B), rig.link(A, B)];
    let own = rig.link(A, C);
    let mut bytes = memory(1000);
    for (work, link) in links.iter().enumerate() {
        let list = [rig.register(A, &bytes).segment(0, 1000)];
        rig.recv(A, link.near, work as u64, &list).expect("receive");
    }
    rig.drop_adapter(B);
    for (work, link) in links.iter().enumerate() {
        let (completions, reason) = rig.end_of(A, link.near, "the peer is gone");
        let seen: Vec<_> = completions.iter().map(|c| (c.work.0, c.status)).collect();
        assert_eq!(seen, [(work as u64, WorkStatus::Flushed)]);
        assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    }
    rig.released(&mut bytes, "the memory of the flushed receives");
    rig.ping(A, C, own, "another peer");
}

/// A dropped adapter releases all memory, whatever was outstanding (C13).
pub fn dropped_adapter_lets_go(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let mut bytes = memory(1 << 20);
    let exposed = memory(1 << 20);
    let (_keep, remote) = rig.expose(B, link.far, &exposed, Access::READ_WRITE);
    let (region, _) = rig.expose(A, link.near, &bytes, Access::READ_WRITE);
    let list = [region.segment(0, 1 << 20)];
    rig.recv(A, link.near, 1, &list).expect("receive");
    rig.write(A, link.near, 2, &list, remote).expect("write");
    rig.drop_adapter(A);
    drop((region, list));
    rig.released(&mut bytes, "the dropped adapter's memory");
    rig.end_of(B, link.far, "the peer hears of it");
}

/// An adapter is dropped while connections are being set up: the other side's attempt ends.
pub fn dropped_while_connecting(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let deadline = rig.far_off();
    let near = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    rig.request(B, "the request");
    rig.drop_adapter(B);
    let (_, reason) = rig.end_of(A, near, "the listener died");
    assert!(matches!(reason.kind(), ErrorKind::PeerLost | ErrorKind::Refused), "{reason}");
    let addr = rig.listen(C);
    let _near = rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    let far = rig.request(C, "the request");
    rig.drop_adapter(A);
    let (_, reason) = rig.end_of(C, far, "the connecting side died");
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
}

/// Names that never existed, and names that are gone, are ignored or refused. Nothing breaks (C6).
pub fn unknown_names(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let strange = [
        ConnId { slot: 99, generation: 0 },
        ConnId { slot: u32::MAX, generation: u32::MAX },
        ConnId { generation: link.near.generation.wrapping_add(1), ..link.near },
    ];
    let region = rig.register(A, &memory(8));
    let (_region, remote) = rig.expose(B, link.far, &memory(8), Access::READ_WRITE);
    for conn in strange {
        rig.adapter(A).disconnect(conn, Time::ZERO);
        rig.adapter(A).reject(conn, b"");
        rig.adapter(A).revoke(conn, RemoteKey(5));
        let refusals = [
            rig.send(A, conn, 1, b"", Payload::EMPTY, WorkOptions::SIGNALLED),
            rig.recv(A, conn, 2, &[]),
            rig.write(A, conn, 3, &[region.segment(0, 8)], remote),
            rig.read(A, conn, 4, &[region.segment(0, 8)], remote),
        ];
        assert_eq!(refusals, [Err(PostError::NotConnected); 4], "{conn:?}");
        let error = rig.adapter(A).expose(conn, &region.segment(0, 1), Access::READ).expect_err("no such connection");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        let error = rig.adapter(A).accept(conn, b"").expect_err("no such request");
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
    }
    rig.adapter(A).revoke(link.near, RemoteKey(5));
    rig.ping(A, B, link, "the real connection is as it was");
}

/// A connection whose peer does not poll does not hold up another connection (C8).
pub fn a_stalled_peer_stalls_nobody_else(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let (stalled, healthy) = (rig.link(A, B), rig.link(A, C));
    // Limited to the maximum of one request, if that is less.
    let len = usize::try_from(backend.expected_capabilities().max_work_len).unwrap_or(usize::MAX).min(16 << 20);
    let (_region, remote) = rig.expose(B, stalled.far, &memory(len), Access::WRITE);
    let list = [rig.register(A, &filled(1, len)).segment(0, len)];
    rig.pause(B, true);
    for work in 0..4 {
        rig.write(A, stalled.near, work, &list, remote).expect("write");
    }
    for _ in 0..20 {
        rig.ping(A, C, healthy, "beside a stalled connection");
    }
    rig.pause(B, false);
    for work in 0..4 {
        rig.done(A, stalled.near, work, WorkKind::Write, "the peer polls again");
    }
}
