//! Which operations may use which bytes of a file now: readers share, a writer has its ranges
//! alone.
//!
//! **Invariants**
//! 1. Two granted locks have no byte in common, or neither is exclusive.
//! 2. *In order.* A lock is granted as soon as it conflicts with no earlier lock that still
//!    exists, granted or not. So a writer is not overtaken by readers for ever, and operations on
//!    other bytes do not wait.
//! 3. An operation makes one lock, for all its ranges at once.
//! 4. *In pieces.* Two locks are compared once. A lock may have as many ranges as a list has
//!    pieces, and be compared with those of all other requests. So it is compared in pieces, by
//!    whoever waits for it, and others run in between ([`RangeLocks::advance`]).
//!
//! **No deadlock.** A lock waits only for earlier ones, so there is no cycle of locks of a file.
//! An operation locks ranges of one file, and asks for memory only after they were granted. Whoever
//! has memory waits for no lock.

use bmi_core::mutated;

use super::extent::{Extent, overlap};
use super::steps::{search_steps, steps};

/// The range locks of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct RangeLocks {
    locks: Vec<RangeLock>,
    next: u64,
}

/// Most steps of comparisons without a break: as many as two of the longest lists take.
const PIECE: usize = 1 << 15;

/// How far a lock has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Granted,
    /// It waits for an earlier lock.
    Waits,
    /// It goes on after others had their turn.
    Goes,
}

#[derive(Debug)]
struct RangeLock {
    id: u64,
    exclusive: bool,
    state: Progress,
    /// If it waits, the earlier lock that it waits for. Otherwise it was compared with all locks
    /// before this one.
    next: u64,
    /// Sorted and joined.
    extents: Vec<Extent>,
}

