//! A queue of deadlines. The entries of operations that ended early stay in the queue. They are
//! swept when they outnumber the others, so that many short operations with long deadlines do not
//! pile up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::ids::OpId;
use crate::time::Time;

/// The deadlines of operations. At most one entry of an operation is valid at a time.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, OpId)>>,
    /// Number of valid entries: those of operations that still wait for them.
    live: usize,
    /// An entry became invalid since the last `tidy`.
    stale: bool,
}

impl Timers {
    pub(crate) fn push(&mut self, at: Time, op: OpId) {
        self.heap.push(Reverse((at, op)));
        self.live += 1;
    }

    /// Records that an entry is no longer valid: its operation ended, or has a new one.
    pub(crate) fn forget(&mut self) {
        self.live -= 1;
        self.stale = true;
    }

    /// Returns true if nothing is due at `now` and there is nothing to sweep.
    #[inline]
    pub(crate) fn are_quiet(&self, now: Time) -> bool {
        !self.stale && self.heap.peek().is_none_or(|Reverse((at, _))| *at > now)
    }

    /// Removes and returns the earliest entry if it is due at `now`. The caller checks whether the
    /// entry is still valid, and if so calls [`Timers::forget`].
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<OpId> {
        let Reverse((at, _)) = self.heap.peek()?;
        if *at > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, op))| op)
    }

    /// Sweeps invalid entries from the whole queue if they are the majority, and from its front in
    /// any case. `counts` returns true for a valid entry.
    pub(crate) fn tidy(&mut self, counts: impl Fn(Time, OpId) -> bool) {
        self.stale = false;
        if self.heap.len() > 2 * self.live + 64 {
            self.heap.retain(|Reverse((at, op))| counts(*at, *op));
        }
        while self.heap.peek().is_some_and(|Reverse((at, op))| !counts(*at, *op)) {
            self.heap.pop();
        }
    }

    /// Returns the time of the next entry. After `tidy` that entry is valid.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}
