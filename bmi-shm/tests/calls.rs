//! System calls: none while both sides are busy, one wake-up per sleeper.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::task::Waker;

use bmi_core::Transport;
use bmi_core::transport::{Armed, ConnId, Payload, WorkId, WorkOptions};
use common::{World, world};

/// Sends a message from `a` for which `b` has a receive.
fn send(world: &mut World, ca: ConnId) {
    world.a.transport.post_send(ca, WorkId(1), b"message", Payload::EMPTY, WorkOptions::UNSIGNALLED).unwrap();
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
        while world.b.transport.arm(Waker::noop()) == Armed::Busy {
            let now = world.now;
            world.b.transport.poll(now, &mut world.b.events);
        }
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