impl RangeLock {
    fn is_granted(&self) -> bool {
        self.state == Progress::Granted
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
    /// Makes a lock. `extents` are sorted and joined.
    pub(crate) fn make(&mut self, extents: Vec<Extent>, exclusive: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.locks.push(RangeLock { id, exclusive, state: Progress::Goes, next: 0, extents });
        id
    }

    /// Returns the place of the first lock that is not earlier than this one.
    fn place(&self, id: u64) -> usize {
        search_steps(self.locks.len());
        self.locks.partition_point(|lock| lock.id < id)
    }

    /// Compares a lock that exists with earlier ones, if it does not wait.
    pub(crate) fn advance(&mut self, id: u64) -> Progress {
        let own = self.place(id);
        let (earlier, rest) = self.locks.split_at_mut(own);
        let lock = &mut rest[0];
        if lock.state != Progress::Goes {
            return lock.state;
        }
        let most = if mutated("cache/locks-compared-without-a-break") { usize::MAX } else { PIECE };
        let (next, mut taken) = (earlier.partition_point(|other| other.id < lock.next), 0);
        let mut state = Progress::Granted;
        for other in &earlier[next..] {
            steps(1);
            lock.next = other.id;
            if taken >= most {
                return Progress::Goes;
            }
            if lock.exclusive || other.exclusive {
                taken += lock.extents.len() + other.extents.len();
            }
            if other.conflicts(lock) {
                state = Progress::Waits;
                break;
            }
        }
        lock.state = state;
        // After a long comparison others have their turn, also those that are to be compared, too.
        if taken < most / 2 { state } else { Progress::Goes }
    }

    /// Ends a lock, granted or not. Returns true if others may go on because of it.
    pub(crate) fn end(&mut self, id: u64) -> bool {
        let mut any = false;
        self.locks.retain_mut(|lock| {
            steps(1);
            if lock.state == Progress::Waits && lock.next == id {
                (lock.state, any) = (Progress::Goes, true);
            }
            lock.id != id
        });
        any
    }

    /// Returns the extents of granted exclusive locks that have bytes of `within`: bytes that
    /// change under everybody else.
    pub(crate) fn changing(&self, within: Extent) -> impl Iterator<Item = &Extent> {
        let writers = self.locks.iter().inspect(|_| steps(1)).filter(|lock| lock.exclusive && lock.is_granted());
        writers.flat_map(move |lock| lock.overlapping(within))
    }

    /// Returns true if a lock waits.
    pub(crate) fn any_waits(&self) -> bool {
        self.locks.iter().inspect(|_| steps(1)).any(|lock| lock.state == Progress::Waits)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ranges::extent::joined;
    use crate::ranges::steps::steps_of;

    impl RangeLocks {
        /// Returns true if a lock exists, and is granted once it was compared with all others.
        fn is_granted(&mut self, id: u64) -> bool {
            if !self.locks.iter().any(|lock| lock.id == id) {
                return false;
            }
            while self.advance(id) == Progress::Goes {}
            self.advance(id) == Progress::Granted
        }
    }

    #[test]
    fn readers_share_and_do_not_overtake_a_writer() {
        let mut locks = RangeLocks::default();
        let of = |offset, len| vec![Extent::new(offset, len)];
        let (one, other) = (locks.make(of(0, 10), false), locks.make(of(5, 10), false));
        let writer = locks.make(of(8, 1), true);
        let late = locks.make(of(0, 100), false);
        let apart = locks.make(of(200, 1), true);
        let granted = |locks: &mut RangeLocks| [one, other, writer, late, apart].map(|id| locks.is_granted(id));
        assert_eq!(granted(&mut locks), [true, true, false, false, true]);
        assert!(locks.end(one) && !locks.is_granted(writer), "it waits for the other one, too");
        assert!(locks.end(other));
        assert_eq!(granted(&mut locks), [false, false, true, false, true]);
        let changing = |from, len| locks.changing(Extent::new(from, len)).count();
        assert_eq!([changing(0, 1000), changing(0, 9), changing(9, 191), changing(9, 192)], [2, 1, 0, 1]);
        assert!(locks.end(writer) && locks.is_granted(late) && !locks.any_waits());
    }

    const LOCKS: u64 = 32;
    const PIECES: u64 = 128;

    /// Strided lists beside each other. Each one has a byte of the next one, at its end.
    fn lists() -> impl Iterator<Item = Vec<Extent>> {
        let list = |lock: u64| {
            let pieces = (0..PIECES).map(move |piece| Extent::new(2 * (piece * LOCKS + lock), 1));
            pieces.chain([Extent::new(2 * PIECES * LOCKS + lock, 2)]).collect()
        };
        (0..LOCKS).map(list)
    }

    /// Replays a defect: whenever a lock ended, all others that waited were compared with all
    /// earlier ones again.
    #[test]
    fn two_locks_are_compared_once() {
        let most = LOCKS * (LOCKS - 1) / 2 * 2 * (PIECES + 1) + 16 * LOCKS * LOCKS;
        let ((), _) = steps_of(most, || {
            let mut locks = RangeLocks::default();
            let ids: Vec<u64> = lists().map(|list| locks.make(list, true)).collect();
            for id in ids {
                assert!(locks.is_granted(id));
                for later in id + 1..LOCKS {
                    assert!(!locks.is_granted(later));
                }
                locks.end(id);
            }
        });
    }

    /// Replays a defect: when a lock ended that many waited for, all of them were compared with
    /// each other at once. That took seconds for lists of the longest kind.
    #[test]
    fn others_run_while_very_many_locks_are_compared() {
        let mut locks = RangeLocks::default();
        let all = locks.make(vec![Extent::new(0, u64::MAX)], true);
        let lists =
            (0..LOCKS).map(|lock| (0..1 << 14).map(|piece| Extent::new(2 * (piece * LOCKS + lock), 1)).collect());
        let ids: Vec<u64> = lists.map(|list: Vec<Extent>| locks.make(list, true)).collect();
        assert!(locks.is_granted(all) && ids.iter().all(|id| !locks.is_granted(*id)));
        // The piece that is begun last is finished.
        let most = 2 * PIECE as u64 + 4 * LOCKS;
        assert!(steps_of(most, || locks.end(all)).0);
        for id in ids {
            let mut pieces = 0;
            while steps_of(most, || locks.advance(id)).0 != Progress::Granted {
                pieces += 1;
            }
            assert_eq!(pieces, id - 1, "a piece for each of the others");
        }
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
                alive.iter().for_each(|(id, ..)| { locks.is_granted(*id); });
                let granted: Vec<_> = alive.iter().filter(|(id, ..)| locks.advance(*id) == Progress::Granted).collect();
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
