//! How members find each other, and who cannot.

use std::time::Duration;

use bmi::group::{GroupError, GroupOptions};
use bmi::{ErrorKind, Time};

use super::{Cluster, LIMIT, groups, named, options};

/// Meets at each node, `delay` later than the one before, as the rank and size and with the options
/// of `of`. Returns the errors, and the time of the end.
fn meet(
    cluster: &Cluster,
    of: impl Fn(u32) -> (u32, u32, GroupOptions),
    delay: impl Fn(u32) -> Duration,
) -> Vec<(Option<GroupError>, Time)> {
    let place = cluster.place();
    let ended = cluster.run(|number, node| {
        let (place, (rank, size, options), delay) = (place.clone(), of(number), delay(number));
        async move {
            node.sleep(delay).await;
            let met = groups(&node).meet(&place, rank, size, options).await;
            let ended = node.now();
            let error = match met {
                Ok(group) => group.leave().await.err(),
                Err(error) => Some(error),
            };
            (error, ended)
        }
    });
    ended.into_iter().map(|ended| ended.expect("nobody was killed")).collect()
}

#[test]
fn members_come_in_any_order() {
    for seed in 0..10u32 {
        let cluster = Cluster::new(seed.into(), 5);
        let delay = |number| Duration::from_millis(u64::from((number + seed) * 7 % 5) * 200);
        let met = meet(&cluster, |number| (number, 5, options()), delay);
        assert!(met.iter().all(|(error, _)| error.is_none()), "{met:?}");
    }
}

/// A member that does not come is named by all the others, at the limit.
#[test]
fn who_does_not_come_is_named() {
    for absent in 0..4 {
        let cluster = Cluster::new(1, 4);
        let far = 10 * LIMIT;
        let delay = |number| if number == absent { far } else { Duration::from_millis(u64::from(number) * 10) };
        let met = meet(&cluster, |number| (number, 4, options()), delay);
        for (number, (error, ended)) in (0..).zip(&met).filter(|(number, _)| *number != absent) {
            let error = error.as_ref().expect("one is absent");
            assert_eq!(named(error), Some(absent), "rank {number}: {error}");
            assert!(*ended <= Time::ZERO + LIMIT + Duration::from_millis(100), "rank {number}: {ended}");
        }
    }
}

/// A wrong size, a rank twice, and a name that nobody else has: who is wrong is told why at once,
/// and the others meet, or say who has not come.
#[test]
fn who_is_wrong_is_told_why() {
    let cluster = Cluster::new(1, 4);
    let none = |_| Duration::ZERO;
    let sizes = |number| (number, if number == 2 { 5 } else { 4 }, options());
    let met = meet(&cluster, sizes, none);
    let (error, ended) = (met[2].0.as_ref().expect("refused"), met[2].1);
    assert!(error.to_string().contains("the group has 5 members, not 4"), "{error}");
    assert!(ended < Time::ZERO + Duration::from_millis(50), "{ended}");
    for number in [0, 1, 3] {
        let error = met[number].0.as_ref().expect("one is missing");
        assert_eq!(named(error), Some(2), "{error}");
    }
    let error = met[0].0.as_ref().expect("one is missing").to_string();
    assert!(error.contains("refused was rank 2") && error.contains("not 4"), "{error}");

    // The fourth comes last, with the rank of another, or with another name.
    let last = |number| {
        Duration::from_millis(if number == 3 {
            20
        } else if number == 2 {
            40
        } else {
            0
        })
    };
    let cluster = Cluster::new(2, 4);
    let met = meet(&cluster, |number| (if number == 3 { 1 } else { number }, 3, options()), last);
    let error = met[3].0.as_ref().expect("refused");
    assert!(error.to_string().contains("another one has come with this rank"), "{error}");
    assert!(met[..3].iter().all(|(error, _)| error.is_none()), "{met:?}");

    let cluster = Cluster::new(3, 4);
    let other = |number| if number == 3 { (1, 3, options().name("other")) } else { (number, 3, options()) };
    let met = meet(&cluster, other, |_| Duration::ZERO);
    let (error, ended) = (met[3].0.as_ref().expect("refused"), met[3].1);
    assert!(ended <= Time::ZERO + LIMIT + Duration::from_millis(100), "{ended}");
    let GroupError::Member { rank: 0, error } = error else { panic!("{error}") };
    assert!(error.is_retryable(), "{error}");
    assert!(met[..3].iter().all(|(error, _)| error.is_none()), "{met:?}");
}

