//! Tests that the steady state does not allocate.

use bmi_conformance::allocation::{self, Counting};

use bmi_tcp::TcpConfig;

use crate::common::{world, world_with};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_data_path_allocates_nothing_in_the_steady_state() {
    allocation::data_path(&mut world());
}

#[test]
fn several_streams_allocate_nothing_in_the_steady_state() {
    let mut config = TcpConfig::default();
    config.streams = 4;
    allocation::data_path(&mut world_with(&config));
}

#[test]
fn messages_allocate_nothing_in_the_steady_state() {
    let mut world = world();
    let addr = world.addr();
    allocation::messages(world.a.transport, world.b.transport, &addr);
}
