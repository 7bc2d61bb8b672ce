//! The rules of the policy `ScanResistant`, one by one.

use super::*;
use crate::policy::scan_resistant::MOST_SPARED;

const CAPACITY: usize = 200;
/// What the hot queue has if the cold queue is as small as it may be.
const HOT: u64 = (CAPACITY - CAPACITY / 100) as u64;
/// Units that must enter the cold queue between two uses that count.
const BURST: u64 = CAPACITY as u64 / 20;

/// Returns a full cache. The units from 0 are hot, and the last two are cold.
fn full() -> Cache {
    let mut cache = Cache::new(CAPACITY);
    (0..CAPACITY as u64).for_each(|name| cache.miss(name));
    assert!((0..CAPACITY as u64).all(|name| cache.is_hot(name) == (name < HOT)));
    cache
}

impl Cache {
    /// Requests a unit that is not in the cache.
    fn miss(&mut self, name: u64) {
        assert!(!self.request(name, Policy::ScanResistant));
    }

    /// Requests a unit that is in the cache.
    fn hit(&mut self, name: u64) {
        assert!(self.request(name, Policy::ScanResistant));
    }

    fn unit(&self, name: u64) -> &queues::Unit {
        self.policies.queues.unit(self.ids[&name])
    }

    fn is_hot(&self, name: u64) -> bool {
        self.unit(name).place == Place::Hot
    }
}

#[test]
fn what_is_read_once_evicts_only_cold_units() {
    let mut cache = full();
    (1000..2000).for_each(|name| cache.miss(name));
    assert!((0..HOT).all(|name| cache.is_hot(name)));
}

#[test]
fn a_unit_becomes_hot_if_it_comes_back_sooner_than_the_oldest_hot_unit() {
    let mut cache = full();
    (1000..1030).for_each(|name| cache.miss(name));
    // It was last used after unit 0, which makes room.
    cache.miss(1000);
    assert!(cache.is_hot(1000) && !cache.is_hot(0) && cache.is_hot(1));
}

#[test]
fn a_unit_does_not_become_hot_if_all_hot_units_were_used_since() {
    let mut cache = full();
    (1000..1030).for_each(|name| cache.miss(name));
    (0..HOT).for_each(|name| cache.hit(name));
    // These uses spare each of them once, and looking for room in vain ends that.
    (1000..1000 + HOT / 16 + 1).for_each(|name| cache.miss(name));
    assert_eq!(cache.unit(0).spared, 0);
    assert!((0..HOT).all(|name| cache.is_hot(name)));
}

#[test]
fn a_cold_unit_becomes_hot_by_the_same_rule() {
    for (passed, is_hot) in [(BURST - 1, false), (BURST, true)] {
        let mut cache = full();
        let used = cache.ids[&199];
        for name in 1000..1000 + passed {
            let id = cache.policies.victim(&mut |id| id != used).unwrap();
            cache.policies.evicted(id);
            cache.policies.insert(id, name, UNIT, Policy::ScanResistant);
        }
        cache.hit(199);
        assert_eq!(cache.is_hot(199), is_hot);
        assert_eq!(cache.is_hot(0), !is_hot);
    }
}

#[test]
fn a_unit_is_spared_as_often_as_it_was_used() {
    let mut cache = full();
    for turn in 0..10 {
        // Each use is one of its own.
        (0..BURST).for_each(|miss| cache.miss(1000 + BURST * turn + miss));
        cache.hit(0);
        assert_eq!(cache.unit(0).spared, MOST_SPARED.min(turn as u8 + 1));
    }
    assert_eq!(cache.policies.queues.order(Place::Hot)[0], cache.ids[&0], "a use does not move it");
    // Others leave before it.
    cache.miss(1000);
    assert!(cache.is_hot(1000) && cache.is_hot(0) && !cache.is_hot(1));
    assert_eq!(cache.unit(0).spared, MOST_SPARED - 1);
}

#[test]
fn a_burst_is_one_use() {
    let mut cache = full();
    cache.miss(1000);
    (0..100).for_each(|_| cache.hit(1000));
    assert!(!cache.is_hot(1000), "while it is in the cache");
    (1001..1010).for_each(|name| cache.miss(name));
    cache.miss(1000);
    assert!(!cache.is_hot(1000), "after it was evicted");
    (1010..1020).for_each(|name| cache.miss(name));
    (0..100).for_each(|_| cache.hit(50));
    assert_eq!(cache.unit(50).spared, 1);
}

