//! Forbidden accesses of a peer (C7, C9, C10). Every violation ends its connection, changes no
//! byte, and is reported to the peer.

use bmi_conformance::world::completion;
use bmi_core::transport::{ConnId, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, ErrorKind, RemoteKey, RemoteSlice, Transport};

use crate::common::{World, world};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

/// Checks that both sides see the end, and that `b` reports a violation by the peer.
#[track_caller]
fn expect_cut(world: &mut World, ca: ConnId, cb: ConnId) {
    let reason = world.until(|world| world.b.take_end(cb));
    assert_eq!(reason.kind(), ErrorKind::Protocol, "{reason}");
    let reason = world.until(|world| world.a.take_end(ca));
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
}

const FORGERIES: usize = 7;

/// Returns slices that the peer did not provide.
fn forgeries(good: RemoteSlice) -> [RemoteSlice; FORGERIES] {
    let len = good.len;
    [
        RemoteSlice { key: RemoteKey(good.key.0 ^ 1 << 40), ..good },
        RemoteSlice { key: RemoteKey(good.key.0 ^ 1), ..good },
        RemoteSlice { key: RemoteKey(0), ..good },
        RemoteSlice { addr: 1, ..good },
        RemoteSlice { addr: u64::MAX, ..good },
        RemoteSlice { addr: len + 1, ..good },
        RemoteSlice { addr: u64::MAX - len + 1, ..good },
    ]
}

#[test]
fn forged_writes_change_nothing() {
    // Longer than a frame, because a check of single pieces would allow the first piece.
    const LEN: usize = 600_000;
    for index in 0..FORGERIES {
        let mut world = world();
        let (ca, cb) = world.connect();
        let (memory, segment) = world.b.memory(LEN);
        let (_, source) = world.a.pattern(LEN);
        let good = world.b.transport.expose(cb, &segment, Access::WRITE).unwrap();
        world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
        let target = bmi_core::transport::WriteTarget { remote: forgeries(good)[index], immediate: Some(1) };
        world.a.transport.post_write(ca, WorkId(2), &[], &[source], target, SIGNALLED).unwrap();
        assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Flushed, 0));
        expect_cut(&mut world, ca, cb);
        assert!(memory.to_vec().iter().all(|byte| *byte == 0), "forgery {index}");
    }
}

#[test]
fn forged_reads_deliver_nothing_and_the_right_one_is_blamed() {
    for index in 0..FORGERIES {
        let mut world = world();
        let (ca, cb) = world.connect();
        let (_, segment) = world.b.pattern(1000);
        let (memory, target) = world.a.memory(1000);
        let good = world.b.transport.expose(cb, &segment, Access::READ).unwrap();
        world.a.transport.post_recv(ca, WorkId(1), &[]).unwrap();
        let bad = forgeries(good)[index];
        world.a.transport.post_read(ca, WorkId(2), &[target.slice(0, 1000)], bad, WorkOptions::SIGNALLED).unwrap();
        world.a.transport.post_read(ca, WorkId(3), &[target.slice(0, 1)], good, WorkOptions::SIGNALLED).unwrap();
        assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Read, WorkStatus::RemoteAccess, 1000));
        assert_eq!(world.work_a(), completion(ca, 3, WorkKind::Read, WorkStatus::Flushed, 1));
        assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Recv, WorkStatus::Flushed, 0));
        expect_cut(&mut world, ca, cb);
        assert_eq!(memory.to_vec(), [0; 1000]);
    }
}

#[test]
fn rights_are_checked_even_for_nothing() {
    for (access, write) in [(Access::READ, true), (Access::WRITE, false), (Access::LOCAL, true), (Access::LOCAL, false)]
    {
        let mut world = world();
        let (ca, cb) = world.connect();
        let (_, segment) = world.b.memory(10);
        let remote = world.b.transport.expose(cb, &segment, access).unwrap();
        if write {
            world.a.transport.post_write(ca, WorkId(1), &[], &[], remote.into(), SIGNALLED).unwrap();
        } else {
            world.a.transport.post_read(ca, WorkId(1), &[], remote, WorkOptions::SIGNALLED).unwrap();
        }
        expect_cut(&mut world, ca, cb);
    }
}

