//! Sends and receives.

use bmi_core::transport::{Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, ErrorKind, MemSlice, Memory, RemoteSlice, Segment, Transport};
use bytes::Bytes;

use crate::backend::Backend;
use crate::data::{GUARD, Guarded, filled, memory, pattern};
use crate::rig::{A, B, C, Rig};
use crate::rng::Rng;

/// Returns the pieces of a list as segments of one region.
pub(super) fn segments(rig: &mut Rig<'_>, side: usize, list: &Guarded) -> Vec<Segment> {
    let region = rig.register(side, list.memory());
    list.pieces().iter().map(|piece| region.segment(piece.offset(), piece.len())).collect()
}

/// Heads and gathered payloads of many shapes arrive as one message, head first, scattered over a
/// list of another shape. A longer receive leaves the rest untouched (C10).
pub fn gather_and_scatter(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let most = rig.adapter(A).capabilities().max_segments;
    let one_byte_each = vec![1; most];
    let shapes: [(usize, &[usize], &[usize]); 9] = [
        (0, &[], &[]),
        (0, &[], &[10]),
        (7, &[], &[7]),
        (7, &[], &[3, 0, 4, 5]),
        (0, &[1], &[1]),
        (0, &[5, 0, 6], &[1, 10]),
        (11, &[13, 4096, 3], &[5000]),
        (3, &[100_000, 1, 60_000], &[70_000, 0, 20_000, 80_000]),
        (0, &one_byte_each, &one_byte_each),
    ];
    for (number, (head, from, to)) in shapes.into_iter().enumerate() {
        let number = number as u64;
        let head = pattern(100 + number, head);
        let (source, target) = (Guarded::filled(number, from), Guarded::new(to));
        let (gather, scatter) = (segments(&mut rig, A, &source), segments(&mut rig, B, &target));
        rig.recv(B, link.far, number, &scatter).expect("receive");
        rig.send(A, link.near, number, &head, Payload::Gather(&gather), WorkOptions::SIGNALLED).expect("send");
        let got = rig.done(B, link.far, number, WorkKind::Recv, "the receive");
        let len = (head.len() + source.len()) as u64;
        assert_eq!((got.len, got.immediate), (len, None), "shape {number}");
        let sent = rig.done(A, link.near, number, WorkKind::Send, "the send");
        assert_eq!(sent.len, len, "shape {number}");
        let expected = [head, source.list().to_vec()].concat();
        target.check(&format!("shape {number}"), &expected);
    }
}

/// Head and inline payload are copied before the call returns. Later changes by the caller are not
/// sent.
pub fn inline_is_copied_while_posting(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let most = rig.adapter(A).capabilities().max_inline;
    let mut head = pattern(1, 24);
    let payload = filled(2, most.saturating_sub(head.len()));
    let inline: Vec<MemSlice> = match payload.len() {
        0 => Vec::new(),
        len => vec![payload.slice(0, len / 3), payload.slice(len / 3, len - len / 3)],
    };
    let expected = [head.clone(), payload.to_vec()].concat();
    let target = Guarded::new(&[expected.len() + 9]);
    let scatter = segments(&mut rig, B, &target);
    rig.recv(B, link.far, 1, &scatter).expect("receive");
    rig.send(A, link.near, 1, &head, Payload::Inline(&inline), WorkOptions::UNSIGNALLED).expect("send");
    head.fill(0);
    payload.copy_from(0, &vec![0; payload.len()]);
    rig.done(B, link.far, 1, WorkKind::Recv, "the message");
    target.check("head and inline payload", &expected);
}

