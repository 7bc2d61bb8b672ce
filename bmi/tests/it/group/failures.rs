//! Members that die, stand still or do something else.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::group::{Collective, Group, GroupError};
use bmi::{ErrorKind, Time};
use bmi_sim::Node;
use futures_util::future::join_all;

use super::{Cluster, LIMIT, named, options, parts};

/// What all members do: each kind of operation.
async fn work(group: &Group) -> Result<(), GroupError> {
    let (own, size) = (group.rank(), group.size());
    group.barrier().await?;
    group.all_gather(&vec![own as u8; 3000]).await?;
    group.all_to_all(parts(3, own, size)).await?;
    group.broadcast(1, &vec![7; 100 * own as usize]).await?;
    group.barrier().await
}

/// The result of a member that was not struck, and when it ended.
type Ended = (u32, Result<(), GroupError>, Time);

/// Runs the work. After `at` events of the world, `strike` befalls the victim. Returns the number
/// of events, or the time of the strike and what became of the others.
fn run(size: u32, victim: u32, at: u64, strike: impl Fn(&Node)) -> Result<(Time, Vec<Ended>), u64> {
    let cluster = Cluster::new(5, size);
    let (place, left) = (cluster.place(), Rc::new(Cell::new(size)));
    let running = (0u32..).zip(&cluster.nodes).map(|(rank, node)| {
        let (place, left, member) = (place.clone(), left.clone(), node.clone());
        node.spawn(async move {
            let groups = super::groups(&member);
            let worked = async {
                let group = groups.meet(&place, rank, size, options()).await?;
                work(&group).await?;
                group.leave().await
            };
            let worked = worked.await;
            left.set(left.get() - 1);
            (rank, worked, member.now())
        })
    });
    let mut running: Vec<_> = running.collect();
    for _ in 0..at {
        if left.get() == 0 || !cluster.world.step(Time::ZERO + LIMIT) {
            assert_eq!(left.get(), 0, "the work ends");
            return Err(cluster.world.events());
        }
    }
    strike(&cluster.nodes[victim as usize]);
    let struck = cluster.world.now();
    drop(running.remove(victim as usize));
    let ended = cluster.world.block_on(join_all(running));
    Ok((struck, ended.into_iter().map(|ended| ended.expect("it was not struck")).collect()))
}

/// Strikes the victim after each event of the world, and so before and after each message; or after
/// each `stride` of them. Whoever has not ended yet names it, in time.
fn at_each_event(size: u32, victim: u32, stride: usize, strike: impl Fn(&Node) + Copy) {
    let (mut strikes, mut failures) = (0, 0);
    for at in (0..).step_by(stride) {
        let (struck, ended) = match run(size, victim, at, strike) {
            Ok(run) => run,
            Err(events) => {
                assert!(at > 100 && failures > strikes / 2, "{failures} failures of {strikes} in {events} events");
                return;
            }
        };
        strikes += 1;
        for (rank, result, ended) in ended {
            let Err(error) = result else { continue };
            failures += 1;
            assert_eq!(named(&error), Some(victim), "strike {at}, rank {rank}: {error}");
            let most = struck + LIMIT + Duration::from_millis(100);
            assert!(ended <= most, "strike {at}, rank {rank}: {ended}, struck at {struck}");
        }
    }
}

#[test]
fn a_member_that_dies_is_named() {
    for (size, victim, stride) in [(2, 0, 1), (2, 1, 1), (3, 1, 1), (5, 0, 5), (5, 3, 5), (8, 6, 40)] {
        at_each_event(size, victim, stride, Node::kill);
    }
}

/// Its connections stay up, so nobody but the clock says that it stands still.
#[test]
fn a_member_that_stands_still_is_named() {
    for (size, victim, stride) in [(2, 1, 1), (3, 0, 1), (5, 3, 10), (8, 6, 80)] {
        at_each_event(size, victim, stride, Node::pause);
    }
}

