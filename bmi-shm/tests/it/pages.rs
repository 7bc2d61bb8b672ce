//! Memory that both sides have mapped: it is mapped, it is unmapped, and the peer's pages can be
//! handed to the kernel.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::Waker;

use bmi_conformance::world::{alone, completion, pattern};
use bmi_core::mem::RemotePages;
use bmi_core::transport::{Armed, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Memory, RemoteKey, Transport};
use bmi_shm::ShmConfig;

use crate::common::{World, world, world_with};

/// Counts the mappings of this library's memory in this process, which runs one test.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:bmi-memory")).count()
}

#[test]
fn memory_is_mapped_once_and_unmapped_when_its_owner_drops_it() {
    if !alone(|| ()) {
        return;
    }
    let mut world = world();
    let (ca, cb) = world.connect();
    let before = mappings();
    let (memory, segment) = world.b.pattern(100_000);
    let (_, source) = world.a.pattern(1000);
    assert_eq!(mappings(), before + 2, "mapped by its owners alone");
    for round in 0..3 {
        let remote = world.b.transport.expose(cb, &segment.slice(100 * round, 5000), Access::READ_WRITE).unwrap();
        let target = remote.slice(0, 1000).unwrap().into();
        // Passed memory must be read from the socket, which a poll does.
        world.settle();
        world
            .a
            .transport
            .post_write(ca, WorkId(1), &[], std::slice::from_ref(&source), target, WorkOptions::SIGNALLED)
            .unwrap();
        // The peer does not poll: this side has done it alone.
        let now = world.now;
        world.a.transport.poll(now, &mut world.a.events);
        assert_eq!(world.a.take_work(), Some(completion(ca, 1, WorkKind::Write, WorkStatus::Ok, 1000)));
        assert_eq!(memory.to_vec()[100 * round..][..1000], pattern(1000));
        assert_eq!(mappings(), before + 3, "mapped once, whatever is exposed of it");
        world.b.transport.revoke(cb, remote.key);
    }
    drop((segment, memory));
    world.now = world.later(1);
    world.settle();
    assert_eq!(mappings(), before + 1, "only the source is left");
}

/// Many memories on a connection that keeps only two mapped. Unmapped memories are asked for and
/// come back, and every byte arrives.
#[test]
fn mappings_are_bounded_and_come_back() {
    if !alone(|| ()) {
        return;
    }
    let mut config = ShmConfig::default();
    config.tuning.max_mapped = 2;
    config.cross_memory = false;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let before = mappings();
    let targets: Vec<_> = (0..5).map(|_| world.b.memory(5000)).collect();
    let (_, source) = world.a.pattern(5000);
    let remotes: Vec<_> =
        targets.iter().map(|(_, s)| world.b.transport.expose(cb, s, Access::READ_WRITE).unwrap()).collect();
    for round in 0..4 {
        for ((memory, _), remote) in targets.iter().zip(&remotes) {
            memory.copy_from(0, &[0; 5000]);
            for _ in 0..2 {
                let list = std::slice::from_ref(&source);
                world
                    .a
                    .transport
                    .post_write(ca, WorkId(1), &[], list, (*remote).into(), WorkOptions::SIGNALLED)
                    .unwrap();
                assert_eq!(world.work_a().status, WorkStatus::Ok);
                world.settle();
                assert_eq!(memory.to_vec(), pattern(5000), "round {round}");
            }
            assert!(mappings() <= before + 6 + 2, "five targets, one source, two mapped by the peer");
        }
    }
}