/// Heads up to `max_head` are accepted. Longer heads, too many segments, too much inline payload
/// and work over `max_work_len` are `Invalid` and leave the connection unchanged.
pub fn limits_are_enforced(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let limits = rig.adapter(A).capabilities().clone();
    let source = filled(1, limits.max_segments + 1);
    let region = rig.register(A, &source);
    let many: Vec<Segment> = (0..=limits.max_segments).map(|at| region.segment(at, 1)).collect();
    let invalid = |result: Result<(), PostError>, what: &str| {
        assert!(matches!(result, Err(PostError::Invalid(_))), "{what}: {result:?}");
    };
    let long_head = vec![0; limits.max_head + 1];
    let signalled = WorkOptions::SIGNALLED;
    invalid(rig.send(A, link.near, 1, &long_head, Payload::EMPTY, signalled), "a head over max_head");
    invalid(rig.send(A, link.near, 1, &[], Payload::Gather(&many), signalled), "too many segments to send");
    invalid(rig.recv(A, link.near, 1, &many), "too many segments to receive");
    let big = memory(limits.max_inline + 1);
    invalid(rig.send(A, link.near, 1, &[], Payload::Inline(&[big.all()]), signalled), "too much inline");
    let target = memory(limits.max_segments + 1);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::READ_WRITE);
    invalid(rig.write(A, link.near, 1, &many, remote), "too many segments to write");
    invalid(rig.read(A, link.near, 1, &many, remote), "too many segments to read");
    // More bytes than the memory has: the same bytes are named again and again.
    let piece = usize::try_from(limits.max_work_len).expect("fits") / limits.max_segments + 1;
    if piece <= 256 << 20 {
        let huge = memory(piece);
        let region = rig.register(A, &huge);
        let again: Vec<Segment> = (0..limits.max_segments).map(|_| region.segment(0, piece)).collect();
        invalid(rig.send(A, link.near, 1, &[], Payload::Gather(&again), signalled), "a send over max_work_len");
    }
    let landing = memory(limits.max_head);
    let scatter = rig.register(B, &landing);
    rig.recv(B, link.far, 2, &[scatter.segment(0, limits.max_head)]).expect("receive");
    let head = pattern(3, limits.max_head);
    rig.send(A, link.near, 2, &head, Payload::EMPTY, signalled).expect("the longest head");
    rig.done(B, link.far, 2, WorkKind::Recv, "the longest head");
    rig.done(A, link.near, 2, WorkKind::Send, "the longest head");
    assert_eq!(landing.to_vec(), head);
}

/// A segment that another transport registered is `Invalid` in every kind of request.
pub fn foreign_segments_are_invalid(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let mut bytes = memory(8);
    let foreign = rig.register(C, &bytes).segment(0, 8);
    let target = memory(8);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::READ_WRITE);
    let list = [foreign];
    let refusals = [
        rig.send(A, link.near, 1, &[], Payload::Gather(&list), WorkOptions::SIGNALLED),
        rig.recv(A, link.near, 2, &list),
        rig.write(A, link.near, 3, &list, remote),
        rig.read(A, link.near, 4, &list, remote),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(PostError::Invalid(_))), "a foreign segment: {refusal:?}");
    }
    let refusal = rig.adapter(A).expose(link.near, &list[0], Access::READ).expect_err("a foreign segment");
    assert_eq!(refusal.kind(), ErrorKind::Invalid, "{refusal}");
    drop(list);
    rig.released(&mut bytes, "a failed post holds nothing (C5)");
    rig.ping(A, B, link, "the connection is as it was");
}

