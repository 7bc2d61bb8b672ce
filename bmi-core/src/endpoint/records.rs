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
//! 2. An operation has at most one valid timer (see [`super::timing`]).
//! 3. A place without an operation holds nothing of the former one ([`Op::vacate`]).
//!    [`Records::insert`] relies on it.
//!
//! **Source.** Ours. **Tests.** Below. Every test of the message interface also compares the
//! resources with the idle state.

use std::task::Waker;

use super::op::{Offer, Op, State};
use super::unit::Transfer;
use crate::error::ErrorKind;
use crate::mem::MemList;
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Tag};
use crate::proto::table::{GENERATIONS, Key};
use crate::proto::timers::Timers;
use crate::time::Time;

/// The records of an endpoint.
pub(super) struct Records {
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
    wakes: Vec<Waker>,
}

/// The place of a record. There is a record for each message, so records are written and vacated in
/// place, and not kept in a [`crate::proto::table::Table`].
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

/// The parts of an ended operation that the endpoint must settle.
pub(super) struct Left {
    /// The staging buffer that part of the message was copied to.
    pub(super) staged: Option<u32>,
    /// The transfer of the operation.
    pub(super) transfer: Option<Box<Transfer>>,
    /// The offered memory of a receive, if it was offered.
    pub(super) offer: Offer,
    pub(super) peer: Option<PeerId>,
}

impl Records {
    pub(super) fn new() -> Records {
        Records {
            slots: Vec::new(),
            free: Vec::new(),
            generation: 0,
            timers: Timers::default(),
            done: Vec::new(),
            uncollected: 0,
            wakes: Vec::new(),
        }
    }

    // ---- entering and looking up ----------------------------------------------------------------

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns the record with this key. The key may come from a peer, unchecked.
    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Op> {
        self.slots.get(key.slot as usize).filter(|slot| slot.is(key)).map(|slot| &slot.op)
    }

    /// Returns the record with this key, as [`Records::get`] does.
    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Op> {
        self.slots.get_mut(key.slot as usize).filter(|slot| slot.is(key)).map(|slot| &mut slot.op)
    }

    /// Returns the record that is in a slot now.
    pub(super) fn at(&self, slot: u32) -> Option<(Key, &Op)> {
        let Slot { generation, op } = self.slots.get(slot as usize)?;
        (*generation != NOBODY).then_some((Key { slot, generation: *generation }, op))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &Op)> {
        (0..).zip(&self.slots).filter(|(_, slot)| slot.generation != NOBODY).map(|(number, slot)| {
            let key = Key { slot: number, generation: slot.generation };
            (key, &slot.op)
        })
    }

