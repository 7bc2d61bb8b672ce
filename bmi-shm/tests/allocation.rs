//! No allocation in the steady state: the transport (C14), and the messages over it. A binary of its own, because the allocator counts for the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{Event, Payload, WorkId, WorkOptions, WriteTarget};
use bmi_core::{Access, Addr, Clock, Config, Endpoint, Memory, Options, PeerEvent, Transport};
use bmi_shm::{ShmConfig, ShmTransport};
use common::World;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator; counting touches only a thread-local integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_data_path_allocates_nothing_in_the_steady_state() {
    let mut world = World::new();
    let (ca, cb) = world.connect();
    const LEN: usize = 700_000;
    let (_, source) = world.a.memory(LEN);
    let (_, into) = world.a.memory(LEN);
    let (_, target) = world.b.memory(LEN);
    let remote = world.b.transport.expose(cb, &target, Access::READ_WRITE).unwrap();
    let write = WriteTarget { remote, immediate: Some(1) };
    let (list, room) = ([source.slice(0, 1000), source.slice(1000, LEN - 1000)], [target]);
    let into = [into];
    let round = |world: &mut World| {
        let options = WorkOptions::SIGNALLED;
        for _ in 0..32 {
            world.b.transport.post_recv(cb, WorkId(1), &room).unwrap();
            world.a.transport.post_send(ca, WorkId(2), &[1; 64], Payload::EMPTY, options).unwrap();
        }
        world.b.transport.post_recv(cb, WorkId(1), &room).unwrap();
        world.a.transport.post_send(ca, WorkId(2), &[], Payload::Gather(&list), options).unwrap();
        world.b.transport.post_recv(cb, WorkId(1), &[]).unwrap();
        world.a.transport.post_write(ca, WorkId(3), &[], &list, write, options).unwrap();
        world.a.transport.post_read(ca, WorkId(4), &into, remote, WorkOptions::SIGNALLED).unwrap();
        let (mut a, mut b, mut polls) = (0, 0, 0);
        while a < 35 || b < 34 {
            polls += 1;
            assert!(polls < 1_000_000);
            world.poll();
            let works = |event: Event| usize::from(matches!(event, Event::Work(_)));
            a += world.a.events.drain(..).map(works).sum::<usize>();
            b += world.b.events.drain(..).map(works).sum::<usize>();
        }
    };
    for _ in 0..20 {
        round(&mut world);
    }
    let before = COUNT.get();
    for _ in 0..50 {
        round(&mut world);
    }
    for _ in 0..1000 {
        world.poll();
    }
    assert_eq!(COUNT.get() - before, 0);
}

/// The message interface over it: every path of a message whose memory the program has registered. What is left out, and allocates, are
/// registrations on the fly, descriptors of bulk transfers, lists of many pieces, and messages that many others were received before.
#[test]
fn messages_allocate_nothing_in_the_steady_state() {
    let clock = MonotonicClock::new();
    let endpoint = || {
        let transport = ShmTransport::new(ShmConfig::default()).unwrap();
        Endpoint::new(transport, Config::default(), clock.now()).unwrap()
    };
    let (mut a, mut b) = (endpoint(), endpoint());
    let folder = tempfile::tempdir().unwrap();
    let addr = Addr::shm(folder.path().join("names/b").to_str().unwrap());
    b.listen(&addr).unwrap();
    let (to_b, connecting) = a.connect(&addr, Options::default()).unwrap();
    let to_a = loop {
        a.poll(clock.now());
        b.poll(clock.now());
        if let Some(PeerEvent::Connected { peer, .. }) = b.poll_event() {
            break peer;
        }
    };
    while a.poll_op(connecting).is_none() {
        a.poll(clock.now());
    }
    let (source, target) = (Memory::shareable(1 << 20).unwrap(), Memory::shareable(1 << 20).unwrap());
    let plain = Memory::zeroed(1 << 20).unwrap();
    let _registered = (a.register(&source).unwrap(), b.register(&target).unwrap(), a.register(&plain).unwrap());
    let mut completions = Vec::new();
    let mut round = || {
        // Every path, the receive before the message and behind it; and messages that need none. Without an offer, plain memory goes to a slot,
        // and memory that the peer can have is announced.
        let lens = [
            (1, 64, &source),
            (2, 8192, &source),
            (3, 64 << 10, &plain),
            (4, 64 << 10, &source),
            (6, 1 << 20, &source),
        ];
        for (tag, len, source) in lens {
            for receive_first in [true, false] {
                let mut left = 1;
                if receive_first {
                    left += usize::from(
                        b.post_recv(to_a, tag, target.slice(0, len), Options::default()).unwrap().pending().is_some(),
                    );
                    // Until the offer of the receive has come.
                    for _ in 0..200 {
                        b.poll(clock.now());
                        a.poll(clock.now());
                    }
                }
                left += usize::from(
                    a.post_send(to_b, tag, source.slice(0, len), Options::default()).unwrap().pending().is_some(),
                );
                if !receive_first {
                    left += usize::from(
                        b.post_recv(to_a, tag, target.slice(0, len), Options::default()).unwrap().pending().is_some(),
                    );
                }
                a.post_send_unexpected(to_b, 5, source.slice(0, 100), Options::default()).unwrap();
                while left > 0 {
                    a.poll(clock.now());
                    b.poll(clock.now());
                    left -= usize::from(b.poll_unexpected().is_some());
                    left -= a.poll_all(&mut completions) + b.poll_all(&mut completions);
                    assert!(completions.drain(..).all(|completion| completion.status.is_ok()));
                }
            }
        }
    };
    for _ in 0..50 {
        round();
    }
    let before = COUNT.get();
    for _ in 0..100 {
        round();
    }
    let counted = COUNT.get() - before;
    let counters = a.counters();
    assert!(counters.eager > 0 && counters.direct > 0 && counters.fast > 0, "{counters:?}");
    assert_eq!(counters.rendezvous, 3 * 150, "{counters:?}");
    assert_eq!(counted, 0);
}