/// A second group at a place where one meets: its rank 0 cannot listen, and the others find no
/// meeting. The first group does not notice.
#[test]
fn a_second_group_at_the_same_place_is_refused() {
    let cluster = Cluster::new(1, 3);
    let place = cluster.place();
    let met = cluster.run(|number, node| {
        let place = place.clone();
        async move {
            let groups = groups(&node);
            let first = groups.meet(&place, number, 3, options()).await.expect("they meet");
            let second = match number {
                // Somebody else's endpoint, on the same host.
                0 => {
                    let endpoint = node.endpoint(bmi::Config::named("second")).expect("the node is up");
                    let met = bmi::group::Groups::new(&endpoint).meet(&place, 0, 2, options()).await;
                    met.err().expect("the place is taken")
                }
                1 => groups.meet(&place, 1, 2, options()).await.err().expect("no meeting"),
                _ => GroupError::Member { rank: 0, error: bmi::Error::new(ErrorKind::Busy, "not tried") },
            };
            first.barrier().await.expect("the first one goes on");
            first.leave().await.expect("they leave");
            second
        }
    });
    let kind = |number: usize| match met[number].as_ref().expect("an error") {
        GroupError::Member { rank: 0, error } => error.kind(),
        error => panic!("{error}"),
    };
    assert_eq!(kind(0), ErrorKind::Invalid);
    assert!(matches!(kind(1), ErrorKind::Busy | ErrorKind::TimedOut), "{met:?}");
}

/// The same members meet again at the same place, with the same endpoints.
#[test]
fn a_place_can_be_used_again() {
    let cluster = Cluster::new(4, 3);
    let place = cluster.place();
    let ids = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let (groups, mut ids) = (groups(&node), Vec::new());
            for _ in 0..3 {
                let group = groups.meet(&place, rank, 3, options()).await.expect("they meet");
                ids.push(group.id());
                group.leave().await.expect("they leave");
            }
            ids.dedup();
            assert_eq!(ids.len(), 3);
        }
    });
    assert!(ids.iter().all(Option::is_some));
}

/// Each operation has the limit that is set when it begins.
#[test]
fn limits_are_those_of_operations() {
    let cluster = Cluster::new(1, 2);
    let place = cluster.place();
    let ended = cluster.run(|rank, node| {
        let place = place.clone();
        async move {
            let group = groups(&node).meet(&place, rank, 2, options()).await.expect("they meet");
            group.set_limit(10 * LIMIT);
            if rank == 1 {
                node.sleep(9 * LIMIT).await;
            }
            group.barrier().await.expect("a long one");
            group.set_limit(LIMIT / 4);
            let begun = node.now();
            if rank == 1 {
                node.sleep(LIMIT).await;
                return;
            }
            let error = group.barrier().await.expect_err("the other one is late");
            assert_eq!(named(&error), Some(1), "{error}");
            assert!(node.now() - begun < LIMIT / 3);
        }
    });
    assert!(ended.iter().all(Option::is_some));
}

#[test]
fn arguments_are_checked() {
    let cluster = Cluster::new(1, 1);
    let (node, place) = (cluster.nodes[0].clone(), cluster.place());
    cluster.world.block_on(node.run(async {
        let groups = groups(&node);
        for (rank, size, options) in
            [(0, 0, options()), (3, 3, options()), (0, u32::MAX, options()), (0, 2, options().name("x".repeat(256)))]
        {
            let error = groups.meet(&place, rank, size, options).await.err().expect("invalid");
            let GroupError::Member { rank: named, error } = &error else { panic!("{error}") };
            assert_eq!((*named, error.kind()), (rank, ErrorKind::Invalid), "{error}");
        }
        let second = bmi::group::Groups::new(&node.endpoint(bmi::Config::default()).expect("up"));
        let error = second.meet(&place, 1, 2, options()).await.err().expect("no address").to_string();
        assert!(error.contains("call Groups::listen before"), "{error}");
    }));
}
