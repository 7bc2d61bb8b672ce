//! Processes that are killed at any moment. Their peers notice at once, and nothing is left behind.
//! The victim is this test program itself, started with an environment variable.

use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use bmi_conformance::Rng;
use bmi_conformance::world::alone;
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, PostError, RetiredMemory, WorkId, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, Clock, ErrorKind, Memory, RemoteSlice, Segment, Transport};
use bmi_shm::{ShmConfig, ShmTransport};

/// The address for the victim to connect to. What it does there depends on the test.
const VICTIM: &str = "BMI_SHM_VICTIM";
const ROOM: usize = 1 << 20;

fn spawn(test: &str, addr: &Addr) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(VICTIM, addr.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Kills a victim that was alive until then.
fn kill(mut child: Child) {
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9), "the victim had ended by itself");
}

/// The descriptors and mappings of one process.
#[derive(Debug, PartialEq, Eq)]
struct ResourceUsage {
    descriptors: usize,
    mappings: usize,
    names: usize,
}

fn resource_usage(folder: &std::path::Path) -> ResourceUsage {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    ResourceUsage {
        descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
        mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        names: std::fs::read_dir(folder.join("names")).map_or(0, Iterator::count),
    }
}

/// Returns what is used when large memory of dead peers is unmapped. A thread does that, some time
/// after the connection has ended. Gives up after a minute.
fn resource_usage_at_rest(folder: &std::path::Path, rest: &ResourceUsage) -> ResourceUsage {
    let clock = MonotonicClock::new();
    let give_up = clock.now() + std::time::Duration::from_secs(60);
    loop {
        let now = resource_usage(folder);
        if now == *rest || clock.now() > give_up {
            return now;
        }
        std::thread::yield_now();
    }
}

/// Connects, and then keeps every kind of work going until it is killed.
fn work_until_killed(addr: &Addr) -> ! {
    let clock = MonotonicClock::new();
    let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
    let region = transport.register(&Memory::shareable(ROOM).unwrap()).unwrap();
    let far_off = clock.now() + std::time::Duration::from_secs(60);
    let conn = transport.connect(addr, b"", far_off).unwrap();
    let whole = [region.segment(0, ROOM)];
    for _ in 0..8 {
        transport.post_recv(conn, WorkId(0), &whole).unwrap();
    }
    let own = transport.expose(conn, &whole[0], Access::READ_WRITE).unwrap();
    let mut events = Vec::new();
    let mut remote = None;
    loop {
        transport.poll(clock.now(), &mut events);
        for event in events.drain(..) {
            match event {
                Event::Established { private, .. } => {
                    remote = Some(RemoteSlice::from_wire(private[..].try_into().unwrap()));
                    transport
                        .post_send(conn, WorkId(1), &own.to_wire(), Payload::EMPTY, WorkOptions::UNSIGNALLED)
                        .unwrap();
                }
                Event::Work(work) if work.status == WorkStatus::Ok => {
                    if work.work == WorkId(0) {
                        transport.post_recv(conn, WorkId(0), &whole).unwrap();
                    }
                }
                // The parent is gone, so nothing will kill this process.
                _ => std::process::exit(1),
            }
        }
        if let Some(remote) = remote {
            let options = WorkOptions::SIGNALLED;
            // A full queue is as good as any other moment.
            let _ = transport.post_write(conn, WorkId(2), &[], &whole, remote.into(), options);
            let _ = transport.post_read(conn, WorkId(3), &whole, remote, options);
        }
    }
}

/// A server and its view of the victims' connections.
struct Server {
    transport: ShmTransport,
    clock: MonotonicClock,
    whole: [Segment; 1],
    /// The place where messages arrive. The victims write all over the rest.
    inbox: [Segment; 1],
    events: Vec<Event>,
    /// The connections, and where each victim's memory is. A victim that was killed early may be
    /// reported together with the next one.
    live: Vec<(ConnId, Option<RemoteSlice>)>,
    seen: u64,
    /// The number of requests posted, and of requests ended.
    posted: u64,
    ended: u64,
    worked: u64,
    late: std::time::Duration,
}

