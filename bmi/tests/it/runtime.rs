//! Tasks and time, outside and in a world.

use std::time::Duration;

use bmi::{Client, ErrorKind, Instant, Server};
use bmi_sim::World;

use crate::bed::{Bed, everywhere};

#[test]
fn tasks_and_time_are_those_of_the_place() {
    everywhere(async |bed: &Bed| {
        let begun = Instant::now();
        let hour = if bed.is_world() { Duration::from_secs(3600) } else { Duration::from_millis(20) };
        let task = bmi::spawn(async move {
            bmi::sleep(hour).await;
            7
        });
        let late = bmi::timeout(hour / 2, std::future::pending::<()>()).await;
        assert_eq!(late.expect_err("it never ends").kind(), ErrorKind::TimedOut);
        assert!(!task.is_finished());
        assert_eq!(task.await.expect("its result"), 7);
        assert!(begun.elapsed() >= hour);
        let stopped = bmi::spawn(std::future::pending::<()>());
        stopped.abort();
        assert_eq!(stopped.await.expect_err("aborted").kind(), ErrorKind::Abandoned);
    });
}

/// In a world, random numbers and time follow from the seed.
#[test]
fn a_world_repeats_its_random_numbers() {
    let numbers = |seed| {
        let world = World::new(seed);
        world.block_on(world.node("n0").run(async { [(); 4].map(|()| bmi::runtime::random()) }))
    };
    assert_eq!(numbers(5), numbers(5));
    assert_ne!(numbers(5), numbers(6));
}

/// Replays a bug: between the nodes of a world, a client opened real sockets.
#[test]
fn between_the_nodes_of_a_world_there_is_time_and_no_network() {
    let world = World::new(1);
    world.block_on(async {
        let begun = Instant::now();
        bmi::spawn(async { bmi::sleep(Duration::from_secs(3600)).await }).await.expect("a task");
        assert_eq!(begun.elapsed(), Duration::from_secs(3600));
        let error = Client::new("tcp://127.0.0.1:7001").call(b"").await.expect_err("no network");
        assert!(error.kind() == ErrorKind::Invalid && error.detail().contains("node.run"), "{error}");
        let error = Server::bind("tcp://127.0.0.1:0").await.expect_err("no network");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    });
}

#[test]
#[should_panic(expected = "does not run inside of a tokio runtime")]
fn a_world_refuses_to_run_inside_of_tokio() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async { World::new(1).block_on(async {}) });
}

#[test]
#[should_panic(expected = "outside of a runtime")]
fn a_task_needs_a_place() {
    drop(bmi::spawn(async {}));
}
