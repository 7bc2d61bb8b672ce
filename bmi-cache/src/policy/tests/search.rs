//! The search for a victim among units in use.

use std::collections::BTreeSet;

use super::*;
use crate::policy::queues::SCAN;

/// The units that one search may ask for in the queues of one policy.
const BOUND: usize = 2 * SCAN;

/// Returns the victim, and the number of units that were asked for.
fn counted(policies: &mut Policies, mut is_free: impl FnMut(usize) -> bool) -> (Option<usize>, usize) {
    let mut asked = 0;
    let victim = policies.victim(&mut |id| {
        asked += 1;
        is_free(id)
    });
    (victim, asked)
}

#[test]
fn units_in_use_are_asked_for_once_and_then_a_few_each_time() {
    const USED: usize = 10_000;
    for policy in [Policy::None, Policy::Stream, Policy::Lru, Policy::ScanResistant, Policy::Keep] {
        let mut policies = policies(2 * USED as u64);
        policies.insert_all(0..2 * USED, policy);
        // With this policy, units are evicted in another order.
        let is_free = |id: usize| if policy == Policy::ScanResistant { id % 2 == 1 } else { id >= USED };
        let mut first = 0;
        for turn in 0..1000 {
            let (victim, asked) = counted(&mut policies, is_free);
            policies.evicted(victim.unwrap());
            assert!(is_free(victim.unwrap()));
            if turn == 0 {
                first = asked;
            } else {
                assert!(asked <= BOUND, "{policy:?}: asked for {asked} units in turn {turn}");
            }
        }
        let expected = if policy == Policy::ScanResistant { 1..BOUND } else { USED..USED + BOUND };
        assert!(expected.contains(&first), "{policy:?}: asked for {first} units at first");
    }
}

/// All units of a large cache may be in use, or dirty. A search for a free one stopped the server.
#[test]
fn a_long_search_is_made_in_pieces_and_misses_no_unit() {
    const MOST: usize = 100;
    for policy in [Policy::None, Policy::Stream, Policy::Lru, Policy::ScanResistant, Policy::Keep] {
        let mut policies = policies(5000);
        policies.insert_all(0..5000, policy);
        for free in [Some(4999), None, Some(2500), Some(77), None] {
            let (mut seen, mut pieces) = (BTreeSet::new(), 0);
            let found = loop {
                let mut asked = 0;
                let piece = policies.search(MOST, &mut |id| {
                    (asked, _) = (asked + 1, seen.insert(id));
                    Some(id) == free
                });
                assert!(asked <= MOST + 2 * BOUND, "{policy:?}: asked for {asked} units");
                assert_eq!(policies.is_searching(), piece == Search::Goes);
                // Units come and go meanwhile.
                policies.insert(5000 + pieces, 0, UNIT, policy);
                policies.remove(5000 + pieces);
                pieces += 1;
                match piece {
                    Search::Goes => {}
                    Search::Found(id) => break Some(id),
                    Search::None => break None,
                }
            };
            assert_eq!(found, free, "{policy:?}");
            assert!(found.is_some() || (0..5000).all(|id| seen.contains(&id)) && pieces > 10, "{policy:?}: {pieces}");
        }
    }
}

#[test]
fn of_many_units_in_use_each_is_asked_for_in_turn() {
    let mut policies = policies(10_000);
    policies.insert_all(0..10_000, Policy::Lru);
    let used = 40 * SCAN;
    assert_eq!(policies.victim(&mut |id| id >= used), Some(used));
    // One of them is free now. It is found long before the units behind them are used up.
    let turns = (0..1000).position(|_| {
        let victim = policies.victim(&mut |id| id >= used || id == used / 2).unwrap();
        policies.evicted(victim);
        victim == used / 2
    });
    assert!(turns.unwrap() <= used / (SCAN / 2), "{turns:?}");
}

#[test]
fn hot_units_that_were_in_use_leave_the_hot_queue_first() {
    let mut policies = policies(200);
    policies.insert_all(0..200, Policy::ScanResistant);
    // All cold units and the two oldest hot ones are in use.
    assert_eq!(policies.victim(&mut |id| (2..198).contains(&id)), Some(2));
    assert_eq!(policies.queues.oldest(Place::Hot), Some(0));
    policies.touch(0, Policy::Keep);
    assert_eq!(policies.queues.oldest(Place::Hot), Some(1));
}
