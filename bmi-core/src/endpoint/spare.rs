//! Spares: registered memory of the endpoint's own that stands in for memory that cannot be registered.
//!
//! **Why.** An adapter may refuse a registration: its table is full, the system allows no more pinned pages, or the memory is of a kind that it cannot
//! pin. The pin-down cache has made room then and tried again. What is left is to copy, which works for everything but what the program exposes
//! itself (see `exposing`).
//!
//! **Protocol**
//!
//! ```text
//!   pull, receive    remote ══unit══> spare ──copy──> list     and again, until all is there
//!   push             list ──copy──> spare ══unit══> remote     and again
//!   direct write     list ──copy──> spare ══════> the offered receive
//!   announced send   list ──copy──> spare of the whole length, which the peer reads
//!   eager, fast      have slots of their own (`bounce`, `staging`)
//! ```
//!
//! **Where they come from.** First a fresh piece is registered, as long as the unit: one short registration may pass where a list of long ones did not. If
//! that is refused too, one of the [`RESERVE`] that were registered when the endpoint was made.
//!
//! **No deadlock.** A transfer or a direct write gives its spare back when the adapter is done with a unit, a direct write, or its connection; so those that wait get one.
//! Transfers that wait take turns, a unit each. An announced send is given back by the peer's program, perhaps never, so it may not take the last. A peer that has come to a
//! halt in the middle of a unit keeps its spare until the deadline of that operation: with as many of them as there are spares, others that cannot register wait as
//! long. That is the one thing that a machine without registrations loses.
//!
//! **Source.** Paper 000, section 3.3.3, leaves failure open; unit-wise copying is its section 4.2. **Tests** `bmi-sim/tests/pin_cache.rs`.

use std::sync::{Arc, Mutex, PoisonError};

use super::op::{Cursor, State, Transfer};
use super::{Endpoint, sending};
use crate::config::Config;
use crate::error::Error;
use crate::mem::{MemList, Memory, MemoryRegion, PinCache, RemoteSlice, Segment};
use crate::op::{OpId, OpKind, PeerId};
use crate::proto::one_or_many::OneOrMany;
use crate::transport::{HostWork, Transport};

/// Spares that are registered ahead: double buffering (paper 000, section 4.2) and one that an announced send may take.
const RESERVE: usize = 3;
/// Longest unit of a spare, in bytes; shorter if transfers are cut shorter.
const LONGEST: usize = 256 << 10;

/// Numbers of the reserve's pieces that are free.
type Free = Arc<Mutex<Vec<usize>>>;

/// The spares of an endpoint.
pub(super) struct Spares {
    unit: usize,
    reserve: MemoryRegion,
    free: Free,
}

/// A stretch of registered memory; it goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Spare {
    region: MemoryRegion,
    offset: usize,
    len: usize,
    /// For a piece of the reserve: its number, and where it goes back to.
    back: Option<(usize, Free)>,
}

/// What an operation has in place of memory that could not be registered.
#[derive(Debug)]
pub(super) enum StandIn {
    /// A copy of a send, while the adapter or the peer may read it.
    Holds { _copy: Spare },
    /// A transfer by way of a spare, a unit at a time.
    Moves(Rounds),
}

/// Where such a transfer stands.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The program's list; the operation's is the spare while there is one.
    list: MemList,
    total: u64,
    /// Bytes that earlier rounds moved.
    done: u64,
    spare: Option<Spare>,
}

impl Spares {
    pub(super) fn new<T: Transport>(transport: &mut T, config: &Config) -> Result<Spares, Error> {
        let unit = config.transfer_unit.min(LONGEST);
        let reserve = transport.register(&Memory::zeroed(RESERVE * unit)?)?;
        Ok(Spares { unit, reserve, free: Arc::new(Mutex::new((0..RESERVE).collect())) })
    }

