//! Several streams for one connection: transfers, order, and ends.

mod hostile;
pub(crate) mod proxy;

use bmi_conformance::world::{completion, pattern};
use bmi_core::transport::{Payload, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{Access, ErrorKind, Transport};
use bmi_tcp::{TcpConfig, TcpTransport};

use self::proxy::{Link, Proxy, Random, connect, connect_over, settle};
use crate::common::{World, world_with};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;
const LONG: usize = 8 << 20;

fn config(streams: u8) -> TcpConfig {
    let mut config = TcpConfig::default();
    config.streams = streams;
    config
}

fn world(streams: u8) -> World {
    world_with(&config(streams))
}

/// Polls and carries until this side reports a completion.
fn work(world: &mut World, proxy: &mut Proxy, of_a: bool) -> WorkCompletion {
    world.until(|world| {
        proxy.turn();
        if of_a { world.a.take_work() } else { world.b.take_work() }
    })
}

#[test]
fn reads_of_several_frames_bring_what_is_there_many_at_once() {
    const LENGTHS: [usize; 8] = [0, 1, 262_143, 262_144, 262_145, 300_000, 1 << 20, 5_000_001];
    let mut world = world(4);
    let (ca, cb) = world.connect();
    world.settle();
    let (_, source) = world.b.pattern(5_000_100);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let targets = LENGTHS.map(|len| world.a.memory(len));
    for (at, (target, segment)) in (0..).zip(&targets) {
        let (len, half) = (target.len(), target.len() / 2);
        let list = [segment.slice(0, half), segment.slice(half, 0), segment.slice(half, len - half)];
        let part = remote.slice(at, len as u64).unwrap();
        world.a.transport.post_read(ca, WorkId(at), &list, part, SIGNALLED).unwrap();
    }
    for (at, (target, _)) in targets.iter().enumerate() {
        let len = target.len();
        assert_eq!(world.work_a(), completion(ca, at as u64, WorkKind::Read, WorkStatus::Ok, len as u64));
        assert!(target.to_vec() == pattern(5_000_100)[at..at + len], "{len} bytes");
    }
}

#[test]
fn each_stream_carries_its_share_of_reads_and_writes() {
    let mut world = world(4);
    let (mut proxy, ca, cb) = connect(&mut world);
    settle(&mut world, &mut proxy);
    let ((there, target), (_, source), (back, place)) =
        (world.b.memory(LONG), world.a.pattern(LONG), world.a.memory(LONG));
    let remote = world.b.transport.expose(cb, &target, Access::READ_WRITE).unwrap();
    world.a.transport.post_write(ca, WorkId(1), &[], &[source], remote.into(), SIGNALLED).unwrap();
    assert_eq!(work(&mut world, &mut proxy, true), completion(ca, 1, WorkKind::Write, WorkStatus::Ok, LONG as u64));
    settle(&mut world, &mut proxy);
    assert!(there.to_vec() == pattern(LONG));
    world.a.transport.post_read(ca, WorkId(2), &[place], remote, SIGNALLED).unwrap();
    assert_eq!(work(&mut world, &mut proxy, true), completion(ca, 2, WorkKind::Read, WorkStatus::Ok, LONG as u64));
    assert!(back.to_vec() == pattern(LONG));
    let moved: Vec<_> = proxy.links.iter().map(|link| link.moved).collect();
    assert!(moved.len() == 4 && moved.iter().flatten().all(|bytes| *bytes > LONG / 16), "{moved:?}");
    let sums = [0, 1].map(|from| moved.iter().map(|moved| moved[from]).sum::<usize>());
    // Besides there are at most 40 bytes for each piece of 256 KiB, the greetings, and the read.
    assert!(sums.iter().all(|sum| (LONG..LONG + 40 * 32 + 400).contains(sum)), "{sums:?}");
    // Greetings are not counted.
    assert!(world.a.transport.moved_bytes(ca) >= 2 * LONG as u64);
}

#[test]
fn the_smaller_number_of_both_sides_is_used() {
    for (ours, theirs, agreed) in [(4, 2, 2), (2, 4, 2), (1, 4, 1), (4, 1, 1), (16, 16, 16)] {
        let transport = |streams| TcpTransport::new(config(streams)).unwrap();
        let mut world = World::new(transport(ours), transport(theirs), || unreachable!("the proxy has the addresses"));
        let (mut proxy, _, _) = connect(&mut world);
        settle(&mut world, &mut proxy);
        assert_eq!(proxy.links.len(), agreed, "{ours} and {theirs}");
    }
    for none in [0, 17] {
        assert_eq!(TcpTransport::new(config(none)).err().unwrap().kind(), ErrorKind::Invalid);
    }
}

/// The streams move at random, in steps of up to 100 KB. What is written overlaps, and each byte
/// tells which write was the last to reach it.
#[test]
fn whatever_overtakes_whatever_the_order_is_kept() {
    const ROOM: usize = 1 << 20;
    for seed in 1..=4 {
        let mut world = world(4);
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        proxy.random = Some(Random(seed));
        let mut random = Random(seed + 100);
        let (there, target) = world.b.memory(ROOM);
        let remote = world.b.transport.expose(cb, &target, Access::WRITE).unwrap();
        let (mut model, mut models) = (vec![0u8; ROOM], Vec::new());
        for write in 1..=40u8 {
            let len = [1000, 70_000, 300_000, 600_000][random.below(4)];
            let at = random.below(ROOM - len);
            let (memory, source) = world.a.memory(len);
            memory.copy_from(0, &vec![write; len]);
            let immediate = (write % 3 == 0).then_some(u32::from(write));
            let to = WriteTarget { remote: remote.slice(at as u64, len as u64).unwrap(), immediate };
            world.a.transport.post_write(ca, WorkId(write.into()), &[], &[source], to, SIGNALLED).unwrap();
            model[at..at + len].fill(write);
            if write % 3 == 1 {
                let options = WorkOptions::UNSIGNALLED;
                world.a.transport.post_send(ca, WorkId(100), &[], Payload::EMPTY, options).unwrap();
            }
            if write % 3 != 2 {
                world.b.transport.post_recv(cb, WorkId(write.into()), &[]).unwrap();
                models.push((write, immediate, model.clone()));
            }
        }
        for (write, immediate, model) in models {
            let told = work(&mut world, &mut proxy, false);
            assert_eq!((told.work, told.immediate), (WorkId(write.into()), immediate));
            let late = there.to_vec().iter().zip(&model).filter(|(is, least)| is < least).count();
            assert_eq!(late, 0, "seed {seed}: bytes of writes before the message of write {write} are missing");
        }
        for write in 1..=40 {
            assert_eq!(work(&mut world, &mut proxy, true).work, WorkId(write), "in posting order");
        }
        settle(&mut world, &mut proxy);
        assert!(there.to_vec() == model, "seed {seed}");
    }
}

/// Reads are answered on any stream. They complete in posting order.
#[test]
fn reads_complete_in_order_whatever_stream_is_late() {
    for seed in 1..=4 {
        let mut world = world(3);
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        proxy.random = Some(Random(seed));
        let (_, source) = world.b.pattern(1 << 20);
        let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
        let mut random = Random(seed);
        let (mut reads, all) = (Vec::new(), pattern(1 << 20));
        for work in 0..40 {
            let len = [0, 10, 100_000, 700_000][random.below(4)];
            let (memory, segment) = world.a.memory(len);
            let from = random.below((1 << 20) - len);
            let part = remote.slice(from as u64, len as u64).unwrap();
            world.a.transport.post_read(ca, WorkId(work), &[segment], part, SIGNALLED).unwrap();
            reads.push((memory, from));
        }
        for (at, (memory, from)) in (0..).zip(reads) {
            let len = memory.len();
            let done = work(&mut world, &mut proxy, true);
            assert_eq!(done, completion(ca, at, WorkKind::Read, WorkStatus::Ok, len as u64));
            assert!(memory.to_vec() == all[from..from + len], "seed {seed}");
        }
    }
}

/// Whichever stream is lost in the middle of bulk, both sides learn it, and all work comes back.
#[test]
fn the_loss_of_one_stream_ends_the_connection() {
    for lost in 0..3 {
        let mut world = world(3);
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        let ((_, target), (_, source), (_, place)) = (world.b.memory(LONG), world.a.memory(LONG), world.a.memory(LONG));
        let remote = world.b.transport.expose(cb, &target, Access::READ_WRITE).unwrap();
        for work in 0..4 {
            let (source, to) = (source.clone(), remote.into());
            world.a.transport.post_write(ca, WorkId(work), &[], &[source], to, SIGNALLED).unwrap();
            let place = std::slice::from_ref(&place);
            world.a.transport.post_read(ca, WorkId(10 + work), place, remote, SIGNALLED).unwrap();
        }
        world.b.transport.post_recv(cb, WorkId(20), &[]).unwrap();
        while proxy.links.iter().any(|link| link.moved.iter().any(|moved| *moved < LONG / 16)) {
            proxy.turn();
            world.poll();
        }
        proxy.kill(lost);
        let (mut done, mut ended) = (Vec::new(), Vec::new());
        world.until(|world| {
            proxy.turn();
            done.extend(world.a.take_work());
            ended.extend(world.a.take_end(ca));
            (!ended.is_empty() && world.a.events.is_empty()).then_some(())
        });
        assert_eq!(ended[0].kind(), ErrorKind::PeerLost, "{}", ended[0]);
        let mut works: Vec<_> = done.iter().map(|done| done.work.0).collect();
        works.sort_unstable();
        assert_eq!(works, [0, 1, 2, 3, 10, 11, 12, 13], "each once");
        assert!(done.iter().any(|done| done.status == WorkStatus::Flushed));
        assert_eq!(work(&mut world, &mut proxy, false).status, WorkStatus::Flushed);
        assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::PeerLost);
    }
}

