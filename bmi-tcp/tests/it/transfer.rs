//! Messages, writes and reads between two transports: sizes, lists, order, queues.

use bmi_conformance::world::{completion, pattern};
use bmi_core::transport::{
    Event, Payload, PostError, ServiceClass, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{Access, Capabilities, Memory, OneSided, Registration, RemoteSlice, Segment, Transport};
use bmi_tcp::{TcpConfig, TcpTransport};

use crate::common::{World, world};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

#[test]
fn the_capability_set_is_pinned() {
    let transport = TcpTransport::new(TcpConfig::default()).unwrap();
    let mut expected = Capabilities::minimal();
    (expected.one_sided, expected.rdma_read, expected.write_with_immediate) = (OneSided::Emulated, true, true);
    (expected.registration, expected.event_fd, expected.service_levels) = (Registration::Free, true, 1);
    (expected.max_segments, expected.max_head, expected.max_inline) = (1024, 256, 8 * 1024 + 256);
    (expected.max_work_len, expected.max_outstanding_reads) = (1 << 40, 64);
    (expected.send_queue_depth, expected.recv_queue_depth) = (1024, 4096);
    assert_eq!(transport.capabilities(), &expected);
}

/// Returns pieces of `segment` of uneven lengths, including an empty one.
fn cut(segment: &Segment) -> Vec<Segment> {
    let (len, mut at, mut pieces) = (segment.len(), 0, vec![segment.slice(0, 0)]);
    for step in (1..).map(|i| i * i * 37) {
        let step = step.min(len - at);
        pieces.push(segment.slice(at, step));
        at += step;
        if at == len {
            return pieces;
        }
    }
    unreachable!()
}

const LENGTHS: [usize; 14] =
    [0, 1, 7, 64, 2047, 2048, 2049, 65_536, 262_143, 262_144, 262_145, 300_000, 1 << 20, 5_000_001];

#[test]
fn sends_of_all_lengths_in_lists_of_different_shapes() {
    let mut world = world();
    let (ca, cb) = world.connect();
    for len in LENGTHS {
        let (_, source) = world.a.pattern(len);
        let (target, segment) = world.b.memory(len + 105);
        let mut room = cut(&segment);
        room.reverse();
        let order: Vec<Segment> = room.clone();
        world.b.transport.post_recv(cb, WorkId(1), &room).unwrap();
        world.a.transport.post_send(ca, WorkId(2), b"head!", Payload::Gather(&cut(&source)), SIGNALLED).unwrap();
        let sent = world.work_a();
        assert_eq!(sent, completion(ca, 2, WorkKind::Send, WorkStatus::Ok, len as u64 + 5));
        let got = world.work_b();
        assert_eq!(got, completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, len as u64 + 5));
        let mut bytes: Vec<u8> = order.iter().flat_map(|piece| piece.to_slice().to_vec()).collect();
        let rest = bytes.split_off(len + 5);
        assert_eq!(&bytes[..5], b"head!");
        assert_eq!(&bytes[5..], &pattern(len)[..], "{len}");
        assert_eq!(rest, [0; 100], "a short message leaves the rest alone");
        assert_eq!(target.len(), len + 105);
    }
}

#[test]
fn writes_of_all_lengths_land_where_they_should() {
    let mut world = world();
    let (ca, cb) = world.connect();
    for len in LENGTHS {
        let (_, source) = world.a.pattern(len);
        let (target, segment) = world.b.memory(len + 40);
        let remote = world.b.transport.expose(cb, &segment.slice(10, len + 20), Access::WRITE).unwrap();
        let target_slice = WriteTarget { remote: remote.slice(5, len as u64 + 3).unwrap(), immediate: Some(77) };
        world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
        world.a.transport.post_write(ca, WorkId(2), b"abc", &cut(&source), target_slice, SIGNALLED).unwrap();
        assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Write, WorkStatus::Ok, len as u64 + 3));
        let mut expected = completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, 0);
        expected.immediate = Some(77);
        assert_eq!(world.work_b(), expected);
        let bytes = target.to_vec();
        assert_eq!(bytes[..15], [0; 15]);
        assert_eq!(&bytes[15..18], b"abc");
        assert_eq!(&bytes[18..18 + len], &pattern(len)[..]);
        assert_eq!(bytes[18 + len..], [0; 22]);
        world.b.transport.revoke(cb, remote.key);
    }
}

