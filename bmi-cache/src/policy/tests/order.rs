//! The order of victims, of each policy and between them.

use super::*;

const ALL: [Policy; 5] = [Policy::Keep, Policy::Lru, Policy::ScanResistant, Policy::Stream, Policy::None];

#[test]
fn the_default_is_what_the_cache_was_made_with() {
    for (default, expected) in [
        (Policy::Lru, Place::Recent),
        (Policy::ScanResistant, Place::Hot),
        (Policy::Default, Place::Hot),
        (Policy::Stream, Place::Hot),
        (Policy::Keep, Place::Hot),
        (Policy::None, Place::Hot),
    ] {
        let mut policies = Policies::new(default, 10 * u64::from(UNIT));
        policies.insert_all([0], Policy::Default);
        assert_eq!(policies.queues.unit(0).place, expected, "{default:?}");
    }
}

#[test]
fn lru_evicts_the_least_recently_used() {
    let mut policies = policies(10);
    policies.insert_all(0..4, Policy::Lru);
    policies.touch(0, Policy::Lru);
    policies.touch(2, Policy::Lru);
    assert_eq!(policies.drain(|_| true), [1, 3, 0, 2]);
}

#[test]
fn stream_is_first_in_first_out_after_those_used_up() {
    let mut policies = policies(10);
    policies.insert_all(0..5, Policy::Stream);
    policies.touch(0, Policy::Stream);
    policies.used_up(3);
    policies.used_up(1);
    assert_eq!(policies.drain(|_| true), [3, 1, 0, 2, 4]);
}

#[test]
fn a_used_up_unit_that_is_read_again_is_a_new_one() {
    let mut policies = policies(10);
    policies.insert_all(0..3, Policy::Stream);
    policies.used_up(0);
    policies.used_up(1);
    policies.touch(0, Policy::Stream);
    assert_eq!(policies.drain(|_| true), [1, 2, 0]);
}

#[test]
fn units_of_other_policies_cannot_be_used_up() {
    let mut policies = policies(10);
    for (id, policy) in ALL.into_iter().enumerate() {
        policies.insert_all([id], policy);
        let place = policies.queues.unit(id).place;
        policies.used_up(id);
        assert_eq!(policies.queues.unit(id).place == place, policy != Policy::Stream, "{policy:?}");
    }
}

#[test]
fn none_is_first_in_first_out_even_if_used_again() {
    let mut policies = policies(10);
    policies.insert_all(0..3, Policy::None);
    policies.touch(0, Policy::None);
    assert_eq!(policies.drain(|_| true), [0, 1, 2]);
}

#[test]
fn keep_evicts_the_least_recently_used() {
    let mut policies = policies(10);
    policies.insert_all(0..3, Policy::Keep);
    policies.touch(0, Policy::Keep);
    assert_eq!(policies.drain(|_| true), [1, 2, 0]);
}

#[test]
fn policies_give_up_units_in_their_order() {
    let mut policies = policies(10);
    policies.insert_all([0], Policy::Keep);
    policies.insert_all([1, 2], Policy::Lru);
    policies.insert_all([3], Policy::ScanResistant);
    policies.insert_all([4, 5], Policy::Stream);
    policies.insert_all([6], Policy::None);
    policies.used_up(5);
    assert_eq!(policies.drain(|_| true), [6, 5, 4, 1, 3, 2, 0]);
}

#[test]
fn keep_is_evicted_only_if_nothing_else_is_free() {
    let mut policies = policies(1000);
    policies.insert_all(0..500, Policy::Lru);
    policies.insert_all(500..1000, Policy::Keep);
    // The search that is bounded does not reach the last unit of `Lru`.
    assert_eq!(policies.victim(&mut |id| id >= 499), Some(499));
    policies.evicted(499);
    assert_eq!(policies.victim(&mut |id| id >= 499), Some(500));
}

#[test]
fn a_changed_policy_moves_the_unit() {
    for from in ALL {
        for to in ALL.into_iter().filter(|to| *to != from) {
            let mut policies = policies(10);
            policies.insert_all([0], from);
            policies.touch(0, to);
            assert_eq!(policy_of(policies.queues.unit(0).place), to, "{from:?}");
            assert_eq!(policies.drain(|_| true), [0]);
        }
    }
}

#[test]
fn a_removed_unit_has_no_ghost() {
    for policy in [Policy::Lru, Policy::ScanResistant] {
        let mut policies = policies(100);
        policies.insert_all([0, 1], policy);
        policies.remove(0);
        policies.evicted(1);
        let known = |key| policies.scan_resistant.knows(key) || policies.lru_ghosts.contains(key);
        assert_eq!([known(0), known(1)], [false, true], "{policy:?}");
    }
}

#[test]
fn no_unit_is_no_victim() {
    let mut policies = policies(10);
    assert_eq!(policies.next(), None);
    policies.insert_all(0..3, Policy::Default);
    assert_eq!(policies.victim(&mut |_| false), None);
    assert_eq!(policies.drain(|_| true).len(), 3);
    assert_eq!(policies.next(), None);
}

#[test]
#[should_panic(expected = "resident already")]
fn an_id_is_inserted_once() {
    let mut policies = policies(10);
    policies.insert_all([0, 0], Policy::Keep);
}

#[test]
#[should_panic(expected = "not resident")]
fn an_id_is_removed_once() {
    let mut policies = policies(10);
    policies.insert_all([0, 1], Policy::Keep);
    policies.remove(0);
    policies.remove(0);
}
