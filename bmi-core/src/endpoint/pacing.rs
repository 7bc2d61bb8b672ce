//! Pacing: whose turn it is to hand a unit to the adapter, and when there is room for one.
//!
//! **Why.** What the adapter has got stands in its queue before everything that comes later. So it
//! gets no more than keeps it busy, and what waits, waits here, where it can be put in order: an
//! I/O server with a hundred clients must serve all of them, and not make a small request wait for
//! another's bulk.
//!
//! **Protocol**
//!
//! ```text
//!   urgent   (peer 3) (peer 7)               one unit of the first peer that has room, then it goes to the end
//!              │ t9     │ t2  t5               of its transfers the first; then that goes to the end
//!   bulk     (peer 1) (peer 3) (peer 4)       when nobody urgent has room, or after 8 urgent units in a row
//!              │ t1 t6   │ t3   │ t4 t8
//! ```
//!
//! - *Turns are the peers'*, not the transfers': one with 64 transfers gets no more than one with a
//!   single transfer.
//! - *Urgent* are transfers of class `Control`, and those of class `Message` that are no longer
//!   than a unit. All others are bulk.
//! - *Room.* [`Config::peer_in_flight_bytes`](crate::Config::peer_in_flight_bytes) for each peer,
//!   [`Config::in_flight_bytes`](crate::Config::in_flight_bytes) for all together. A unit is
//!   admitted whole. A peer without urgent bytes in flight may always have one urgent unit.
//! - *Stalled.* A peer with bytes in flight of which none has ended for
//!   [`Config::stall_patience`](crate::Config::stall_patience) no longer counts in the common
//!   bound, and gets no further unit until it moves: whatever it holds, there is room for all
//!   others.
//!
//! **Invariants**
//! 1. A bulk unit waits for at most one unit of each other peer that has room, and 8 urgent ones
//!    for each of these.
//! 2. An urgent transfer that finds its peer without urgent bytes waits for no bulk but what the
//!    adapter has got: `in_flight_bytes`, and a unit.
//! 3. `in_flight` is the sum of the peers'; all zero when no transfer is under way.
//!
//! **Source.** [PVFS-IB §3.4]: arranging transfers, network scheduling. Guarded by
//! `bmi-sim/tests/pacing.rs`.

use std::collections::VecDeque;

use super::Endpoint;
use super::op::State;
use super::peer::Peer;
use super::transfer::Outcome;
use super::unit::Unit;
use crate::config::Config;
use crate::op::{OpId, PeerId};
use crate::time::Time;
use crate::transport::{ServiceClass, Transport};
use crate::{mutated, mutated_each};

/// Urgent units in a row while bulk waits.
const URGENT_IN_A_ROW: u32 = 8;

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Urgent = 0,
    Bulk = 1,
}

impl Level {
    /// The level of a transfer of `total` bytes.
    pub(super) fn of(class: ServiceClass, total: u64, unit: usize) -> Level {
        match class {
            ServiceClass::Control => Level::Urgent,
            ServiceClass::Message if total <= unit as u64 => Level::Urgent,
            ServiceClass::Message | ServiceClass::Bulk => Level::Bulk,
        }
    }
}

/// A peer's transfers.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// Those with bytes still to be handed to the adapter, each in its turn, by level.
    queues: [VecDeque<OpId>; 2],
    /// Whether the peer stands in the ring of a level.
    listed: [bool; 2],
    /// Bytes with the adapter, by level.
    in_flight: [u64; 2],
    /// Work requests with the adapter.
    requests: usize,
    /// Units whose last request is with the adapter, in the order in which they will end: those
    /// that read and those that write.
    reads: VecDeque<Unit>,
    writes: VecDeque<Unit>,
    /// When a unit ended last, or the first was begun.
    moved_at: Time,
    /// Its bytes do not count.
    stalled: bool,
}

impl Moving {
    fn total(&self) -> u64 {
        self.in_flight[0] + self.in_flight[1]
    }
}

/// The turns of all peers.
#[derive(Debug, Default)]
pub(super) struct Turns {
    rings: [VecDeque<PeerId>; 2],
    urgent_in_a_row: u32,
    /// Bytes with the adapter; those of stalled peers among them.
    in_flight: u64,
    stalled: u64,
    /// No peer can stall before.
    no_stall_before: Time,
    /// Nobody has room before this time, unless something ends or comes.
    quiet_until: Option<Time>,
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Posted,
    /// The peer has had what it may have.
    PeerFull,
    /// All together have.
    AdapterFull,
    /// The connection's queue takes no more.
    QueueFull,
    /// It has no transfers on this level.
    Nothing,
}

