//! Memory whose exposure has ended while the peer's kernel was still writing to it: it comes back
//! when the peer has let go of it, and not before.
//!
//! The disk that stalls is a pipe. A `read` from it into lent pages waits in the kernel until the
//! test writes to the other end. Then the kernel writes to the pages, however late that is.

use std::cell::Cell;
use std::future::Future;
use std::io::{PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use bmi_conformance::world::{completion, pattern};
use bmi_core::comm::{Body, Incoming, Path};
use bmi_core::mem::RemotePages;
use bmi_core::transport::{Armed, ConnId, Event, RetiredMemory, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{
    Access, Addr, Clock, Config, Endpoint, Engine, ErrorKind, Memory, RemoteKey, RemoteSlice, Time, Transport,
};
use bmi_shm::{ShmConfig, ShmTransport};

use crate::common::{World, world, world_with};

/// As many bytes as a pipe takes at once.
const LEN: usize = 4000;

/// A read from a disk that stalls, on a thread of the server.
struct StalledRead {
    disk: PipeWriter,
    reader: JoinHandle<()>,
}

impl StalledRead {
    /// Begins to read into lent pages, which have `LEN` bytes.
    fn begin(pages: RemotePages) -> StalledRead {
        StalledRead::into_memory(pages.into_memory())
    }

    fn into_memory(pages: Memory) -> StalledRead {
        let (from, disk) = std::io::pipe().unwrap();
        assert_eq!(pages.len(), LEN);
        let reader = std::thread::Builder::new().spawn(move || {
            // SAFETY: the pages are mapped while `pages` lives. The kernel does the writing, and
            // there is no reference to the bytes.
            let read = unsafe { libc::read(from.as_raw_fd(), pages.as_ptr().cast(), LEN) };
            assert_eq!(read, LEN as isize);
        });
        StalledRead { disk, reader: reader.unwrap() }
    }

    /// Lets the disk deliver. Returns when the kernel has written to the pages and they were
    /// dropped.
    fn end(mut self, bytes: &[u8]) {
        assert_eq!(self.disk.write(bytes).unwrap(), LEN);
        self.reader.join().unwrap();
    }
}

/// Exposes memory of side `b`. Returns its name and the names of a new connection.
fn expose(world: &mut World) -> (Memory, RemoteSlice, (ConnId, ConnId)) {
    let (ca, cb) = world.connect();
    let (memory, segment) = world.b.memory(LEN);
    let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    world.settle();
    (memory, remote, (ca, cb))
}

/// Lends memory of side `b` to side `a`.
fn lend(world: &mut World) -> (Memory, RemotePages, ConnId, RemoteKey) {
    let (memory, remote, (ca, cb)) = expose(world);
    let pages = world.a.transport.map_remote(ca, remote, Access::WRITE).expect("mapped here");
    (memory, pages, cb, remote.key)
}

/// Revokes an exposure. The peer is at its memory, so the connection ends.
fn revoke(world: &mut World, conn: ConnId, key: RemoteKey) {
    world.b.transport.revoke(conn, key);
    let end = world.until(|world| world.b.take_end(conn));
    assert_eq!(end.kind(), ErrorKind::Cancelled, "{end}");
    world.until(|world| world.a.take(|event| matches!(event, Event::Disconnected { .. }).then_some(())));
}

fn usage(world: &World) -> (usize, u64) {
    let RetiredMemory { exposures, bytes } = world.b.transport.retired_memory();
    (exposures, bytes)
}

/// A regression test. The memory came back one second after the operation had ended, whether the
/// peer's kernel had finished or not. The program then had `&mut` to bytes that the kernel wrote
/// for another process.
#[test]
fn memory_that_a_stalled_disk_still_writes_to_stays_held() {
    let mut world = world();
    let (mut memory, pages, cb, key) = lend(&mut world);
    let read = StalledRead::begin(pages);
    revoke(&mut world, cb, key);
    for _ in 0..100 {
        world.now = world.later(60);
        world.settle();
        assert!(memory.get_mut().is_none(), "the peer's kernel may still write to it");
        assert_eq!(usage(&world), (1, LEN as u64));
    }
    read.end(&pattern(LEN));
    assert_eq!(memory.to_vec(), pattern(LEN), "the kernel did write to it");
    world.now = world.later(60);
    world.until(|_| memory.get_mut().is_some().then_some(()));
    assert_eq!(usage(&world), (0, 0));
}

/// The same when the connection ends for another reason. Only the memory that the peer is at is
/// held.
#[test]
fn the_end_of_a_connection_retires_what_the_peer_is_at_and_nothing_else() {
    let mut world = world();
    let (mut memory, pages, cb, _) = lend(&mut world);
    let (mut other, segment) = world.b.memory(LEN);
    world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    drop(segment);
    world.b.transport.disconnect(cb, Time::ZERO);
    world.until(|world| world.b.take_end(cb));
    world.now = world.later(3600);
    world.settle();
    assert_eq!(usage(&world), (1, LEN as u64));
    assert!(memory.get_mut().is_none() && other.get_mut().is_some());
    drop(pages);
    world.now = world.later(1);
    world.until(|_| memory.get_mut().is_some().then_some(()));
}

/// A peer that never releases its claims. It costs no more memory than `max_retired`, counted in
/// exposures and in bytes. All else goes on through the ring.
#[test]
fn a_peer_that_never_lets_go_costs_a_bounded_amount_of_memory() {
    for most in [(3, 1 << 30), (1000, 3 * LEN as u64 + 1)] {
        let mut config = ShmConfig::default();
        config.max_retired = most;
        let mut world = world_with(&config);
        let mut kept = Vec::new();
        for round in 0..10 {
            let (memory, remote, (ca, cb)) = expose(&mut world);
            let pages = world.a.transport.map_remote(ca, remote, Access::WRITE);
            assert_eq!(pages.is_some(), round < 3, "round {round}");
            let (_, source) = world.a.pattern(LEN);
            world.a.transport.post_write(ca, WorkId(1), &[], &[source], remote.into(), WorkOptions::SIGNALLED).unwrap();
            assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Write, WorkStatus::Ok, LEN as u64));
            world.settle();
            assert_eq!(memory.to_vec(), pattern(LEN), "round {round}: it works all the same");
            world.b.transport.revoke(cb, remote.key);
            world.settle();
            assert_eq!(world.b.take_end(cb).is_some(), round < 3, "round {round}");
            kept.push((memory, pages));
            world.now = world.later(60);
            world.settle();
            assert_eq!(usage(&world), (kept.len().min(3), (kept.len().min(3) * LEN) as u64));
        }
        let held = kept.iter_mut().filter_map(|(memory, _)| memory.get_mut().is_none().then_some(())).count();
        assert_eq!(held, 3);
        let mut memories: Vec<_> = kept.into_iter().map(|(memory, _)| memory).collect();
        world.now = world.later(1);
        world.until(|_| memories.iter_mut().all(|memory| memory.get_mut().is_some()).then_some(()));
        assert_eq!(usage(&world), (0, 0));
        lend(&mut world);
    }
}

