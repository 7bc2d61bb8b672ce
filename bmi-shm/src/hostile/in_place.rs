//! Messages that are left in the sender's memory, or change while they are taken.

use super::*;

/// Writes a record to the first line of the hostile ring. Its word is stored last.
fn put_record(hostile: &Hostile, kind: u64, body: &[u64]) {
    let at = hostile.area.ring_at();
    for (index, word) in body.iter().enumerate() {
        hostile.area.raw(at + 8 + index * 8).store(*word, Ordering::Relaxed);
    }
    hostile.area.raw(at).store(kind << 32 | (body.len() * 8) as u64, Ordering::Release);
}

/// Takes the message that it is shown. The peer overwrites it before each of two copies.
struct Overwritten<'a> {
    hostile: &'a Hostile,
    copies: Vec<[u8; 16]>,
}

impl InlineReceiver for Overwritten<'_> {
    fn take(&mut self, _: ConnId, message: InlineMessage<'_>) -> bool {
        for word in [7, 8] {
            (0..3).for_each(|index| {
                self.hostile.area.raw(self.hostile.area.ring_at() + index * 8).store(word, Ordering::Relaxed);
            });
            let mut bytes = [0; 16];
            message.copy_to(0, &mut bytes[..message.len()]);
            self.copies.push(bytes);
        }
        true
    }
}

/// A message that is taken in place may change in the meantime, and so may its length in the ring.
/// The checked length counts.
#[test]
fn a_message_that_changes_while_it_is_taken_is_as_long_as_it_was() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 100)]).unwrap();
    put_record(&hostile, 1, &[1, 2]);
    let mut receiver = Overwritten { hostile: &hostile, copies: Vec::new() };
    while !victim.transport.poll_inline(victim.now, &mut victim.events, &mut receiver) {}
    let copied = |word: u64| std::array::from_fn(|at| if at % 8 == 0 { word as u8 } else { 0 });
    assert_eq!(receiver.copies, [copied(7), copied(8)]);
    // The next record is looked for in the line behind it.
    hostile.area.raw(hostile.area.ring_at() + 64).store(1 << 32, Ordering::Release);
    let arrived = victim.take("the next message", |event| match event {
        Event::Work(work) if work.conn == conn => Some((work.work, work.status, work.len)),
        _ => None,
    });
    assert_eq!(arrived, (WorkId(1), WorkStatus::Ok, 0));
    victim.prove_honest();
}

/// In-place messages with wrong places: outside of the memory, in more pieces than allowed, with
/// sums that overflow or do not match.
#[test]
fn messages_left_out_of_bounds_cost_the_connection() {
    let mut victim = Victim::new();
    for (what, body) in [
        ("behind the end", vec![100, 1 << 32, 0, 8100, 100]),
        ("an offset that overflows", vec![100, 1 << 32, 0, u64::MAX - 50, 100]),
        ("a length that overflows", vec![99, 2 << 32, 0, 0, 100, 0, u64::MAX]),
        ("longer than its pieces", vec![101, 1 << 32, 0, 0, 100]),
        ("too many pieces", vec![5, 5 << 32, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        ("more pieces than stand there", vec![100, 4 << 32, 0, 0, 100]),
        ("a head that is not there", vec![108, 1 << 32 | 8, 0, 0, 100]),
        ("a number that is none", vec![100, 1 << 32, 1 << 32, 0, 100]),
        ("longer than any work", vec![1 << 41, 1 << 32, 0, 0, 1 << 41]),
    ] {
        // Once while the connection is busy with packets from the socket, and once when it has come
        // to rest.
        for settles in [false, true] {
            let (hostile, conn) = victim.hostile();
            victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
            let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
            hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
            (0..if settles { 600 } else { 0 }).for_each(|_| victim.poll());
            put_record(&hostile, 9, &body);
            assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol, "{what}");
        }
    }
    victim.events.clear();
    victim.prove_honest();
}

/// An in-place message in memory that never comes. The memory is asked for once, no other
/// connection waits, and the connection can be closed.
#[test]
fn a_message_left_in_memory_that_never_comes_holds_up_nobody() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
    put_record(&hostile, 9, &[100, 1 << 32, 3, 0, 100]);
    for _ in 0..1000 {
        victim.poll();
    }
    let mut asked = 0;
    let mut bytes = [0; MAX_PACKET];
    while let Ok((len, _)) = socket::receive(&hostile.socket, &mut bytes) {
        assert_ne!(len, 0, "it was cut");
        asked += u32::from(Packet::decode(&bytes[..len]) == Ok(Packet::Ask { id: 3 }));
    }
    assert_eq!(asked, 1);
    victim.prove_honest();
    assert!(victim.events.is_empty(), "{:?}", victim.events);
    // The peer announces that it has ended, and then passes the memory. The bytes in it are no
    // message.
    hostile.area.raw(448).store(1, Ordering::Relaxed);
    let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
    hostile.say(Packet::Pages { id: 3, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::PeerLost);
    assert!(victim.events.iter().all(|event| !matches!(event, Event::Work(work) if work.status == WorkStatus::Ok)));
}

/// Replays a bug: a peer passed memory of 64 GiB that took no pages. Whoever touches such memory
/// first is charged for its pages, and that was this side, up to all of it. Now no memory is mapped
/// that would exceed `ShmConfig::max_mapped_in_all`, nor half of it for one connection. A message
/// that a peer leaves in such memory costs its own connection, and the error says why.
#[test]
fn memory_without_pages_is_charged_to_this_side_only_within_the_bound() {
    const MIB: u64 = 1 << 20;
    let small = ShmConfig { max_mapped_in_all: (100, 8 * MIB), ..ShmConfig::default() };
    // With the default, one connection maps at most 8 GiB.
    for (config, sizes) in [(ShmConfig::default(), vec![64 << 30]), (small, vec![5 * MIB, 3 * MIB, 3 * MIB, 3 * MIB])] {
        let bound = config.max_mapped_in_all.1;
        let mut victim = Victim::with(config);
        let (mut hostiles, mut mapped) = (Vec::new(), 0);
        for len in sizes {
            let (hostile, conn) = victim.hostile();
            victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 50_000)]).unwrap();
            let fd = memfd(len, SealFlags::SHRINK | SealFlags::GROW);
            let pass = || hostile.say(Packet::Pages { id: 0, len }.encode().bytes(), &[fd.as_fd()]);
            pass();
            (0..600).for_each(|_| victim.poll());
            put_record(&hostile, 9, &[50_000, 1 << 32, 0, 0, 50_000]);
            (0..600).for_each(|_| victim.poll());
            let charged = rustix::fs::fstat(&fd).unwrap().st_blocks * 512;
            if len <= (bound / 2).min(8 << 30) && mapped + len <= bound {
                mapped += len;
                victim.take("message", |event| matches!(event, Event::Work(work) if work.conn == conn).then_some(()));
                assert!(charged >= 50_000, "the test touches memory without pages: {charged}");
            } else {
                pass(); // it was asked for again
                let end = victim.end_of(conn);
                assert!(end.to_string().contains("ShmConfig::max_mapped"), "{end}");
                victim.events.clear();
                assert_eq!(charged, 0, "{len} bytes");
            }
            hostiles.push((hostile, fd));
            victim.prove_honest();
        }
    }
}