#[test]
fn reads_of_all_lengths_many_at_once() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, source) = world.b.pattern(5_000_100);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let targets: Vec<_> = LENGTHS.iter().map(|len| world.a.memory(*len)).collect();
    for (at, (target, segment)) in targets.iter().enumerate() {
        let part = remote.slice(at as u64, target.len() as u64).unwrap();
        let class = ServiceClass::Bulk;
        world
            .a
            .transport
            .post_read(ca, WorkId(at as u64), &cut(segment), part, WorkOptions { signalled: true, class })
            .unwrap();
    }
    for (at, (target, _)) in targets.iter().enumerate() {
        let len = target.len();
        assert_eq!(world.work_a(), completion(ca, at as u64, WorkKind::Read, WorkStatus::Ok, len as u64));
        assert_eq!(target.to_vec(), pattern(5_000_100)[at..at + len]);
    }
}

#[test]
fn reads_above_the_limit_wait_their_turn() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, source) = world.b.pattern(1000);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let (target, segment) = world.a.memory(1000);
    for at in 0..1000 {
        let part = remote.slice(at, 1).unwrap();
        let piece = segment.slice(at as usize, 1);
        world.a.transport.post_read(ca, WorkId(at), &[piece], part, WorkOptions::SIGNALLED).unwrap();
    }
    for at in 0..1000 {
        assert_eq!(world.work_a(), completion(ca, at, WorkKind::Read, WorkStatus::Ok, 1));
    }
    assert_eq!(target.to_vec(), pattern(1000));
}

#[test]
fn inline_bytes_are_copied_before_the_call_returns() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (target, segment) = world.b.memory(9000);
    world.b.transport.post_recv(cb, WorkId(1), &[segment]).unwrap();
    let source = Memory::from(pattern(8192));
    let slices = [source.slice(0, 100), source.slice(100, 8092)];
    world.a.transport.post_send(ca, WorkId(2), &[9; 256], Payload::Inline(&slices), SIGNALLED).unwrap();
    source.copy_from(0, &[0; 8192]);
    assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, 8448));
    assert_eq!(target.to_vec()[..256], [9; 256]);
    assert_eq!(target.to_vec()[256..8448], pattern(8192));
    let slices = [source.slice(0, 8192), source.slice(0, 1)];
    let refused = world.a.transport.post_send(ca, WorkId(3), &[9; 256], Payload::Inline(&slices), SIGNALLED);
    assert!(matches!(refused, Err(PostError::Invalid(_))));
}

#[test]
fn messages_arrive_in_order_and_unsignalled_ones_stay_silent() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(4 * 600);
    let (_, bulk) = world.a.pattern(100_000);
    let (_, room) = world.b.memory(100_000);
    let remote = world.b.transport.expose(cb, &room, Access::WRITE).unwrap();
    for at in 0..600usize {
        world.b.transport.post_recv(cb, WorkId(at as u64), &[segment.slice(4 * at, 4)]).unwrap();
    }
    for at in 0..600u32 {
        let options = if at % 10 == 9 { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED };
        if at % 50 == 3 {
            let unsignalled = WorkOptions::UNSIGNALLED;
            world
                .a
                .transport
                .post_write(ca, WorkId(0), &[], std::slice::from_ref(&bulk), remote.into(), unsignalled)
                .unwrap();
        }
        let work = WorkId(u64::from(at));
        world.a.transport.post_send(ca, work, &at.to_le_bytes(), Payload::EMPTY, options).unwrap();
    }
    for at in 0..600u64 {
        assert_eq!(world.work_b(), completion(cb, at, WorkKind::Recv, WorkStatus::Ok, 4));
    }
    for at in (9..600).step_by(10) {
        assert_eq!(world.work_a(), completion(ca, at, WorkKind::Send, WorkStatus::Ok, 4));
    }
    world.settle();
    assert_eq!((world.a.take_work(), world.b.take_work()), (None, None));
    let expected: Vec<u8> = (0..600u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(memory.to_vec(), expected);
    assert_eq!(room.to_slice().to_vec(), pattern(100_000));
}

