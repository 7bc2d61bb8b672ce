//! Checks that the steady state allocates nothing: in a transport (C14), and for messages over it.
//!
//! **Why not in the suite.** A program has one allocator, which must be [`Counting`] for these
//! tests. It counts for each thread, so other tests may be in the program:
//!
//! ```text
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! #[test]
//! fn the_data_path_allocates_nothing_in_the_steady_state() {
//!     allocation::data_path(&mut world());
//! }
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{Event, Payload, WorkId, WorkOptions, WriteTarget};
use bmi_core::{
    Access, Addr, AnyTransport, Clock, Config, Counters, Engine, Memory, Options, PeerEvent, Posted, Transport,
};

use crate::world::World;

/// The system's allocator, with a counter.
pub struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is forwarded to the system's allocator; counting touches only a thread-local
// integer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    // Without this, pages of zeros that nobody has touched would become resident.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

fn count() {
    COUNT.with(|count| count.set(count.get() + 1));
}

/// Returns the number of allocations of this thread so far.
///
/// # Panics
/// If the program's allocator is not [`Counting`], so that nothing would be counted.
pub fn allocations() -> usize {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(0u8)));
    assert!(COUNT.get() > before, "the allocator of this program is not bmi_conformance::allocation::Counting");
    COUNT.get()
}

/// Checks sends, writes and reads of all sizes, signalled, in many rounds: only the first round may
/// allocate.
///
/// # Panics
/// If a later round allocates.
pub fn data_path<T: Transport>(world: &mut World<T>) {
    let (ca, cb) = world.connect();
    const LEN: usize = 700_000;
    let (_, source) = world.a.memory(LEN);
    let (_, into) = world.a.memory(LEN);
    let (_, target) = world.b.memory(LEN);
    let remote = world.b.transport.expose(cb, &target, Access::READ_WRITE).expect("expose");
    let write = WriteTarget { remote, immediate: Some(1) };
    let (list, room) = ([source.slice(0, 1000), source.slice(1000, LEN - 1000)], [target]);
    let into = [into];
    let options = WorkOptions::SIGNALLED;
    let round = |world: &mut World<T>| {
        for _ in 0..32 {
            world.b.transport.post_recv(cb, WorkId(1), &room).expect("post");
            world.a.transport.post_send(ca, WorkId(2), &[1; 64], Payload::EMPTY, options).expect("post");
        }
        world.b.transport.post_recv(cb, WorkId(1), &room).expect("post");
        world.a.transport.post_send(ca, WorkId(2), &[], Payload::Gather(&list), options).expect("post");
        world.b.transport.post_recv(cb, WorkId(1), &[]).expect("post");
        world.a.transport.post_write(ca, WorkId(3), &[], &list, write, options).expect("post");
        world.a.transport.post_read(ca, WorkId(4), &into, remote, options).expect("post");
        let (mut a, mut b, mut polls) = (0, 0, 0);
        while a < 35 || b < 34 {
            polls += 1;
            assert!(polls < 1_000_000, "{a} of 35 and {b} of 34 requests have ended");
            world.poll();
            let works = |event: Event| usize::from(matches!(event, Event::Work(_)));
            a += world.a.events.drain(..).map(works).sum::<usize>();
            b += world.b.events.drain(..).map(works).sum::<usize>();
        }
    };
    for _ in 0..20 {
        round(world);
        // Messages that the adapters exchange at first use arrive when they are polled.
        for _ in 0..1000 {
            world.poll();
        }
    }
    let before = allocations();
    for _ in 0..50 {
        round(world);
    }
    for _ in 0..1000 {
        world.poll();
    }
    assert_eq!(COUNT.get() - before, 0);
}

/// Checks the message interface over two adapters, the second of which listens at `addr`. It uses
/// every path of a message whose memory was used before, and whose registration is in the pin-down
/// cache. Some things allocate and are left out: first uses, descriptors of bulk transfers, lists
/// of many pieces, and messages that many others were received before.
///
/// # Panics
/// If a message allocates, or is registered again.
pub fn messages(a: impl Transport + Send + 'static, b: impl Transport + Send + 'static, addr: &Addr) {
    exchange(Box::new(a), Box::new(b), addr);
}

fn exchange(a: AnyTransport, b: AnyTransport, addr: &Addr) {
    let clock = MonotonicClock::new();
    let endpoint = |transport| Engine::new(transport, Config::default(), clock.now()).expect("endpoint");
    let (mut a, mut b) = (endpoint(a), endpoint(b));
    let addr = b.listen(addr).expect("listen");
    let (to_b, connecting) = a.connect(&addr, Options::default()).expect("connect");
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
    let (source, target) = (crate::data::memory(1 << 20), crate::data::memory(1 << 20));
    // Memory that no peer can map. Over shared memory such bytes go to a slot, while the peer
    // copies other bytes itself.
    let plain = Memory::zeroed(1 << 20).expect("memory");
    let exposure = b.expose(to_a, &target, Access::READ_WRITE).expect("expose");
    let mut completions = Vec::new();
    let mut round = || {
        // Short transfers, which may complete when they are posted, and longer ones.
        for len in [64, 64 << 10, 300 << 10] {
            let (remote, list) = (exposure.descriptor(), source.slice(0, len));
            let push = a.post_push(to_b, remote, 0, list.clone(), Options::default()).expect("post");
            let pull = a.post_pull(to_b, remote, 0, list, Options::default()).expect("post");
            let mut left = [push, pull].into_iter().filter_map(Posted::pending).count();
            while left > 0 {
                a.poll(clock.now());
                b.poll(clock.now());
                left -= a.poll_all(&mut completions);
                assert!(completions.drain(..).all(|completion| completion.status.is_ok()));
            }
        }
        // Eager, fast RDMA, offered receive and rendezvous, with the receive before or after the
        // message. Also messages that need no receive.
        let lens = [
            (1, 64, &source),
            (2, 8192, &source),
            (3, 64 << 10, &source),
            (4, 1 << 20, &source),
            (6, 64 << 10, &plain),
        ];
        for (tag, len, source) in lens {
            for receive_first in [true, false] {
                let receive = |b: &mut Engine| {
                    let posted = b.post_recv(to_a, tag, target.slice(0, len), Options::default()).expect("post");
                    usize::from(posted.pending().is_some())
                };
                let mut left = 1;
                if receive_first {
                    left += receive(&mut b);
                    // Until the offer of the receive has arrived.
                    for _ in 0..200 {
                        b.poll(clock.now());
                        a.poll(clock.now());
                    }
                }
                let posted = a.post_send(to_b, tag, source.slice(0, len), Options::default()).expect("post");
                left += usize::from(posted.pending().is_some());
                if !receive_first {
                    left += receive(&mut b);
                }
                a.post_send_unexpected(to_b, 5, source.slice(0, 100), Options::default()).expect("post");
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
    let before = allocations();
    for _ in 0..100 {
        round();
    }
    let counted = COUNT.get() - before;
    let counters: [Counters; 2] = [a.counters(), b.counters()];
    let [sent, _] = &counters;
    assert_eq!(counted, 0, "{sent:?}");
    assert!(sent.eager > 0 && sent.fast > 0 && sent.offered > 0 && sent.rendezvous > 0, "{sent:?}");
    for (counters, memories) in counters.iter().zip([2, 1]) {
        assert_eq!((counters.pin_misses, counters.pin_failures), (memories, 0), "one memory, one registration");
        assert!(counters.pin_hits > 100, "{counters:?}");
    }
}
