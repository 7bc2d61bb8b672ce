//! Faults around a connection: a peer killed with SIGKILL, a link that goes down, a receiver that
//! is not ready, a limit on locked memory. Needs an RDMA device. The link tests need the machine of
//! `cargo xtask rxe`, whose device is on `d0`.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::{self, Pair, Side};
use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, Clock, ErrorKind, Memory, RemoteSlice, Transport};
use bmi_ib::{IbConfig, IbTransport};

/// The environment variable with the parent's address.
const PARENT: &str = "BMI_IB_TEST_PARENT";
const LEN: usize = 4 << 20;
/// Transfers that are outstanding when the peer is killed: seconds of work for Soft-RoCE.
const OUTSTANDING: u64 = 64;
/// The byte that shows that a transfer is half done.
const MIDDLE: usize = LEN / 2;

/// Lets one test run at a time, because all of them share the link.
fn alone() -> MutexGuard<'static, ()> {
    static LINK: Mutex<()> = Mutex::new(());
    LINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts this program again, as another process that runs only the test `name`.
fn spawn(name: &str, parent: &str) -> Child {
    let own = std::env::current_exe().unwrap();
    Command::new(own).args(["--exact", name, "--ignored", "--nocapture"]).env(PARENT, parent).spawn().unwrap()
}