/// Replays a bug: a request for memory that was unmapped to make room had one place on each side.
/// So a second request overwrote the first one, before it was sent or before it was answered.
#[test]
fn every_memory_that_is_asked_for_comes_back() {
    const EACH: usize = 20;
    let mut config = ShmConfig::default();
    config.tuning.max_mapped = EACH;
    config.cross_memory = false;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let targets: Vec<_> = (0..2 * EACH).map(|_| world.b.memory(5000)).collect();
    let remotes: Vec<_> =
        targets.iter().map(|(_, s)| world.b.transport.expose(cb, s, Access::READ_WRITE).unwrap()).collect();
    world.settle();
    // The first half was unmapped for the second one. All of it is wanted at the same time.
    for half in [0, EACH, 0] {
        let mapped = |world: &mut World| {
            let wanted = remotes[half..][..EACH].iter();
            wanted.filter(|remote| world.a.transport.map_remote(ca, **remote, Access::WRITE).is_some()).count()
        };
        assert_eq!(mapped(&mut world), 0, "from {half} on");
        world.settle();
        assert_eq!(mapped(&mut world), EACH, "from {half} on");
    }
}

/// Long messages are copied once, by the peer, from the sender's memory. They complete when the
/// peer has copied them. The first one goes through the ring, while the memory is being passed.
#[test]
fn long_messages_stay_where_they_are_until_the_peer_copies_them() {
    if !alone(|| ()) {
        return;
    }
    let mut world = world();
    let (ca, cb) = world.connect();
    let before = mappings();
    let (_, source) = world.a.pattern(300_000);
    let (into, room) = world.b.memory(400_000);
    let list = [source.slice(7, 200_000), source.slice(250_000, 5)];
    for round in 0..4 {
        into.copy_from(0, &[0; 400_000]);
        world.settle();
        let options = WorkOptions::SIGNALLED;
        world.b.transport.post_recv(cb, WorkId(1), &[room.slice(0, 100), room.slice(100, 300_000)]).unwrap();
        world.b.transport.post_recv(cb, WorkId(3), &[room.slice(390_000, 10)]).unwrap();
        world.a.transport.post_send(ca, WorkId(2), b"head", Payload::Gather(&list), options).unwrap();
        world.a.transport.post_send(ca, WorkId(4), b"behind", Payload::EMPTY, options).unwrap();
        let now = world.now;
        for _ in 0..100 {
            world.a.transport.poll(now, &mut world.a.events);
        }
        let stays = round > 0;
        assert!(!stays || world.a.events.is_empty(), "round {round}: the peer has not copied it: {:?}", world.a.events);
        assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, 200_009));
        assert_eq!(world.work_b(), completion(cb, 3, WorkKind::Recv, WorkStatus::Ok, 6));
        assert_eq!(world.work_a(), completion(ca, 2, WorkKind::Send, WorkStatus::Ok, 200_009));
        assert_eq!(world.work_a(), completion(ca, 4, WorkKind::Send, WorkStatus::Ok, 6), "completions come in order");
        let (image, sent) = (into.to_vec(), pattern(300_000));
        assert!(image.starts_with(b"head") && image[4..200_004] == sent[7..200_007], "round {round}");
        assert_eq!((&image[200_004..200_009], &image[390_000..390_006]), (&sent[250_000..250_005], &b"behind"[..]));
        assert_eq!(mappings(), before + 2 + usize::from(stays), "round {round}: the peer maps what it copies from");
    }
    // An in-place message of a connection that is closed in order is still copied.
    world.b.transport.post_recv(cb, WorkId(5), std::slice::from_ref(&room)).unwrap();
    world.a.transport.post_send(ca, WorkId(6), b"", Payload::Gather(&list), WorkOptions::SIGNALLED).unwrap();
    let deadline = world.later(5);
    world.a.transport.disconnect(ca, deadline);
    assert_eq!(world.work_b(), completion(cb, 5, WorkKind::Recv, WorkStatus::Ok, 200_005));
    assert_eq!(world.work_a(), completion(ca, 6, WorkKind::Send, WorkStatus::Ok, 200_005));
}

fn lent(world: &mut World, len: usize) -> (Memory, RemotePages, RemoteKey) {
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.pattern(len + 300);
    let remote = world.b.transport.expose(cb, &segment.slice(100, len), Access::READ_WRITE).unwrap();
    world.settle();
    let pages = world.a.transport.map_remote(ca, remote, Access::READ_WRITE).expect("mapped here");
    assert_eq!(pages.len(), len);
    (memory, pages, remote.key)
}