/// Returns the units that the cold queue should have, and the hit rate.
fn run(cache: &mut Cache, name: &str, first: u64) -> (u64, f64) {
    let traces = traces::traces(10 * CAPACITY, CAPACITY, 40_000);
    let trace = traces.into_iter().find(|trace| trace.name == name).unwrap().units;
    let hits = trace.iter().filter(|unit| cache.request(first + **unit, Policy::ScanResistant)).count();
    let cold = cache.policies.scan_resistant.check(cache.policies.room);
    (cold / u64::from(UNIT), hits as f64 / trace.len() as f64)
}

#[test]
fn the_cold_queue_has_the_size_that_the_work_needs() {
    let mut cache = Cache::new(CAPACITY);
    let least = CAPACITY as u64 / 100;
    for first in 0..3_u64 {
        let cold = |cache: &mut Cache, name, part| run(cache, name, (3 * first + part) << 50).0;
        assert!(cold(&mut cache, "short lives", 0) > CAPACITY as u64 / 3);
        assert_eq!(cold(&mut cache, "zipf 0.8", 1), least);
        assert_eq!(cold(&mut cache, "loop 2", 2), least);
    }
}

#[test]
fn a_loop_is_noticed_whatever_was_before_it() {
    for name in ["loop 2", "short lives", "zipf 0.6", "zipf 1.2"] {
        let mut cache = Cache::new(CAPACITY);
        run(&mut cache, name, 0);
        let (_, rate) = run(&mut cache, "loop 2", 1 << 50);
        assert!(rate > 0.4, "{rate:.3} after {name}");
    }
}

/// A loop of few more units than the cache has: each comes back soon after its eviction, so the
/// cold queue seems to be too small. But what the hot queue would lose would take the room.
#[test]
fn a_loop_that_almost_fits_does_not_keep_the_cold_queue_large() {
    let mut cache = Cache::new(CAPACITY);
    let (before, _) = run(&mut cache, "short lives", 0);
    let (after, rate) = run(&mut cache, "loop 1.05", 1 << 50);
    assert!(before > CAPACITY as u64 / 3 && after < CAPACITY as u64 / 10, "{before} and {after}");
    assert!(rate > 0.6, "{rate:.3}");
}

#[test]
fn the_cold_queue_grows_by_what_comes_back_soon() {
    let cold = |cache: &Cache| cache.policies.scan_resistant.check(cache.policies.room);
    let least = 2 * u64::from(UNIT);
    // Uses of old hot units meanwhile. As many as a tenth of the cache would go through the cold
    // queue too, if it was larger by a tenth.
    for (old, grows) in [(0, true), (5, true), (20, false)] {
        let mut cache = full();
        (1000..1010).for_each(|name| cache.miss(name));
        (0..old).for_each(|name| cache.hit(name));
        assert_eq!(cold(&cache), least);
        cache.miss(1000);
        assert_eq!(cold(&cache) > least, grows, "{old}");
    }
    let mut cache = full();
    (1000..1030).for_each(|name| cache.miss(name));
    cache.miss(1000);
    assert_eq!(cold(&cache), least, "it came back late");
}

#[test]
fn units_are_spared_too_if_others_take_the_room() {
    let mut cache = full();
    (1000..1000 + BURST).for_each(|name| cache.miss(name));
    cache.hit(0);
    for name in 2000..2020 {
        assert!(!cache.request(name, Policy::Keep));
    }
    assert!(cache.ids.contains_key(&0) && !cache.ids.contains_key(&1));
}

#[test]
fn one_request_moves_a_bounded_number_of_units() {
    const UNITS: usize = 10_000;
    let mut policies = policies(UNITS as u64);
    policies.insert_all(0..UNITS, Policy::ScanResistant);
    let hot: Vec<usize> = policies.queues.order(Place::Hot);
    hot.iter().for_each(|id| policies.queues.unit_mut(*id).spared = MOST_SPARED);
    // A unit that would become hot finds no room, because all hot units are spared.
    policies.evicted(UNITS - 1);
    for name in UNITS..2 * UNITS {
        policies.insert(UNITS - 1, name as u64, UNIT, Policy::ScanResistant);
        policies.remove(UNITS - 1);
    }
    policies.insert_all([UNITS - 1], Policy::ScanResistant);
    let moved = hot.iter().filter(|id| policies.queues.unit(**id).spared != MOST_SPARED).count();
    assert_eq!(moved, 16);
    assert_eq!(policies.queues.unit(UNITS - 1).place, Place::Cold);
}

#[test]
fn what_others_leave_is_the_room() {
    let mut policies = policies(100);
    policies.insert_all(0..50, Policy::Keep);
    policies.insert_all(50..100, Policy::ScanResistant);
    // Half of the cache is the room, and a hundredth of that is less than a unit.
    assert_eq!(policies.queues.order(Place::Hot).len(), 49);
    assert_eq!(policies.queues.order(Place::Cold).len(), 1);
}