impl Server {
    /// Polls once and keeps a live connection busy. Returns whether a connection ended.
    fn turn(&mut self) -> bool {
        let mut over = false;
        if !self.transport.poll(self.clock.now() + self.late, &mut self.events) {
            std::thread::yield_now();
        }
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    self.live.push((conn, None));
                    self.seen += 1;
                    let inbox = self.inbox.clone();
                    self.post(|transport, _| transport.post_recv(conn, WorkId(0), &inbox));
                    // The victim may be dead already; then its end follows.
                    if let Ok(slice) = self.transport.expose(conn, &self.whole[0], Access::READ_WRITE) {
                        self.transport.accept(conn, &slice.to_wire()).unwrap();
                    }
                }
                Event::Work(work) => {
                    self.ended += 1;
                    self.worked += u64::from(work.status == WorkStatus::Ok);
                    let record = self.live.iter_mut().find(|(conn, _)| *conn == work.conn);
                    if let (WorkStatus::Ok, WorkId(0), Some((_, remote))) = (work.status, work.work, record) {
                        let mut wire = [0; RemoteSlice::WIRE_LEN];
                        self.inbox[0].to_slice().copy_to(&mut wire);
                        *remote = Some(RemoteSlice::from_wire(&wire));
                    }
                }
                Event::Established { .. } => {}
                Event::Disconnected { conn, reason } => {
                    let at = self.live.iter().position(|(live, _)| *live == conn).expect("it was heard of");
                    self.live.remove(at);
                    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
                    over = true;
                }
                Event::Rejected { .. } => panic!("nobody rejects"),
            }
        }
        if let Some((conn, Some(remote))) = self.live.last().copied() {
            let options = WorkOptions::SIGNALLED;
            self.post(|transport, whole| transport.post_write(conn, WorkId(2), &[], whole, remote.into(), options));
            self.post(|transport, whole| transport.post_read(conn, WorkId(3), whole, remote, options));
        }
        over
    }

    fn post(&mut self, post: impl FnOnce(&mut ShmTransport, &[Segment]) -> Result<(), PostError>) {
        match post(&mut self.transport, &self.whole) {
            Ok(()) => self.posted += 1,
            Err(PostError::QueueFull | PostError::NotConnected) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// A thousand clients, each killed after a random amount of work of its server: before it
/// connected, in the handshake, in the middle of copies.
#[test]
fn clients_are_killed_a_thousand_times() {
    if let Ok(addr) = std::env::var(VICTIM) {
        work_until_killed(&addr.parse().unwrap());
    }
    if !alone(|| ()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let addr = Addr::shm(folder.path().join("names/server").to_str().unwrap());
    let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
    transport.listen(&addr).unwrap();
    let mut memory = Memory::shareable(ROOM).unwrap();
    let whole = [transport.register(&memory).unwrap().segment(0, ROOM)];
    let inbox = [transport.register(&Memory::shareable(64).unwrap()).unwrap().segment(0, 64)];
    let clock = MonotonicClock::new();
    let late = std::time::Duration::ZERO;
    let mut server = Server {
        transport,
        clock,
        whole,
        inbox,
        events: Vec::new(),
        live: Vec::new(),
        seen: 0,
        posted: 0,
        ended: 0,
        worked: 0,
        late,
    };
    let before = resource_usage(folder.path());
    let mut rng = Rng::new(3);
    let mut established = 0;
    for _ in 0..1000 {
        let child = spawn("process_death::clients_are_killed_a_thousand_times", &addr);
        // Usually until the victim has connected and for some more polls; sometimes not as long.
        let wait = rng.below(8) != 0;
        let seen = server.seen;
        while wait && server.seen == seen {
            server.turn();
        }
        let enough = server.worked + if wait { rng.below(20) } else { 0 };
        while server.worked < enough {
            server.turn();
        }
        kill(child);
        established += u64::from(!server.live.is_empty());
        let mut turns = 0u64;
        while !server.live.is_empty() {
            server.turn();
            turns += 1;
            assert!(turns < 1_000_000, "the death was not noticed");
        }
    }
    // Handshakes that were never finished, and memory that a victim was copying when it died.
    server.late = std::time::Duration::from_secs(60);
    for _ in 0..1000 {
        server.turn();
    }
    assert!(established > 500 && server.worked > 5_000, "{established} connections, {} requests", server.worked);
    assert_eq!(server.posted, server.ended, "every request ends once");
    assert_eq!(resource_usage_at_rest(folder.path(), &before), before);
    let Server { transport, whole, .. } = server;
    drop(whole);
    assert!(memory.get_mut().is_some(), "nobody holds the memory that was exposed a thousand times");
    drop(transport);
    assert_eq!(resource_usage(folder.path()).names, 0);
}

/// Connects to a client, and lets the kernel read from a disk that never delivers into the client's
/// pages.
fn stall_until_killed(addr: &Addr) -> ! {
    let clock = MonotonicClock::new();
    let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
    let conn = transport.connect(addr, b"", clock.now() + std::time::Duration::from_secs(60)).unwrap();
    let (mut remote, mut stalls, mut events) = (None, false, Vec::new());
    loop {
        transport.poll(clock.now(), &mut events);
        for event in events.drain(..) {
            if let Event::Established { private, .. } = event {
                remote = Some(RemoteSlice::from_wire(private[..].try_into().unwrap()));
            }
        }
        if !stalls
            && let Some(remote) = remote
            && let Some(pages) = transport.map_remote(conn, remote, Access::WRITE)
        {
            stalls = true;
            let reader = std::thread::Builder::new().spawn(move || {
                let (disk, _keep) = std::io::pipe().unwrap();
                // SAFETY: the pages are mapped while `pages` lives. The kernel does the writing,
                // and there is no reference to the bytes.
                unsafe { libc::read(disk.as_raw_fd(), pages.as_ptr().cast(), pages.len()) }
            });
            reader.unwrap();
            transport.post_send(conn, WorkId(1), b"", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
        }
    }
}

/// A process is killed while its kernel may still write to its peer's memory. It can clear no
/// claim. The memory is held as long as the process lives, and comes back when it is dead.
#[test]
fn memory_that_a_killed_process_was_at_comes_back() {
    if let Ok(addr) = std::env::var(VICTIM) {
        stall_until_killed(&addr.parse().unwrap());
    }
    if !alone(|| ()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let addr = Addr::shm(folder.path().join("names/client").to_str().unwrap());
    let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
    transport.listen(&addr).unwrap();
    let mut memory = Memory::shareable(ROOM).unwrap();
    let whole = transport.register(&memory).unwrap().segment(0, ROOM);
    let before = resource_usage(folder.path());
    let mut child = spawn("process_death::memory_that_a_killed_process_was_at_comes_back", &addr);
    let (clock, mut events, mut remote) = (MonotonicClock::new(), Vec::new(), None);
    let mut ended = false;
    while !ended {
        assert!(child.try_wait().unwrap().is_none(), "the victim had ended by itself");
        transport.poll(clock.now(), &mut events);
        for event in events.drain(..) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    transport.post_recv(conn, WorkId(1), &[]).unwrap();
                    let slice = transport.expose(conn, &whole, Access::WRITE).unwrap();
                    transport.accept(conn, &slice.to_wire()).unwrap();
                    remote = Some(slice);
                }
                Event::Work(work) => {
                    assert_eq!(work.status, WorkStatus::Ok);
                    transport.revoke(work.conn, remote.expect("it was exposed").key);
                }
                Event::Disconnected { reason, .. } => {
                    assert_eq!(reason.kind(), ErrorKind::Cancelled, "{reason}");
                    ended = true;
                }
                _ => {}
            }
        }
    }
    drop(whole);
    let mut now = clock.now();
    let mut poll = |transport: &mut ShmTransport| {
        now = now + std::time::Duration::from_secs(60);
        transport.poll(now, &mut events);
        transport.retired_memory()
    };
    for _ in 0..100 {
        assert_eq!(poll(&mut transport), RetiredMemory { exposures: 1, bytes: ROOM as u64 });
        assert!(memory.get_mut().is_none(), "the process lives");
    }
    kill(child);
    assert_eq!(poll(&mut transport), RetiredMemory::default());
    assert!(memory.get_mut().is_some(), "the process is dead");
    assert_eq!(resource_usage_at_rest(folder.path(), &before), before);
}

/// A killed listener leaves its name behind, and the next listener takes it over. While a listener
/// lives, its name is not taken.
#[test]
fn names_of_killed_listeners_are_taken_over() {
    if let Ok(addr) = std::env::var(VICTIM) {
        let clock = MonotonicClock::new();
        let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
        transport.listen(&addr.parse().unwrap()).unwrap();
        loop {
            transport.poll(clock.now(), &mut Vec::new());
        }
    }
    if !alone(|| ()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("names/listener");
    let addr = Addr::shm(path.to_str().unwrap());
    for _ in 0..20 {
        let child = spawn("process_death::names_of_killed_listeners_are_taken_over", &addr);
        // The name appears when the socket is bound, a moment before it listens. Wait until it
        // accepts connections.
        while bind_probe(&path).is_err() {
            std::thread::yield_now();
        }
        let mut transport = ShmTransport::new(ShmConfig::default()).unwrap();
        assert_eq!(transport.listen(&addr).unwrap_err().kind(), ErrorKind::Invalid, "it lives");
        kill(child);
        assert!(path.exists(), "the name was left behind");
        transport.listen(&addr).expect("the name is taken over");
        drop(transport);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 0);
    }
}

/// Connects to the path. Fails if no process listens there.
fn bind_probe(path: &std::path::Path) -> std::io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)?;
    Ok(rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?)?)
}
