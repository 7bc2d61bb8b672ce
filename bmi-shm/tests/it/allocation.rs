//! Tests that the steady state does not allocate.

use bmi_conformance::allocation::{self, Counting};

use crate::common::world;

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
