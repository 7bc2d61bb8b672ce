//! The special properties of connections over a Unix socket: names, directories, users, ends.

use std::os::unix::fs::PermissionsExt;

use bmi_conformance::world::{Side, completion, pattern};
use bmi_core::transport::{Armed, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Addr, ErrorKind, Transport};
use bmi_shm::{ShmConfig, ShmTransport};

use crate::common::{World, world, world_with};

fn transport() -> ShmTransport {
    ShmTransport::new(ShmConfig::default()).unwrap()
}

fn addr(folder: &std::path::Path, name: &str) -> Addr {
    Addr::shm(folder.join(name).to_str().unwrap())
}

#[test]
fn a_directory_is_made_closed_and_one_that_is_open_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    transport().listen(&addr(folder.path(), "made/a")).unwrap();
    let mode = std::fs::metadata(folder.path().join("made")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::set_permissions(folder.path().join("made"), std::fs::Permissions::from_mode(0o750)).unwrap();
    let error = transport().listen(&addr(folder.path(), "made/a")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("open to other users"), "{error}");
}

#[test]
fn names_go_with_their_listener_and_other_files_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names");
    let mut first = transport();
    first.listen(&addr(&names, "a")).unwrap();
    let error = transport().listen(&addr(&names, "a")).unwrap_err();
    assert!(error.to_string().contains("somebody listens there"), "{error}");
    std::fs::write(names.join("file"), "precious").unwrap();
    let error = transport().listen(&addr(&names, "file")).unwrap_err();
    assert!(error.to_string().contains("no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(names.join("file")).unwrap(), "precious");
    drop(first);
    assert!(!names.join("a").exists());
    transport().listen(&addr(&names, "a")).unwrap();
}

/// A regression test. A path too long for a socket was reported as a system failure when listening.
/// When connecting, it was reported as a missing listener, worth a retry.
#[test]
fn a_name_that_is_too_long_is_invalid() {
    let folder = tempfile::tempdir().unwrap();
    let at = addr(folder.path(), &format!("names/{}", "x".repeat(108)));
    let mut transport = transport();
    assert_eq!(transport.listen(&at).unwrap_err().kind(), ErrorKind::Invalid);
    let error = transport.connect(&at, b"", bmi_core::Time::from_nanos(u64::MAX)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A regression test. A program of another user cannot enter the directory of a listener. It was
/// told that nobody listens.
#[test]
fn a_missing_permission_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names");
    let (at, mut listener) = (addr(&names, "a"), transport());
    listener.listen(&at).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        std::fs::set_permissions(&names, std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    let path = at.host().to_owned();
    let dialing = std::thread::Builder::new().spawn(move || {
        if is_root {
            const NOBODY: libc::uid_t = 65_534;
            // SAFETY: the call changes the user of this thread alone, which ends with this test.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) }, 0);
        }
        let (mut transport, mut events) = (transport(), Vec::new());
        transport.connect(&at, b"", bmi_core::Time::from_nanos(1)).unwrap();
        transport.poll(bmi_core::Time::ZERO, &mut events);
        events
    });
    let events = dialing.unwrap().join().unwrap();
    std::fs::set_permissions(&names, std::fs::Permissions::from_mode(0o700)).unwrap();
    let [Event::Disconnected { reason, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(reason.kind(), ErrorKind::Refused);
    for part in [path.as_str(), "no permission", "owner or as root", "docs/design/shared-memory.md#security"] {
        assert!(reason.to_string().contains(part), "{reason}");
    }
}

/// When another process has taken a name over, the process that had it before does not remove it.
#[test]
fn a_name_that_changed_hands_is_left_to_its_new_owner() {
    let folder = tempfile::tempdir().unwrap();
    let at = addr(&folder.path().join("names"), "a");
    let (mut old, mut new) = (transport(), transport());
    old.listen(&at).unwrap();
    std::fs::remove_file(at.host()).unwrap();
    new.listen(&at).unwrap();
    drop(old);
    assert!(std::path::Path::new(at.host()).exists());
}

#[test]
fn configurations_out_of_bounds_are_refused() {
    for ring_len in [0, 1000, 32 << 10, 96 << 10, 128 << 20] {
        let mut config = ShmConfig::default();
        config.tuning.ring_len = ring_len;
        let error = ShmTransport::new(config).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{ring_len}: {error}");
    }
}

/// The two sides may have rings and tables of different sizes.
#[test]
fn sides_with_different_rings_understand_each_other() {
    let mut world = world();
    let mut config = ShmConfig::default();
    config.tuning.ring_len = 64 << 10;
    config.tuning.advertised_exposures = 0;
    world.a = Side::new(ShmTransport::new(config).unwrap());
    let (ca, cb) = world.connect();
    for len in [10, 5000, 300_000] {
        let (_, from) = world.a.pattern(len);
        let (memory, to) = world.b.memory(len);
        world.b.transport.post_recv(cb, WorkId(1), std::slice::from_ref(&to)).unwrap();
        let payload = Payload::Gather(std::slice::from_ref(&from));
        world.a.transport.post_send(ca, WorkId(2), &[], payload, WorkOptions::UNSIGNALLED).unwrap();
        assert_eq!(world.work_b(), completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, len as u64));
        assert_eq!(memory.to_vec(), pattern(len));
    }
}

/// When a side goes away, everything that it had put into the ring still arrives, and then the end.
#[test]
fn what_was_sent_before_a_sudden_end_still_arrives() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, to) = world.b.memory(8);
    for work in 0..100 {
        world.b.transport.post_recv(cb, WorkId(work), std::slice::from_ref(&to)).unwrap();
        world.a.transport.post_send(ca, WorkId(0), b"last", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    }
    let World { a, b, now, .. } = &mut world;
    std::mem::replace(&mut a.transport, transport()).disconnect(ca, bmi_core::Time::ZERO);
    for _ in 0..1000 {
        b.transport.poll(*now, &mut b.events);
    }
    let arrived = b.events.iter().filter(|event| matches!(event, Event::Work(w) if w.status == WorkStatus::Ok));
    assert_eq!(arrived.count(), 100);
    assert_eq!(b.take_end(cb).map(|reason| reason.kind()), Some(ErrorKind::PeerLost));
}

/// A regression test. Messages that the peer of a closing connection had sent, and that were never
/// going to be read, kept the owner awake until the deadline. It used all processor time.
#[test]
fn a_closing_connection_lets_its_owner_sleep() {
    let mut config = ShmConfig::default();
    config.tuning.ring_len = 64 << 10;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let (_, room) = world.a.memory(4000);
    let (_, source) = world.b.memory(4000);
    for _ in 0..40 {
        world.a.transport.post_recv(ca, WorkId(1), std::slice::from_ref(&room)).unwrap();
        let payload = Payload::Gather(std::slice::from_ref(&source));
        world.b.transport.post_send(cb, WorkId(2), &[], payload, WorkOptions::UNSIGNALLED).unwrap();
    }
    world.a.transport.post_send(ca, WorkId(3), b"unread", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
    let deadline = world.later(60);
    world.b.transport.disconnect(cb, deadline);
    let World { b, now, .. } = &mut world;
    let asleep = (0..10_000).any(|_| {
        b.transport.poll(*now, &mut b.events);
        b.transport.arm(std::task::Waker::noop()) == Armed::Waiting
    });
    assert!(asleep, "more waits than the ring holds, and the peer does not read");
    assert!(b.take_end(cb).is_none());
    assert_eq!(world.until(|world| world.b.take_end(cb)).kind(), ErrorKind::Cancelled);
    let arrived = (0..40).map(|_| world.work_a()).filter(|work| work.status == WorkStatus::Ok);
    assert_eq!(arrived.count(), 40, "what was posted is handed over");
}

/// A regression test. All posted work was in the ring and filled it, except for the CLOSE record.
/// No work waited for room in the queues, so the peer sent no wake-up after it had read. Both sides
/// waited until the deadline.
#[test]
fn a_closing_connection_that_waits_for_room_is_woken() {
    let mut config = ShmConfig::default();
    config.tuning.ring_len = 64 << 10;
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let records = config.tuning.ring_len / 64 - 1;
    for _ in 0..records {
        world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
        world.a.transport.post_send(ca, WorkId(2), b"", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
        let now = world.now;
        world.a.transport.poll(now, &mut world.a.events);
    }
    let deadline = world.later(60);
    world.a.transport.disconnect(ca, deadline);
    let World { a, b, now, .. } = &mut world;
    let asleep = (0..10_000).any(|_| {
        a.transport.poll(*now, &mut a.events);
        a.transport.arm(std::task::Waker::noop()) == Armed::Waiting
    });
    assert!(asleep && a.take_end(ca).is_none(), "there is no room to say that nothing follows");
    let woken = b.transport.calls().wakes;
    for _ in 0..2 * records {
        b.transport.poll(*now, &mut b.events);
    }
    assert_eq!(b.events.len(), records);
    assert_eq!(b.transport.calls().wakes, woken + 1);
    a.transport.poll(*now, &mut a.events);
    assert_eq!(a.take_end(ca).map(|reason| reason.kind()), Some(ErrorKind::Cancelled));
}

/// Connections on which nothing moves are looked at only in turn. Messages that come on them, work
/// that is posted on them, and their end are found all the same.
#[test]
fn connections_at_rest_are_found_again() {
    let mut world = world();
    let pairs: Vec<_> = (0..30).map(|_| world.connect()).collect();
    let (_, room_a) = world.a.memory(64);
    let (_, room_b) = world.b.memory(64);
    for round in 0..2 {
        for &(ca, cb) in &pairs {
            world.a.transport.post_recv(ca, WorkId(1), std::slice::from_ref(&room_a)).unwrap();
            world.b.transport.post_recv(cb, WorkId(1), std::slice::from_ref(&room_b)).unwrap();
        }
        world.settle();
        for &(ca, cb) in &pairs {
            world.a.transport.post_send(ca, WorkId(2), b"there", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
            let got = world.until(|world| world.b.take_work());
            assert_eq!((got.conn, got.len, got.status), (cb, 5, WorkStatus::Ok), "round {round}");
            world.b.transport.post_send(cb, WorkId(2), b"back", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
            let got = world.until(|world| world.a.take_work());
            assert_eq!((got.conn, got.len, got.status), (ca, 4, WorkStatus::Ok), "round {round}");
        }
    }
    world.settle();
    for (ca, cb) in pairs {
        let deadline = world.later(1);
        world.a.transport.disconnect(ca, deadline);
        world.until(|world| world.b.take_end(cb));
        world.until(|world| world.a.take_end(ca));
    }
}