#[test]
fn a_key_of_another_connection_is_no_key() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (ca2, cb2) = world.connect();
    let (memory, segment) = world.b.memory(10);
    let remote = world.b.transport.expose(cb2, &segment, Access::WRITE).unwrap();
    world.a.transport.post_write(ca, WorkId(1), b"x", &[], remote.into(), SIGNALLED).unwrap();
    expect_cut(&mut world, ca, cb);
    assert_eq!(memory.to_vec(), [0; 10]);
    // The other connection continues to work.
    world.b.transport.post_recv(cb2, WorkId(1), &[]).unwrap();
    world.a.transport.post_write(ca2, WorkId(2), b"x", &[], remote.into(), SIGNALLED).unwrap();
    world.a.transport.post_send(ca2, WorkId(3), &[], Payload::EMPTY, SIGNALLED).unwrap();
    assert_eq!(world.work_b(), completion(cb2, 1, WorkKind::Recv, WorkStatus::Ok, 0));
    assert_eq!(memory.to_vec()[0], b'x');
}

#[test]
fn a_revoked_key_is_no_key() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(10);
    let remote = world.b.transport.expose(cb, &segment, Access::WRITE).unwrap();
    world.b.transport.revoke(cb, remote.key);
    world.b.transport.revoke(cb, remote.key);
    world.a.transport.post_write(ca, WorkId(1), b"x", &[], remote.into(), SIGNALLED).unwrap();
    expect_cut(&mut world, ca, cb);
    assert_eq!(memory.to_vec(), [0; 10]);
}

#[test]
fn revoking_under_a_transfer_ends_the_connection() {
    const LEN: usize = 64 << 20;
    for write in [true, false] {
        let mut world = world();
        let (ca, cb) = world.connect();
        let (_, segment) = world.b.memory(LEN);
        let (_, local) = world.a.memory(LEN);
        let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
        if write {
            world.a.transport.post_write(ca, WorkId(1), &[], &[local], remote.into(), SIGNALLED).unwrap();
        } else {
            world.a.transport.post_read(ca, WorkId(1), &[local], remote, WorkOptions::SIGNALLED).unwrap();
        }
        for _ in 0..6 {
            world.poll();
        }
        world.b.transport.revoke(cb, remote.key);
        assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::Cancelled);
        assert_eq!(world.work_a().status, WorkStatus::Flushed);
        assert_eq!(world.until(|world| world.a.take_end(ca)).kind(), ErrorKind::PeerLost);
    }
}

#[test]
fn a_send_without_a_receive_ends_the_connection() {
    let mut world = world();
    let (ca, cb) = world.connect();
    world.a.transport.post_send(ca, WorkId(1), b"x", Payload::EMPTY, SIGNALLED).unwrap();
    expect_cut(&mut world, ca, cb);
}

#[test]
fn immediate_data_without_a_receive_changes_nothing() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(10);
    let remote = world.b.transport.expose(cb, &segment, Access::WRITE).unwrap();
    let target = bmi_core::transport::WriteTarget { remote, immediate: Some(1) };
    world.a.transport.post_write(ca, WorkId(1), b"x", &[], target, SIGNALLED).unwrap();
    expect_cut(&mut world, ca, cb);
    assert_eq!(memory.to_vec(), [0; 10]);
}

#[test]
fn a_long_message_is_refused_and_both_are_told() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(10);
    let (_, source) = world.a.pattern(32 << 20);
    world.b.transport.post_recv(cb, WorkId(1), &[segment]).unwrap();
    world.a.transport.post_send(ca, WorkId(2), &[], Payload::Gather(&[source]), SIGNALLED).unwrap();
    let work = world.work_b();
    assert_eq!((work.work, work.status), (WorkId(1), WorkStatus::TooLong));
    // The bytes were still on their way, so the sender learns which request was refused.
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Send, WorkStatus::TooLong, 32 << 20));
    expect_cut(&mut world, ca, cb);
    assert_eq!(memory.to_vec(), [0; 10]);
}

#[test]
fn regions_come_back_when_the_connection_ends() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (mut memory, segment) = world.b.memory(10);
    world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    world.b.transport.post_recv(cb, WorkId(1), std::slice::from_ref(&segment)).unwrap();
    drop(segment);
    assert!(memory.get_mut().is_none());
    let now = world.now;
    world.a.transport.disconnect(ca, now);
    world.until(|world| world.b.take(|event| matches!(event, Event::Disconnected { .. }).then_some(())));
    assert!(memory.get_mut().is_some(), "nothing holds the memory any more");
}
