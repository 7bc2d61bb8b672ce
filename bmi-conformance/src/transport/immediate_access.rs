//! One-sided work that completes while it is posted ([`Transport::write_now`],
//! [`Transport::read_now`]).
//!
//! A transport may always return false, so each test checks both results. True means that the bytes
//! are in place, after everything that was posted before, and that no completion follows. False
//! means that nothing has happened, and that posting the same request does it or reports the error.
//! A backend's own tests pin the cases in which it must return true.

use bmi_core::transport::{ConnId, Event, Payload, WorkKind, WorkOptions};
use bmi_core::{Access, MemSlice, RemoteSlice, Transport};

use super::channel::{forged, segments};
use crate::backend::Backend;
use crate::data::{Guarded, filled, memory, pattern};
use crate::rig::{A, B, Link, Rig};

/// Writes `source` by side A, at once or else by posting. Returns whether it was done at once.
fn write(rig: &mut Rig<'_>, link: Link, source: &Guarded, remote: RemoteSlice, number: u64) -> bool {
    let at_once = rig.adapter(A).write_now(link.near, source.pieces(), remote);
    if !at_once {
        let gather = segments(rig, A, source);
        rig.write(A, link.near, number, &gather, remote).expect("what was not done at once can be posted");
        rig.done(A, link.near, number, WorkKind::Write, "the write");
    }
    at_once
}

/// Checks that side A has no unread work completions.
fn nothing_was_reported(rig: &Rig<'_>, what: &str) {
    let work: Vec<_> = rig.unread(A).iter().filter(|event| matches!(event, Event::Work(_))).collect();
    assert!(work.is_empty(), "{what}: what is done at once reports nothing: {work:?}");
}

/// Local lists, and their offset in the peer's 70,000 bytes.
const SHAPES: [(u64, &[usize]); 7] = [
    (0, &[]),
    (70_000, &[0]),
    (3, &[1]),
    (100, &[70, 0, 30]),
    (69_999, &[1]),
    (17, &[5, 0, 60_000, 7]),
    (0, &[70_000]),
];

/// Lists of any shape are gathered to, and scattered from, the beginning of the remote slice.
/// Nothing else is touched (C3).
pub fn lists_of_any_shape(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let far = memory(70_000);
    let (_region, remote) = rig.expose(B, link.far, &far, Access::READ_WRITE);
    // Until the peer's memory is known here, as far as the backend supports that.
    rig.ping(A, B, link, "before the first");
    let most = vec![3; rig.adapter(A).capabilities().max_segments];
    for (number, (at, lens)) in SHAPES.into_iter().chain([(1, &most[..])]).enumerate() {
        let (what, number) = (format!("shape {number}"), number as u64);
        let mut image = pattern(100 + number, 70_000);
        far.copy_from(0, &image);
        let part = remote.slice(at, remote.len - at).expect("within");
        let source = Guarded::filled(number, lens);
        write(&mut rig, link, &source, part, number);
        rig.ping(A, B, link, "behind the write");
        image[at as usize..at as usize + source.len()].copy_from_slice(&pattern(number, source.len()));
        assert!(far.to_vec() == image, "{what}: the peer's bytes");
        source.check(&what, &pattern(number, source.len()));

        let target = Guarded::new(lens);
        if rig.adapter(A).read_now(link.near, target.pieces(), part) {
            target.check(&what, &image[at as usize..at as usize + target.len()]);
        } else {
            target.check_untouched(&format!("{what}: a read that was not done"));
        }
        assert!(far.to_vec() == image, "{what}: a read changes nothing");
        nothing_was_reported(&rig, &what);
    }
}

