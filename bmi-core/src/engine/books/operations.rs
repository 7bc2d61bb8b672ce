//! The records of all operations: their states, those that have ended, and their timers.
//!
//! **Why.** An operation ends in many places: in the poll, in a post, or in an inline receive while
//! the adapter polls. The work to end it is here, in one place and apart from the transport, so
//! that all of them can reach it.
//!
//! **Invariants**
//! 1. A record that has ended is in `done`, once, until it is collected. An operation that is
//!    collected by its id leaves the id in `done`. Such ids are never the majority, beyond a
//!    constant.
//! 2. An operation has at most one valid timer (see [`crate::engine::ending::deadlines`]).
//! 3. A place without an operation holds nothing of the former one ([`Op::vacate`]).
//!    [`Operations::insert`] relies on it.
//!
//! **Source.** Ours. **Tests.** Below. Every test of the message interface also compares the
//! resources with the idle state.

use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use super::op::{Offer, Op, State};
use super::record;
use super::unit::Transfers;
use crate::engine::books::Exposure;
use crate::error::ErrorKind;
use crate::hooks::step;
use crate::ids::{GENERATIONS, Key};
use crate::mem::{MemList, Retirement};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Posted, Tag};
use crate::time::Time;
use crate::timeline::Recorder;
use crate::wire::timers::Timers;

/// The records of an endpoint.
pub(in crate::engine) struct Operations {
    slots: Vec<Slot>,
    /// Slots without an operation. The slot that was freed last is used first.
    free: Vec<u32>,
    /// The generation of the newest operation.
    generation: u32,
    timers: Timers,
    /// Operations that ended, in order. Some of them may already be collected.
    done: Vec<OpId>,
    /// Number of operations that ended and were not collected.
    uncollected: usize,
    /// Wakers of operations that ended. The driver wakes them.
    wakes: VecDeque<Waker>,
    /// The records of transfers that ended, to be used again.
    pub(in crate::engine) transfers: Transfers,
    /// Operations that were asked to end early, and that have no fence yet. The next poll sets it,
    /// because only the poll knows the time.
    pub(in crate::engine) fences: Vec<OpId>,
    /// The last memories that were left to peers, in order. Some are given back already.
    pub(in crate::engine) left: VecDeque<OpId>,
    /// What dropped calls left, by the place of the receive for the reply.
    kept: BTreeMap<u32, Kept>,
    pub(in crate::engine) recorder: Recorder,
}

/// What a server may still access though the call was dropped.
pub(in crate::engine) struct Kept {
    pub(in crate::engine) _exposure: Option<Exposure>,
    pub(in crate::engine) _retired: Vec<Retirement>,
}

/// The place of a record. There is a record for each message, so records are written and vacated in
/// place, and not kept in a [`crate::wire::table::Table`].
struct Slot {
    /// The generation of the operation that is here, or [`NOBODY`].
    generation: u32,
    op: Op,
}

/// The generation of a place without an operation.
const NOBODY: u32 = u32::MAX;

impl Slot {
    #[inline]
    fn is(&self, key: Key) -> bool {
        self.generation == key.generation && key.generation != NOBODY
    }
}

/// What an operation still held of the adapter side when it ended.
pub(in crate::engine) struct Held {
    /// The staging buffer that part of the message was copied to.
    pub(in crate::engine) staged: Option<u32>,
    /// The offered memory of a receive, if it was offered.
    pub(in crate::engine) offer: Offer,
}

impl Operations {
    pub(in crate::engine) fn new() -> Operations {
        Operations {
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            timers: Timers::default(),
            done: Vec::new(),
            uncollected: 0,
            wakes: VecDeque::new(),
            transfers: Transfers::default(),
            fences: Vec::new(),
            left: VecDeque::new(),
            kept: BTreeMap::new(),
            recorder: Recorder::default(),
        }
    }

    // ---- entering and looking up ----------------------------------------------------------------

    pub(in crate::engine) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the record of an operation. The id may come from a peer, unchecked.
    #[inline]
    pub(in crate::engine) fn get(&self, id: OpId) -> Option<&Op> {
        self.slots.get(id.0.slot as usize).filter(|slot| slot.is(id.0)).map(|slot| &slot.op)
    }

