//! Tasks, timers, joins, kills and stalls.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{ErrorKind, Time};
use bmi_sim::{DiskFault, DiskProfile, Killed, SimConfig, SimDisk, StallKind, World};

const MS: Duration = Duration::from_millis(1);

#[test]
fn tasks_run_in_the_order_of_spawning_and_timers_in_the_order_of_time() {
    let world = World::new(0);
    let node = world.node("n");
    let log = Rc::new(RefCell::new(Vec::new()));
    for (name, wait) in [("c", 3), ("a", 1), ("b", 2), ("a2", 1)] {
        let (node, log) = (node.clone(), log.clone());
        world.node("n").spawn(async move {
            log.borrow_mut().push(format!("{name} starts"));
            node.sleep(MS * wait).await;
            log.borrow_mut().push(format!("{name} at {}", node.now().as_nanos() / 1_000_000));
        });
    }
    assert_eq!(world.run(), Time::from_nanos(3_000_000));
    let expected = ["c starts", "a starts", "b starts", "a2 starts", "a at 1", "a2 at 1", "b at 2", "c at 3"];
    assert_eq!(*log.borrow(), expected);
}

#[test]
fn a_join_gives_the_result_or_says_killed() {
    let world = World::new(0);
    let node = world.node("n");
    let (fast, slow) = (node.spawn(async { 7 }), node.spawn(std::future::pending::<()>()));
    assert_eq!(world.block_on(fast), Ok(7));
    let killer = world.spawn({
        let (sim, node) = (world.sim(), node.clone());
        async move {
            sim.sleep(MS).await;
            node.kill();
        }
    });
    assert_eq!(world.block_on(slow), Err(Killed));
    assert_eq!(world.block_on(killer), Ok(()));
    assert_eq!(world.block_on(node.spawn(async {})), Err(Killed), "nothing starts on a dead node");
    node.restart();
    assert_eq!(world.block_on(node.spawn(async { 8 })), Ok(8));
    let aborted = node.spawn(std::future::pending::<()>());
    aborted.abort();
    assert_eq!(world.block_on(aborted), Err(Killed));
}

#[test]
fn a_task_may_kill_its_own_node() {
    struct Dropped(Rc<RefCell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.borrow_mut() = true;
        }
    }
    let world = World::new(0);
    let node = world.node("n");
    let dropped = Rc::new(RefCell::new(false));
    let task = node.spawn({
        let (node, guard) = (node.clone(), Dropped(dropped.clone()));
        async move {
            node.kill();
            std::future::pending::<()>().await;
            drop(guard);
        }
    });
    assert_eq!(world.block_on(task), Err(Killed));
    assert!(*dropped.borrow());
}

#[test]
fn a_paused_node_stands_still() {
    let world = World::new(0);
    let node = world.node("n");
    let task = node.spawn({
        let node = node.clone();
        async move {
            node.sleep(MS).await;
            node.now()
        }
    });
    let pausing = node.clone();
    world.at(Time::from_nanos(500_000), move |_| pausing.pause());
    let resuming = node.clone();
    world.at(Time::from_nanos(5_000_000), move |_| resuming.resume());
    assert_eq!(world.block_on(task), Ok(Time::from_nanos(5_000_000)));
}

#[test]
fn stalls_are_named() {
    let world = World::with(SimConfig { time_limit: Duration::from_secs(1), ..SimConfig::default() });
    world.node("lonely").spawn(std::future::pending::<()>());
    let stalled = world.try_block_on(std::future::pending::<()>()).unwrap_err();
    assert_eq!(stalled.kind, StallKind::Deadlock);
    assert!(stalled.to_string().contains("node \"lonely\": up, 1 tasks"), "{stalled}");
    let sim = world.sim();
    let stalled = world.try_block_on(async move { sim.sleep(Duration::from_secs(2)).await }).unwrap_err();
    assert_eq!(stalled.kind, StallKind::TimeLimit);
}

#[test]
fn dropped_timers_do_not_move_time() {
    let world = World::new(0);
    let (node, mut timer) = (world.node("n"), Box::pin(world.sleep(Duration::from_secs(9))));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(timer.as_mut().poll(&mut context).is_pending());
    drop(timer);
    world.block_on(node.sleep(MS));
    assert_eq!(world.run(), Time::ZERO + MS);
}

/// Returns how long a disk takes to read a million bytes.
fn read_time(world: &World, disk: &SimDisk) -> Duration {
    let start = world.now();
    world.block_on(disk.read(1_000_000)).unwrap();
    world.now() - start
}

#[test]
fn a_disk_at_other_prices_is_the_same_disk_unless_it_is_memory() {
    const SECOND: Duration = Duration::from_secs(1);
    let world = World::new(0);
    let node = world.node("n");
    let disk = node.disk();
    assert_eq!(disk.prices(), DiskProfile::default());
    let slow = disk.priced(DiskProfile { read_latency_ns: 0, read_ps_per_byte: 1_000_000, ..disk.prices() });
    assert_eq!((read_time(&world, &slow), disk.busy_ns()), (SECOND, 1_000_000_000));
    drop(slow.read(1_000_000));
    assert!(read_time(&world, &disk) > SECOND, "the slow request is ahead of it");
    let (worked, busy) = (node.cpu_busy(), disk.busy_ns());
    let copies = disk.priced(DiskProfile { memory: true, ..slow.prices() });
    assert_eq!(read_time(&world, &copies), SECOND);
    assert_eq!((node.cpu_busy() - worked, disk.busy_ns()), (SECOND, busy), "the processor's work");
}

#[test]
fn processor_and_disk_are_resources() {
    let world = World::new(0);
    let node = world.node("n");
    world.block_on(async {
        let (first, second) = (node.compute(MS), node.compute(MS));
        second.await;
        first.await;
    });
    assert_eq!((world.now(), node.cpu_busy()), (Time::ZERO + 2 * MS, 2 * MS));
    let disk = node.disk();
    let start = world.now();
    world.block_on(async {
        let (write, sync) = (disk.write(1_000_000), disk.sync());
        sync.await.unwrap();
        write.await.unwrap();
        disk.read(0).await.unwrap();
    });
    // 20 µs and 1 MB at 2 GB/s, then 100 µs, then 80 µs.
    assert_eq!(world.now() - start, Duration::from_micros(20 + 500 + 100 + 80));
    disk.set_fault(DiskFault::Full);
    assert_eq!(world.block_on(disk.write(1)).unwrap_err().kind(), ErrorKind::Exhausted);
    assert!(world.block_on(disk.read(1)).is_ok());
    disk.set_fault(DiskFault::Broken);
    assert_eq!(world.block_on(disk.sync()).unwrap_err().kind(), ErrorKind::Io);
}
