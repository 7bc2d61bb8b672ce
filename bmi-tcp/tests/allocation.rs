//! Tests that the steady state does not allocate. It is a program of its own, because the allocator
//! counts for the whole process.

#[path = "it/common/mod.rs"]
mod common;

use bmi_conformance::allocation::{self, Counting};
use common::world;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_data_path_allocates_nothing_in_the_steady_state() {
    allocation::data_path(&mut world());
}

#[test]
fn messages_allocate_nothing_in_the_steady_state() {
    let mut world = world();
    let addr = world.addr();
    allocation::messages(world.a.transport, world.b.transport, &addr);
}