/// After a failure everything fails at once, with the same error. Nothing is left behind.
#[test]
fn a_group_that_has_failed_stays_so() {
    let cluster = Cluster::new(2, 4);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = super::groups(&node).meet(&place, rank, 4, options()).await.expect("they meet");
            if rank == 2 {
                // It goes without a word.
                return;
            }
            let error = group.barrier().await.expect_err("one is gone");
            assert_eq!(named(&error), Some(2), "{error}");
            let before = node.now();
            for _ in 0..3 {
                let again = group.all_gather(b"x").await.expect_err("it has failed");
                assert_eq!(again.to_string(), error.to_string());
            }
            assert_eq!(node.now(), before);
            assert_eq!(group.leave().await.expect_err("it has failed").to_string(), error.to_string());
        }
    });
    assert!(ended.iter().all(Option::is_some));
    cluster.world.run_for(2 * LIMIT);
    assert_eq!(cluster.world.leaks(), Vec::<String>::new());
}

/// A future that is dropped before its end is a failure of this member, for all.
#[test]
fn an_operation_that_is_dropped_is_a_failure() {
    for polled in [false, true] {
        let cluster = Cluster::new(2, 3);
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let place = place.clone();
            async move {
                let group = super::groups(&node).meet(&place, rank, 3, options()).await.expect("they meet");
                if rank == 1 {
                    let barrier = group.barrier();
                    if polled {
                        let late = node.sleep(Duration::from_nanos(1));
                        futures_util::future::select(Box::pin(barrier), late).await;
                    } else {
                        drop(barrier);
                    }
                }
                let error = group.barrier().await.expect_err("one was dropped");
                let GroupError::Member { rank: 1, error } = &error else { panic!("rank {rank}: {error}") };
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                assert!(node.now() < Time::ZERO + LIMIT / 2);
            }
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

/// The meeting of eight does not connect 1 and 4. What 4 has failed with is told to 1 when that one
/// connects, and not only to those that were connected.
#[test]
fn who_connects_to_a_group_that_has_failed_is_told() {
    let cluster = Cluster::new(3, 8);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = super::groups(&node).meet(&place, rank, 8, options()).await.expect("they meet");
            node.sleep(LIMIT / 16).await;
            let list = |of: u32| (0..8).map(|at| vec![0; usize::from(at == of)].into()).collect();
            match rank {
                1 => {
                    let error = group.exchange(list(4), list(4)).await.expect_err("it has aborted");
                    let GroupError::Member { rank: 4, error } = &error else { panic!("{error}") };
                    assert_eq!(error.detail(), "the disk is full");
                    assert!(node.now() < Time::ZERO + LIMIT / 4, "{}", node.now());
                }
                4 => {
                    group.abort("the disk is full");
                    node.sleep(LIMIT / 16).await;
                    group.barrier().await.expect_err("it has failed");
                    node.sleep(LIMIT).await;
                }
                // Those that have been told pass on nothing while they do nothing.
                _ => node.sleep(2 * LIMIT).await,
            }
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

/// Operations that are under way when their member drops the group end at once, in its own name.
/// The other one sees that it is gone.
#[test]
fn operations_end_with_their_group() {
    let cluster = Cluster::new(2, 2);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = super::groups(&node).meet(&place, rank, 2, options()).await.expect("they meet");
            let error = if rank == 1 {
                let waits = node.spawn(group.barrier());
                node.sleep(LIMIT / 16).await;
                drop(group);
                waits.await.expect("a task").expect_err("the group is dropped")
            } else {
                node.sleep(LIMIT / 8).await;
                group.barrier().await.expect_err("it is gone")
            };
            assert_eq!(named(&error), Some(1), "{error}");
            assert!(node.now() < Time::ZERO + LIMIT / 4, "{}", node.now());
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

/// One member does something else. All say who and what, long before the limit.
#[test]
fn members_that_do_not_do_the_same_are_named() {
    let calls = [
        Collective::Barrier,
        Collective::AllGather,
        Collective::Broadcast { root: 0 },
        Collective::Broadcast { root: 1 },
        Collective::AllToAll,
        Collective::Exchange,
        Collective::Leave,
    ];
    async fn call(group: Group, call: Collective) -> Result<(), GroupError> {
        let (own, size) = (group.rank(), group.size());
        let short = || (0..size).map(|_| vec![1].into()).collect();
        match call {
            Collective::Barrier => group.barrier().await,
            Collective::AllGather => group.all_gather(&[1; 2000]).await.map(drop),
            Collective::Broadcast { root } => group.broadcast(root, &[1; 2000]).await.map(drop),
            Collective::AllToAll => group.all_to_all(parts(3, own, size)).await.map(drop),
            Collective::Exchange => group.exchange(short(), short()).await,
            _ => group.leave().await,
        }
    }
    for (first, second) in calls.iter().flat_map(|first| calls.iter().map(move |second| (*first, *second))) {
        for odd in (0..4).filter(|_| first != second) {
            let cluster = Cluster::new(2, 4);
            let place = cluster.place();
            let ended = cluster.run(|rank, node| {
                let place = place.clone();
                async move {
                    // Others may find it out before this one has seen the end of the meeting.
                    let ended = match super::groups(&node).meet(&place, rank, 4, options()).await {
                        Ok(group) => call(group, if rank == odd { second } else { first }).await,
                        Err(error) => Err(error),
                    };
                    (ended.expect_err("a mismatch"), node.now())
                }
            });
            for (error, ended) in ended.into_iter().flatten() {
                let GroupError::Mismatch { number: 2, members } = &error else { panic!("{first}, {second}: {error}") };
                assert_ne!(members[0].1, members[1].1);
                assert!(
                    members.iter().all(|(rank, call)| *call == if *rank == odd { second } else { first }),
                    "{error}"
                );
                assert!(ended < Time::ZERO + LIMIT / 4, "{first}, {second}: {ended}");
            }
        }
    }
}

/// What this member asks for and cannot have is its own failure, for all.
#[test]
fn arguments_that_are_wrong_are_the_members_own() {
    for wrong in 0..4 {
        let cluster = Cluster::new(2, 3);
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let place = place.clone();
            async move {
                let group = super::groups(&node).meet(&place, rank, 3, options()).await.expect("they meet");
                let is_wrong = rank == 1;
                let lists = |count: usize, len: usize| (0..count).map(|_| vec![0; len].into()).collect();
                let error = match wrong {
                    0 => group.all_gather(&vec![0; if is_wrong { 65_537 } else { 0 }]).await.map(drop),
                    1 => group.all_to_all(lists(if is_wrong { 2 } else { 3 }, 10)).await.map(drop),
                    2 => group.exchange(lists(3, 10), lists(if is_wrong { 2 } else { 3 }, 10)).await,
                    _ => group.broadcast(if is_wrong { 3 } else { 0 }, b"").await.map(drop),
                };
                let error = error.expect_err("the arguments of one are wrong");
                let GroupError::Member { rank: 1, error } = &error else { panic!("rank {rank}: {error}") };
                assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            }
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

/// Members that do not agree on lengths.
#[test]
fn lengths_that_differ_are_a_failure() {
    for (sent, expected) in [(10, 20), (20, 10), (5000, 10), (10, 5000), (5000, 6000), (6000, 5000), (0, 1)] {
        let cluster = Cluster::new(2, 3);
        let place = cluster.place();
        let ended = cluster.run(|rank, node| {
            let place = place.clone();
            async move {
                let group = super::groups(&node).meet(&place, rank, 3, options()).await.expect("they meet");
                let list = |len: usize| Vec::from_iter((0..3).map(|_| vec![0; len].into()));
                let (mut parts, into) = (list(expected), list(expected));
                if rank == 1 {
                    parts[2] = vec![0; sent].into();
                }
                // Those whose lengths are right may end before.
                let error = match group.exchange(parts, into).await {
                    Ok(()) => group.barrier().await.expect_err("lengths differ"),
                    Err(error) => error,
                };
                assert_eq!(named(&error), Some(1), "{sent} for {expected}, rank {rank}: {error}");
                // Nothing is sent for an empty part, so that is waited for to the end.
                let limit = if sent == 0 { LIMIT + LIMIT / 2 } else { LIMIT / 2 };
                assert!(node.now() < Time::ZERO + limit, "{sent} for {expected}, rank {rank}");
            }
        });
        assert!(ended.iter().all(Option::is_some));
    }
}

/// More than a member allows is not taken.
#[test]
fn what_comes_is_bounded() {
    let cluster = Cluster::new(2, 3);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let options = options().max_received(100_000);
            let group = super::groups(&node).meet(&place, rank, 3, options).await.expect("they meet");
            let parts = |len: usize| Vec::from_iter((0..3).map(|_| vec![0; len].into()));
            group.all_to_all(parts(50_000)).await.expect("it is as much as is allowed");
            let error = group.all_to_all(parts(50_001)).await.expect_err("it is too much");
            let GroupError::Member { error, .. } = &error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        }
    });
    assert!(ended.iter().all(Option::is_some));
}