impl Turns {
    /// Whether `transfer` may begin another unit.
    fn room(&self, moving: &Moving, level: Level, config: &Config) -> Result<(), Turn> {
        if level == Level::Urgent && moving.in_flight[0] == 0 {
            return Ok(());
        }
        if moving.stalled || moving.total() >= config.limits.peer_in_flight_bytes {
            return Err(Turn::PeerFull);
        }
        if self.in_flight - self.stalled >= config.limits.in_flight_bytes {
            return Err(Turn::AdapterFull);
        }
        Ok(())
    }

    /// Whether nobody has bytes to hand over.
    #[inline]
    pub(super) fn are_idle(&self) -> bool {
        self.rings.iter().all(VecDeque::is_empty)
    }

    /// Whether a transfer of this level may be done at once: it takes nobody's turn.
    #[inline]
    pub(super) fn is_free(&self, level: Level) -> bool {
        let [urgent, bulk] = self.rings.each_ref().map(VecDeque::is_empty);
        urgent && (bulk || (level == Level::Urgent && self.urgent_in_a_row < URGENT_IN_A_ROW))
    }

    /// It was; while bulk waits that counts as a unit.
    #[inline]
    pub(super) fn taken(&mut self, level: Level) {
        if level == Level::Urgent && !self.rings[Level::Bulk as usize].is_empty() {
            self.urgent_in_a_row += 1;
        }
    }

    /// A request of a unit went to the adapter.
    pub(super) fn posted(&mut self, moving: &mut Moving, level: Level, len: u64, now: Time) {
        if moving.requests == 0 {
            moving.moved_at = now;
        }
        moving.requests += 1;
        moving.in_flight[level as usize] += len;
        self.in_flight += len;
        if moving.stalled {
            self.stalled += len;
        }
    }

    /// The last request of a unit went.
    pub(super) fn closed(&mut self, moving: &mut Moving, unit: Unit, writes: bool) {
        if writes { moving.writes.push_back(unit) } else { moving.reads.push_back(unit) }
    }

    /// The oldest unit that reads, or writes, has ended.
    pub(super) fn ended(&mut self, moving: &mut Moving, writes: bool, now: Time) -> Option<Unit> {
        let unit = if writes { moving.writes.pop_front() } else { moving.reads.pop_front() }?;
        if std::mem::take(&mut moving.stalled) {
            self.stalled -= moving.total();
        }
        moving.moved_at = now;
        moving.requests -= unit.requests as usize;
        moving.in_flight[unit.level as usize] -= unit.bytes;
        self.in_flight -= if mutated("pacing/bytes-stay-in-flight") { 0 } else { unit.bytes };
        self.quiet_until = None;
        Some(unit)
    }
}

impl<T: Transport> Endpoint<T> {
    /// Puts a transfer into the queue of its peer.
    pub(super) fn queue_transfer(&mut self, peer: PeerId, id: OpId, level: Level) {
        let Some(record) = self.peers.get_mut(peer.0) else { return };
        record.moving.queues[level as usize].push_back(id);
        if !std::mem::replace(&mut record.moving.listed[level as usize], true) {
            self.turns.rings[level as usize].push_back(peer);
        }
        self.turns.quiet_until = None;
    }

    /// Hands units to the adapter, as far as there is room, one of each peer in turn. Returns
    /// whether any went.
    pub(super) fn pump_transfers(&mut self) -> bool {
        if self.turns.are_idle() || self.turns.quiet_until.is_some_and(|until| self.now < until) {
            return false;
        }
        self.turns.quiet_until = None;
        let mut any = false;
        loop {
            let order = if self.turns.urgent_in_a_row < URGENT_IN_A_ROW {
                [Level::Urgent, Level::Bulk]
            } else {
                [Level::Bulk, Level::Urgent]
            };
            let (mut posted, mut adapter_full, mut queue_full) = (false, false, false);
            for level in order {
                match self.give_turn(level) {
                    Turn::Posted => posted = true,
                    Turn::AdapterFull => adapter_full = true,
                    Turn::QueueFull => queue_full = true,
                    Turn::PeerFull | Turn::Nothing => {}
                }
                if posted {
                    let urgent = level == Level::Urgent;
                    self.turns.urgent_in_a_row = if urgent { self.turns.urgent_in_a_row.saturating_add(1) } else { 0 };
                    break;
                }
            }
            any |= posted;
            if posted || (adapter_full && self.mark_stalled()) {
                continue;
            }
            if !queue_full {
                let until = if adapter_full { self.turns.no_stall_before } else { Time::from_nanos(u64::MAX) };
                self.turns.quiet_until = Some(until);
            }
            return any;
        }
    }