/// A write at once takes effect after the writes that were posted before it, however long they are,
/// and before a message that is sent after it. It does not hold up a message that was sent before
/// it (C3). Its memory is free at once.
pub fn order_with_what_is_posted(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let (len, part) = (2 << 20, 3000);
    let target = memory(len);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::WRITE);
    for round in 0..12u64 {
        let long = filled(round, len);
        let list = [rig.register(A, &long).segment(0, len)];
        let at = round * 150_000;
        let short = Guarded::filled(1000 + round, &[1000, 2000]);
        rig.recv(B, link.far, 2 * round, &[]).expect("receive");
        rig.recv(B, link.far, 2 * round + 1, &[]).expect("receive");
        let posted = round % 3;
        if posted > 0 {
            rig.write(A, link.near, round, &list, remote).expect("write");
        }
        rig.send(A, link.near, round, &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
        if posted > 1 {
            rig.turn();
        }
        let there = remote.slice(at, part).expect("within");
        let at_once = rig.adapter(A).write_now(link.near, short.pieces(), there);
        if !at_once {
            let gather = segments(&mut rig, A, &short);
            rig.write(A, link.near, 100 + round, &gather, there).expect("write");
        }
        rig.send(A, link.near, round, &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
        if at_once {
            // The bytes were copied, so later changes are not sent.
            short.list().copy_from(0, &[0; 3000]);
        }
        rig.done(B, link.far, 2 * round, WorkKind::Recv, "the message before");
        rig.done(B, link.far, 2 * round + 1, WorkKind::Recv, "the message behind");
        let mut expected = pattern(1000 + round, part as usize);
        let mut seen = vec![0; part as usize];
        target.copy_to(at as usize, &mut seen);
        assert!(seen == expected, "round {round}: the short write (at once: {at_once}) is not behind the long one");
        if posted > 0 {
            expected = long.to_vec();
            expected[at as usize..][..part as usize].copy_from_slice(&seen);
            assert!(target.to_vec() == expected, "round {round}: the long write");
            rig.done(A, link.near, round, WorkKind::Write, "the long write");
        }
        if !at_once {
            rig.done(A, link.near, 100 + round, WorkKind::Write, "the short write");
        }
        nothing_was_reported(&rig, "behind a round");
    }
}

/// Tries both, and checks that nothing is done, that no byte changed, and that the connection
/// remains. Posting reports the error (C7).
fn refused(
    rig: &mut Rig<'_>,
    conn: ConnId,
    remote: RemoteSlice,
    (write, read): (bool, bool),
    len: usize,
    target: &Guarded,
    what: &str,
) {
    let before = target.memory().to_vec();
    let local = Guarded::filled(77, &[len / 2, len - len / 2]);
    let untouched = local.memory().to_vec();
    let pieces: &[MemSlice] = local.pieces();
    assert!(!write || !rig.adapter(A).write_now(conn, pieces, remote), "{what}: written");
    assert!(!read || !rig.adapter(A).read_now(conn, pieces, remote), "{what}: read");
    assert!(target.memory().to_vec() == before, "{what}: a byte changed");
    assert!(local.memory().to_vec() == untouched, "{what}: a byte was delivered");
}

/// The result is false for a wrong key, missing rights, every way out of bounds, a revoked key, a
/// key of another connection, and a connection that has ended. Nothing has happened then, not even
/// to the connection (C6, C7).
pub fn what_posting_would_refuse(backend: &dyn Backend) {
    const BOTH: (bool, bool) = (true, true);
    let mut rig = Rig::new(backend);
    let addr = rig.listen(B);
    let (link, other) = (rig.link_at(A, B, &addr), rig.link_at(A, B, &addr));
    let target = Guarded::filled(3, &[64]);
    let expose = |rig: &mut Rig<'_>, access| {
        let segment = segments(rig, B, &target).remove(0);
        rig.adapter(B).expose(link.far, &segment, access).expect("expose")
    };
    let [both, readable, writable, local] =
        [Access::READ_WRITE, Access::READ, Access::WRITE, Access::LOCAL].map(|access| expose(&mut rig, access));
    rig.ping(A, B, link, "what is exposed is known");
    let cases: [(&str, RemoteSlice, (bool, bool), usize); 14] = [
        ("a wrong key", forged(both, 1), BOTH, 64),
        ("another wrong key", forged(both, 1 << 63), BOTH, 64),
        ("no bytes by a wrong key", forged(both, 1), BOTH, 0),
        ("no bytes behind the end", RemoteSlice { addr: both.addr + 65, len: 0, ..both }, BOTH, 0),
        ("a write where reading is allowed", readable, (true, false), 64),
        ("a read where writing is allowed", writable, (false, true), 64),
        ("no bytes where nothing is allowed", local, BOTH, 0),
        ("where nothing is allowed", local, BOTH, 64),
        ("one byte behind the end", RemoteSlice { addr: both.addr + 1, ..both }, BOTH, 64),
        ("one byte before the beginning", RemoteSlice { addr: both.addr.wrapping_sub(1), ..both }, BOTH, 64),
        ("an address that overflows", RemoteSlice { addr: u64::MAX - 3, ..both }, BOTH, 64),
        ("far away", RemoteSlice { addr: both.addr ^ (1 << 40), ..both }, BOTH, 64),
        ("more bytes than the peer's piece has", both.slice(0, 10).expect("within"), BOTH, 11),
        ("a piece longer than what was exposed", RemoteSlice { len: 4096, ..both }, BOTH, 65),
    ];
    for (what, remote, which, len) in cases {
        refused(&mut rig, link.near, remote, which, len, &target, what);
        rig.ping(A, B, link, what);
    }
    refused(&mut rig, other.near, both, BOTH, 64, &target, "a key of another connection");
    rig.ping(A, B, other, "the thief's connection stands");
    rig.adapter(B).revoke(link.far, both.key);
    refused(&mut rig, link.near, both, BOTH, 64, &target, "a revoked key");
    refused(&mut rig, link.near, both.slice(0, 0).expect("within"), BOTH, 0, &target, "no bytes by a revoked key");
    rig.ping(A, B, link, "behind the revoked key");

    // An allowed access still works, either way.
    let source = Guarded::filled(9, &[64]);
    write(&mut rig, link, &source, writable, 50);
    rig.ping(A, B, link, "behind a write that is allowed");
    target.check("a write that is allowed", &pattern(9, 64));
    let deadline = rig.far_off();
    rig.adapter(A).disconnect(link.near, deadline);
    rig.end_of(A, link.near, "the end");
    refused(&mut rig, link.near, writable, BOTH, 64, &target, "a connection that has ended");
    let unknown = ConnId { slot: 1 << 20, generation: 7 };
    refused(&mut rig, unknown, writable, BOTH, 64, &target, "a connection that never was");
    rig.ping(A, B, other, "another connection");
}
