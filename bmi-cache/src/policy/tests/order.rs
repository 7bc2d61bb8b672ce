//! What the model does not know of: the default, the search beyond its bound, ghosts and panics.

use super::*;

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
