//! No allocation in the steady state (C14). A binary of its own, because the allocator counts for the whole process.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bmi_core::transport::{Event, Payload, ServiceClass, WorkId, WorkOptions, WriteTarget};
use bmi_core::{Access, Transport};
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
        world.a.transport.post_read(ca, WorkId(4), &into, remote, ServiceClass::Bulk).unwrap();
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