/// Memory that is held because of one peer is lent to no other peer. It is lent again when it has
/// come back.
#[test]
fn retired_memory_is_not_lent_again_until_it_comes_back() {
    let mut world = world();
    let (memory, pages, cb, key) = lend(&mut world);
    revoke(&mut world, cb, key);
    let (ca, cb) = world.connect();
    let (_, other) = world.b.memory(LEN);
    let again = world.b.transport.register(&memory).unwrap().segment(0, LEN);
    let lends = |world: &mut World, segment| {
        let remote = world.b.transport.expose(cb, segment, Access::WRITE).unwrap();
        world.settle();
        let lent = world.a.transport.map_remote(ca, remote, Access::WRITE).is_some();
        world.b.transport.revoke(cb, remote.key);
        lent
    };
    assert!(!lends(&mut world, &again) && lends(&mut world, &other));
    let third = world.a.transport.register(&memory).unwrap().segment(0, LEN);
    let remote = world.a.transport.expose(ca, &third, Access::WRITE).unwrap();
    world.settle();
    assert!(world.b.transport.map_remote(cb, remote, Access::WRITE).is_none(), "nor by another transport");
    drop(pages);
    world.now = world.later(1);
    world.until(|world| (usage(world) == (0, 0)).then_some(()));
    assert!(lends(&mut world, &again));
}

/// A side that sleeps looks at retired memory now and then, ever more rarely. One that is awake
/// looks at it no more than one that sleeps, once the memory is not fresh.
#[test]
fn a_side_with_retired_memory_sleeps() {
    let mut world = world();
    let (_memory, _pages, cb, key) = lend(&mut world);
    revoke(&mut world, cb, key);
    let begin = world.now;
    let mut naps = 0;
    while world.now < begin + Duration::from_secs(3600) {
        let asleep = (0..10_000).any(|_| {
            let now = world.now;
            world.b.transport.poll(now, &mut world.b.events);
            world.b.transport.arm(Waker::noop()) == Armed::Waiting
        });
        assert!(asleep, "nothing is left to do");
        let due = world.b.transport.next_deadline().expect("somebody must look again");
        assert!(due > world.now && due <= world.later(1));
        (world.now, naps) = (due, naps + 1);
    }
    assert!(naps < 3700, "{naps} naps in an hour");
}