    /// A spare of `len` bytes, fresh or from the reserve, of which it leaves `leave`. `None` if there is none of that length.
    pub(super) fn take<T: Transport>(
        &self,
        transport: &mut T,
        registry: &mut PinCache,
        len: usize,
        leave: usize,
    ) -> Option<Spare> {
        let fresh = Memory::zeroed(len).and_then(|memory| registry.register_own(|| transport.register(&memory)));
        match fresh {
            Ok(region) => Some(Spare { region, offset: 0, len, back: None }),
            Err(_) => self.take_reserved(len, leave),
        }
    }

    fn take_reserved(&self, len: usize, leave: usize) -> Option<Spare> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if len > self.unit || free.len() <= leave {
            return None;
        }
        let number = free.pop()?;
        let back = Some((number, Arc::clone(&self.free)));
        Some(Spare { region: self.reserve.clone(), offset: number * self.unit, len, back })
    }

    /// Pieces of the reserve that stand in for something.
    pub(super) fn in_use(&self) -> usize {
        RESERVE - self.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some((number, free)) = self.back.take() {
            free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
    }
}

impl Spare {
    /// Its first `len` bytes.
    pub(super) fn segment(&self, len: usize) -> Segment {
        self.region.segment(self.offset, len.min(self.len))
    }

    /// Copies from the byte `at` of a list on, as much as fits; returns the bytes and pieces.
    pub(super) fn fill(&self, list: &MemList, at: u64) -> (u64, u64) {
        self.walk(list, at, |spare, piece| spare.copy_from_slice_of(piece))
    }

    /// Copies to the byte `at` of a list on, as much as it has.
    fn empty(&self, list: &MemList, at: u64) -> (u64, u64) {
        self.walk(list, at, |spare, piece| piece.copy_from_slice_of(spare))
    }

    fn walk(&self, list: &MemList, at: u64, copy: impl Fn(&crate::MemSlice, &crate::MemSlice) -> usize) -> (u64, u64) {
        let (mut done, mut pieces) = (0, 0);
        for piece in list.range(usize::try_from(at).expect("within a list"), self.len) {
            let here = self.region.memory().slice(self.offset + done, piece.len());
            done += copy(&here, &piece);
            pieces += 1;
        }
        (done as u64, pieces)
    }
}

impl<T: Transport> Endpoint<T> {
    /// Copies the list of a direct write to a spare; says what to write then.
    pub(super) fn stand_in_for(&mut self, id: OpId, list: &MemList) -> Option<Segment> {
        let spare = self.spares.take(&mut self.transport, &mut self.registry, list.len(), 0)?;
        spare.fill(list, 0);
        self.transport.charge(HostWork::copy(list.len(), list));
        let segment = spare.segment(list.len());
        self.ops.get_mut(id.0)?.stand_in = Some(Box::new(StandIn::Holds { _copy: spare }));
        Some(segment)
    }

    /// Counts a message that went by way of a copy, if it did.
    pub(super) fn count_stand_in(&mut self, id: OpId) {
        self.counters.bounced += u64::from(self.ops.get(id.0).is_some_and(|op| op.stand_in.is_some()));
    }

    /// A message could not leave after all: it is copied again when it can.
    pub(super) fn forget_stand_in(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(id.0) {
            op.stand_in = None;
        }
    }

    /// What a direct write does that has neither registration nor spare.
    pub(super) fn without_spare(&mut self, peer: PeerId, len: usize, error: &Error) -> sending::Attempt {
        if len > self.spares.unit {
            return sending::Attempt::Failed(error.kind());
        }
        // Spares come back by way of the adapter.
        self.block(peer);
        sending::Attempt::Blocked
    }

