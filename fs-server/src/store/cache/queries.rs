//! Translates hints and queries between the protocol and the cache.
//!
//! **Why.** The cache is a crate of its own and knows no protocol. What a peer sends may be a
//! number that this version does not know. It is ignored here, and counted.

use bmi_cache::{Busiest, Coverage, FileStatistics, Hints, Pattern, Policy, Statistics};
use fs_proto::{AccessPattern, CacheCoverage, CacheHints, CachePolicy, CacheStat, CachedFile, DatafileHandle};

/// Returns the hints that are known, and how many are not.
pub(in crate::store) fn known(hints: CacheHints) -> (Hints, u64) {
    let CacheHints { unit, policy, pattern, write_through } = hints;
    let (policy, strange_policy) = match policy {
        CachePolicy::Default => (Policy::Default, 0),
        CachePolicy::Lru => (Policy::Lru, 0),
        CachePolicy::ScanResistant => (Policy::ScanResistant, 0),
        CachePolicy::Stream => (Policy::Stream, 0),
        CachePolicy::Keep => (Policy::Keep, 0),
        CachePolicy::None => (Policy::None, 0),
        CachePolicy::Other(_) => (Policy::Default, 1),
    };
    let (pattern, strange_pattern) = match pattern {
        AccessPattern::Unknown => (Pattern::Unknown, 0),
        AccessPattern::Sequential => (Pattern::Sequential, 0),
        AccessPattern::Random => (Pattern::Random, 0),
        AccessPattern::Other(_) => (Pattern::Unknown, 1),
    };
    (Hints { unit, policy, pattern, write_through }, strange_policy + strange_pattern)
}

/// Returns hints as the protocol has them.
fn told(hints: Hints) -> CacheHints {
    let Hints { unit, policy, pattern, write_through } = hints;
    let policy = match policy {
        Policy::Default => CachePolicy::Default,
        Policy::Lru => CachePolicy::Lru,
        Policy::ScanResistant => CachePolicy::ScanResistant,
        Policy::Stream => CachePolicy::Stream,
        Policy::Keep => CachePolicy::Keep,
        Policy::None => CachePolicy::None,
    };
    let pattern = match pattern {
        Pattern::Unknown => AccessPattern::Unknown,
        Pattern::Sequential => AccessPattern::Sequential,
        Pattern::Random => AccessPattern::Random,
    };
    CacheHints { unit, policy, pattern, write_through }
}

/// Returns the state of a cache.
pub(in crate::store) fn stat(statistics: &Statistics) -> CacheStat {
    let Statistics { most, resident, cached, dirty, ready, counters } = *statistics;
    CacheStat {
        most,
        resident,
        cached,
        dirty,
        ready,
        asked: counters.asked,
        hit: counters.hit,
        written: counters.written,
        flushed: counters.flushed,
        filled: counters.filled,
        evicted: counters.evicted,
        ahead_used: counters.ahead_used,
        ahead_unused: counters.ahead_unused,
        failed_flushes: counters.failed_flushes,
        taken_over: counters.taken_over,
        ignored_hints: counters.ignored_hints,
        refused_growth: counters.refused_growth,
    }
}

/// Returns the busiest datafiles, and the last one that was looked at if there are more.
pub(in crate::store) fn files(busiest: Busiest) -> (Vec<CachedFile>, Option<DatafileHandle>) {
    let file = |file: FileStatistics| CachedFile {
        datafile: DatafileHandle(file.file),
        unit: file.unit,
        hints: told(file.hints),
        cached: file.cached,
        dirty: file.dirty,
        asked: file.counters.asked,
        hit: file.counters.hit,
        written: file.counters.written,
        failed: file.failed,
    };
    (busiest.files.into_iter().map(file).collect(), busiest.next.map(DatafileHandle))
}

/// Returns how much of a range is in a cache.
pub(in crate::store) fn coverage(coverage: Coverage) -> CacheCoverage {
    let Coverage { cached, dirty, ready } = coverage;
    CacheCoverage { cached, dirty, ready }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_come_back_and_unknown_ones_are_counted() {
        for policy in CachePolicy::KNOWN {
            for pattern in AccessPattern::KNOWN {
                let hints = CacheHints { unit: Some(8192), policy: *policy, pattern: *pattern, write_through: true };
                let (own, strange) = known(hints);
                assert_eq!((told(own), strange), (hints, 0));
            }
        }
        let strange =
            CacheHints { policy: CachePolicy::Other(99), pattern: 17.into(), write_through: true, unit: None };
        let rest = Hints { write_through: true, ..Hints::default() };
        assert_eq!(known(strange), (rest, 2));
    }
}