    /// Lets the first peer of a level that has room hand over a unit; if there is none, says what
    /// stands in the way, the adapter's bound before all else but a full queue.
    fn give_turn(&mut self, level: Level) -> Turn {
        let mut why = Turn::Nothing;
        for _ in 0..self.turns.rings[level as usize].len() {
            let Some(peer) = self.turns.rings[level as usize].pop_front() else { break };
            let turn = self.peer_turn(peer, level);
            let Some(record) = self.peers.get_mut(peer.0) else { continue };
            let more = !record.moving.queues[level as usize].is_empty();
            record.moving.listed[level as usize] = more;
            if more {
                self.turns.rings[level as usize].push_back(peer);
            }
            match turn {
                Turn::Posted => return Turn::Posted,
                Turn::QueueFull => why = Turn::QueueFull,
                Turn::AdapterFull if why != Turn::QueueFull => why = Turn::AdapterFull,
                _ => {}
            }
        }
        why
    }

    fn peer_turn(&mut self, peer: PeerId, level: Level) -> Turn {
        loop {
            let Some(record) = self.peers.get_mut(peer.0) else { return Turn::Nothing };
            let Some(id) = record.moving.queues[level as usize].front().copied() else { return Turn::Nothing };
            // A unit that was begun is finished, whatever the bounds say by now: it was admitted
            // whole.
            let begun = self
                .ops
                .get(id.0)
                .is_some_and(|op| matches!(&op.state, State::Moving(transfer) if transfer.open.requests > 0));
            if let (false, Err(full)) = (begun, self.turns.room(&record.moving, level, &self.config)) {
                return full;
            }
            record.moving.queues[level as usize].pop_front();
            let outcome = self.post_unit(id);
            let Some(record) = self.peers.get_mut(peer.0) else { return Turn::Nothing };
            match outcome {
                Outcome::Posted => record.moving.queues[level as usize].push_back(id),
                Outcome::Last => {}
                Outcome::QueueFull if mutated_each(10, "pacing/transfer-forgotten") => {}
                Outcome::QueueFull => record.moving.queues[level as usize].push_front(id),
                Outcome::Over => continue,
            }
            return if outcome == Outcome::QueueFull { Turn::QueueFull } else { Turn::Posted };
        }
    }

    /// Finds peers that have come to a halt; says whether there is one more. Looks at the peers
    /// only when one can have stalled since the last time.
    fn mark_stalled(&mut self) -> bool {
        if self.now < self.turns.no_stall_before {
            return false;
        }
        let (patience, now) = (self.config.timeouts.stall_patience, self.now);
        let (mut found, mut next) = (false, now + patience);
        for peer in self.peers.values_mut() {
            let moving = &mut peer.moving;
            if moving.requests == 0 || moving.stalled {
                continue;
            }
            if moving.moved_at + patience <= now {
                moving.stalled = true;
                self.turns.stalled += moving.total();
                found = true;
            } else {
                next = next.min(moving.moved_at + patience);
            }
        }
        self.turns.no_stall_before = next;
        found
    }

    /// When to look again though nothing arrives.
    pub(super) fn next_turn(&self) -> Option<Time> {
        self.turns.quiet_until.filter(|until| *until < Time::from_nanos(u64::MAX))
    }

    /// Takes back what a lost peer had with the adapter.
    pub(super) fn settle_transfers(&mut self, record: &Peer) {
        let moving = &record.moving;
        self.work -= moving.requests;
        self.turns.in_flight -= moving.total();
        if moving.stalled {
            self.turns.stalled -= moving.total();
        }
        self.turns.quiet_until = None;
        for unit in moving.reads.iter().chain(&moving.writes) {
            unit.staged.into_iter().for_each(|(buffer, _)| self.packing.free(buffer));
        }
    }
}