/// Reads the count of copied messages at each line of the log. The end of the connection logs a
/// line between the refusal and the end of the area.
struct Said {
    area: Area,
    seen: Arc<Mutex<Vec<u64>>>,
}

impl tracing::Subscriber for Said {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.seen.lock().unwrap().push(self.area.taken().load(Ordering::Acquire));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// A regression test. An in-place message was delivered, and the one behind it was refused in the
/// same turn. The acknowledgement of the first came last. A peer that had read the refusal by then
/// took it for a refusal of the first message.
#[test]
fn what_was_copied_is_said_before_what_comes_behind_it_is_refused() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    victim.transport.post_recv(conn, WorkId(1), &[victim.region.segment(0, 5000)]).unwrap();
    let fd = memfd(8192, SealFlags::SHRINK | SealFlags::GROW);
    hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &[fd.as_fd()]);
    (0..600).for_each(|_| victim.poll());
    // No receive is left for the second message.
    hostile.area.raw(hostile.area.ring_at() + 64).store(1 << 32, Ordering::Relaxed);
    put_record(&hostile, 9, &[100, 1 << 32, 0, 0, 100]);
    let geometry = victim.transport.config.geometry();
    let mapping = sys::map_peer(hostile.victims_fd.as_ref().unwrap(), geometry.len() as u64, false).unwrap().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let said = Said { area: Area::new(mapping, geometry), seen: seen.clone() };
    // Other work, so that both messages are handled in one turn.
    victim.transport.post_send(conn, WorkId(2), b"out", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    let end = tracing::subscriber::with_default(said, || victim.end_of(conn));
    assert_eq!(end.kind(), ErrorKind::Protocol);
    let arrived =
        |event: &Event| matches!(event, Event::Work(work) if work.work == WorkId(1) && work.status == WorkStatus::Ok);
    assert!(victim.events.iter().any(arrived), "{:?}", victim.events);
    assert_eq!(seen.lock().unwrap()[..], [1]);
}

/// A count of copies above the number of in-place messages, or below an earlier count, is a
/// violation. So is a wrong proof.
#[test]
fn lies_about_messages_left_cost_the_connection() {
    let mut victim = Victim::new();
    let (hostile, conn) = victim.hostile();
    // The memory was exposed, so it is passed. The peer confirms that it has it.
    victim.transport.expose(conn, &victim.region.segment(0, 100), Access::READ).unwrap();
    hostile.say(Packet::Have { id: 0 }.encode().bytes(), &[]);
    for _ in 0..1000 {
        victim.poll();
    }
    let segments = [victim.region.segment(0, 8000)];
    victim.transport.post_send(conn, WorkId(5), b"", Payload::Gather(&segments), WorkOptions::SIGNALLED).unwrap();
    for _ in 0..1000 {
        victim.poll();
    }
    assert!(victim.events.is_empty(), "it ends when the peer has copied it: {:?}", victim.events);
    hostile.area.raw(384).store(2, Ordering::Relaxed);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol);
    assert!(matches!(&victim.events[..], [Event::Work(work)] if work.status == WorkStatus::Flushed));
    victim.events.clear();
    let (hostile, conn) = victim.hostile();
    hostile.say(Packet::Proof { secret: 0 }.encode().bytes(), &[]);
    assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol);
    victim.prove_honest();
}