/// `pwrite` from the peer's pages and `pread` into them, through files in memory and on disk. No
/// byte passes through this side's memory.
#[test]
fn the_kernel_moves_between_a_peers_pages_and_a_file() {
    let mut world = world();
    const LEN: usize = 3 << 20;
    let (memory, pages, _) = lent(&mut world, LEN);
    let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let mut file = tempfile::tempfile_in(folder).unwrap();
    // SAFETY: the pages are mapped while `pages` lives; the kernel does the reading.
    let written = unsafe { libc::pwrite(std::os::fd::AsRawFd::as_raw_fd(&file), pages.as_ptr().cast(), LEN, 0) };
    assert_eq!(written, LEN as isize);
    let mut stored = Vec::new();
    file.read_to_end(&mut stored).unwrap();
    assert!(stored == memory.to_vec()[100..][..LEN], "the file has what the client's pages had");

    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&vec![9; LEN]).unwrap();
    // SAFETY: as above. The kernel does the writing, and there is no reference to the bytes.
    let read = unsafe { libc::pread(std::os::fd::AsRawFd::as_raw_fd(&file), pages.as_ptr().cast(), LEN, 0) };
    assert_eq!(read, LEN as isize);
    let image = memory.to_vec();
    assert!(image[100..][..LEN].iter().all(|byte| *byte == 9), "the client's pages have what the file had");
    assert_eq!((image[99], image[LEN + 100]), (pattern(LEN + 300)[99], pattern(LEN + 300)[LEN + 100]));
}

