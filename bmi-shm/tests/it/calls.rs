//! System calls: none while both sides are busy, one wake-up per sleeper. One poll sends it.

use std::os::fd::AsFd;
use std::task::Waker;

use bmi_conformance::world::Side;
use bmi_core::transport::{Armed, ConnId, Event, Payload, PostError, WorkId, WorkKind, WorkOptions};
use bmi_core::{Time, Transport};
use bmi_shm::{ShmConfig, ShmTransport};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::common::{World, world, world_with};

/// Sends a message from `a` for which `b` has a receive.
fn send(world: &mut World, ca: ConnId) {
    world.a.transport.post_send(ca, WorkId(1), b"message", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
}

/// Polls a side until it may sleep.
fn put_to_sleep(side: &mut Side<ShmTransport>, now: Time) {
    while side.transport.arm(Waker::noop()) == Armed::Busy {
        side.transport.poll(now, &mut side.events);
    }
}

/// Returns whether a side that sleeps is woken.
fn is_woken(side: &Side<ShmTransport>) -> bool {
    let fd = side.transport.event_fd().unwrap();
    let (mut fds, at_once) =
        ([PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)], Timespec { tv_sec: 0, tv_nsec: 0 });
    rustix::event::poll(&mut fds, Some(&at_once)).unwrap() > 0
}

/// Returns the number of completions of this kind that a side has reported.
fn count(side: &Side<ShmTransport>, kind: WorkKind) -> usize {
    side.events.iter().filter(|event| matches!(event, Event::Work(work) if work.kind == kind)).count()
}

#[test]
fn busy_sides_call_the_system_once_in_a_millisecond_whatever_they_move() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, room) = world.b.memory(64);
    let before = [world.a.transport.calls(), world.b.transport.calls()];
    const MESSAGES: u32 = 10_000;
    for number in 0..MESSAGES {
        world.b.transport.post_recv(cb, WorkId(2), std::slice::from_ref(&room)).unwrap();
        send(&mut world, ca);
        world.until(|world| world.b.take_work());
        // One microsecond per message, 10 ms in all.
        world.now = world.now + std::time::Duration::from_micros(u64::from(number > 0));
    }
    for (side, before) in [&world.a, &world.b].into_iter().zip(before) {
        let calls = side.transport.calls();
        assert_eq!(calls.wakes, before.wakes);
        assert!(calls.looks - before.looks <= 2 * 10 + 2, "{calls:?} since {before:?}");
    }
}

#[test]
fn a_sleeper_is_woken_once_for_any_number_of_messages() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, room) = world.b.memory(64);
    for _ in 0..100 {
        world.b.transport.post_recv(cb, WorkId(2), std::slice::from_ref(&room)).unwrap();
    }
    world.settle();
    for nap in 1..=3 {
        put_to_sleep(&mut world.b, world.now);
        let before = world.a.transport.calls().wakes;
        for _ in 0..30 {
            send(&mut world, ca);
            let now = world.now;
            world.a.transport.poll(now, &mut world.a.events);
        }
        assert_eq!(world.a.transport.calls().wakes - before, 1, "nap {nap}");
        for _ in 0..30 {
            world.until(|world| world.b.take_work());
        }
    }
}

/// A regression test. The bell was rung some polls after there was something to ring for. A program
/// that polled once and then did something else left its peer asleep.
#[test]
fn one_poll_wakes_a_sleeper_whatever_else_it_has_to_do() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let (_, room) = world.b.memory(64);
    // With 300 completions the poll reports as many events as it may, and serves no connection.
    for (round, messages) in [1, 300, 1, 2, 300, 3].into_iter().enumerate() {
        for _ in 0..messages {
            world.b.transport.post_recv(cb, WorkId(2), std::slice::from_ref(&room)).unwrap();
        }
        world.settle();
        put_to_sleep(&mut world.b, world.now);
        assert!(!is_woken(&world.b), "round {round}");
        for _ in 0..messages {
            world.a.transport.post_send(ca, WorkId(1), b"message", Payload::EMPTY, WorkOptions::SIGNALLED).unwrap();
        }
        let (now, wakes) = (world.now, world.a.transport.calls().wakes);
        world.a.transport.poll(now, &mut world.a.events);
        assert!(is_woken(&world.b), "round {round}: {messages} messages");
        assert_eq!(world.a.transport.calls().wakes - wakes, 1, "round {round}");
        while count(&world.b, WorkKind::Recv) < messages {
            world.b.transport.poll(now, &mut world.b.events);
        }
        world.settle();
        world.b.events.clear();
        world.a.events.clear();
    }
}

/// A side that takes everything out of a ring wakes the peer that waits for room, although it finds
/// nothing more and need not poll again.
#[test]
fn the_poll_that_makes_room_wakes_a_sleeper_that_waits_for_it() {
    let mut config = ShmConfig::default();
    (config.tuning.ring_len, config.share_pages) = (64 << 10, false);
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    // Messages from one line of the ring to the longest that are sent inline.
    for len in [16, 200, 1000, 8000] {
        let (_, room) = world.b.memory(len);
        let (_, source) = world.a.pattern(len);
        let messages = config.tuning.ring_len / (8 + len).next_multiple_of(64) + 10;
        for round in 0..10 {
            let (now, what) = (world.now, format!("{messages} messages of {len} bytes, round {round}"));
            for _ in 0..messages {
                world.b.transport.post_recv(cb, WorkId(2), std::slice::from_ref(&room)).unwrap();
                let payload = Payload::Gather(std::slice::from_ref(&source));
                let mut post = || world.a.transport.post_send(ca, WorkId(1), &[], payload, WorkOptions::UNSIGNALLED);
                if post() == Err(PostError::QueueFull) {
                    world.a.transport.poll(now, &mut world.a.events);
                    world.a.transport.post_send(ca, WorkId(1), &[], payload, WorkOptions::UNSIGNALLED).unwrap();
                }
            }
            put_to_sleep(&mut world.a, now);
            assert!(!is_woken(&world.a), "{what}");
            while !is_woken(&world.a) {
                let before = count(&world.b, WorkKind::Recv);
                world.b.transport.poll(now, &mut world.b.events);
                let taken = count(&world.b, WorkKind::Recv);
                assert!(taken > before, "{what}: nobody is woken after all {taken} that came were taken");
            }
            assert!(count(&world.b, WorkKind::Recv) < messages, "{what}: none had to wait");
            world.until(|world| (count(&world.b, WorkKind::Recv) == messages).then_some(()));
            world.settle();
            world.b.events.clear();
        }
    }
}
