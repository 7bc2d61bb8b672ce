//! What the operations give, in worlds.

use std::time::Duration;

use bmi::{MemList, Memory};
use bmi_sim::Rng;
use futures_util::future::{join, join_all};

use super::{Cluster, LIMIT, groups, named, options, part, parts};

const SIZES: [u32; 5] = [1, 2, 3, 5, 8];

/// Nobody leaves a barrier before all have entered it.
#[test]
fn a_barrier_separates() {
    for (seed, size) in (0..).zip(SIZES) {
        let cluster = Cluster::new(seed, size);
        let times = cluster.run_group(|group, node, mut rng| async move {
            let mut times = Vec::new();
            for _ in 0..5 {
                node.sleep(Duration::from_micros(rng.below(50_000))).await;
                let entered = node.now();
                group.barrier().await.expect("a barrier");
                times.push((entered, node.now()));
            }
            (group, times)
        });
        for round in 0..5 {
            let last_in = times.iter().map(|times| times[round].0).max();
            let first_out = times.iter().map(|times| times[round].1).min();
            assert!(first_out >= last_in, "round {round} of {size}: {first_out:?} before {last_in:?}");
        }
    }
}

/// A broadcast separates as well, and gives all the value of the root. A gather gives the values in
/// the order of ranks.
#[test]
fn values_come_to_all() {
    for seed in 0..20 {
        for size in SIZES {
            let value = move |round: u64, rank: u32| {
                let mut value = part(seed << 8 | round, rank, 99);
                value.truncate(64 << 10);
                value
            };
            let cluster = Cluster::new(seed, size);
            cluster.run_group(move |group, node, mut rng| async move {
                for round in 0..4 {
                    node.sleep(Duration::from_micros(rng.below(300))).await;
                    let root = (seed + round) as u32 % size;
                    let sent = group.broadcast(root, &value(round, group.rank())).await.expect("a broadcast");
                    assert_eq!(sent, value(round, root));
                    let values = group.all_gather(&value(round, group.rank())).await.expect("a gather");
                    let expected: Vec<_> = (0..size).map(|rank| value(round, rank)).collect();
                    assert!(values == expected, "seed {seed}, {size} members, round {round}");
                }
                (group, ())
            });
        }
    }
}

/// Parts of random lengths, with and without knowledge of their lengths.
#[test]
fn parts_come_to_their_members() {
    for seed in 0..12 {
        for size in SIZES {
            let cluster = Cluster::new(seed, size);
            cluster.run_group(move |group, node, mut rng| async move {
                let own = group.rank();
                for round in (seed << 4)..(seed << 4) + 3 {
                    node.sleep(Duration::from_micros(rng.below(300))).await;
                    let expected: Vec<_> = (0..size).map(|from| part(round, from, own)).collect();
                    let came = group.all_to_all(parts(round, own, size)).await.expect("all to all");
                    assert!(came == expected, "seed {seed}, {size} members, round {round}");
                    // Into lists of several pieces, in one memory.
                    let total: usize = expected.iter().map(Vec::len).sum();
                    let memory = Memory::zeroed(total.max(1)).expect("memory");
                    let mut at = 0;
                    let mut room = |len: usize| {
                        let first = rng.below(len as u64 + 1) as usize;
                        at += len;
                        let from = at - len;
                        MemList::from_iter([memory.slice(from, first), memory.slice(from + first, len - first)])
                    };
                    let into: Vec<_> = expected.iter().map(|part| room(part.len())).collect();
                    group.exchange(parts(round, own, size), into).await.expect("an exchange");
                    assert!(memory.to_vec()[..total] == expected.concat(), "seed {seed}, {size} members");
                }
                (group, ())
            });
        }
    }
}

