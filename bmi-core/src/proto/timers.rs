//! What is due when. Entries of operations that ended early stay behind and are swept when they
//! outnumber the others, so that many short operations with long deadlines do not pile up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::op::OpId;
use crate::time::Time;

/// Deadlines of operations; at most one counts for each at a time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, OpId)>>,
    /// How many entries belong to an operation that still waits for them.
    live: usize,
    /// An entry ceased to count since the last `tidy`.
    stale: bool,
}

impl Timers {
    pub(crate) fn push(&mut self, at: Time, op: OpId) {
        self.heap.push(Reverse((at, op)));
        self.live += 1;
    }

    /// One entry no longer counts: its operation ended, or has a new one.
    pub(crate) fn forget(&mut self) {
        self.live -= 1;
        self.stale = true;
    }

    /// Whether at `now` nothing is due and nothing is to be tidied.
    #[inline]
    pub(crate) fn are_quiet(&self, now: Time) -> bool {
        !self.stale && self.heap.peek().is_none_or(|Reverse((at, _))| *at > now)
    }

    /// The earliest entry, if it is due at `now`; the caller finds out whether it still counts, and
    /// if so says [`Timers::forget`].
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<OpId> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, op))| op)
    }

    /// Sweeps entries that do not count, if they are the majority or stand first.
    pub(crate) fn tidy(&mut self, counts: impl Fn(Time, OpId) -> bool) {
        self.stale = false;
        if self.heap.len() > 2 * self.live + 64 {
            self.heap.retain(|Reverse((at, op))| counts(*at, *op));
        }
        while self.heap.peek().is_some_and(|Reverse((at, op))| !counts(*at, *op)) {
            self.heap.pop();
        }
    }

    /// When the next is due; after `tidy` it counts.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}
