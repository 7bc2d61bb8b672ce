//! The shares of `Lru` and `ScanResistant`.

use super::*;

const CAPACITY: usize = 1000;
const OBJECTS: usize = 5000;
const REQUESTS: usize = 100_000;

/// Sends requests of two traces in turn, each with a policy. Returns the hit rate of each in the
/// second half, and the bytes of each at the end as a part of the capacity.
fn shared(traces: [(&[u64], Policy); 2]) -> [(f64, f64); 2] {
    let mut cache = Cache::new(CAPACITY);
    let mut hits = [0_u32; 2];
    for at in 0..REQUESTS {
        for (which, (trace, policy)) in traces.iter().enumerate() {
            // The traces have names of their own.
            let hit = cache.request(2 * trace[at] + which as u64, *policy);
            hits[which] += u32::from(hit && at >= REQUESTS / 2);
        }
    }
    let bytes = |place| cache.policies.queues.bytes(place) as f64;
    let part = |policy| match policy {
        Policy::Lru => bytes(Place::Recent),
        _ => bytes(Place::Cold) + bytes(Place::Hot),
    };
    let all = (CAPACITY * UNIT as usize) as f64;
    [0, 1].map(|which| (f64::from(hits[which]) / (REQUESTS / 2) as f64, part(traces[which].1) / all))
}

fn zipf() -> Vec<u64> {
    let traces = traces::traces(OBJECTS, CAPACITY, REQUESTS);
    traces.into_iter().find(|trace| trace.name == "zipf 0.8").unwrap().units
}

/// Units that are used once.
fn scan() -> Vec<u64> {
    (0..REQUESTS as u64).collect()
}

#[test]
fn a_scan_takes_little_from_units_that_are_used() {
    let alone = |policy| traces::hits(policy, CAPACITY, &zipf());
    for (policy, other) in [(Policy::ScanResistant, Policy::Lru), (Policy::Lru, Policy::ScanResistant)] {
        let [(rate, part), (scanned, _)] = shared([(&zipf(), policy), (&scan(), other)]);
        assert_eq!(scanned, 0.0);
        assert!(part > 0.9, "{policy:?} has {part:.3} of the cache");
        assert!(rate > alone(policy) - 0.02, "{policy:?}: {rate:.3}, alone {:.3}", alone(policy));
    }
}

#[test]
fn equal_use_gives_equal_shares() {
    let [(lru, part), (resistant, _)] = shared([(&zipf(), Policy::Lru), (&zipf(), Policy::ScanResistant)]);
    assert!((0.3..0.7).contains(&part), "Lru has {part:.3} of the cache");
    assert!(lru > 0.25 && resistant > lru, "{lru:.3} and {resistant:.3}");
}

#[test]
fn who_is_alone_has_all() {
    for (policy, place) in [(Policy::Lru, Place::Recent), (Policy::ScanResistant, Place::Hot)] {
        let mut policies = policies(100);
        policies.insert_all(0..50, policy);
        // A few units of the other policy are below its share.
        let other = if policy == Policy::Lru { Policy::ScanResistant } else { Policy::Lru };
        policies.insert_all(50..60, other);
        let victim = policies.next().unwrap();
        assert_eq!(policies.queues.unit(victim).place, place, "{policy:?}");
        (50..60).for_each(|id| policies.remove(id));
        assert_eq!(policies.drain(|_| true).len(), 50);
    }
}

#[test]
fn a_unit_that_comes_back_moves_the_share() {
    let mut policies = policies(100);
    // The shares are equal, so the one with more units gives up the next one.
    let loses = |policies: &mut Policies| {
        let victim = policies.next().unwrap();
        policy_of(policies.queues.unit(victim).place)
    };
    policies.insert_all(0..30, Policy::Lru);
    policies.insert_all(30..59, Policy::ScanResistant);
    assert_eq!(loses(&mut policies), Policy::Lru);
    policies.evicted(0);
    policies.insert_all([0], Policy::Lru);
    assert_eq!(loses(&mut policies), Policy::ScanResistant);
    for _ in 0..3 {
        policies.evicted(40);
        policies.insert_all([40], Policy::ScanResistant);
    }
    assert_eq!(loses(&mut policies), Policy::Lru);
}