/// The other process of the SIGKILL tests. It connects to its parent, exposes memory, and tells the
/// parent where. It goes on until a write reaches [`MIDDLE`] of the memory, and then kills itself.
#[test]
#[ignore = "a part of another test, in a process of its own"]
fn child_that_exposes_memory() {
    let addr: Addr = std::env::var(PARENT).unwrap().parse().unwrap();
    let mut side = Side::new(MonotonicClock::new(), IbConfig::default());
    let conn = side.dial(&addr);
    assert!(matches!(side.next("established"), Event::Established { .. }));
    let memory = Memory::from(vec![7; LEN]);
    let region = side.transport.register(&memory).unwrap();
    let slice = side.transport.expose(conn, &region.segment(0, LEN), Access::READ_WRITE).unwrap();
    side.transport.post_send(conn, WorkId(0), &slice.to_wire(), Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    loop {
        side.poll();
        if byte(&memory, MIDDLE) != 7 {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        if side.events.drain(..).any(|event| matches!(event, Event::Disconnected { .. })) {
            return;
        }
    }
}

fn byte(memory: &Memory, at: usize) -> u8 {
    let mut byte = [0];
    memory.copy_to(at, &mut byte);
    byte[0]
}

/// Accepts a connection from a child, and returns the memory that the child exposes.
fn meet_child(side: &mut Side, addr: &Addr) -> (Child, ConnId, RemoteSlice) {
    let child = spawn("faults::child_that_exposes_memory", &addr.to_string());
    let Event::ConnectRequest { conn, .. } = side.next("the child's request") else { panic!("no request") };
    let note = Memory::zeroed(RemoteSlice::WIRE_LEN).unwrap();
    let region = side.transport.register(&note).unwrap();
    side.transport.post_recv(conn, WorkId(0), &[region.segment(0, RemoteSlice::WIRE_LEN)]).unwrap();
    side.transport.accept(conn, b"").unwrap();
    assert!(matches!(side.next("established"), Event::Established { .. }));
    let Event::Work(done) = side.next("the child's memory") else { panic!("no message") };
    assert_eq!((done.kind, done.status), (WorkKind::Recv, WorkStatus::Ok));
    (child, conn, RemoteSlice::from_wire(&note.to_vec().try_into().unwrap()))
}

/// Kills `child` when a read has brought the byte at [`MIDDLE`] of `landing`. Without a landing,
/// waits for the child to kill itself. It has its own thread, because on Soft-RoCE a transfer
/// happens inside the calls that post and poll.
fn kill_in_the_middle(mut child: Child, landing: Option<Memory>) -> std::thread::JoinHandle<()> {
    let watch = move || {
        let clock = MonotonicClock::new();
        let give_up = clock.now() + support::PATIENCE;
        if let Some(landing) = landing {
            while byte(&landing, MIDDLE) != 7 && clock.now() < give_up {
                std::thread::yield_now();
            }
            child.kill().unwrap();
        }
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    };
    std::thread::Builder::new().name("killer".to_owned()).spawn(watch).unwrap()
}

/// Reads or writes of megabytes are outstanding, and the peer dies when the first of them is half
/// done.
fn killed_in_the_middle_of(write: bool) {
    let _alone = alone();
    let mut side = Side::new(MonotonicClock::new(), IbConfig::default());
    let addr = side.listen();
    let (child, conn, slice) = meet_child(&mut side, &addr);
    let mut memory = Memory::zeroed(LEN).unwrap();
    let killer = kill_in_the_middle(child, (!write).then(|| memory.clone()));
    let list = [side.transport.register(&memory).unwrap().segment(0, LEN)];
    for work in 0..OUTSTANDING {
        if write {
            side.transport.post_write(conn, WorkId(work), &[], &list, slice.into(), WorkOptions::SIGNALLED).unwrap();
        } else {
            side.transport.post_read(conn, WorkId(work), &list, slice, WorkOptions::SIGNALLED).unwrap();
        }
    }
    drop(list);
    let (completions, reason) = side.end_of(conn, &mut [], "the end of the dead");
    killer.join().unwrap();
    let works: Vec<_> = completions.iter().map(|completion| completion.work).collect();
    assert_eq!(works, (0..OUTSTANDING).map(WorkId).collect::<Vec<_>>(), "each request completes once, in order");
    let failed = completions.iter().filter(|completion| completion.status != WorkStatus::Ok).count();
    assert!(failed > 0, "killed too late to be in the middle");
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    let give_up = side.now() + support::PATIENCE;
    while memory.get_mut().is_none() {
        assert!(side.now() < give_up, "the memory does not come back");
        side.poll();
    }
    // Another peer is served as if nothing had happened.
    let (mut child, conn, slice) = meet_child(&mut side, &addr);
    let list = [side.transport.register(&memory).unwrap().segment(0, LEN)];
    side.transport.post_read(conn, WorkId(99), &list, slice, WorkOptions::SIGNALLED).unwrap();
    let Event::Work(done) = side.next("a read from the next child") else { panic!("an end") };
    assert_eq!((done.work, done.status), (WorkId(99), WorkStatus::Ok));
    assert!(memory.to_vec() == vec![7; LEN]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_peer_killed_in_the_middle_of_reads() {
    killed_in_the_middle_of(false);
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_peer_killed_in_the_middle_of_writes() {
    killed_in_the_middle_of(true);
}

fn ip_link(state: &str) {
    let status = Command::new("ip").args(["link", "set", "d0", state]).status().unwrap();
    assert!(status.success(), "ip link set d0 {state}: {status}");
}

/// Brings the link up again, however the test ends.
struct Up;

impl Drop for Up {
    fn drop(&mut self) {
        ip_link("up");
    }
}

/// Sends a message from `a` to `b`.
fn message(pair: &mut Pair, near: ConnId, far: ConnId, what: &str) {
    let region = pair.b.transport.register(&Memory::zeroed(8).unwrap()).unwrap();
    pair.b.transport.post_recv(far, WorkId(5), &[region.segment(0, 8)]).unwrap();
    pair.a.transport.post_send(near, WorkId(6), b"hello", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    let Event::Work(done) = pair.b.next_beside(&mut [&mut pair.a], what) else { panic!("{what}: an end") };
    assert_eq!((done.work, done.status, done.len), (WorkId(5), WorkStatus::Ok, 5), "{what}");
    let Event::Work(done) = pair.a.next_beside(&mut [&mut pair.b], what) else { panic!("{what}: an end") };
    assert_eq!((done.work, done.status), (WorkId(6), WorkStatus::Ok), "{what}");
}

/// A link that stays down ends the connections, with a reason that names the port. When it is up
/// again, connecting works.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_link_that_stays_down_ends_connections() {
    let _alone = alone();
    let mut config = IbConfig::default();
    config.port_down_grace = Duration::from_millis(50);
    let mut pair = Pair::with(config);
    let (near, far) = (pair.near, pair.far);
    message(&mut pair, near, far, "before");
    let up = Up;
    ip_link("down");
    let (_, reason) = pair.a.end_of(near, &mut [&mut pair.b], "the end");
    assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    pair.b.end_of(far, &mut [&mut pair.a], "the end at the other side");
    drop(up);
    let (near, far) = connect_when_up(&mut pair);
    message(&mut pair, near, far, "after");
}

/// Connects as soon as the port is up. That takes a moment, and a connection over a port that is
/// down ends.
fn connect_when_up(pair: &mut Pair) -> (ConnId, ConnId) {
    let give_up = pair.a.now() + support::PATIENCE;
    loop {
        let (near, far) = pair.again();
        let probe = pair.a.transport.post_send(near, WorkId(1), b"", Payload::EMPTY, WorkOptions::UNSIGNALLED);
        assert!(pair.a.now() < give_up, "the port does not come up: {probe:?}");
        pair.a.transport.disconnect(near, bmi_core::Time::ZERO);
        pair.a.end_of(near, &mut [&mut pair.b], "the probe's end");
        let (_, _) = pair.b.end_of(far, &mut [&mut pair.a], "the probe's end");
        if probe.is_ok() {
            return pair.again();
        }
    }
}

/// A device without a link is refused at once, whether its port was named or not. The text names
/// the port and what shows more.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_port_without_a_link_is_refused_by_name() {
    let _alone = alone();
    let mut named = IbConfig::default();
    named.device = Some("rxe0:1".parse().unwrap());
    IbTransport::new(named.clone()).expect("this machine has an RDMA device");
    let clock = MonotonicClock::new();
    let _up = Up;
    ip_link("down");
    for (config, text) in [(named, "port 1 of rxe0 is not active"), (IbConfig::default(), "no port of")] {
        let give_up = clock.now() + support::PATIENCE;
        let refused = loop {
            match IbTransport::new(config.clone()) {
                Err(refused) => break refused,
                // The port falls a moment after its link.
                Ok(_) => assert!(clock.now() < give_up, "the port does not fall"),
            }
        };
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains(text) && refused.to_string().contains("ibv_devinfo"), "{refused}");
    }
}

/// A link that is down for less than the grace time ends no connection.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_short_fall_of_the_link_is_survived() {
    let _alone = alone();
    let mut config = IbConfig::default();
    config.port_down_grace = Duration::from_secs(60);
    let mut pair = Pair::with(config);
    let (near, far) = (pair.near, pair.far);
    {
        let _up = Up;
        ip_link("down");
        let give_up = pair.a.now() + support::PATIENCE;
        // The deadline shows that the event was seen.
        while pair.a.transport.next_deadline().is_none() {
            assert!(pair.a.now() < give_up, "the port's fall was not seen");
            pair.a.poll();
        }
    }
    let give_up = pair.a.now() + support::PATIENCE;
    while pair.a.transport.next_deadline().is_some() {
        assert!(pair.a.now() < give_up, "the port's rise was not seen");
        pair.a.poll();
    }
    message(&mut pair, near, far, "after a short fall");
}

/// A send that finds no receive is retried a few times. Then both sides end and report why.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_receiver_that_is_not_ready() {
    let _alone = alone();
    let mut pair = Pair::new();
    let (near, far) = (pair.near, pair.far);
    pair.a.transport.post_send(near, WorkId(1), b"hello", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    let (completions, reason) = pair.a.end_of(near, &mut [&mut pair.b], "the sender's end");
    let statuses: Vec<_> = completions.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses, [WorkStatus::ReceiverNotReady]);
    assert!(reason.to_string().contains("no receive posted"), "{reason}");
    let (completions, reason) = pair.b.end_of(far, &mut [&mut pair.a], "the receiver's end");
    assert!(completions.is_empty());
    assert!(reason.to_string().contains("no receive was posted"), "{reason}");
}

/// The other process of the next test. It gives up the capability that lifts the limit.
#[test]
#[ignore = "a part of another test, in a process of its own"]
fn child_with_a_limit() {
    const LIMIT: u64 = 4 << 20;
    let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
    // SAFETY: plain system calls. Leaving the root user removes the capability.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        assert_eq!(libc::setuid(65_534), 0);
    }
    // Opened afterwards: the kernel accepts no commands from a user other than the one that opened
    // the device.
    let mut pair = Pair::new();
    let explained = |error: &bmi_core::Error| {
        assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
        for part in ["RLIMIT_MEMLOCK", "4194304", "ulimit -l"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    let big = Memory::zeroed(16 << 20).unwrap();
    explained(&pair.a.transport.register(&big).unwrap_err());
    // Register pieces that fit, until no more do.
    let memory = Memory::zeroed(3 << 20).unwrap();
    let region = pair.a.transport.register(&memory).unwrap();
    let mut exposed = Vec::new();
    let error = loop {
        match pair.a.transport.expose(pair.near, &region.segment(0, 1 << 20), Access::READ) {
            Ok(slice) => exposed.push(slice.key),
            Err(error) => break error,
        }
        assert!(exposed.len() < 16, "the limit does not hold");
    };
    explained(&error);
    let (near, far) = (pair.near, pair.far);
    exposed.into_iter().for_each(|key| pair.a.transport.revoke(near, key));
    pair.a.transport.expose(near, &region.segment(0, 1 << 20), Access::READ).expect("room again");
    message(&mut pair, near, far, "the connection is as it was");
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_limit_on_locked_memory_is_explained() {
    let _alone = alone();
    let status = spawn("faults::child_with_a_limit", "").wait().unwrap();
    assert!(status.success(), "the child says above what went wrong: {status}");
}
