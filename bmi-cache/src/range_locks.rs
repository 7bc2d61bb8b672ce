//! Which operations may use which bytes of a file now: readers share, a writer has its ranges
//! alone.
//!
//! **Invariants**
//! 1. Two granted locks have no byte in common, or neither is exclusive.
//! 2. *In order.* A lock is granted as soon as it conflicts with no earlier lock that still
//!    exists, granted or not. So a writer is not overtaken by readers for ever, and operations on
//!    other bytes do not wait.
//! 3. An operation makes one lock, for all its ranges at once.
//!
//! **No deadlock.** A lock waits only for earlier ones, so there is no cycle of locks of a file.
//! An operation locks ranges of one file, and asks for memory only after they were granted. Whoever
//! has memory waits for no lock.

use crate::extent::{Extent, overlap};
use crate::steps::{search_steps, steps};

/// The range locks of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    locks: Vec<RangeLock>,
    next: u64,
}

#[derive(Debug)]
struct RangeLock {
    id: u64,
    exclusive: bool,
    /// The first earlier lock that it conflicts with. It was compared with all locks before that
    /// one, and need not be compared with them again.
    waits_for: Option<u64>,
    /// Sorted and joined.
    extents: Vec<Extent>,
}

impl RangeLock {
    fn is_granted(&self) -> bool {
        self.waits_for.is_none()
    }

    fn conflicts(&self, other: &RangeLock) -> bool {
        (self.exclusive || other.exclusive) && overlap(&self.extents, &other.extents)
    }

    /// Returns the extents that have bytes of `within`. A writer has as many as a list has pieces,
    /// and is asked for each unit, so this does not look at the others.
    fn overlapping(&self, within: Extent) -> impl Iterator<Item = &Extent> {
        search_steps(self.extents.len());
        let first = self.extents.partition_point(|extent| extent.end() <= within.offset);
        self.extents[first..].iter().inspect(|_| steps(1)).take_while(move |extent| extent.offset < within.end())
    }
}

impl RangeLocks {
    /// Makes a lock, which may be granted at once. `extents` are sorted and joined.
    pub(crate) fn make(&mut self, extents: Vec<Extent>, exclusive: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        let mut lock = RangeLock { id, exclusive, waits_for: None, extents };
        lock.waits_for = self.locks.iter().find(|other| other.conflicts(&lock)).map(|other| other.id);
        self.locks.push(lock);
        id
    }

    /// Returns true if a lock was granted.
    pub(crate) fn is_granted(&self, id: u64) -> bool {
        self.locks.iter().inspect(|_| steps(1)).any(|lock| lock.id == id && lock.is_granted())
    }

    /// Ends a lock, granted or not. Returns true if others were granted because of it.
    pub(crate) fn end(&mut self, id: u64) -> bool {
        steps(self.locks.len());
        self.locks.retain(|lock| lock.id != id);
        let mut any = false;
        for at in 0..self.locks.len() {
            let (earlier, rest) = self.locks.split_at_mut(at);
            let lock = &mut rest[0];
            if lock.waits_for == Some(id) {
                let next = earlier.partition_point(|other| other.id < id);
                lock.waits_for = earlier[next..].iter().find(|other| other.conflicts(lock)).map(|other| other.id);
                any |= lock.is_granted();
            }
        }
        any
    }

    /// Returns the extents of granted exclusive locks that have bytes of `within`: bytes that
    /// change under everybody else.
    pub(crate) fn changing(&self, within: Extent) -> impl Iterator<Item = &Extent> {
        let writers = self.locks.iter().filter(|lock| lock.exclusive && lock.is_granted());
        writers.flat_map(move |lock| lock.overlapping(within))
    }

    /// Returns true if a lock waits.
    pub(crate) fn any_waits(&self) -> bool {
        self.locks.iter().any(|lock| !lock.is_granted())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extent::joined;
    use crate::steps::steps_of;

    #[test]
    fn readers_share_and_do_not_overtake_a_writer() {
        let mut locks = RangeLocks::default();
        let of = |offset, len| vec![Extent::new(offset, len)];
        let (one, other) = (locks.make(of(0, 10), false), locks.make(of(5, 10), false));
        let writer = locks.make(of(8, 1), true);
        let late = locks.make(of(0, 100), false);
        let apart = locks.make(of(200, 1), true);
        let granted = |locks: &RangeLocks| [one, other, writer, late, apart].map(|id| locks.is_granted(id));
        assert_eq!(granted(&locks), [true, true, false, false, true]);
        assert!(!locks.end(one));
        assert!(locks.end(other));
        assert_eq!(granted(&locks), [false, false, true, false, true]);
        let changing = |from, len| locks.changing(Extent::new(from, len)).count();
        assert_eq!([changing(0, 1000), changing(0, 9), changing(9, 191), changing(9, 192)], [2, 1, 0, 1]);
        assert!(locks.end(writer) && locks.is_granted(late) && !locks.any_waits());
    }

    /// Replays a defect: whenever a lock ended, all others that waited were compared with all
    /// earlier ones again.
    #[test]
    fn two_locks_are_compared_once() {
        const LOCKS: u64 = 32;
        const PIECES: u64 = 128;
        // Strided lists beside each other. Each one has a byte of the next one, at its end.
        let list = |lock: u64| {
            let pieces = (0..PIECES).map(|piece| Extent::new(2 * (piece * LOCKS + lock), 1));
            pieces.chain([Extent::new(2 * PIECES * LOCKS + lock, 2)]).collect::<Vec<_>>()
        };
        let lists: Vec<Vec<Extent>> = (0..LOCKS).map(list).collect();
        let most = LOCKS * (LOCKS - 1) / 2 * 2 * (PIECES + 1) + 4 * LOCKS * LOCKS;
        let ((), _) = steps_of(most, || {
            let mut locks = RangeLocks::default();
            let ids: Vec<u64> = lists.into_iter().map(|list| locks.make(list, true)).collect();
            for id in ids {
                assert!(locks.is_granted(id) && locks.locks.iter().skip(1).all(|other| !other.is_granted()));
                locks.end(id);
            }
        });
    }

    proptest! {
        #[test]
        fn granted_locks_never_conflict_and_every_lock_gets_its_turn(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec((0u64..50, 1u64..10), 1..4), 0usize..8), 1..40),
        ) {
            let mut locks = RangeLocks::default();
            let mut alive: Vec<(u64, bool, Vec<Extent>)> = Vec::new();
            for (exclusive, list, end) in steps {
                let extents = joined(&list.into_iter().map(|(at, len)| Extent::new(at, len)).collect::<Vec<_>>());
                alive.push((locks.make(extents.clone(), exclusive), exclusive, extents));
                if end < alive.len() {
                    let (id, ..) = alive.remove(end);
                    locks.end(id);
                }
                let granted: Vec<_> = alive.iter().filter(|(id, ..)| locks.is_granted(*id)).collect();
                for (at, (_, one, mine)) in granted.iter().enumerate() {
                    for (_, other, theirs) in &granted[at + 1..] {
                        prop_assert!(!(*one || *other) || !overlap(mine, theirs));
                    }
                }
                prop_assert!(locks.is_granted(alive.first().map_or(u64::MAX, |(id, ..)| *id)) || alive.is_empty());
            }
            while let Some((id, ..)) = alive.first().cloned() {
                prop_assert!(locks.is_granted(id), "the oldest is always granted");
                alive.remove(0);
                locks.end(id);
            }
            prop_assert!(locks.is_empty());
        }
    }
}
