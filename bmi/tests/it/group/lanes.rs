//! Lanes of a group, and exchanges with parts that are empty.

use std::time::Duration;

use bmi::group::{Groups, Lane};
use bmi::{Config, Endpoint, MemList, Memory, Time};
use bmi_sim::{Node, Rng};
use futures_util::future::{join, join_all};

use super::{Cluster, LIMIT, groups, named, options, part, parts};

/// Several steps, with pauses between them.
async fn steps(lane: Lane, node: Node, mut rng: Rng, number: u8) {
    let (own, size) = (lane.rank(), lane.size());
    for round in 0..3 {
        let seed = u64::from(number) << 8 | round;
        node.sleep(Duration::from_micros(rng.below(500))).await;
        let values = lane.all_gather(&[number, own as u8]).await.expect("a gather");
        assert_eq!(values, (0..size as u8).map(|rank| vec![number, rank]).collect::<Vec<_>>());
        let expected: Vec<_> = (0..size).map(|from| part(seed, from, own)).collect();
        let into: Vec<Memory> = expected.iter().map(|part| Memory::from(vec![0; part.len()])).collect();
        let lists = into.iter().map(|memory| memory.all().into()).collect();
        lane.exchange(parts(seed, own, size), lists).await.expect("an exchange");
        assert!(into.iter().zip(&expected).all(|(came, part)| came.to_vec() == *part), "lane {number}");
        node.sleep(Duration::from_micros(rng.below(500))).await;
        lane.barrier().await.expect("a barrier");
    }
}

/// Each lane is a task with several steps. A lane that is dropped, used or not, harms nobody.
#[test]
fn lanes_go_their_own_ways() {
    for seed in 0..10 {
        let cluster = Cluster::new(seed, 5);
        cluster.run_group(|group, node, mut rng| async move {
            let used = group.lane();
            used.barrier().await.expect("a barrier");
            drop(used);
            drop(group.lane());
            let lanes: Vec<_> = (0..4u8).map(|number| (number, group.lane())).collect();
            let mut tasks = Vec::new();
            for (number, lane) in lanes {
                let steps = steps(lane, node.clone(), Rng::new(rng.next_u64()), number);
                if rng.below(2) == 0 {
                    tasks.insert(0, node.spawn(steps));
                } else {
                    tasks.push(node.spawn(steps));
                }
                group.barrier().await.expect("a barrier between");
            }
            for ended in join_all(tasks).await {
                ended.expect("no step failed");
            }
            (group, ())
        });
    }
}

/// Returns the messages and bytes that an endpoint has sent, and its connections.
fn sent(endpoint: &Endpoint) -> (u64, u64, usize) {
    let counters = endpoint.counters();
    let messages = counters.eager + counters.fast + counters.offered + counters.rendezvous;
    (messages, counters.bytes_sent, endpoint.resource_usage().peers)
}

/// Of eight members, 1 and 4 are not connected by the meeting. Without parts there is no message.
/// One part connects these two, and comes alone.
#[test]
fn an_exchange_leaves_out_who_has_no_part() {
    for (len, messages) in [(10, 1), (5000, 2), (300_000, 2)] {
        for (from, to) in [(1, 4), (4, 1)] {
            let cluster = Cluster::new(3, 8);
            let place = cluster.place();
            let ended = cluster.run(|rank, node| {
                let place = place.clone();
                async move {
                    let endpoint = node.endpoint(Config::named("member")).expect("the node is up");
                    let groups = Groups::new(&endpoint);
                    groups.listen(&node.addr(1)).expect("the port is free");
                    let group = groups.meet(&place, rank, 8, options()).await.expect("they meet");
                    let list = |len: usize, at: u32, is_at: bool| {
                        let len = move |rank| if is_at && rank == at { len } else { 0 };
                        Vec::from_iter((0..8).map(|rank| MemList::from(vec![7; len(rank)])))
                    };
                    let (mut seen, mut found) = (Vec::new(), MemList::from(Vec::new()));
                    for len in [0, len] {
                        node.sleep(Duration::from_millis(10)).await;
                        seen.push(sent(&endpoint));
                        let into = list(len, from, rank == to);
                        found = into[from as usize].clone();
                        group.exchange(list(len, to, rank == from), into).await.expect("an exchange");
                    }
                    node.sleep(Duration::from_millis(10)).await;
                    seen.push(sent(&endpoint));
                    assert!(rank != to || found.to_vec() == vec![7; len]);
                    group.leave().await.expect("they leave");
                    seen
                }
            });
            for (rank, seen) in (0u32..).zip(ended) {
                let [before, without, with] = seen.expect("nobody was killed")[..] else { panic!("three") };
                assert_eq!(before, without, "rank {rank}");
                // A greeting of 16 bytes comes from the member that connects.
                let hello = if rank == 1 { 16 } else { 0 };
                let more = match rank {
                    _ if rank == from => (messages, 16 + len as u64 + hello, 1),
                    _ if rank == to => (0, hello, 1),
                    _ => (0, 0, 0),
                };
                let grown = (with.0 - without.0, with.1 - without.1, with.2 - without.2);
                assert_eq!(grown, more, "rank {rank}, {len} bytes");
            }
        }
    }
}

/// A lane outlives its group, but its operations do not.
#[test]
fn lanes_end_with_their_group() {
    let cluster = Cluster::new(2, 2);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = groups(&node).meet(&place, rank, 2, options()).await.expect("they meet");
            let lane = group.lane();
            let waits = node.spawn(lane.barrier());
            if rank == 1 {
                drop(group);
            } else {
                node.sleep(LIMIT / 8).await;
            }
            for error in [waits.await.expect("a task"), lane.barrier().await] {
                let error = error.expect_err("a group has ended");
                assert_eq!(named(&error), Some(1), "rank {rank}: {error}");
            }
            assert!(node.now() < Time::ZERO + LIMIT / 4, "{}", node.now());
        }
    });
    assert!(ended.iter().all(Option::is_some));
    cluster.world.run_for(2 * LIMIT);
    assert_eq!(cluster.world.leaks(), Vec::<String>::new());
}

/// In one lane 2 is missing, and in the other 0. What 3 says of the second does not hide what it
/// says of the first, in which 1 waits for 3 and 3 for 2.
#[test]
fn who_is_missing_in_one_lane_is_named_beside_another() {
    let cluster = Cluster::new(2, 4);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = groups(&node).meet(&place, rank, 4, options()).await.expect("they meet");
            let lanes = [group.lane(), group.lane()];
            let barrier = async |lane: &Lane, missing: u32, begins: u64| {
                // Rank 1 begins first, and so it is the first one that blames somebody.
                node.sleep(Duration::from_millis(if rank == 1 { 0 } else { begins })).await;
                if rank == missing { Ok(()) } else { lane.barrier().await }
            };
            let (first, second) = join(barrier(&lanes[0], 2, 100), barrier(&lanes[1], 0, 200)).await;
            for error in [first, second].into_iter().filter_map(Result::err) {
                assert_eq!(named(&error), Some(2), "rank {rank}: {error}");
                assert!(error.to_string().contains("operation 1 of lane 1"), "{error}");
            }
        }
    });
    assert!(ended.iter().all(Option::is_some));
}