/// A client changes the memory that it has lent, truncates it, and punches holes into it. Meanwhile
/// the server's kernel writes it to a file, and reads a file into it. Which bytes arrive is the
/// client's problem. Every call moves all bytes, and no process faults.
#[test]
fn memory_that_its_owner_changes_and_cuts_in_mid_write_is_written_all_the_same() {
    const LEN: usize = 8 << 20;
    const STEP: usize = 1 << 20;
    let mut world = world();
    let (memory, pages, _) = lent(&mut world, LEN);
    memory.copy_from(0, &vec![1; LEN + 300]);
    let (passes, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (passed, ended) = (passes.clone(), over.clone());
    let client = std::thread::Builder::new().spawn(move || {
        let fd = memory.shared_pages().unwrap().descriptor().unwrap();
        while !ended.load(Ordering::Relaxed) {
            for value in [2, 1] {
                (0..LEN).step_by(STEP).for_each(|at| memory.copy_from(at, &[value; STEP]));
            }
            for len in [0, 4096, 2 * LEN as u64] {
                assert_eq!(rustix::fs::ftruncate(&fd, len), Err(rustix::io::Errno::PERM), "sealed");
            }
            let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&fd, hole, STEP as u64, STEP as u64).unwrap();
            passed.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut file = tempfile::tempfile().unwrap();
    let mut rounds = 0;
    while rounds < 10 || passes.load(Ordering::Relaxed) < 10 {
        let (number, at) = (std::os::fd::AsRawFd::as_raw_fd(&file), pages.as_ptr().cast());
        // SAFETY: the pages are mapped while `pages` lives. The kernel does the reading and the
        // writing, and there is no reference to the bytes.
        let moved = unsafe { [libc::pwrite(number, at, LEN, 0), libc::pread(number, at, LEN, 0)] };
        assert_eq!(moved, [LEN as isize; 2]);
        rounds += 1;
    }
    over.store(true, Ordering::Relaxed);
    client.unwrap().join().unwrap();
    let mut stored = Vec::new();
    file.read_to_end(&mut stored).unwrap();
    assert!(stored.len() == LEN && stored.iter().all(|byte| *byte <= 2), "old bytes, new ones, or those of a hole");
    assert!(!world.a.events.iter().any(|event| matches!(event, Event::Disconnected { .. })));
}

/// Pages are lent only with the right key, within bounds, and with the rights that were given.
/// Otherwise nothing happens.
#[test]
fn pages_are_lent_by_key_bounds_and_rights() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.memory(5000);
    let plain = world.b.transport.register(&Memory::zeroed(5000).unwrap()).unwrap().segment(0, 5000);
    let remote = world.b.transport.expose(cb, &segment, Access::READ).unwrap();
    let not_shared = world.b.transport.expose(cb, &plain, Access::READ).unwrap();
    world.settle();
    let mut map = |remote, access| world.a.transport.map_remote(ca, remote, access).is_some();
    assert!(map(remote, Access::READ) && map(remote.slice(1, 4999).unwrap(), Access::READ));
    assert!(!map(remote, Access::WRITE), "it may only be read");
    let mut beyond = remote;
    beyond.addr = 1;
    assert!(!map(beyond, Access::READ), "one byte behind the end");
    beyond.addr = u64::MAX;
    assert!(!map(beyond, Access::READ), "an address that overflows");
    let mut forged = remote;
    forged.key = RemoteKey(remote.key.0 ^ 1 << 40);
    assert!(!map(forged, Access::READ), "another key");
    assert!(!map(not_shared, Access::READ), "it lives in no shareable pages");
    world.b.transport.revoke(cb, remote.key);
    assert!(world.a.transport.map_remote(ca, remote, Access::READ).is_none(), "revoked");
    // None of that has ended the connection.
    let room = [segment.slice(0, 10)];
    world.b.transport.post_recv(cb, WorkId(1), &room).unwrap();
    world.a.transport.post_send(ca, WorkId(2), b"hello", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    assert_eq!(world.work_b().status, WorkStatus::Ok);
}

/// Work on mapped memory is done while it is posted, up to 256 KiB in as many pieces as a request
/// may have, if nothing is queued before it. Through other ways it never is.
#[test]
fn short_work_on_mapped_memory_is_done_at_once() {
    const MOST: usize = 256 << 10;
    let mut world = world();
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(4 << 20);
    let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    world.settle();
    let (source, long) = world.a.pattern(4 << 20);
    let a = &mut world.a.transport;
    assert!(a.write_now(ca, &[source.slice(0, MOST)], remote));
    assert_eq!(memory.to_vec()[..MOST], pattern(4 << 20)[..MOST]);
    let target = Memory::zeroed(MOST).unwrap();
    assert!(
        a.read_now(ca, &[target.slice(1000, MOST - 1000), target.slice(0, 1000)], remote),
        "any memory of this side will do"
    );
    assert_eq!(target.to_vec()[1000..], pattern(MOST)[..MOST - 1000]);
    assert!(
        !a.write_now(ca, &[source.slice(0, MOST + 1)], remote) && !a.read_now(ca, &[source.slice(0, MOST + 1)], remote)
    );
    let many: Vec<_> = (0..1025).map(|at| source.slice(at, 1)).collect();
    assert!(a.write_now(ca, &many[..1024], remote) && !a.write_now(ca, &many, remote));
    assert!(a.write_now(ca, &[], remote.slice(0, 0).unwrap()), "no bytes, checked like any");
    a.post_write(ca, WorkId(1), &[], &[long], remote.into(), WorkOptions::SIGNALLED).unwrap();
    assert!(!a.write_now(ca, &[source.slice(0, 1)], remote), "a write waits");
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Write, WorkStatus::Ok, 4 << 20));
    assert!(world.a.transport.write_now(ca, &[source.slice(0, 1)], remote), "none waits");
    let counted = world.a.take_work();
    assert_eq!(counted, None, "what is done at once reports nothing");

    let mut config = ShmConfig::default();
    config.share_pages = false;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.memory(100);
    let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    world.settle();
    let a = &mut world.a.transport;
    assert!(!a.write_now(ca, &[source.slice(0, 1)], remote) && !a.read_now(ca, &[source.slice(0, 1)], remote));
}

/// A regression test. Each message of a stream of in-place messages was short enough to be copied
/// at once. So one poll copied all that had arrived, up to a quarter of a gigabyte.
#[test]
fn a_stream_of_long_messages_is_copied_in_bounded_turns() {
    const LEN: usize = 1 << 20;
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, source) = world.a.pattern(LEN);
    let (into, room) = world.b.memory(LEN);
    let segments = [source];
    let send = |world: &mut World| {
        let sent =
            world.a.transport.post_send(ca, WorkId(1), b"", Payload::Gather(&segments), WorkOptions::UNSIGNALLED);
        sent.unwrap();
    };
    for _ in 0..11 {
        world.b.transport.post_recv(cb, WorkId(2), std::slice::from_ref(&room)).unwrap();
    }
    // These two go through the ring, or make sure that only copying is left to do.
    for _ in 0..2 {
        send(&mut world);
        assert_eq!(world.work_b(), completion(cb, 2, WorkKind::Recv, WorkStatus::Ok, LEN as u64));
        world.settle();
    }
    world.a.transport.post_send(ca, WorkId(1), b"", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    assert_eq!(world.work_b().len, 0, "it does not rest");
    world.until(|world| (!world.poll()).then_some(()));
    (0..8).for_each(|_| send(&mut world));
    let (now, mut arrived) = (world.now, Vec::new());
    while arrived.iter().sum::<usize>() < 8 {
        world.b.transport.poll(now, &mut world.b.events);
        arrived.push(std::mem::take(&mut world.b.events).len());
        assert!(arrived.len() < 1000, "{arrived:?}");
    }
    assert!(arrived.iter().all(|count| *count <= 2), "as much as two turns may copy: {arrived:?}");
    assert_eq!(into.to_vec(), pattern(LEN));
}

/// A regression test. After a queue was filled with immediate completions, the next poll makes
/// room, but nothing else caused that poll. A caller whose post was refused could go to sleep
/// forever.
#[test]
fn who_was_refused_is_not_let_sleep_while_the_next_poll_makes_room() {
    let mut config = ShmConfig::default();
    config.tuning.send_queue_depth = 4;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let (_, segment) = world.b.memory(100);
    let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    let (_, source) = world.a.memory(100);
    world.settle();
    assert_eq!(world.a.transport.arm(Waker::noop()), Armed::Waiting);
    let (a, now) = (&mut world.a.transport, world.now);
    a.poll(now, &mut world.a.events);
    let write = |a: &mut bmi_shm::ShmTransport| {
        a.post_write(ca, WorkId(1), &[], std::slice::from_ref(&source), remote.into(), WorkOptions::UNSIGNALLED)
    };
    (0..4).for_each(|_| write(a).unwrap());
    assert_eq!(write(a), Err(PostError::QueueFull));
    assert_eq!(a.arm(Waker::noop()), Armed::Busy);
    assert!(a.poll(now, &mut world.a.events), "it makes room");
    write(a).unwrap();
    assert_eq!(a.arm(Waker::noop()), Armed::Waiting, "nobody was refused");
}

/// The plan reports how bulk is moved, depending on this side's settings and the kernel.
#[test]
fn the_ways_of_bulk_are_told() {
    let told = |share_pages, cross_memory| {
        let mut config = ShmConfig::default();
        (config.share_pages, config.cross_memory) = (share_pages, cross_memory);
        let mut world = world_with(&config);
        let (ca, _) = world.connect();
        let ways = world.a.transport.bulk_ways(ca);
        ways.iter().map(|way| (way.memory, way.way)).collect::<Vec<_>>()
    };
    let (mapped, kernel, ring) = ("mapped pages", "kernel copy (process_vm_readv, process_vm_writev)", "ring");
    let views = ("published pages", "views");
    assert_eq!(told(true, true), [("shareable pages", mapped), ("other memory", kernel), views]);
    assert_eq!(told(true, false), [("shareable pages", mapped), ("other memory", ring), views]);
    assert_eq!(told(false, true), [("shareable pages", kernel), ("other memory", kernel)]);
    assert_eq!(told(false, false), [("shareable pages", ring), ("other memory", ring)]);
}
