//! Faults between two nodes: what is lost, delayed or damaged, and which connections end.

use std::pin::pin;
use std::time::Duration;

use bmi_core::{Access, Config, ErrorKind, Memory, Options, PeerEvent};
use bmi_sim::World;
use bmi_sim::faults::{Fault, Plan};
use futures_util::future::{Either, select};

use super::{Pair, names, pair};

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
                        if let PeerEvent::Lost { reason, .. } = self.ends[0].next_event().await {
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
