//! The records of all operations: where they stand, which have ended, what is due.
//!
//! **Why.** An operation ends in many places: the poll, a post, a message that is taken while the adapter polls. What has to be done then is here, once, apart from the
//! transport, so that all of them reach it.
//!
//! **Invariants**
//! 1. A record that is done is in `done`, once, until it is collected; those collected by name leave a name behind, and those names are never the majority.
//! 2. An operation has at most one timer that counts (see [`super::timing`]).

use std::collections::VecDeque;
use std::task::Waker;

use super::op::{Offer, Op, State};
use super::unit::Transfer;
use crate::error::ErrorKind;
use crate::op::{Completion, OpId, PeerId};
use crate::proto::table::{Key, Table};
use crate::proto::timers::Timers;
use crate::time::Time;

/// The records of an endpoint.
pub(super) struct Records {
    table: Table<Op>,
    timers: Timers,
    /// Operations that ended, in order; some were collected since.
    done: VecDeque<OpId>,
    /// How many of them were not.
    uncollected: usize,
    /// Wakers of operations that ended, for the driver to wake.
    wakes: Vec<Waker>,
}

/// What an operation that has ended leaves to be settled.
pub(super) struct Left {
    /// The staging buffer that part of it was copied to.
    pub(super) staged: Option<u32>,
    /// Its transfer.
    pub(super) transfer: Option<Box<Transfer>>,
    /// Its memory, if it was a receive that was offered.
    pub(super) offer: Offer,
    pub(super) peer: Option<PeerId>,
}

impl Records {
    pub(super) fn new() -> Records {
        Records {
            table: Table::new(),
            timers: Timers::default(),
            done: VecDeque::new(),
            uncollected: 0,
            wakes: Vec::new(),
        }
    }

    // ---- entering and looking up ------------------------------------------------------------------------------------------

    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Op> {
        self.table.get(key)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Op> {
        self.table.get_mut(key)
    }

    /// The record that stands in a slot now.
    pub(super) fn at(&self, slot: u32) -> Option<(Key, &Op)> {
        self.table.at(slot)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Op)> {
        self.table.iter()
    }

    /// Enters what `make` makes of its name, with a timer for its deadline.
    #[inline]
    pub(super) fn insert_with(&mut self, deadline: Option<Time>, make: impl FnOnce(OpId) -> Op) -> OpId {
        let id = OpId(self.table.insert_with(|key| make(OpId(key))));
        if let Some(at) = deadline {
            self.set_timer(id, at);
        }
        id
    }

    /// Takes out one that has not ended, as though it had never been.
    pub(super) fn forget(&mut self, id: OpId) {
        self.clear_timer(id);
        self.table.discard(id.0);
    }

    // ---- the end ----------------------------------------------------------------------------------------------------------

    /// Ends an operation: gives back its memory and makes its completion. What it held of the endpoint is the caller's to settle.
    pub(super) fn finish(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) -> Option<Left> {
        let op = self.table.get_mut(id.0)?;
        op.stand_in = None;
        op.remote = None;
        let (staged, offer, peer) = (op.staged.take(), op.offer, op.peer);
        let transfer = match std::mem::replace(&mut op.state, State::Waiting) {
            State::Moving(transfer) => Some(transfer),
            _ => None,
        };
        self.end(id, status, len);
        Some(Left { staged, transfer, offer, peer })
    }

    /// Ends an operation that holds nothing but its memory.
    #[inline]
    pub(super) fn end(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) {
        let Some(op) = self.table.get_mut(id.0) else { return };
        debug_assert!(!op.is_done(), "{id:?} ended twice");
        op.list = None;
        op.state = State::Done { status, len };
        if op.timer.take().is_some() {
            self.timers.forget();
        }
        if let Some(waker) = op.waker.take() {
            self.wakes.push(waker);
        }
        if op.abandoned {
            self.table.discard(id.0);
            return;
        }
        self.done.push_back(id);
        self.uncollected += 1;
        if self.done.len() > 2 * self.uncollected + 64 {
            self.done.retain(|id| self.table.get(id.0).is_some_and(Op::is_done));
        }
    }

    /// Takes out the record of an operation, if it has ended.
    #[inline]
    pub(super) fn collect(&mut self, id: OpId) -> Option<Completion> {
        let completion = self.table.get(id.0)?.completion(id)?;
        self.table.discard(id.0);
        self.uncollected -= 1;
        Some(completion)
    }

    /// Takes out all that have ended; how many.
    #[inline]
    pub(super) fn collect_all(&mut self, into: &mut Vec<Completion>) -> usize {
        let before = into.len();
        while let Some(op) = self.done.pop_front() {
            // Some were collected by name.
            into.extend(self.collect(op));
        }
        into.len() - before
    }

    /// Keeps a waker for the driver to wake, or to drop.
    pub(super) fn keep_waker(&mut self, waker: Waker) {
        self.wakes.push(waker);
    }

    /// Moves the wakers of operations that ended to the end of `into`.
    pub(super) fn take_wakes(&mut self, into: &mut Vec<Waker>) {
        into.append(&mut self.wakes);
    }

    // ---- timers -----------------------------------------------------------------------------------------------------------

    pub(super) fn set_timer(&mut self, id: OpId, at: Time) {
        self.clear_timer(id);
        if let Some(op) = self.table.get_mut(id.0) {
            op.timer = Some(at);
            self.timers.push(at, id);
        }
    }

    pub(super) fn clear_timer(&mut self, id: OpId) {
        if self.table.get_mut(id.0).is_some_and(|op| op.timer.take().is_some()) {
            self.timers.forget();
        }
    }

    /// Whether at `now` no timer is due and none is to be tidied.
    #[inline]
    pub(super) fn are_quiet(&self, now: Time) -> bool {
        self.timers.are_quiet(now)
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.next()
    }

    /// The next operation whose timer is due at `now`; the timer is spent.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<OpId> {
        while let Some(id) = self.timers.pop_due(now) {
            // Else a stale entry: the operation ended, or its timer was moved to a later time.
            if self.table.get(id.0).is_some_and(|op| op.timer.is_some_and(|at| at <= now)) {
                self.clear_timer(id);
                return Some(id);
            }
        }
        None
    }

    /// Sweeps timers that count no more.
    pub(super) fn tidy_timers(&mut self) {
        let table = &self.table;
        self.timers.tidy(|at, id| table.get(id.0).is_some_and(|op| op.timer == Some(at)));
    }
}
