//! A thread that sleeps in epoll itself.

use std::os::fd::AsFd;
use std::task::Waker;
use std::thread::Builder;
use std::time::Duration;

use bmi_conformance::world::completion;
use bmi_core::Transport;
use bmi_core::transport::{Armed, ConnId, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::common::{World, world};

/// Longer than anything on one host takes. A test fails with it, and never waits for it otherwise.
const LONG: Duration = Duration::from_secs(60);

/// A side that has nothing to do, and is armed.
fn asleep(world: &mut World) {
    world.until(|world| (world.b.transport.arm(Waker::noop()) == Armed::Waiting).then_some(()));
}

fn send(world: &mut World, conn: ConnId, number: u64) {
    let (now, a) = (world.now, &mut world.a);
    a.transport.post_send(conn, WorkId(number), b"wake", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
    a.transport.poll(now, &mut a.events);
}

/// Epoll reports an edge once. It reports it to the sleeper, so a poll must get it from there.
#[test]
fn what_a_sleeper_has_seen_is_handled_by_the_next_poll() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let mut bed = world.b.transport.bed().unwrap().unwrap();
    for number in 0..20 {
        let (_, segment) = world.b.memory(16);
        world.b.transport.post_recv(cb, WorkId(number), &[segment]).unwrap();
        asleep(&mut world);
        send(&mut world, ca, number);
        bed.sleep(Some(LONG)).unwrap();
        if number % 2 == 0 {
            // It has learnt something, so it does not sleep again.
            bed.sleep(Some(LONG)).unwrap();
        }
        assert_eq!(world.b.transport.arm(Waker::noop()), Armed::Busy);
        assert_eq!(world.work_b(), completion(cb, number, WorkKind::Recv, WorkStatus::Ok, 4));
    }
}

/// A poll that has sent looks for arrivals only the next time. A driver that then went to sleep,
/// and had forgotten the edge of an arrival before that poll, was never woken for it.
#[test]
fn a_poll_that_only_sends_hides_no_arrival_from_a_driver() {
    let mut world = world();
    let (ca, cb) = world.connect();
    for number in 0..4 {
        let segment = world.b.memory(16).1;
        world.b.transport.post_recv(cb, WorkId(number), &[segment]).unwrap();
        let segment = world.a.memory(16).1;
        world.a.transport.post_recv(ca, WorkId(number), &[segment]).unwrap();
        asleep(&mut world);
        send(&mut world, ca, number);
        let fd = world.b.transport.event_fd().unwrap();
        let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&LONG.try_into().unwrap())), Ok(1));
        // The driver has learnt of it. A task has posted something meanwhile.
        let (now, b) = (world.now, &mut world.b);
        b.transport.post_send(cb, WorkId(number), b"post", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
        b.transport.poll(now, &mut b.events);
        let is_told = b.events.iter().any(|event| matches!(event, Event::Work(work) if work.kind == WorkKind::Recv));
        assert!(is_told || b.transport.arm(Waker::noop()) == Armed::Busy, "it would sleep for ever");
        world.settle();
        world.a.events.clear();
        world.b.events.clear();
    }
}

/// The transport's own waker is watched for edges: a poll by another thread uses it up.
#[test]
fn a_poll_by_another_thread_leaves_the_bell_ringing() {
    let mut world = world();
    world.connect();
    let mut bed = world.b.transport.bed().unwrap().unwrap();
    for _ in 0..3 {
        bed.waker().wake();
        for _ in 0..10 {
            let now = world.now;
            world.b.transport.poll(now, &mut world.b.events);
        }
        bed.sleep(Some(LONG)).unwrap();
    }
    asleep(&mut world);
    let waker = bed.waker();
    let ringing = Builder::new().spawn(move || waker.wake()).unwrap();
    bed.sleep(Some(LONG)).unwrap();
    ringing.join().unwrap();
}

#[test]
fn a_sleep_ends_at_its_timeout_long_or_short() {
    let mut world = world();
    world.connect();
    let mut bed = world.b.transport.bed().unwrap().unwrap();
    for timeout in [Duration::from_nanos(1), Duration::from_micros(300), Duration::from_millis(11)] {
        asleep(&mut world);
        bed.sleep(Some(timeout)).unwrap();
        assert_eq!(world.b.transport.arm(Waker::noop()), Armed::Waiting, "nothing has come");
    }
}

/// A waker of a bed that is gone rang in epoll for ever.
#[test]
fn a_bell_without_a_bed_does_not_ring() {
    let mut world = world();
    world.connect();
    let bed = world.b.transport.bed().unwrap().unwrap();
    let waker = bed.waker();
    drop(bed);
    waker.wake();
    asleep(&mut world);
    let fd = world.b.transport.event_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(0));
}