    /// Returns the record of an operation, as [`Operations::get`] does.
    #[inline]
    pub(in crate::engine) fn get_mut(&mut self, id: OpId) -> Option<&mut Op> {
        self.slots.get_mut(id.0.slot as usize).filter(|slot| slot.is(id.0)).map(|slot| &mut slot.op)
    }

    /// Returns all operations. This looks at every slot, also at those without one.
    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = (OpId, &Op)> {
        let places = (0..).zip(&self.slots).inspect(|_| step());
        places.filter(|(_, slot)| slot.generation != NOBODY).map(|(number, slot)| {
            let key = Key { slot: number, generation: slot.generation };
            (OpId(key), &slot.op)
        })
    }

    /// Inserts an operation, with a timer for its deadline. Its state may depend on its id.
    #[inline(always)]
    pub(in crate::engine) fn insert(
        &mut self,
        kind: OpKind,
        peer: Option<PeerId>,
        tag: Tag,
        list: Option<MemList>,
        options: Options,
        state: impl FnOnce(OpId) -> State,
    ) -> OpId {
        self.generation = (self.generation + 1) % GENERATIONS;
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: NOBODY, op: Op::vacant() });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
        });
        let slot = &mut self.slots[number as usize];
        slot.generation = self.generation;
        let id = OpId(Key { slot: number, generation: slot.generation });
        (slot.op.kind, slot.op.peer, slot.op.tag, slot.op.options) = (kind, peer, tag, options);
        slot.op.list = list;
        slot.op.enter(state(id));
        if let Some(at) = options.deadline {
            self.set_timer(id, at);
        }
        id
    }

    /// Inserts an operation in a state that does not depend on its id.
    #[inline]
    pub(in crate::engine) fn post(
        &mut self,
        kind: OpKind,
        peer: Option<PeerId>,
        tag: Tag,
        list: Option<MemList>,
        options: Options,
        state: State,
    ) -> OpId {
        self.insert(kind, peer, tag, list, options, |_| state)
    }

    /// Returns the result of a post with the operation `id`.
    pub(in crate::engine) fn posted(&mut self, id: OpId) -> Posted {
        self.collect(id).map_or(Posted::Pending(id), Posted::Done)
    }

    /// Vacates the record of an operation that exists.
    #[inline]
    fn vacate(&mut self, key: Key) {
        let slot = &mut self.slots[key.slot as usize];
        slot.generation = NOBODY;
        slot.op.vacate();
        self.free.push(key.slot);
    }

    /// Removes an operation that has not ended, as if it had never been posted.
    pub(in crate::engine) fn forget(&mut self, id: OpId) {
        self.clear_timer(id);
        if self.get(id).is_some() {
            self.vacate(id.0);
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Ends an operation: drops its memory and makes its completion. The caller settles what the
    /// operation held of the endpoint.
    pub(in crate::engine) fn finish(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) -> Option<Held> {
        if self.recorder.is_on() {
            record::ended(&self.recorder, self.get(id)?, status, len);
        }
        let Slot { op, .. } = self.slots.get_mut(id.0.slot as usize).filter(|slot| slot.is(id.0))?;
        op.fallback = None;
        op.plan = None;
        let held = Held { staged: op.staged.take(), offer: op.offer };
        if let Some(transfer) = op.end(status, len) {
            self.transfers.retire(transfer);
        }
        let abandoned = op.settle(&mut self.timers, &mut self.wakes);
        self.list_as_done(id, abandoned);
        Some(held)
    }

    /// Ends an operation that holds nothing but its memory.
    #[inline(always)]
    pub(in crate::engine) fn end(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) {
        let Some(Slot { op, .. }) = self.slots.get_mut(id.0.slot as usize).filter(|slot| slot.is(id.0)) else {
            return;
        };
        op.enter(State::Done { status, len });
        let abandoned = op.settle(&mut self.timers, &mut self.wakes);
        self.list_as_done(id, abandoned);
    }

    /// Lists an operation that has ended, or vacates its record if nobody collects it.
    #[inline(always)]
    fn list_as_done(&mut self, id: OpId, abandoned: bool) {
        if abandoned {
            self.end_abandoned(id);
            return;
        }
        self.done.push(id);
        self.uncollected += 1;
        if self.done.len() > 2 * self.uncollected + 64 {
            self.tidy_done();
        }
    }

    /// Keeps memory until an abandoned operation has ended.
    pub(in crate::engine) fn keep_until_the_end(&mut self, id: OpId, kept: Kept) {
        debug_assert!(self.get(id).is_some_and(|op| op.abandoned && !op.is_done()), "somebody waits for it");
        self.kept.insert(id.0.slot, kept);
    }

    /// Vacates the record of an abandoned operation that has ended, and drops what was kept for it.
    #[cold]
    fn end_abandoned(&mut self, id: OpId) {
        self.vacate(id.0);
        drop(self.kept.remove(&id.0.slot));
    }

    /// Removes the ids of operations that were already collected.
    #[cold]
    fn tidy_done(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        done.retain(|id| self.get(*id).is_some_and(Op::is_done));
        self.done = done;
    }

    /// Removes an operation that has ended, and returns its completion.
    #[inline(always)]
    pub(in crate::engine) fn collect(&mut self, id: OpId) -> Option<Completion> {
        let slot = self.slots.get_mut(id.0.slot as usize).filter(|slot| slot.is(id.0))?;
        let completion = slot.op.completion(id)?;
        slot.generation = NOBODY;
        slot.op.vacate();
        self.free.push(id.0.slot);
        self.uncollected -= 1;
        Some(completion)
    }

    /// Removes all operations that have ended. Returns how many.
    #[inline]
    pub(in crate::engine) fn collect_all(&mut self, into: &mut Vec<Completion>) -> usize {
        if self.done.is_empty() {
            return 0;
        }
        let (before, mut done) = (into.len(), std::mem::take(&mut self.done));
        for op in done.drain(..) {
            // Some were already collected by id.
            if let Some(completion) = self.collect(op) {
                into.push(completion);
            }
        }
        self.done = done;
        into.len() - before
    }

    /// Keeps a waker for the driver, which wakes or drops it.
    pub(in crate::engine) fn keep_waker(&mut self, waker: Waker) {
        self.wakes.push_back(waker);
    }

    /// Keeps the waker of one outstanding operation.
    pub(in crate::engine) fn wake_a_waiter(&mut self) {
        let waker = self.iter().find_map(|(_, op)| if op.is_done() { None } else { op.waker.clone() });
        self.wakes.extend(waker);
    }

    pub(in crate::engine) fn has_wakers(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// Keeps wakers for the driver.
    pub(in crate::engine) fn keep_wakers(&mut self, wakers: &mut Vec<Waker>) {
        self.wakes.extend(wakers.drain(..));
    }

    /// Takes the oldest waker.
    pub(in crate::engine) fn take_waker(&mut self) -> Option<Waker> {
        self.wakes.pop_front()
    }

    // ---- timers ---------------------------------------------------------------------------------

    pub(in crate::engine) fn set_timer(&mut self, id: OpId, at: Time) {
        self.clear_timer(id);
        if let Some(op) = self.get_mut(id) {
            op.timer = Some(at);
            self.timers.push(at, id);
        }
    }

    pub(in crate::engine) fn clear_timer(&mut self, id: OpId) {
        if self.get_mut(id).is_some_and(|op| op.timer.take().is_some()) {
            self.timers.forget();
        }
    }

    /// Returns true if no timer is due at `now` and none is to be swept.
    #[inline]
    pub(in crate::engine) fn are_quiet(&self, now: Time) -> bool {
        self.timers.are_quiet(now)
    }

    /// Returns the time of the next timer.
    pub(in crate::engine) fn next_timer(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns the next operation whose timer is due at `now`, and removes the timer.
    pub(in crate::engine) fn pop_due(&mut self, now: Time) -> Option<OpId> {
        while let Some(id) = self.timers.pop_due(now) {
            // Otherwise the entry is stale: the operation ended, or its timer was moved to a later
            // time.
            if self.get(id).is_some_and(|op| op.timer.is_some_and(|at| at <= now)) {
                self.clear_timer(id);
                return Some(id);
            }
        }
        None
    }

    /// Sweeps invalid timers.
    pub(in crate::engine) fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, id| self.get(id).is_some_and(|op| op.timer == Some(at)));
        self.timers = timers;
    }
}

impl Op {
    /// Drops the memory of an operation that has ended, its timer, and wakes its waiter. Returns
    /// true if nobody collects the completion.
    #[inline(always)]
    fn settle(&mut self, timers: &mut Timers, wakes: &mut VecDeque<Waker>) -> bool {
        self.list = None;
        if self.timer.take().is_some() {
            timers.forget();
        }
        if self.waker.is_some() {
            wakes.extend(self.waker.take());
        }
        self.abandoned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::books::unit::Plan;
    use crate::engine::buffers::Cursor;
    use crate::mem::{OneOrMany, RemoteKey, RemoteSlice};

    fn timer(records: &mut Operations, deadline: Option<Time>) -> OpId {
        let options = Options { deadline, ..Options::default() };
        records.insert(OpKind::Timer, None, 0, None, options, |_| State::Waiting)
    }

    #[test]
    fn a_name_of_nobody_finds_nothing() {
        let mut records = Operations::new();
        let first = timer(&mut records, Some(Time::from_nanos(5)));
        let peers_word = Key { slot: first.0.slot, generation: NOBODY };
        records.forget(first);
        assert!(
            records.get(OpId(peers_word)).is_none()
                && records.get(first).is_none()
                && records.slots[first.0.slot as usize].generation == NOBODY
        );
        let second = timer(&mut records, None);
        assert_eq!((second.0.slot, records.len()), (first.0.slot, 1));
        assert!(records.get(first).is_none() && records.get(second).is_some_and(|op| op.timer.is_none()));
        assert_eq!(records.pop_due(Time::from_nanos(9)), None);
    }

    #[test]
    fn a_place_holds_nothing_of_its_former_operation() {
        let mut records = Operations::new();
        let memory = RemoteSlice { key: RemoteKey(1), addr: 0, len: 1 };
        let ends: [fn(&mut Operations, OpId); 3] = [
            |records, id| records.forget(id),
            |records, id| {
                records.get_mut(id).unwrap().abandoned = true;
                records.end(id, Ok(()), 1);
            },
            |records, id| {
                records.end(id, Err(ErrorKind::Cancelled), 1);
                records.collect(id).unwrap();
            },
        ];
        for end in ends {
            let list = Some(MemList::from(vec![1]));
            let options = Options { deadline: Some(Time::from_nanos(5)), user: 7, ..Options::default() };
            let first = records.insert(OpKind::Recv, None, 9, list, options, |_| State::Waiting);
            let op = records.get_mut(first).unwrap();
            (op.staged, op.offer) = (Some(1), Offer::Used(memory));
            let remote = OneOrMany::One(memory);
            op.plan = Some(Box::new(Plan {
                remote,
                at: Cursor::default(),
                total: 1,
                announced_as: None,
                immediate: Some(1),
            }));
            (op.ending, op.waker) = (Some(ErrorKind::TimedOut), Some(Waker::noop().clone()));
            end(&mut records, first);
            let second = timer(&mut records, None);
            assert_eq!(second.0.slot, first.0.slot);
            let op = records.get(second).unwrap();
            op.assert_is_new_timer();
            records.forget(second);
        }
        assert_eq!((records.len(), records.pop_due(Time::from_nanos(9))), (0, None));
    }

    #[test]
    fn names_that_were_collected_by_name_do_not_pile_up() {
        let mut records = Operations::new();
        let kept = timer(&mut records, None);
        records.finish(kept, Ok(()), 7);
        for _ in 0..1000 {
            let op = timer(&mut records, None);
            records.finish(op, Ok(()), 0);
            assert!(records.collect(op).is_some() && records.collect(op).is_none());
            assert!(records.done.len() < 80);
        }
        let mut collected = Vec::new();
        assert_eq!(records.collect_all(&mut collected), 1);
        assert_eq!((collected[0].op, collected[0].len, records.len()), (kept, 7, 0));
    }
}
