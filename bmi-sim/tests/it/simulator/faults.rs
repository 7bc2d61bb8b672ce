//! The effect of each fault of a plan on the endpoints.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Access, Config, Endpoint, ErrorKind, Memory, Options, Peer, PeerEvent, Time};
use bmi_sim::faults::{DiskUser, Fault, Loss, Plan};
use bmi_sim::{DiskFault, DiskProfile, Node, Profile, SimConfig, World};
use futures_util::future::{Either, select};

/// Two nodes with a connection from the first to the second.
struct Pair {
    world: World,
    nodes: [Node; 2],
    ends: [Endpoint; 2],
    /// The second node.
    peer: Peer,
}

fn pair() -> Pair {
    let world = World::new(1);
    let nodes = [world.node("a"), world.node("b")];
    let ends = [nodes[0].endpoint(Config::default()).unwrap(), nodes[1].endpoint(Config::default()).unwrap()];
    let addr = ends[1].listen(&nodes[1].addr(1)).unwrap();
    let peer = world.block_on(ends[0].connect(&addr, Options::default())).unwrap();
    Pair { world, nodes, ends, peer }
}

fn names() -> (String, String) {
    ("a".to_owned(), "b".to_owned())
}

impl Pair {
    /// Sends one small message under a plan that begins now. Returns the sender's error, or how
    /// long the message took to arrive.
    fn one_message(&self, fault: Fault) -> Result<Duration, ErrorKind> {
        Plan::NONE.with(0, fault).apply(&self.world);
        self.world.run_for(Duration::from_nanos(1));
        let start = self.world.now();
        let options = Options::by(start + Duration::from_secs(10));
        self.world.block_on(async {
            let message = self.peer.send_unexpected(7, vec![5; 100], options);
            let arrived = self.ends[1].next_unexpected();
            // A message that was sent by copy ends at once. Then the connection's end shows whether
            // it was lost.
            let lost = async {
                let sent = message.await.map_err(|error| error.kind());
                if sent.is_ok() {
                    loop {
                        if let bmi_core::PeerEvent::Lost { reason, .. } = self.ends[0].next_event().await {
                            return reason.kind();
                        }
                    }
                }
                sent.map(|_| ErrorKind::Io).unwrap_err()
            };
            match select(pin!(arrived), pin!(lost)).await {
                Either::Left(_) => Ok(self.world.now() - start),
                Either::Right((error, _)) => Err(error),
            }
        })
    }
}

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

#[test]
fn a_lossy_wire_is_slow_and_one_that_loses_everything_ends_the_connection() {
    let (a, b) = names();
    let lossy = |percent, salt| Fault::Lossy { a: a.clone(), b: b.clone(), percent, for_us: 1_000_000, salt };
    let undisturbed = pair().one_message(lossy(0, 1)).unwrap();
    let took: Vec<Duration> = (0..8).map(|salt| pair().one_message(lossy(30, salt)).unwrap()).collect();
    let again = Duration::from_micros(50);
    assert!(took.iter().any(|took| *took >= undisturbed + again), "{took:?} and {undisturbed:?}");
    assert!(took.contains(&undisturbed), "{took:?} and {undisturbed:?}");
    assert_eq!(pair().one_message(lossy(100, 1)), Err(ErrorKind::PeerLost));
}

#[test]
fn a_delay_delays_and_keeps_the_order() {
    let (a, b) = names();
    let pair = pair();
    Plan::NONE.with(0, Fault::Delay { a, b, by_us: 1000, for_us: 1_000_000, salt: 1 }).apply(&pair.world);
    pair.world.run_for(Duration::from_nanos(1));
    let start = pair.world.now();
    pair.world.block_on(async {
        for tag in 0..20 {
            pair.peer.send_unexpected(tag, vec![1], Options::default()).await.unwrap();
        }
        for tag in 0..20 {
            assert_eq!(pair.ends[1].next_unexpected().await.tag(), tag);
        }
    });
    assert!(pair.world.now() - start > Duration::from_micros(500));
}

#[test]
fn damage_a_missing_receive_and_an_overrun_end_the_connection() {
    let (a, b) = names();
    let faults = [
        Fault::Corrupt { a: a.clone(), b: b.clone() },
        Fault::NotReady { a: a.clone(), b: b.clone() },
        Fault::Cut { a: a.clone(), b: b.clone() },
        Fault::Overrun { node: "a".to_owned() },
        Fault::Overrun { node: "b".to_owned() },
    ];
    for fault in faults {
        let pair = pair();
        assert_eq!(pair.one_message(fault.clone()), Err(ErrorKind::PeerLost), "{fault}");
        pair.world.run_for(Duration::from_secs(1));
        assert_eq!(pair.ends[1].resource_usage().peers, 0, "{fault}");
        // The next connection works.
        let addr = pair.nodes[1].addr(1);
        pair.world.block_on(pair.ends[0].connect(&addr, Options::default())).unwrap();
    }
}

