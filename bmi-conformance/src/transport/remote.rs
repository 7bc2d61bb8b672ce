//! One-sided work: writes, writes with immediate data, reads, and accesses that a peer must not
//! make.

use bmi_core::transport::{ConnId, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{Access, ErrorKind, RemoteKey, RemoteSlice, Transport};

use super::channel::{forged, segments};
use crate::backend::Backend;
use crate::data::{Guarded, filled, memory, pattern};
use crate::rig::{A, B, C, Link, Rig};

/// Exposes the only piece of a list.
fn expose_piece(rig: &mut Rig<'_>, side: usize, conn: ConnId, list: &Guarded, access: Access) -> RemoteSlice {
    let segment = segments(rig, side, list).remove(0);
    rig.adapter(side).expose(conn, &segment, access).expect("expose")
}

/// Writes of a head and of lists go to the target's beginning, or to an offset, and touch nothing
/// else.
pub fn writes_land_where_they_should(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let shapes: [(usize, u64, &[usize]); 6] =
        [(0, 0, &[]), (5, 0, &[]), (0, 3, &[1]), (9, 100, &[70, 0, 30]), (0, 0, &[70_000]), (16, 1, &[4096, 65_000])];
    for (number, (head, at, lens)) in shapes.into_iter().enumerate() {
        let number = number as u64;
        let target = Guarded::new(&[70_000]);
        let remote = expose_piece(&mut rig, B, link.far, &target, Access::WRITE);
        assert_eq!(remote.len, 70_000);
        let source = Guarded::filled(number, lens);
        let gather = segments(&mut rig, A, &source);
        let head = pattern(50 + number, head);
        let bytes = [head.clone(), source.list().to_vec()].concat();
        let to = WriteTarget::from(remote.slice(at, bytes.len() as u64).expect("within"));
        while rig.adapter(A).post_write(link.near, WorkId(number), &head, &gather, to, WorkOptions::SIGNALLED)
            == Err(PostError::QueueFull)
        {
            rig.turn();
        }
        let done = rig.done(A, link.near, number, WorkKind::Write, "the write");
        assert_eq!(done.len, bytes.len() as u64);
        // A completed write is at the peer's adapter. A message sent after it shows that it is in
        // place (C3).
        rig.ping(A, B, link, "behind the write");
        let mut image = vec![crate::data::GUARD; at as usize];
        image.extend(bytes);
        target.check(&format!("shape {number}"), &image);
    }
}

/// A write is in place when a message posted after it arrives, although the peer's program is not
/// notified of the write (C3), however large it is.
pub fn messages_come_behind_writes(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let len = 3 << 20;
    for round in 0..4u64 {
        let target = memory(len);
        let (_region, remote) = rig.expose(B, link.far, &target, Access::WRITE);
        let source = filled(round, len);
        let list = [rig.register(A, &source).segment(0, len)];
        rig.recv(B, link.far, round, &[]).expect("receive");
        rig.write(A, link.near, round, &list, remote).expect("write");
        rig.send(A, link.near, round, &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
        rig.done(B, link.far, round, WorkKind::Recv, "the message behind the write");
        assert!(target.to_vec() == source.to_vec(), "the write was not in place when the message arrived");
        rig.done(A, link.near, round, WorkKind::Write, "the write");
    }
}

/// Immediate data consumes a receive, in order with sends, after the bytes are in place, also if
/// there are no bytes (C3, C4). Needs `write_with_immediate`; without it such a write is `Invalid`.
pub fn immediate_data(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let target = memory(5000);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::WRITE);
    let source = filled(1, 5000);
    let list = [rig.register(A, &source).segment(0, 5000)];
    let with = |remote, immediate| WriteTarget { remote, immediate: Some(immediate) };
    if !backend.expected_capabilities().write_with_immediate {
        let refused = rig.write(A, link.near, 1, &list, with(remote, 7));
        assert!(matches!(refused, Err(PostError::Invalid(_))), "{refused:?}");
        return;
    }
    let landing = rig.register(B, &memory(16));
    for number in 0..4 {
        rig.recv(B, link.far, number, &[landing.segment(0, 16)]).expect("receive");
    }
    rig.send(A, link.near, 10, b"first", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    rig.write(A, link.near, 11, &list, with(remote, 0xdead_beef)).expect("write with immediate data");
    rig.write(A, link.near, 12, &[], with(remote.slice(0, 0).expect("within"), 0)).expect("immediate data alone");
    rig.send(A, link.near, 13, b"last", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    for (number, (len, immediate)) in
        [(5, None), (0, Some(0xdead_beef)), (0, Some(0)), (4, None)].into_iter().enumerate()
    {
        let got = rig.done(B, link.far, number as u64, WorkKind::Recv, "receives in order");
        assert_eq!((got.len, got.immediate), (len, immediate), "receive {number}");
        if immediate == Some(0xdead_beef) {
            assert!(target.to_vec() == source.to_vec(), "bytes in place before the immediate data");
        }
    }
    for (work, kind) in [(10, WorkKind::Send), (11, WorkKind::Write), (12, WorkKind::Write), (13, WorkKind::Send)] {
        rig.done(A, link.near, work, kind, "completions in posting order");
    }
}

/// Immediate data without a receive ends the connection (C9). Needs `write_with_immediate`.
pub fn immediate_data_without_a_receive(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let (link, other) = (rig.link(A, B), rig.link(A, B));
    let (_region, remote) = rig.expose(B, link.far, &memory(8), Access::WRITE);
    let target = WriteTarget { remote: remote.slice(0, 0).expect("within"), immediate: Some(1) };
    let posted = rig.write(A, link.near, 1, &[], target);
    if !backend.expected_capabilities().write_with_immediate {
        assert!(matches!(posted, Err(PostError::Invalid(_))), "{posted:?}");
        return;
    }
    posted.expect("write");
    rig.end_of(A, link.near, "the writer's end");
    rig.end_of(B, link.far, "the target's end");
    rig.ping(A, B, other, "another connection");
}

/// Reads, whole and in part, scattered over lists of any shape, return the right bytes and touch
/// nothing else. Needs `rdma_read`; without it a read is `Invalid`.
pub fn reads_bring_what_is_there(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let source = filled(9, 70_000);
    let (_region, remote) = rig.expose(B, link.far, &source, Access::READ);
    if !backend.expected_capabilities().rdma_read {
        let refused = rig.read(A, link.near, 1, &[], remote);
        assert!(matches!(refused, Err(PostError::Invalid(_))), "{refused:?}");
        return;
    }
    let shapes: [(u64, &[usize]); 6] =
        [(0, &[]), (69_999, &[1]), (70_000, &[]), (0, &[70_000]), (17, &[5, 0, 60_000, 7]), (4096, &[4096])];
    for (number, (at, lens)) in shapes.into_iter().enumerate() {
        let target = Guarded::new(lens);
        let scatter = segments(&mut rig, A, &target);
        let from = remote.slice(at, remote.len - at).expect("within");
        rig.read(A, link.near, number as u64, &scatter, from).expect("read");
        let done = rig.done(A, link.near, number as u64, WorkKind::Read, "the read");
        assert_eq!(done.len, target.len() as u64);
        target.check(&format!("shape {number}"), &source.to_vec()[at as usize..at as usize + target.len()]);
    }
}

/// A chain of reads of which only the last is signalled reports once, when all bytes have arrived
/// (C4). Needs `rdma_read`.
pub fn chains_of_reads(backend: &dyn Backend) {
    if !backend.expected_capabilities().rdma_read {
        return reads_bring_what_is_there(backend);
    }
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let (count, piece) = (300, 1_000);
    let source = filled(3, count * piece);
    let (_region, remote) = rig.expose(B, link.far, &source, Access::READ);
    let target = Guarded::new(&vec![piece; count]);
    let scatter = segments(&mut rig, A, &target);
    for (number, segment) in scatter.into_iter().enumerate() {
        let from = remote.slice((number * piece) as u64, piece as u64).expect("within");
        let options = if number + 1 == count { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED };
        rig.read_with(A, link.near, number as u64, &[segment], from, options).expect("read");
    }
    rig.done(A, link.near, count as u64 - 1, WorkKind::Read, "the last read");
    target.check("the chain", &source.to_vec());
    rig.ping(A, B, link, "behind the chain");
    assert!(rig.unread(A).is_empty(), "an unsignalled read reported: {:?}", rig.unread(A));
}

/// More reads than may be outstanding, with large ones among them, all complete with their own
/// bytes. Needs `rdma_read`.
pub fn many_reads(backend: &dyn Backend) {
    let expected = backend.expected_capabilities();
    if !expected.rdma_read {
        return reads_bring_what_is_there(backend);
    }
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let len = 4 << 20;
    let source = filled(2, len);
    let (_region, remote) = rig.expose(B, link.far, &source, Access::READ);
    let count = (2 * expected.max_outstanding_reads + 3).min(expected.send_queue_depth);
    let piece = len / count;
    let target = memory(len);
    let region = rig.register(A, &target);
    for number in 0..count {
        let from = remote.slice((number * piece) as u64, piece as u64).expect("within");
        rig.read(A, link.near, number as u64, &[region.segment(number * piece, piece)], from).expect("read");
    }
    let mut left: Vec<u64> = (0..count as u64).collect();
    while !left.is_empty() {
        let done = rig.completion(A, link.near, "all reads");
        assert_eq!((done.kind, done.status, done.len), (WorkKind::Read, WorkStatus::Ok, piece as u64));
        let at = left.iter().position(|number| WorkId(*number) == done.work).expect("each completes once");
        left.remove(at);
    }
    assert!(target.to_vec()[..count * piece] == source.to_vec()[..count * piece], "the bytes differ");
}

/// Work with more bytes than the remote slice is `Invalid`, before anything is sent.
pub fn work_beyond_its_target_is_invalid(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let target = memory(8);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::READ_WRITE);
    let list = [rig.register(A, &filled(1, 9)).segment(0, 9)];
    let refused = rig.write(A, link.near, 1, &list, remote);
    assert!(matches!(refused, Err(PostError::Invalid(_))), "write: {refused:?}");
    let refused = rig.read(A, link.near, 2, &list, remote);
    assert!(matches!(refused, Err(PostError::Invalid(_))), "read: {refused:?}");
    rig.ping(A, B, link, "the connection is as it was");
    assert_eq!(target.to_vec(), [0; 8]);
}

/// A forged access: its name, what the memory is exposed for, whether it is a write, and the forged
/// slice.
type Forgery = (&'static str, Access, bool, fn(RemoteSlice) -> RemoteSlice);

const READ: bool = false;
const WRITE: bool = true;

const FORGERIES: [Forgery; 13] = [
    ("write by a wrong key", Access::READ_WRITE, WRITE, |s| forged(s, 1)),
    ("read by a wrong key", Access::READ_WRITE, READ, |s| forged(s, 1 << 63)),
    ("write by key 0", Access::READ_WRITE, WRITE, |s| RemoteSlice { key: RemoteKey(0), ..s }),
    ("write where reading is allowed", Access::READ, WRITE, |s| s),
    ("read where writing is allowed", Access::WRITE, READ, |s| s),
    ("write where nothing is allowed", Access::LOCAL, WRITE, |s| s),
    ("write one byte behind the end", Access::READ_WRITE, WRITE, |s| at(s, s.addr + 1)),
    ("read one byte behind the end", Access::READ_WRITE, READ, |s| at(s, s.addr + 1)),
    ("write one byte before the beginning", Access::READ_WRITE, WRITE, |s| at(s, s.addr.wrapping_sub(1))),
    ("read one byte before the beginning", Access::READ_WRITE, READ, |s| at(s, s.addr.wrapping_sub(1))),
    ("write to an address that overflows", Access::READ_WRITE, WRITE, |s| at(s, u64::MAX - 3)),
    ("read from an address that overflows", Access::READ_WRITE, READ, |s| at(s, u64::MAX - 3)),
    ("write far away", Access::READ_WRITE, WRITE, |s| at(s, s.addr ^ (1 << 40))),
];

/// Returns the slice at another address.
fn at(slice: RemoteSlice, addr: u64) -> RemoteSlice {
    RemoteSlice { addr, ..slice }
}

/// Accesses `remote` and checks that this costs the connection. No byte may change on either side,
/// nothing after it may be delivered, and `other` must go on undisturbed. The connection ends
/// `Protocol` at the target and `PeerLost` at the initiator (C7).
fn costs_the_connection(
    rig: &mut Rig<'_>,
    (link, other): (Link, Link),
    remote: RemoteSlice,
    write: bool,
    target: &Guarded,
    what: &str,
) {
    let before = target.memory().to_vec();
    let local = Guarded::filled(77, &[remote.len as usize]);
    let untouched = local.memory().to_vec();
    let list = segments(rig, A, &local);
    rig.recv(B, link.far, 9, &[]).expect("receive");
    let posted =
        if write { rig.write(A, link.near, 1, &list, remote) } else { rig.read(A, link.near, 1, &list, remote) };
    posted.unwrap_or_else(|refusal| panic!("{what}: the near adapter cannot know: {refusal:?}"));
    // After it, a message that must not be delivered. The connection may have ended already.
    let _ = rig.send(A, link.near, 2, b"behind", Payload::EMPTY, WorkOptions::SIGNALLED);
    let (completions, reason) = rig.end_of(B, link.far, what);
    let statuses: Vec<_> = completions.iter().map(|c| (c.work.0, c.status)).collect();
    assert_eq!(statuses, [(9, WorkStatus::Flushed)], "{what}: nothing behind it is delivered");
    assert_eq!(reason.kind(), ErrorKind::Protocol, "{what}: {reason}");
    assert!(!reason.detail().is_empty(), "{what}: the reason is in words");
    let (completions, reason) = rig.end_of(A, link.near, what);
    let own: Vec<_> = completions.iter().filter(|c| c.work == WorkId(1)).collect();
    assert_eq!(own.len(), 1, "{what}: {completions:?}");
    // A write may have succeeded before: its bytes were with the peer's adapter.
    let status = own[0].status;
    let refused = matches!(status, WorkStatus::RemoteAccess | WorkStatus::Flushed);
    assert!(refused || write && status == WorkStatus::Ok, "{what}: {own:?}");
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{what}: {reason}");
    assert!(target.memory().to_vec() == before, "{what}: a byte changed");
    assert!(local.memory().to_vec() == untouched, "{what}: a byte was delivered");
    rig.ping(A, B, other, what);
}

/// A wrong key, missing rights, and every way out of bounds cost the connection (C7).
pub fn forged_access_costs_the_connection(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let other = rig.link_at(A, B, &addr);
    for (what, access, write, forge) in FORGERIES {
        if !write && !backend.expected_capabilities().rdma_read {
            continue;
        }
        let link = rig.link_at(A, B, &addr);
        let target = Guarded::filled(3, &[64]);
        let remote = expose_piece(&mut rig, B, link.far, &target, access);
        costs_the_connection(&mut rig, (link, other), forge(remote), write, &target, what);
    }
}

/// An access of no bytes is checked like any other (C7).
pub fn zero_length_access_is_checked(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let other = rig.link_at(A, B, &addr);
    for (write, key) in [(WRITE, 1), (READ, 1)] {
        if !write && !backend.expected_capabilities().rdma_read {
            continue;
        }
        let link = rig.link_at(A, B, &addr);
        let target = Guarded::filled(3, &[64]);
        let remote = expose_piece(&mut rig, B, link.far, &target, Access::READ_WRITE);
        let nothing = forged(remote, key).slice(0, 0).expect("within");
        costs_the_connection(&mut rig, (link, other), nothing, write, &target, "no bytes by a wrong key");
    }
}

/// Memory exposed on one connection cannot be accessed from another connection of the same two
/// adapters, nor from a third adapter (C7).
pub fn exposure_belongs_to_one_connection(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let owner = rig.link_at(A, B, &addr);
    let target = Guarded::filled(3, &[64]);
    let remote = expose_piece(&mut rig, B, owner.far, &target, Access::READ_WRITE);
    let thief = rig.link_at(A, B, &addr);
    costs_the_connection(&mut rig, (thief, owner), remote, WRITE, &target, "a key of another connection");
    let thief = rig.link_at(C, B, &addr);
    let list = [rig.register(C, &filled(8, 64)).segment(0, 64)];
    rig.write(C, thief.near, 1, &list, remote).expect("the near adapter cannot know");
    rig.end_of(B, thief.far, "a key of another adapter's connection");
    rig.end_of(C, thief.near, "a key of another adapter's connection");
    target.check("after both thefts", &pattern(3, 64));
    let list = [rig.register(A, &filled(4, 64)).segment(0, 64)];
    rig.write(A, owner.near, 1, &list, remote).expect("the owner's write");
    rig.done(A, owner.near, 1, WorkKind::Write, "the owner's write");
    rig.ping(A, B, owner, "behind the owner's write");
    target.check("after the owner's write", &pattern(4, 64));
}

/// After `revoke` the key is invalid and its region is free. Other exposures of the same region
/// remain (C7).
pub fn revoked_access_costs_the_connection(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let (link, other) = (rig.link_at(A, B, &addr), rig.link_at(A, B, &addr));
    let target = Guarded::filled(3, &[64]);
    let first = expose_piece(&mut rig, B, link.far, &target, Access::READ_WRITE);
    let second = expose_piece(&mut rig, B, link.far, &target, Access::READ_WRITE);
    assert_ne!(first.key, second.key, "each exposure has a key of its own");
    rig.adapter(B).revoke(link.far, first.key);
    let list = [rig.register(A, &filled(4, 64)).segment(0, 64)];
    rig.write(A, link.near, 5, &list, second).expect("write");
    rig.done(A, link.near, 5, WorkKind::Write, "the other exposure lives on");
    rig.ping(A, B, link, "behind the write");
    target.check("by the other exposure", &pattern(4, 64));
    costs_the_connection(&mut rig, (link, other), first, WRITE, &target, "a revoked key");
}

/// An exposure holds its region until it is revoked or the connection ends. Revoking an unknown key
/// is ignored. Exposing on an ended connection fails with `PeerLost` (C5, C6).
pub fn exposures_hold_their_region(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let (mut first, mut second) = (memory(64), memory(64));
    let (region, slice) = rig.expose(B, link.far, &first, Access::READ);
    drop(region);
    drop(rig.expose(B, link.far, &second, Access::READ));
    rig.ping(A, B, link, "some time");
    assert!(!crate::data::is_sole(&mut first) && !crate::data::is_sole(&mut second), "exposed memory is held");
    rig.adapter(B).revoke(link.far, forged(slice, 5).key);
    rig.adapter(B).revoke(link.far, slice.key);
    rig.adapter(B).revoke(link.far, slice.key);
    rig.released(&mut first, "the revoked memory");
    assert!(!crate::data::is_sole(&mut second), "the other exposure still stands");
    let deadline = rig.far_off();
    rig.adapter(A).disconnect(link.near, deadline);
    rig.end_of(A, link.near, "the end");
    rig.end_of(B, link.far, "the end");
    rig.released(&mut second, "the memory exposed on the connection that ended");
    let segment = rig.register(B, &first).segment(0, 1);
    let error = rig.adapter(B).expose(link.far, &segment, Access::READ).expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
}