    /// Inserts an operation, with a timer for its deadline. Its state may depend on its id.
    #[inline(always)]
    pub(super) fn insert(
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
        slot.op.state.put(state(id));
        if let Some(at) = options.deadline {
            self.set_timer(id, at);
        }
        id
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
    pub(super) fn forget(&mut self, id: OpId) {
        self.clear_timer(id);
        if self.get(id.0).is_some() {
            self.vacate(id.0);
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Ends an operation: drops its memory and makes its completion. The caller settles what the
    /// operation held of the endpoint.
    pub(super) fn finish(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) -> Option<Left> {
        let op = self.get_mut(id.0)?;
        op.fallback = None;
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
    #[inline(always)]
    pub(super) fn end(&mut self, id: OpId, status: Result<(), ErrorKind>, len: u64) {
        let Some(Slot { op, .. }) = self.slots.get_mut(id.0.slot as usize).filter(|slot| slot.is(id.0)) else {
            return;
        };
        debug_assert!(!op.is_done(), "{id:?} ended twice");
        op.list = None;
        op.state.put(State::Done { status, len });
        if op.timer.take().is_some() {
            self.timers.forget();
        }
        if op.waker.is_some() {
            self.wakes.extend(op.waker.take());
        }
        if op.abandoned {
            self.vacate(id.0);
            return;
        }
        self.done.push(id);
        self.uncollected += 1;
        if self.done.len() > 2 * self.uncollected + 64 {
            self.tidy_done();
        }
    }

    /// Removes the ids of operations that were already collected.
    #[cold]
    fn tidy_done(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        done.retain(|id| self.get(id.0).is_some_and(Op::is_done));
        self.done = done;
    }

    /// Removes an operation that has ended, and returns its completion.
    #[inline(always)]
    pub(super) fn collect(&mut self, id: OpId) -> Option<Completion> {
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
    pub(super) fn collect_all(&mut self, into: &mut Vec<Completion>) -> usize {
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
    pub(super) fn keep_waker(&mut self, waker: Waker) {
        self.wakes.push(waker);
    }

    /// Moves the wakers of ended operations to the end of `into`.
    pub(super) fn take_wakes(&mut self, into: &mut Vec<Waker>) {
        into.append(&mut self.wakes);
    }

    // ---- timers ---------------------------------------------------------------------------------

    pub(super) fn set_timer(&mut self, id: OpId, at: Time) {
        self.clear_timer(id);
        if let Some(op) = self.get_mut(id.0) {
            op.timer = Some(at);
            self.timers.push(at, id);
        }
    }

    pub(super) fn clear_timer(&mut self, id: OpId) {
        if self.get_mut(id.0).is_some_and(|op| op.timer.take().is_some()) {
            self.timers.forget();
        }
    }

    /// Returns true if no timer is due at `now` and none is to be swept.
    #[inline]
    pub(super) fn are_quiet(&self, now: Time) -> bool {
        self.timers.are_quiet(now)
    }

    /// Returns the time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns the next operation whose timer is due at `now`, and removes the timer.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<OpId> {
        while let Some(id) = self.timers.pop_due(now) {
            // Otherwise the entry is stale: the operation ended, or its timer was moved to a later
            // time.
            if self.get(id.0).is_some_and(|op| op.timer.is_some_and(|at| at <= now)) {
                self.clear_timer(id);
                return Some(id);
            }
        }
        None
    }

    /// Sweeps invalid timers.
    pub(super) fn tidy_timers(&mut self) {
        let mut timers = std::mem::take(&mut self.timers);
        timers.tidy(|at, id| self.get(id.0).is_some_and(|op| op.timer == Some(at)));
        self.timers = timers;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::op::Cursor;
    use crate::mem::{RemoteKey, RemoteSlice};
    use crate::proto::one_or_many::OneOrMany;

    fn timer(records: &mut Records, deadline: Option<Time>) -> OpId {
        let options = Options { deadline, ..Options::default() };
        records.insert(OpKind::Timer, None, 0, None, options, |_| State::Waiting)
    }

    #[test]
    fn a_name_of_nobody_finds_nothing() {
        let mut records = Records::new();
        let first = timer(&mut records, Some(Time::from_nanos(5)));
        let peers_word = Key { slot: first.0.slot, generation: NOBODY };
        records.forget(first);
        assert!(
            records.get(peers_word).is_none() && records.get(first.0).is_none() && records.at(first.0.slot).is_none()
        );
        let second = timer(&mut records, None);
        assert_eq!((second.0.slot, records.len()), (first.0.slot, 1));
        assert!(records.get(first.0).is_none() && records.get(second.0).is_some_and(|op| op.timer.is_none()));
        assert_eq!(records.pop_due(Time::from_nanos(9)), None);
    }

    /// Names each field, so that a new field does not compile until it is handled in
    /// [`Op::vacate`].
    #[test]
    fn a_place_holds_nothing_of_its_former_operation() {
        let mut records = Records::new();
        let memory = RemoteSlice { key: RemoteKey(1), addr: 0, len: 1 };
        let ends: [fn(&mut Records, OpId); 3] = [
            |records, id| records.forget(id),
            |records, id| {
                records.get_mut(id.0).unwrap().abandoned = true;
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
            let op = records.get_mut(first.0).unwrap();
            (op.immediate, op.staged, op.offer) = (Some(1), Some(1), Offer::Used(memory));
            op.remote = Some(Box::new((OneOrMany::One(memory), Cursor::default())));
            (op.ending, op.waker) = (Some(ErrorKind::TimedOut), Some(Waker::noop().clone()));
            end(&mut records, first);
            let second = timer(&mut records, None);
            assert_eq!(second.0.slot, first.0.slot);
            let op = records.get(second.0).unwrap();
            let Op {
                kind,
                peer,
                tag,
                list,
                remote,
                immediate,
                options,
                state,
                staged,
                fallback,
                offer,
                ending,
                timer,
                abandoned,
                waker,
            } = op;
            assert!(matches!(state, State::Waiting), "{op:?}");
            assert_eq!((*kind, *peer, *tag, *options), (OpKind::Timer, None, 0, Options::default()));
            assert_eq!((*immediate, *staged, *offer), (None, None, Offer::None));
            assert_eq!((*ending, *timer, *abandoned), (None, None, false));
            assert!(list.is_none() && remote.is_none() && fallback.is_none() && waker.is_none(), "{op:?}");
            records.forget(second);
        }
        assert_eq!((records.len(), records.pop_due(Time::from_nanos(9))), (0, None));
    }

    #[test]
    fn names_that_were_collected_by_name_do_not_pile_up() {
        let mut records = Records::new();
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