#[test]
fn a_pause_takes_time_and_a_partition_that_is_short_nothing_else() {
    let (a, b) = names();
    for fault in [Fault::Pause { node: b.clone(), for_us: 5000 }, Fault::Partition { a, b, for_us: 5000 }] {
        let took = pair().one_message(fault.clone()).unwrap();
        assert!((4_900..6_000).contains(&took.as_micros()), "{took:?} for {fault}");
    }
}

#[test]
fn registrations_fail_as_often_as_the_plan_says() {
    let pair = pair();
    Plan::NONE.with(0, Fault::Registrations { node: "a".to_owned(), count: 2 }).apply(&pair.world);
    // The end of the plan cancels the remaining failures, so check before it.
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let (seen, end) = (outcomes.clone(), pair.ends[0].clone());
    pair.world.at(pair.world.now(), move |_| {
        for _ in 0..3 {
            let memory = Memory::zeroed(4096).unwrap();
            seen.borrow_mut().push(end.with(|engine| engine.register(&memory)).map(drop).map_err(|e| e.kind()));
        }
    });
    pair.world.run_for(Duration::from_nanos(10));
    assert_eq!(*outcomes.borrow(), [Err(ErrorKind::Exhausted), Err(ErrorKind::Exhausted), Ok(())]);
}

#[test]
fn clocks_on_the_wall_step_and_no_other() {
    let pair = pair();
    let (wall, now) = (pair.nodes[0].wall_ns(), pair.nodes[0].now());
    Plan::NONE.with(0, Fault::ClockStep { node: "a".to_owned(), by_us: -7_000_000 }).apply(&pair.world);
    pair.world.run_for(Duration::from_micros(1));
    assert_eq!(pair.nodes[0].wall_ns(), wall - 7_000_000_000 + 1000);
    assert!(pair.nodes[0].now() - now < Duration::from_millis(1));
    assert!(pair.nodes[1].wall_ns() > wall);
}

/// Records the events of its disk.
#[derive(Default)]
struct Diary(RefCell<Vec<String>>);

impl DiskUser for Diary {
    fn power_fails(&self, loss: &mut Loss) {
        self.0.borrow_mut().push(format!("power fails, {}", loss.keeps()));
    }

    fn behaves(&self, fault: DiskFault) {
        self.0.borrow_mut().push(format!("{fault:?}"));
    }
}

#[test]
fn a_crash_reaches_the_disk_before_the_tasks_end_and_boots_the_programs_again() {
    let world = World::new(1);
    let node = world.node("a");
    let diary = Rc::new(Diary::default());
    node.disk().attach(diary.clone());
    let note = diary.clone();
    node.boot(move |node| {
        struct Ends(Rc<Diary>);
        impl Drop for Ends {
            fn drop(&mut self) {
                self.0.0.borrow_mut().push("ends".to_owned());
            }
        }
        let ends = Ends(note.clone());
        async move {
            ends.0.0.borrow_mut().push(format!("up at {} ms", node.now().as_nanos() / 1_000_000));
            std::future::pending::<()>().await;
            drop(ends);
        }
    });
    let plan = Plan::NONE
        .with(2000, Fault::Crash { node: "a".to_owned(), for_us: 3000, salt: 1 })
        .with(7000, Fault::DiskFull { node: "a".to_owned(), for_us: 1000 });
    plan.apply(&world);
    world.run_until(Time::ZERO + Duration::from_micros(7500));
    assert!(world.block_on(node.disk().write(1)).is_err_and(|error| error.kind() == ErrorKind::Exhausted));
    world.run_for(Duration::from_millis(5));
    world.block_on(node.disk().write(1)).unwrap();
    assert_eq!(node.crashes(), [Time::from_nanos(2_000_000)]);
    let diary = diary.0.borrow().join(", ");
    let lost = diary.contains("power fails, false");
    let expected = format!("up at 0 ms, power fails, {}, ends, up at 5 ms, Full, None", !lost);
    assert!(diary.starts_with(&expected), "{diary}");
}

#[test]
fn a_kill_is_no_power_failure() {
    let world = World::new(1);
    let node = world.node("a");
    let diary = Rc::new(Diary::default());
    node.disk().attach(diary.clone());
    node.kill();
    node.restart();
    assert!(diary.0.borrow().is_empty() && node.crashes().is_empty());
}