/// Operations that are under way at the same time, awaited in another order at each member.
#[test]
fn operations_under_way_are_told_apart() {
    for seed in 0..20 {
        let cluster = Cluster::new(seed, 4);
        cluster.run_group(move |group, node, _| async move {
            let own = group.rank();
            let gather = group.all_gather(&[own as u8]);
            let exchange = group.all_to_all(parts(seed, own, 4));
            let barrier = group.barrier();
            let again = group.all_gather(&[own as u8 + 100]);
            let check = |values: Vec<bmi::Bytes>, add: u8| {
                assert_eq!(values, (0..4u8).map(|rank| vec![rank + add]).collect::<Vec<_>>());
            };
            // Some poll them together, some one after the other, and some in tasks.
            match (u64::from(own) + seed) % 3 {
                0 => {
                    let ((last, barrier), (parts, first)) = join(join(again, barrier), join(exchange, gather)).await;
                    check(last.expect("a gather"), 100);
                    barrier.expect("a barrier");
                    check(first.expect("a gather"), 0);
                    assert_eq!(parts.expect("all to all")[0], part(seed, 0, own));
                }
                1 => {
                    check(gather.await.expect("a gather"), 0);
                    assert_eq!(exchange.await.expect("all to all")[3], part(seed, 3, own));
                    barrier.await.expect("a barrier");
                    check(again.await.expect("a gather"), 100);
                }
                _ => {
                    let (last, first) = (node.spawn(again), node.spawn(gather));
                    let barrier = node.spawn(barrier);
                    assert_eq!(exchange.await.expect("all to all")[1], part(seed, 1, own));
                    check(last.await.expect("a task").expect("a gather"), 100);
                    check(first.await.expect("a task").expect("a gather"), 0);
                    barrier.await.expect("a task").expect("a barrier");
                }
            }
            (group, ())
        });
    }
}

/// Two groups on each endpoint, with other ranks in the second. Their operations are under way at
/// the same time, and one group ends while the other goes on.
#[test]
fn groups_of_an_endpoint_are_told_apart() {
    for seed in 0..10 {
        let cluster = Cluster::new(seed, 5);
        let places = [cluster.nodes[0].addr(1), cluster.nodes[4].addr(1)];
        let ids = cluster.run(|rank, node| {
            let places = places.clone();
            async move {
                let (groups, other) = (groups(&node), 4 - rank);
                let named = |name: &str| options().name(name);
                let meeting = [
                    groups.meet(&places[0], rank, 5, named("first")),
                    groups.meet(&places[1], other, 5, named("second")),
                ];
                let [first, second] = join_all(meeting).await.try_into().ok().expect("two");
                let (first, second) = (first.expect("they meet"), second.expect("they meet"));
                assert_ne!(first.id(), second.id());
                for round in seed..seed + 5 {
                    let gathers = join(first.all_gather(&[rank as u8]), second.all_gather(&[other as u8]));
                    let (a, b) = gathers.await;
                    let expected: Vec<_> = (0..5u8).map(|rank| vec![rank]).collect();
                    assert_eq!(
                        (a.expect("a gather"), b.expect("a gather")),
                        (to_bytes(&expected), to_bytes(&expected))
                    );
                    let (a, b) =
                        join(second.all_to_all(parts(round, other, 5)), first.all_to_all(parts(round, rank, 5))).await;
                    let expected = |own| (0..5).map(|from| part(round, from, own)).collect::<Vec<_>>();
                    assert!(a.expect("parts") == expected(other) && b.expect("parts") == expected(rank));
                }
                let ids = (first.id(), second.id());
                first.leave().await.expect("they leave");
                second.barrier().await.expect("the other one goes on");
                second.leave().await.expect("they leave");
                ids
            }
        });
        assert!(ids.iter().all(|id| id.is_some() && *id == ids[0]));
    }
}

fn to_bytes(values: &[Vec<u8>]) -> Vec<bmi::Bytes> {
    values.iter().map(|value| bmi::Bytes::from(value.clone())).collect()
}

/// The same seed gives the same run.
#[test]
fn a_world_with_a_group_repeats_itself() {
    let digest = |seed| {
        let cluster = Cluster::new(seed, 3);
        cluster.run_group(|group, _, _: Rng| async move {
            group.all_to_all(parts(1, group.rank(), 3)).await.expect("all to all");
            (group, ())
        });
        cluster.world.digest()
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

/// A member that gives up tells all others, whatever they wait for.
#[test]
fn a_member_that_aborts_is_named_at_all() {
    let cluster = Cluster::new(4, 5);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let work = async {
                let group = groups(&node).meet(&place, rank, 5, options()).await?;
                let lane = group.lane();
                if rank == 3 {
                    lane.abort("it has had enough");
                }
                lane.barrier().await
            };
            let error = work.await.expect_err("one does not come");
            assert_eq!(named(&error), Some(3), "rank {rank}: {error}");
            assert!(error.to_string().contains("enough") && node.now() < bmi::Time::ZERO + LIMIT / 2, "{error}");
        }
    });
    assert!(ended.iter().all(Option::is_some));
}
