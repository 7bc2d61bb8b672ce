//! What each fault of a plan does to those who live with it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{AsyncEndpoint, Config, ErrorKind, Memory, Options, PeerId, Time};
use bmi_sim::faults::{DiskUser, Fault, Loss, Plan};
use bmi_sim::{DiskFault, Node, SimTransport, World};

type Endpoint = AsyncEndpoint<SimTransport>;

/// Two nodes with a connection from the first to the second.
struct Pair {
    world: World,
    nodes: [Node; 2],
    ends: [Endpoint; 2],
    peer: PeerId,
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
    /// Sends one small message under a plan that begins now; the sender's error, and how long it took to arrive.
    fn one_message(&self, fault: Fault) -> Result<Duration, ErrorKind> {
        Plan::NONE.with(0, fault).apply(&self.world);
        self.world.run_for(Duration::from_nanos(1));
        let start = self.world.now();
        let options = Options::by(start + Duration::from_secs(10));
        self.world.block_on(async {
            let message = self.ends[0].send_unexpected(self.peer, 7, vec![5; 100], options);
            let arrived = self.ends[1].next_unexpected();
            // A message that was sent by copy ends at once; then the connection's end says what became of it.
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
            futures(arrived, lost).await.map(|()| self.world.now() - start)
        })
    }
}

/// Whichever ends first.
async fn futures<A>(one: impl Future<Output = A>, other: impl Future<Output = ErrorKind>) -> Result<(), ErrorKind> {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|cx| {
        if one.as_mut().poll(cx).is_ready() {
            return std::task::Poll::Ready(Ok(()));
        }
        other.as_mut().poll(cx).map(Err)
    })
    .await
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
            pair.ends[0].send_unexpected(pair.peer, tag, vec![1], Options::default()).await.unwrap();
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
        assert_eq!(pair.ends[1].holdings().peers, 0, "{fault}");
        // The next connection is as good as any.
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
    // The end of the plan takes back what is left, so look before.
    let outcomes = Rc::new(RefCell::new(Vec::new()));
    let (seen, end) = (outcomes.clone(), pair.ends[0].clone());
    pair.world.at(pair.world.now(), move |_| {
        for _ in 0..3 {
            let memory = Memory::zeroed(4096).unwrap();
            seen.borrow_mut().push(end.with(|endpoint| endpoint.register(&memory)).map(drop).map_err(|e| e.kind()));
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

/// Notes what its disk goes through.
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