/// A message found no receive, whatever was posted. But a write without immediate data takes none.
#[test]
fn a_missing_receive_hits_what_takes_a_receive() {
    let (a, b) = names();
    let pair = pair();
    let target = Memory::zeroed(100).unwrap();
    let taken = &pair.ends[1];
    pair.world.block_on(async {
        let PeerEvent::Connected { peer, .. } = taken.next_event().await else { panic!("no peer") };
        let exposure = peer.expose(&target, Access::WRITE).unwrap();
        let plan = Plan::NONE.with(0, Fault::NotReady { a: a.clone(), b: b.clone() });
        plan.apply(&pair.world);
        pair.world.sleep(Duration::from_nanos(1)).await;
        pair.peer.push(exposure.descriptor(), 0, Memory::from(vec![7; 100]), Options::default()).await.unwrap();
        // The next message is hit.
        let _ = pair.peer.send_unexpected(1, vec![1], Options::default()).await;
        assert!(matches!(taken.next_event().await, PeerEvent::Lost { .. }));
    });
    assert_eq!(target.to_vec(), [7; 100]);
}

/// The request is carried out, and the answer never arrives. Messages in the other direction before
/// that are not answers.
#[test]
fn a_lost_answer_comes_after_what_it_answers() {
    let (a, b) = names();
    let pair = pair();
    let [asks, answers] = pair.ends.each_ref();
    pair.world.block_on(async {
        let PeerEvent::Connected { peer, .. } = answers.next_event().await else { panic!("no peer") };
        let PeerEvent::Connected { .. } = asks.next_event().await else { panic!("no peer") };
        Plan::NONE.with(0, Fault::Unanswered { a, b }).apply(&pair.world);
        pair.world.sleep(Duration::from_nanos(1)).await;
        peer.send_unexpected(1, vec![1], Options::default()).await.unwrap();
        assert_eq!(asks.next_unexpected().await.tag(), 1);
        pair.peer.send_unexpected(2, vec![2], Options::default()).await.unwrap();
        assert_eq!(answers.next_unexpected().await.tag(), 2);
        let _ = peer.send_unexpected(3, vec![3], Options::default()).await;
        assert!(matches!(asks.next_event().await, PeerEvent::Lost { .. }));
        assert!(matches!(answers.next_event().await, PeerEvent::Lost { .. }));
    });
    assert_eq!(asks.counters().bytes_received, 1, "the answer came after all");
}

/// Regression: a read could not be damaged at all.
#[test]
fn the_request_of_a_read_is_damaged_as_any_other() {
    let (a, b) = names();
    let pair = pair();
    pair.world.block_on(async {
        let PeerEvent::Connected { peer, .. } = pair.ends[1].next_event().await else { panic!("no peer") };
        let exposure = peer.expose(Memory::from(vec![7; 100]), Access::READ).unwrap();
        Plan::NONE.with(0, Fault::Corrupt { a, b }).apply(&pair.world);
        pair.world.sleep(Duration::from_nanos(1)).await;
        let into = Memory::zeroed(100).unwrap();
        let pull = pair.peer.pull(exposure.descriptor(), 0, &into, Options::default()).await;
        assert_eq!(pull.unwrap_err().kind(), ErrorKind::PeerLost);
        assert_eq!(into.to_vec(), [0; 100]);
    });
}