#[test]
fn a_message_passes_between_the_pieces_of_a_reply() {
    let mut world = world();
    let (ca, cb) = world.connect();
    const LEN: usize = 64 << 20;
    let (_, source) = world.b.memory(LEN);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let (_, target) = world.a.memory(LEN);
    let (_, small) = world.a.memory(4);
    world.a.transport.post_read(ca, WorkId(1), &[target], remote, WorkOptions::SIGNALLED).unwrap();
    world.a.transport.post_recv(ca, WorkId(2), &[small]).unwrap();
    for _ in 0..4 {
        world.poll();
    }
    world.b.transport.post_send(cb, WorkId(3), b"ping", Payload::EMPTY, SIGNALLED).unwrap();
    assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Recv, WorkStatus::Ok, 4));
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Read, WorkStatus::Ok, LEN as u64));
}

#[test]
fn both_directions_at_once() {
    let mut world = world();
    let (ca, cb) = world.connect();
    const LEN: usize = 3_000_000;
    let (_, out_a) = world.a.pattern(LEN);
    let (_, out_b) = world.b.pattern(LEN);
    let (in_a, into_a) = world.a.memory(LEN);
    let (in_b, into_b) = world.b.memory(LEN);
    let (read_a, read_into) = world.a.memory(LEN);
    let remote = world.b.transport.expose(cb, &out_b, Access::READ).unwrap();
    world.a.transport.post_recv(ca, WorkId(1), &[into_a]).unwrap();
    world.b.transport.post_recv(cb, WorkId(1), &[into_b]).unwrap();
    world.a.transport.post_read(ca, WorkId(3), &[read_into], remote, WorkOptions::SIGNALLED).unwrap();
    world.a.transport.post_send(ca, WorkId(2), &[], Payload::Gather(&[out_a]), SIGNALLED).unwrap();
    world.b.transport.post_send(cb, WorkId(2), &[], Payload::Gather(&[out_b]), SIGNALLED).unwrap();
    for _ in 0..3 {
        assert_eq!(world.work_a().status, WorkStatus::Ok);
    }
    for _ in 0..2 {
        assert_eq!(world.work_b().status, WorkStatus::Ok);
    }
    for memory in [in_a, in_b, read_a] {
        assert!(memory.to_vec() == pattern(LEN));
    }
}

#[test]
fn a_full_queue_says_so_and_takes_more_later() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.memory(256);
    for _ in 0..4096 {
        world.b.transport.post_recv(cb, WorkId(0), std::slice::from_ref(&segment)).unwrap();
    }
    assert_eq!(world.b.transport.post_recv(cb, WorkId(0), &[]), Err(PostError::QueueFull));
    for round in 0..3 {
        for _ in 0..1024 {
            world.a.transport.post_send(ca, WorkId(0), &[7; 256], Payload::EMPTY, SIGNALLED).unwrap();
        }
        let full = world.a.transport.post_send(ca, WorkId(0), &[], Payload::EMPTY, SIGNALLED);
        assert_eq!(full, Err(PostError::QueueFull), "{round}");
        for _ in 0..1024 {
            assert_eq!(world.work_a().status, WorkStatus::Ok);
            assert_eq!(world.work_b().len, 256);
        }
    }
}