/// A transport that is dropped leaves the memory behind that its peer is at. Another transport
/// finds when it is free.
#[test]
fn memory_outlives_its_transport_while_the_peer_is_at_it() {
    let mut world = world();
    let (mut memory, pages, ..) = lend(&mut world);
    drop(std::mem::replace(&mut world.b.transport, ShmTransport::new(ShmConfig::default()).unwrap()));
    world.now = world.later(3600);
    world.settle();
    assert!(memory.get_mut().is_none(), "the peer may still write to it");
    drop(pages);
    world.now = world.later(3600);
    world.until(|_| memory.get_mut().is_some().then_some(()));
}

/// The time of two endpoints. It moves when a test moves it.
#[derive(Clone)]
struct ByHand(Rc<Cell<Time>>);

impl ByHand {
    fn pass(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

impl Clock for ByHand {
    fn now(&self) -> Time {
        self.0.get()
    }
}

type End = Endpoint;

/// Runs a future over two endpoints. Time passes while nothing else happens.
fn run<R>(clock: &ByHand, ends: [&End; 2], future: impl Future<Output = R>) -> R {
    let (mut future, mut context) = (pin!(future), Context::from_waker(Waker::noop()));
    for _ in 0..1_000_000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        let moved = ends.map(Endpoint::progress);
        clock.pass(if moved == [false, false] { Duration::from_millis(1) } else { Duration::ZERO });
    }
    panic!("it does not end");
}

/// A call reads data, and the server's disk stalls while the server's kernel reads into the
/// client's pages. The call ends in time. Its memory stays with the endpoint until the disk has
/// delivered.
#[test]
fn a_call_whose_server_stalls_ends_in_time_and_leaves_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let addr = Addr::shm(folder.path().join("names/server").to_str().unwrap());
    let clock = ByHand(Rc::new(Cell::new(Time::from_nanos(1_000_000_000))));
    let config = Config::default();
    let [client, server] = [(); 2].map(|()| {
        let transport = ShmTransport::new(ShmConfig::default()).unwrap();
        Endpoint::new(Engine::new(Box::new(transport), config.clone(), clock.now()).unwrap(), clock.clone())
    });
    let ends = [&client, &server];
    server.listen(&addr).unwrap();
    let peer = run(&clock, ends, client.connect(&addr, client.within(Duration::from_secs(5)))).unwrap();
    let mut memory = Memory::shareable(LEN).unwrap();
    let call = || {
        let options = client.within(Duration::from_secs(1)).path(Path::ServerBased);
        let call = peer.call(b"read", Body::In((&memory).into()), options);
        let request = run(&clock, ends, server.next_unexpected());
        (call.unwrap(), Incoming::new(request).unwrap())
    };
    // The server maps the memory when it is used for the first time.
    let (first, incoming) = call();
    run(
        &clock,
        ends,
        incoming.reply(b"", Some(Memory::zeroed(LEN).unwrap().into()), server.within(Duration::from_secs(1))),
    )
    .unwrap();
    run(&clock, ends, first.reply()).unwrap();

    run(&clock, ends, server.sleep(Duration::from_secs(1)));
    let (second, incoming) = call();
    let pages = incoming.pages(0, LEN as u64).expect("mapped by the first call");
    let read = StalledRead::into_memory(pages.pieces()[0].memory().clone());
    drop(pages);
    let begin = clock.now();
    let error = run(&clock, ends, second.reply()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(clock.now() <= begin + Duration::from_secs(1) + config.timeouts.fence_grace + Duration::from_millis(100));
    drop(incoming);
    for _ in 0..10_000 {
        clock.pass(Duration::from_secs(1));
        for end in ends {
            end.progress();
        }
    }
    let usage = client.resource_usage();
    assert_eq!((usage.retired, usage.retired_bytes, usage.operations), (1, LEN as u64, 0));
    assert!(memory.get_mut().is_none(), "the server's kernel may still write to it");
    read.end(&pattern(LEN));
    assert_eq!(memory.to_vec(), pattern(LEN));
    for _ in 0..10 {
        clock.pass(Duration::from_secs(1));
        for end in ends {
            end.progress();
        }
    }
    assert_eq!(client.resource_usage().retired, 0);
    assert!(memory.get_mut().is_some());
}