/// The retries of one queue pair affect only that pair. Other connections between the two nodes
/// were ended with it, and both sides knew at the same moment.
#[test]
fn a_packet_that_is_lost_too_often_ends_its_connection_and_no_other() {
    let (a, b) = names();
    let pair = pair();
    let addr = pair.nodes[1].addr(1);
    let idle = pair.world.block_on(pair.ends[0].connect(&addr, Options::default())).unwrap();
    pair.world.run_for(Duration::from_millis(1));
    Plan::NONE.with(0, Fault::Lossy { a, b, percent: 100, for_us: 20_000, salt: 1 }).apply(&pair.world);
    pair.world.run_for(Duration::from_nanos(1));
    let lost_at = |end: usize| {
        let (world, end) = (pair.world.sim(), pair.ends[end].clone());
        async move {
            loop {
                if let PeerEvent::Lost { .. } = end.next_event().await {
                    return world.now();
                }
            }
        }
    };
    let sent = pair.world.block_on(async {
        let _ = pair.peer.send_unexpected(7, vec![5; 100], Options::default()).await;
        (lost_at(0).await, lost_at(1).await)
    });
    assert!(sent.1 > sent.0, "the other side notices later: {sent:?}");
    pair.world.run_for(Duration::from_secs(1));
    assert_eq!(pair.ends[0].resource_usage().peers, 1);
    let received = pair.world.block_on(async {
        idle.send_unexpected(8, vec![6], Options::default()).await.unwrap();
        pair.ends[1].next_unexpected().await.tag()
    });
    assert_eq!(received, 8);
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

/// Regression: either all of a write was in place or nothing.
#[test]
fn of_a_write_that_is_cut_off_some_bytes_may_be_in_place() {
    let mut there = Vec::new();
    for seed in 0..20 {
        let world = World::new(seed);
        let (near, far) = (world.node("a"), world.node("b"));
        let (here, there_end) = (near.endpoint(Config::default()).unwrap(), far.endpoint(Config::default()).unwrap());
        let addr = there_end.listen(&far.addr(1)).unwrap();
        let target = Memory::zeroed(200_000).unwrap();
        world.block_on(async {
            let peer = here.connect(&addr, Options::default()).await.unwrap();
            let PeerEvent::Connected { peer: back, .. } = there_end.next_event().await else { panic!("no peer") };
            let exposure = back.expose(&target, Access::WRITE).unwrap();
            let push = peer.push(exposure.descriptor(), 0, Memory::from(vec![7; 200_000]), Options::default());
            near.sleep(Duration::from_micros(1)).await;
            near.kill();
            drop(push);
        });
        world.run_for(Duration::from_secs(1));
        let bytes = target.to_vec();
        let count = bytes.iter().filter(|byte| **byte == 7).count();
        assert!(bytes[..count].iter().all(|byte| *byte == 7), "from the front");
        there.push(count);
    }
    assert!(there.iter().any(|count| (1..200_000).contains(count)), "{there:?}");
    assert!(there.iter().all(|count| *count < 200_000), "{there:?}");
}

/// Regression: requests that a dead program had made to the disk kept the next program waiting.
#[test]
fn a_disk_that_lost_its_power_is_not_busy() {
    let slow = DiskProfile { write_ps_per_byte: 20_000, sync_ns: 1000, ..DiskProfile::default() };
    let world = World::with(SimConfig::with_profile(Profile::default().with_disk(slow)));
    let node = world.node("a");
    drop(node.disk().write(1 << 30));
    node.crash(&mut Loss::everything());
    node.restart();
    world.block_on(node.disk().sync()).unwrap();
    assert!(world.now() < Time::ZERO + Duration::from_secs(1), "{:?}", world.now());
}

/// Writes one number after the other, a hundred at once.
#[derive(Default)]
struct Burst {
    written: Cell<u32>,
    fuse: Cell<Option<u32>>,
}

impl Burst {
    fn write(&self) {
        for _ in 0..100 {
            let left = self.fuse.get().map(|left| left.saturating_sub(1));
            self.fuse.set(left);
            if left != Some(0) {
                self.written.set(self.written.get() + 1);
            }
        }
    }
}

impl DiskUser for Burst {
    fn power_fails(&self, _loss: &mut Loss) {
        self.fuse.set(None);
    }

    fn cuts_off(&self, writes: Option<u32>) {
        self.fuse.set(writes);
    }

    fn is_cut_off(&self) -> bool {
        self.fuse.get() == Some(0)
    }
}

/// Regression: a power failure hit a store that makes many writes at once before or after them, and
/// never in the middle.
#[test]
fn the_power_fails_in_the_middle_of_a_write_and_nobody_learns_of_it() {
    let mut written = Vec::new();
    for salt in 0..10 {
        let world = World::new(1);
        let node = world.node("a");
        let (burst, told) = (Rc::new(Burst::default()), Rc::new(Cell::new(false)));
        node.disk().attach(burst.clone());
        let (store, tell, sim) = (burst.clone(), told.clone(), world.sim());
        node.spawn(async move {
            sim.sleep(Duration::from_micros(2_000)).await;
            store.write();
            sim.sleep(Duration::from_nanos(1)).await;
            tell.set(true);
        });
        let plan = Plan::NONE.with(1000, Fault::CrashWriting { node: "a".to_owned(), for_us: 3000, salt });
        plan.apply(&world);
        world.run_until(Time::from_nanos(4_000_000));
        assert!(!node.is_alive() && !told.get());
        assert_eq!(node.crashes(), [Time::from_nanos(2_000_000)]);
        written.push(burst.written.get());
        world.run_until(Time::from_nanos(6_000_000));
        assert!(node.is_alive() && burst.fuse.get().is_none());
    }
    assert!(written.iter().all(|count| *count < 32) && written.iter().any(|count| *count > 0), "{written:?}");
    // If there is no write, the power fails in the end.
    let world = World::new(1);
    let node = world.node("a");
    let fault = Fault::CrashWriting { node: "a".to_owned(), for_us: 3000, salt: 1 };
    let plan = Plan::NONE.with(0, fault);
    plan.apply(&world);
    world.run_for(Duration::from_secs(1));
    assert_eq!((node.crashes(), plan.end_us()), (vec![Time::from_nanos(10_000_000)], 13_000));
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
