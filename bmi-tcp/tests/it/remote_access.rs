//! Forbidden accesses of a peer (C7, C9, C10) that the common suite does not make, because they
//! depend on the frames of this backend.

use bmi_conformance::world::completion;
use bmi_core::transport::{ConnId, Payload, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
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

/// A check of single frames would allow the first one.
#[test]
fn a_forbidden_write_of_several_frames_changes_nothing() {
    const LEN: usize = 600_000;
    for (what, addr, immediate) in [("beyond the end", 1, None), ("immediate data without a receive", 0, Some(1))] {
        let mut world = world();
        let (ca, cb) = world.connect();
        let (memory, segment) = world.b.memory(LEN);
        let (_, source) = world.a.pattern(LEN);
        let good = world.b.transport.expose(cb, &segment, Access::WRITE).unwrap();
        let target = WriteTarget { remote: RemoteSlice { addr, ..good }, immediate };
        world.a.transport.post_write(ca, WorkId(1), &[], &[source], target, SIGNALLED).unwrap();
        expect_cut(&mut world, ca, cb);
        assert!(memory.to_vec().iter().all(|byte| *byte == 0), "{what}");
    }
}

#[test]
fn of_several_reads_the_forged_one_is_blamed() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.pattern(1000);
    let (_, target) = world.a.memory(1000);
    let good = world.b.transport.expose(cb, &segment, Access::READ).unwrap();
    let bad = RemoteSlice { key: RemoteKey(good.key.0 ^ 1 << 40), ..good };
    for (work, remote) in [(1, bad), (2, good)] {
        let list = std::slice::from_ref(&target);
        world.a.transport.post_read(ca, WorkId(work), list, remote, SIGNALLED).unwrap();
    }
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Read, WorkStatus::RemoteAccess, 1000));
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Read, WorkStatus::Flushed, 1000));
    expect_cut(&mut world, ca, cb);
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