#[test]
fn limits_are_checked_when_posting() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, segment) = world.a.memory(10);
    let (_, foreign) = world.b.memory(10);
    let remote = world.b.transport.expose(cb, &foreign, Access::READ_WRITE).unwrap();
    let remote: RemoteSlice = remote.slice(0, 9).unwrap();
    let transport = &mut world.a.transport;
    let invalid = |result| assert!(matches!(result, Err(PostError::Invalid(_))), "{result:?}");
    let many = vec![segment.slice(0, 0); 1025];
    invalid(transport.post_send(ca, WorkId(0), &[0; 257], Payload::EMPTY, SIGNALLED));
    invalid(transport.post_send(ca, WorkId(0), &[], Payload::Gather(&many), SIGNALLED));
    invalid(transport.post_send(ca, WorkId(0), &[], Payload::Gather(std::slice::from_ref(&foreign)), SIGNALLED));
    invalid(transport.post_recv(ca, WorkId(0), std::slice::from_ref(&foreign)));
    invalid(transport.post_recv(ca, WorkId(0), &many));
    invalid(transport.post_write(ca, WorkId(0), &[], std::slice::from_ref(&segment), remote.into(), SIGNALLED));
    invalid(transport.post_read(ca, WorkId(0), std::slice::from_ref(&segment), remote, WorkOptions::SIGNALLED));
    let unknown = bmi_core::transport::ConnId { generation: ca.generation + 1, ..ca };
    let result = transport.post_send(unknown, WorkId(0), &[], Payload::EMPTY, SIGNALLED);
    assert_eq!(result, Err(PostError::NotConnected));
    world.settle();
    assert!(world.a.events.is_empty() && world.b.events.is_empty());
}

/// A caller can tell a slow peer from one that has stopped.
#[test]
fn the_bytes_of_a_request_under_way_are_counted() {
    const LEN: usize = 32 << 20;
    let mut world = world();
    let (ca, cb) = world.connect();
    let ((_, source), (_, target)) = (world.a.memory(LEN), world.b.memory(LEN));
    let remote = world.b.transport.expose(cb, &target, Access::WRITE).unwrap();
    world.a.transport.post_write(ca, WorkId(1), &[], &[source], remote.into(), SIGNALLED).unwrap();
    // The peer takes nothing, so the buffers of the system are full at some time.
    while world.a.transport.poll(world.now, &mut world.a.events) {}
    let full = world.a.transport.moved_bytes(ca);
    assert!(full > 0 && full < LEN as u64, "{full}");
    assert_eq!(world.a.take_work(), None);
    let mut counts = vec![full];
    let done = world.until(|world| {
        let count = world.a.transport.moved_bytes(ca);
        assert!(count >= counts[counts.len() - 1]);
        counts.push(count);
        world.a.take_work()
    });
    assert_eq!(done.status, WorkStatus::Ok);
    counts.dedup();
    assert!(counts.len() > 3, "it grows while the write is under way: {counts:?}");
    world.settle();
    assert!(world.b.transport.moved_bytes(cb) > LEN as u64, "with the headers");
    world.a.transport.disconnect(ca, world.now);
    world.settle();
    assert_eq!(world.a.transport.moved_bytes(ca), 0, "an unknown connection");
}

/// A regression test. Sockets that recently had bytes are read without asking the system which have
/// some, and two that always have bytes hid all others for up to 32 polls.
#[test]
fn two_busy_sockets_do_not_hide_a_third() {
    const ROUNDS: u64 = 32;
    let mut world = world();
    let busy = [world.connect(), world.connect()];
    let quiet = world.connect();
    let (_, bulk) = world.a.pattern(64 << 10);
    let (_, room) = world.b.memory(64 << 10);
    // A poll of the sender, and one of the receiver.
    let round = |world: &mut World| {
        for (from, to) in busy {
            world.b.transport.post_recv(to, WorkId(1), std::slice::from_ref(&room)).unwrap();
            let payload = Payload::Gather(std::slice::from_ref(&bulk));
            world.a.transport.post_send(from, WorkId(2), &[], payload, WorkOptions::UNSIGNALLED).unwrap();
        }
        world.a.transport.poll(world.now, &mut world.a.events);
        world.b.transport.poll(world.now, &mut world.b.events);
        world.b.take(|event| matches!(event, Event::Work(work) if work.conn == quiet.1).then_some(()))
    };
    let mut polls = 0;
    for _ in 0..ROUNDS {
        (0..4).for_each(|_| assert_eq!(round(&mut world), None));
        world.b.transport.post_recv(quiet.1, WorkId(1), &[]).unwrap();
        world.a.transport.post_send(quiet.0, WorkId(2), &[], Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
        polls += 1;
        while round(&mut world).is_none() {
            polls += 1;
        }
    }
    // One or two each. The system may deliver some later.
    assert!(polls < 3 * ROUNDS, "{polls} polls until {ROUNDS} messages were seen");
}
