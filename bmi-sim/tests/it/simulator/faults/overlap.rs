//! Faults that overlap: neither another fault nor the end of the plan ends one early.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Config, ErrorKind, Options, Time};
use bmi_sim::faults::{Fault, Plan};
use bmi_sim::{Node, World};

use super::{names, pair};

/// Counts how often the program of a node goes on, every 10 µs. It begins again with the node.
fn beats(node: &Node) -> Rc<Cell<u64>> {
    let (count, ours) = (Rc::new(Cell::new(0)), node.clone());
    let counts = count.clone();
    node.boot(move |_| {
        let (count, node) = (counts.clone(), ours.clone());
        async move {
            loop {
                count.set(count.get() + 1);
                node.sleep(Duration::from_micros(10)).await;
            }
        }
    });
    count
}

/// Regression: a short fault in the middle of a long one ended it.
#[test]
fn of_two_faults_that_overlap_none_ends_the_other() {
    let world = World::new(1);
    let (node, other) = (world.node("a"), world.node("b"));
    let ((a, b), name) = (names(), "a".to_owned());
    let plan = Plan::NONE
        .with(0, Fault::DiskBroken { node: name.clone(), for_us: 10_000 })
        .with(5_000, Fault::DiskFull { node: name.clone(), for_us: 1_000 })
        .with(20_000, Fault::Crash { node: name.clone(), for_us: 10_000, salt: 1 })
        .with(25_000, Fault::Crash { node: name.clone(), for_us: 1_000, salt: 1 })
        .with(40_000, Fault::Pause { node: name.clone(), for_us: 10_000 })
        .with(45_000, Fault::Pause { node: name, for_us: 1_000 })
        .with(60_000, Fault::Partition { a: a.clone(), b: b.clone(), for_us: 5_000 })
        .with(62_000, Fault::Partition { a, b, for_us: 1_000 });
    plan.apply(&world);
    let at = |us: u64| Time::from_nanos(us * 1000);
    world.run_until(at(7_000));
    assert_eq!(world.block_on(node.disk().write(1)).unwrap_err().kind(), ErrorKind::Io);
    world.run_until(at(12_000));
    world.block_on(node.disk().write(1)).unwrap();
    world.run_until(at(27_000));
    assert!(!node.is_alive());
    world.run_until(at(31_000));
    assert!(node.is_alive() && node.crashes().len() == 1);
    let woken = Rc::new(Cell::new(Time::ZERO));
    let (note, sim) = (woken.clone(), world.sim());
    world.run_until(at(39_000));
    node.spawn(async move {
        sim.sleep_until(at(47_000)).await;
        note.set(sim.now());
    });
    world.run_until(at(55_000));
    assert_eq!(woken.get(), at(50_000), "paused by the longer one");
    let (here, there) = (node.endpoint(Config::default()).unwrap(), other.endpoint(Config::default()).unwrap());
    let addr = there.listen(&other.addr(1)).unwrap();
    let peer = world.block_on(here.connect(&addr, Options::default())).unwrap();
    world.run_until(at(63_500));
    world.block_on(async {
        peer.send_unexpected(1, vec![1], Options::default()).await.unwrap();
        there.next_unexpected().await;
    });
    assert!(world.now() >= at(65_000), "the link is down until the longer one is over");
}

/// Regression: the end of a plan brought up every node and link that was down.
#[test]
fn the_end_of_a_plan_ends_nothing_that_was_done_by_hand() {
    let pair = pair();
    let [a, b] = pair.nodes.each_ref();
    let (third, fourth) = (pair.world.node("third"), pair.world.node("fourth"));
    let (of_third, of_fourth) = (beats(&third), beats(&fourth));
    third.kill();
    fourth.pause();
    pair.world.partition(a, b);
    let before = (of_third.get(), of_fourth.get());
    let plan = Plan::NONE
        .with(0, Fault::Crash { node: "b".to_owned(), for_us: 100, salt: 1 })
        .with(5, Fault::Crash { node: "third".to_owned(), for_us: 100, salt: 1 });
    plan.apply(&pair.world);
    pair.world.run_for(Duration::from_millis(1));
    assert!(b.is_alive(), "what the plan did is over");
    assert!(!third.is_alive(), "it was killed by hand");
    assert_eq!((of_third.get(), of_fourth.get()), before);
    let again = b.endpoint(Config::default()).unwrap();
    let addr = again.listen(&b.addr(2)).unwrap();
    let connect = || pair.world.block_on(pair.ends[0].connect(&addr, pair.ends[0].within(Duration::from_millis(1))));
    assert!(connect().is_err(), "the link was cut by hand");
    pair.world.heal(a, b);
    connect().unwrap();
    third.restart();
    fourth.resume();
    pair.world.run_for(Duration::from_millis(1));
    assert!(of_third.get() > before.0 && of_fourth.get() > before.1);
}

/// Regression: a fault that ended at the instant of the calm was ended by neither. The calm
/// considered it over, and then its own end found nothing to end.
#[test]
fn a_calm_at_the_instant_at_which_a_fault_ends_ends_it() {
    let pair = pair();
    let b = &pair.nodes[1];
    let third = pair.world.node("third");
    let (name_a, name_b) = names();
    let beats = beats(&third);
    // Scheduled before the ends of the faults, so it comes before them.
    pair.world.at(pair.world.now() + Duration::from_micros(100), bmi_sim::Sim::calm);
    Plan::NONE
        .with(0, Fault::Partition { a: name_a, b: name_b, for_us: 100 })
        .with(0, Fault::Crash { node: "b".to_owned(), for_us: 100, salt: 1 })
        .with(0, Fault::Pause { node: "third".to_owned(), for_us: 100 })
        .apply(&pair.world);
    pair.world.run_for(Duration::from_micros(100));
    let before = beats.get();
    pair.world.run_for(Duration::from_millis(20));
    assert!(b.is_alive(), "its power came back");
    assert!(beats.get() > before, "it goes on");
    let again = b.endpoint(Config::default()).unwrap();
    let addr = again.listen(&b.addr(2)).unwrap();
    let options = pair.ends[0].within(Duration::from_millis(1));
    pair.world.block_on(pair.ends[0].connect(&addr, options)).expect("the link is whole");
}