/// Messages of all sizes in both directions at once arrive whole and in posting order. Completions
/// come in posting order (C3, C4).
pub fn order_in_both_directions(backend: &dyn Backend) {
    const MESSAGES: usize = 300;
    const WINDOW: usize = 16;
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let mut rng = Rng::new(7);
    let sizes: Vec<usize> = (0..MESSAGES)
        .map(|_| match rng.below(4) {
            0 => rng.index(16),
            1 => rng.index(300),
            2 => rng.index(5000),
            _ => rng.index(70_000),
        })
        .collect();
    let slot = 70_000;
    let ends = [(A, link.near), (B, link.far)];
    let mut landing = Vec::new();
    for (side, conn) in ends {
        let bytes = memory(slot * WINDOW);
        let region = rig.register(side, &bytes);
        for index in 0..WINDOW {
            rig.recv(side, conn, index as u64, &[region.segment(index * slot, slot)]).expect("receive");
        }
        landing.push((bytes, region));
    }
    // A side sends message n when the other has received n - WINDOW and posted that receive again.
    // So every message has a receive.
    let (mut sent, mut received, mut finished) = ([0; 2], [0; 2], [0; 2]);
    while received != [MESSAGES; 2] || finished != [MESSAGES; 2] {
        for (side, conn) in ends {
            while sent[side] < MESSAGES && sent[side] < received[1 - side] + WINDOW {
                let number = sent[side];
                let bytes = filled((side * MESSAGES + number) as u64, sizes[number]);
                let list = [rig.register(side, &bytes).segment(0, sizes[number])];
                rig.send(side, conn, number as u64, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
                sent[side] += 1;
            }
            if rig.unread(side).is_empty() {
                continue;
            }
            let done = rig.completion(side, conn, "a message or the end of a send");
            assert_eq!(done.status, WorkStatus::Ok, "{done:?}");
            if done.kind == WorkKind::Send {
                assert_eq!(done.work, WorkId(finished[side] as u64), "sends complete in posting order");
                finished[side] += 1;
                continue;
            }
            let number = received[side];
            let index = number % WINDOW;
            assert_eq!((done.work, done.len), (WorkId(index as u64), sizes[number] as u64), "message {number}");
            let (bytes, region) = &landing[side];
            let expected = pattern(((1 - side) * MESSAGES + number) as u64, sizes[number]);
            assert!(bytes.slice(index * slot, sizes[number]).to_vec() == expected, "bytes of message {number}");
            let again = region.segment(index * slot, slot);
            rig.recv(side, conn, index as u64, &[again]).expect("receive again");
            received[side] += 1;
        }
        let before = (sent, received, finished);
        rig.wait("the next message", |rig| {
            let idle = rig.unread(A).is_empty() && rig.unread(B).is_empty();
            (!idle || before.1 == [MESSAGES; 2] && before.2 == [MESSAGES; 2]).then_some(())
        });
    }
}

/// Unsignalled sends report nothing. The completion of a later signalled send frees their memory
/// (C4, C5).
pub fn unsignalled_sends(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let landing = memory(64);
    let scatter = rig.register(B, &landing);
    for number in 0..8 {
        rig.recv(B, link.far, number, &[scatter.segment(number as usize * 8, 8)]).expect("receive");
    }
    let mut bytes = filled(1, 64);
    let expected = bytes.to_vec();
    {
        let region = rig.register(A, &bytes);
        for number in 0..8 {
            let list = [region.segment(number * 8, 8)];
            let options = if number == 7 { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED };
            rig.send(A, link.near, number as u64, &[], Payload::Gather(&list), options).expect("send");
        }
    }
    rig.done(A, link.near, 7, WorkKind::Send, "the only signalled send");
    rig.released(&mut bytes, "the memory of all eight sends");
    for number in 0..8 {
        rig.done(B, link.far, number, WorkKind::Recv, "each message");
    }
    assert_eq!(landing.to_vec(), expected);
    assert!(rig.unread(A).is_empty(), "an unsignalled send reported: {:?}", rig.unread(A));
}

/// Memory is held from the post until the completion, and no longer (C5, C13).
pub fn memory_is_held_until_completion(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let (mut source, mut target) = (filled(1, 5000), memory(5000));
    let list = [rig.register(B, &target).segment(0, 5000)];
    rig.recv(B, link.far, 1, &list).expect("receive");
    drop(list);
    for _ in 0..10 {
        rig.turn();
    }
    assert!(!crate::data::is_sole(&mut target), "a posted receive holds its memory");
    let list = [rig.register(A, &source).segment(0, 5000)];
    rig.send(A, link.near, 1, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
    drop(list);
    assert!(!crate::data::is_sole(&mut source), "nothing was polled, so the send has not completed");
    rig.done(A, link.near, 1, WorkKind::Send, "the send");
    rig.done(B, link.far, 1, WorkKind::Recv, "the receive");
    rig.released(&mut source, "the source");
    rig.released(&mut target, "the target");
    assert_eq!(target.to_vec(), source.to_vec());
}

/// Queues accept at least the depth in the capabilities, hand back what exceeds their depth, and
/// accept more after progress. No accepted request is lost (C2, C4).
pub fn full_queues_hand_back(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let limits = rig.adapter(A).capabilities().clone();
    let target = memory(8);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::WRITE);
    let source = rig.register(A, &filled(1, 8)).segment(0, 8);
    let list = [source];
    let mut accepted = 0u64;
    while accepted < 4 * limits.send_queue_depth as u64 {
        let work = WorkId(accepted);
        let options = WorkOptions::SIGNALLED;
        if !rig.try_post(A, |t| t.post_write(link.near, work, &[], &list, remote.into(), options)) {
            break;
        }
        accepted += 1;
    }
    assert!(accepted >= limits.send_queue_depth as u64, "full after {accepted}, not {}", limits.send_queue_depth);
    for number in 0..accepted {
        rig.done(A, link.near, number, WorkKind::Write, "each accepted write");
    }
    rig.write(A, link.near, accepted, &list, remote).expect("room again");
    rig.done(A, link.near, accepted, WorkKind::Write, "the write after the queue was full");

    let mut posted = 0u64;
    while posted < 4 * limits.recv_queue_depth as u64 {
        let work = WorkId(posted);
        if !rig.try_post(B, |t| t.post_recv(link.far, work, &[])) {
            break;
        }
        posted += 1;
    }
    assert!(posted >= limits.recv_queue_depth as u64, "full after {posted}, not {}", limits.recv_queue_depth);
    for number in 0..posted {
        rig.send(A, link.near, number, &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).expect("send");
    }
    for number in 0..posted {
        rig.done(B, link.far, number, WorkKind::Recv, "each accepted receive");
    }
}

/// A send without a receive ends the connection on both sides (C9). Another connection goes on.
pub fn receiver_not_ready_ends_the_connection(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let (link, other) = (rig.link(A, B), rig.link(A, B));
    rig.send(A, link.near, 1, b"anybody there?", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    let (completions, _) = rig.end_of(A, link.near, "the sender's end");
    assert_eq!(completions.len(), 1, "{completions:?}");
    let (completions, reason) = rig.end_of(B, link.far, "the receiver's end");
    assert!(completions.is_empty(), "{completions:?}");
    assert!(!reason.detail().is_empty(), "the reason stands in words");
    rig.ping(A, B, other, "another connection");
    rig.nothing_more(A, link.near, "after the end");
}

/// A message longer than its receive: the receive completes with `TooLong`, nothing behind it is
/// touched, and the connection ends (C10).
pub fn too_long_ends_the_connection(backend: &dyn Backend) {
    for (len, room) in [(10usize, 9usize), (1, 0), (70_000, 4096)] {
        let mut rig = Rig::new(backend);
        let (link, other) = (rig.link(A, B), rig.link(A, B));
        let target = Guarded::new(&[room]);
        let scatter = segments(&mut rig, B, &target);
        rig.recv(B, link.far, 1, &scatter).expect("receive");
        rig.recv(B, link.far, 2, &[]).expect("a second receive, to be flushed");
        let list = [rig.register(A, &filled(1, len)).segment(0, len)];
        rig.send(A, link.near, 1, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
        let (completions, _) = rig.end_of(B, link.far, "the receiver's end");
        let statuses: Vec<_> = completions.iter().map(|c| (c.work.0, c.status)).collect();
        assert_eq!(statuses, [(1, WorkStatus::TooLong), (2, WorkStatus::Flushed)], "{len} bytes into {room}");
        let (completions, _) = rig.end_of(A, link.near, "the sender's end");
        assert_eq!(completions.len(), 1, "{completions:?}");
        let image = target.memory().to_vec();
        let piece = &target.pieces()[0];
        let outside = image[..piece.offset()].iter().chain(&image[piece.offset() + room..]);
        assert!(outside.copied().all(|byte| byte == GUARD), "bytes outside the receive were touched");
        rig.ping(A, B, other, "another connection");
    }
}

/// What both sides report when a send finds no receive, or one that is too short (C9, C10). At the
/// sender, the sends before it succeed. It and the sends behind it complete with `Ok`, because the
/// adapter was done with their memory before, or else one of them with the reason and the others
/// `Flushed`. The connection ends `PeerLost` at the sender and `Protocol` at the receiver.
pub fn refused_sends_report_alike(backend: &dyn Backend) {
    let most = usize::try_from(backend.expected_capabilities().max_work_len).unwrap_or(usize::MAX);
    for (len, room) in [(10, None), (10, Some(9)), (70_000, None), (70_000, Some(4096))] {
        let what = format!("{len} bytes into {room:?}");
        let mut rig = Rig::new(backend);
        let link = rig.link(A, B);
        let landing = rig.register(B, &memory(8192));
        rig.recv(B, link.far, 1, &[landing.segment(0, 4096)]).expect("a receive");
        if let Some(room) = room {
            rig.recv(B, link.far, 2, &[landing.segment(4096, room)]).expect("a short receive");
        }
        // The last one is longer than what the way to the receiver holds.
        let lens = [10, len, most.min(8 << 20)];
        let mut posted = 0;
        for (number, len) in (0u64..).zip(lens) {
            let list = [rig.register(A, &filled(number, len)).segment(0, len)];
            match rig.send(A, link.near, number, &[], Payload::Gather(&list), WorkOptions::SIGNALLED) {
                Ok(()) => posted += 1,
                // The queue was full, and the connection ended meanwhile.
                Err(PostError::NotConnected) if posted == 2 => break,
                Err(refusal) => panic!("{what}: {refusal:?}"),
            }
        }
        let reason = if room.is_some() { WorkStatus::TooLong } else { WorkStatus::ReceiverNotReady };

        let (completions, error) = rig.end_of(A, link.near, &what);
        let works: Vec<_> = completions.iter().map(|c| (c.work, c.kind)).collect();
        let expected: Vec<_> = (0..posted).map(|work| (WorkId(work), WorkKind::Send)).collect();
        assert_eq!(works, expected, "{what}: each once, in posting order");
        let statuses: Vec<_> = completions.iter().map(|c| c.status).collect();
        assert_eq!(statuses[0], WorkStatus::Ok, "{what}: the send before it");
        let mut behind = statuses.iter().skip_while(|status| **status == WorkStatus::Ok);
        let first = behind.next().copied();
        let allowed = [None, Some(WorkStatus::Flushed), Some(reason)];
        assert!(
            allowed.contains(&first) && behind.all(|status| *status == WorkStatus::Flushed),
            "{what}: {statuses:?}"
        );
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{what}: {error}");

        let (completions, error) = rig.end_of(B, link.far, &what);
        let statuses: Vec<_> = completions.iter().map(|c| (c.work.0, c.status, c.len)).collect();
        let expected = [(1, WorkStatus::Ok, 10), (2, WorkStatus::TooLong, 0)];
        assert_eq!(statuses, expected[..1 + usize::from(room.is_some())], "{what}: nothing behind it is delivered");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{what}: {error}");
        assert!(!error.detail().is_empty(), "{what}: the reason is in words");
    }
}

/// A message larger than any socket buffer or pipe arrives whole while both sides are polled.
pub fn large_messages(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let len = usize::try_from(rig.adapter(A).capabilities().max_work_len).unwrap_or(usize::MAX).min(8 << 20);
    let (source, target) = (filled(5, len), memory(len));
    let (from, to) = ([rig.register(A, &source).segment(0, len)], [rig.register(B, &target).segment(0, len)]);
    rig.recv(B, link.far, 1, &to).expect("receive");
    rig.send(A, link.near, 1, &[], Payload::Gather(&from), WorkOptions::SIGNALLED).expect("send");
    rig.done(B, link.far, 1, WorkKind::Recv, "the large message");
    rig.done(A, link.near, 1, WorkKind::Send, "the large send");
    assert!(target.to_vec() == source.to_vec(), "the bytes differ");
}

/// Read-only memory, which is made of `Bytes`, can be sent, written from, and exposed for reading.
/// Work that would write to it is `Invalid`, as is its exposure for writing. So is a list in which
/// only one segment is read-only. The connection stays as it was.
pub fn read_only_memory_is_never_written(backend: &dyn Backend) {
    const LEN: usize = 5000;
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let reads = backend.expected_capabilities().rdma_read;
    let bytes = Bytes::from(pattern(1, LEN));
    let source = rig.register(A, &Memory::from(bytes.clone()));
    let list = [source.segment(0, LEN)];

    let target = Guarded::new(&[LEN]);
    let scatter = segments(&mut rig, B, &target);
    rig.recv(B, link.far, 1, &scatter).expect("receive");
    rig.send(A, link.near, 1, &[], Payload::Gather(&list), WorkOptions::SIGNALLED).expect("send");
    rig.done(B, link.far, 1, WorkKind::Recv, "a message of read-only memory");
    rig.done(A, link.near, 1, WorkKind::Send, "a send of read-only memory");
    target.check("sent", &bytes);

    let target = memory(LEN);
    let (_region, remote) = rig.expose(B, link.far, &target, Access::WRITE);
    rig.write(A, link.near, 2, &list, remote).expect("write");
    rig.done(A, link.near, 2, WorkKind::Write, "a write from read-only memory");
    rig.ping(A, B, link, "behind the write");
    assert!(target.to_vec() == bytes, "written");

    let remote = rig.adapter(A).expose(link.near, &list[0], Access::READ).expect("expose for reading");
    if reads {
        let target = Guarded::new(&[LEN]);
        let scatter = segments(&mut rig, B, &target);
        rig.read(B, link.far, 3, &scatter, remote).expect("read");
        rig.done(B, link.far, 3, WorkKind::Read, "a read of read-only memory");
        target.check("read", &bytes);
    }

    let (_region, remote) = rig.expose(B, link.far, &filled(9, 2 * LEN), Access::READ_WRITE);
    let mixed = [rig.register(A, &memory(LEN)).segment(0, LEN), source.segment(0, LEN)];
    for list in [&list[..], &mixed] {
        let refused = [rig.recv(A, link.near, 4, list), rig.read(A, link.near, 5, list, remote)];
        assert!(refused.iter().all(|result| matches!(result, Err(PostError::Invalid(_)))), "{refused:?}");
    }
    for access in [Access::WRITE, Access::READ_WRITE] {
        let error = rig.adapter(A).expose(link.near, &list[0], access).expect_err("read-only memory");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let into = [source.segment(0, LEN).to_slice()];
    assert!(!rig.adapter(A).read_now(link.near, &into, remote), "a read at once into read-only memory");
    rig.ping(A, B, link, "the connection is as it was");
    assert_eq!(bytes, pattern(1, LEN));
}

/// Returns a remote slice with a forged key.
pub(super) fn forged(slice: RemoteSlice, key: u64) -> RemoteSlice {
    RemoteSlice { key: bmi_core::RemoteKey(slice.key.0 ^ key), ..slice }
}