    /// Starts a transfer whose list cannot be registered.
    pub(super) fn start_bounced(
        &mut self,
        id: OpId,
        remote: OneOrMany<RemoteSlice>,
        remote_cursor: Cursor,
        total: u64,
        announced_as: Option<u64>,
    ) {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        let list = op.list.clone().expect("a transfer has its list");
        op.state = State::Moving(Transfer {
            remote,
            regions: OneOrMany::Many(Vec::new()),
            remote_cursor,
            local_cursor: Cursor::default(),
            total,
            issued: 0,
            outstanding: 0,
            broken: false,
            announced_as,
        });
        op.stand_in = Some(Box::new(StandIn::Moves(Rounds { list, total, done: 0, spare: None })));
        if let Some(peer) = op.peer.and_then(|peer| self.peers.get_mut(peer.0)) {
            peer.busy += 1;
        }
        self.counters.bounced += 1;
        if total == 0 {
            return self.finish_transfer(id);
        }
        let unit = usize::try_from(total).map_or(self.spares.unit, |total| total.min(self.spares.unit));
        match self.spares.take(&mut self.transport, &mut self.registry, unit, 0) {
            Some(spare) => self.begin_round(id, spare),
            None => self.waiting.push_back(id),
        }
        self.pump_transfers();
    }

    /// Lets the next unit of a transfer go by way of `spare`.
    fn begin_round(&mut self, id: OpId, mut spare: Spare) {
        let Some(op) = self.ops.get_mut(id.0) else { return };
        let (State::Moving(transfer), Some(StandIn::Moves(rounds))) = (&mut op.state, op.stand_in.as_deref_mut())
        else {
            return;
        };
        let left = usize::try_from(rounds.total - rounds.done).unwrap_or(usize::MAX);
        spare.len = spare.len.min(left);
        if op.kind == OpKind::Push {
            let (bytes, pieces) = spare.fill(&rounds.list, rounds.done);
            self.transport.charge(HostWork::Copy { bytes, pieces });
        }
        transfer.regions = OneOrMany::One(spare.region.clone());
        transfer.local_cursor = Cursor::default();
        transfer.total = rounds.done + spare.len as u64;
        op.list = Some(spare.segment(spare.len).to_slice().into());
        rounds.spare = Some(spare);
        self.active.push_back(id);
    }

    /// A transfer has come to the end of what it was given. Returns whether that was only a round, and it goes on.
    pub(super) fn next_round(&mut self, id: OpId) -> bool {
        let Some(op) = self.ops.get_mut(id.0) else { return false };
        let (State::Moving(transfer), Some(StandIn::Moves(rounds))) = (&mut op.state, op.stand_in.as_deref_mut())
        else {
            return false;
        };
        let spare = rounds.spare.take();
        if let Some(spare) = &spare
            && transfer.issued == transfer.total
        {
            if op.kind != OpKind::Push {
                let (bytes, pieces) = spare.empty(&rounds.list, rounds.done);
                self.transport.charge(HostWork::Copy { bytes, pieces });
            }
            rounds.done = transfer.issued;
        }
        op.list = Some(rounds.list.clone());
        transfer.total = rounds.total;
        if op.ending.is_some() || rounds.done == rounds.total {
            self.waiting.retain(|waiting| *waiting != id);
            return false;
        }
        match spare {
            Some(spare) if spare.back.is_none() || self.waiting.is_empty() => self.begin_round(id, spare),
            // Others wait for the reserve: they have their turn first.
            spare => {
                drop(spare);
                self.waiting.push_back(id);
            }
        }
        true
    }

    /// Gives spares that came back to transfers that wait. Returns whether one could go on.
    pub(super) fn feed_waiting(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.waiting.front().copied() {
            // Ended since, with its connection.
            let moves = self.ops.get(id.0).is_some_and(|op| matches!(op.stand_in.as_deref(), Some(StandIn::Moves(_))));
            if moves {
                let Some(spare) = self.spares.take_reserved(self.spares.unit, 0) else { break };
                self.begin_round(id, spare);
                any = true;
            }
            self.waiting.pop_front();
        }
        any
    }

    /// Whether a transfer waits that could go on at the next poll.
    pub(super) fn could_feed(&self) -> bool {
        !self.waiting.is_empty() && self.spares.in_use() < RESERVE
    }
}
