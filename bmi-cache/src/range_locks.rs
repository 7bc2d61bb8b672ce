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
    granted: bool,
    /// Sorted and joined.
    extents: Vec<Extent>,
}

impl RangeLock {
    fn conflicts(&self, other: &RangeLock) -> bool {
        (self.exclusive || other.exclusive) && overlap(&self.extents, &other.extents)
    }
}

impl RangeLocks {
    /// Makes a lock, which may be granted at once. `extents` are sorted and joined.
    pub(crate) fn make(&mut self, extents: Vec<Extent>, exclusive: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.locks.push(RangeLock { id, exclusive, granted: false, extents });
        self.grant();
        id
    }

    /// Returns true if a lock was granted.
    pub(crate) fn is_granted(&self, id: u64) -> bool {
        self.locks.iter().any(|lock| lock.id == id && lock.granted)
    }

    /// Ends a lock, granted or not. Returns true if others were granted because of it.
    pub(crate) fn end(&mut self, id: u64) -> bool {
        self.locks.retain(|lock| lock.id != id);
        self.grant()
    }

    fn grant(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.locks.len() {
            let (earlier, rest) = self.locks.split_at_mut(at);
            let lock = &mut rest[0];
            if !lock.granted && !earlier.iter().any(|other| other.conflicts(lock)) {
                lock.granted = true;
                any = true;
            }
        }
        any
    }

    /// Returns the extents of granted exclusive locks: bytes that change under everybody else.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &Extent> {
        self.locks.iter().filter(|lock| lock.exclusive && lock.granted).flat_map(|lock| &lock.extents)
    }

    /// Returns true if a lock waits.
    pub(crate) fn any_waits(&self) -> bool {
        self.locks.iter().any(|lock| !lock.granted)
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
        assert_eq!(locks.changing().count(), 2);
        assert!(locks.end(writer) && locks.is_granted(late) && !locks.any_waits());
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