/// A firewall drops the further streams, or the peer does not answer there. Nothing waits for them.
#[test]
fn a_stream_that_does_not_come_about_is_given_up() {
    let mut world = world(4);
    let (mut proxy, ca, cb) = connect_over(&mut world, true);
    let ((there, target), (_, source)) = (world.b.memory(LONG), world.a.pattern(LONG));
    let remote = world.b.transport.expose(cb, &target, Access::WRITE).unwrap();
    for work_id in 0..2 {
        let source = source.clone();
        world.a.transport.post_write(ca, WorkId(work_id), &[], &[source], remote.into(), SIGNALLED).unwrap();
        assert_eq!(work(&mut world, &mut proxy, true).status, WorkStatus::Ok);
        settle(&mut world, &mut proxy);
        assert!(there.to_vec() == pattern(LONG));
        // They are held, then their time is over.
        let closed = proxy.links[1..].iter_mut().map(Link::is_closed).filter(|closed| *closed).count();
        assert_eq!((proxy.links.len(), closed), (4, 3 * work_id as usize));
        there.copy_from(0, &[0; LONG]);
        world.now = world.later(6);
        settle(&mut world, &mut proxy);
    }
    assert!(world.a.events.is_empty() && world.b.events.is_empty());
}

/// The bytes of a write that was posted before are handed over, on all streams.
#[test]
fn an_orderly_end_loses_nothing() {
    for seed in 1..=3 {
        let mut world = world(4);
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        proxy.random = Some(Random(seed));
        let ((there, target), (_, source)) = (world.b.memory(LONG), world.a.pattern(LONG));
        let remote = world.b.transport.expose(cb, &target, Access::WRITE).unwrap();
        world.a.transport.post_write(ca, WorkId(1), &[], &[source], remote.into(), SIGNALLED).unwrap();
        let deadline = world.later(60);
        world.a.transport.disconnect(ca, deadline);
        assert_eq!(work(&mut world, &mut proxy, true).status, WorkStatus::Ok);
        let mut end = |of_a: bool| {
            world.until(|world| {
                proxy.turn();
                if of_a { world.a.take_end(ca) } else { world.b.take_end(cb) }
            })
        };
        assert_eq!([end(false).kind(), end(true).kind()], [ErrorKind::PeerLost, ErrorKind::Cancelled]);
        assert!(there.to_vec() == pattern(LONG), "seed {seed}");
    }
}

/// Memory that is revoked while a part of an answer is on its way to it, or to the peer.
#[test]
fn a_key_that_is_revoked_in_flight_ends_the_connection() {
    for writes in [false, true] {
        let mut world = world(4);
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        // More than the buffers of the system take.
        let ((_, theirs), (_, ours)) = (world.b.memory(16 * LONG), world.a.memory(16 * LONG));
        let remote = world.b.transport.expose(cb, &theirs, Access::READ_WRITE).unwrap();
        if writes {
            world.a.transport.post_write(ca, WorkId(1), &[], &[ours], remote.into(), SIGNALLED).unwrap();
        } else {
            world.a.transport.post_read(ca, WorkId(1), &[ours], remote, SIGNALLED).unwrap();
        }
        let from = usize::from(!writes);
        while proxy.links[1].moved[from] < LONG / 16 {
            proxy.turn();
            world.poll();
        }
        world.b.transport.revoke(cb, remote.key);
        assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::Cancelled);
        let end = world.until(|world| {
            proxy.turn();
            world.a.take_end(ca)
        });
        assert_eq!(end.kind(), ErrorKind::PeerLost);
    }
}
