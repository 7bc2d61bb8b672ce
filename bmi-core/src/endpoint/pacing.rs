//! Pacing: which transfer hands the next unit to the adapter, and when there is room for it.
//!
//! **Why.** Work that the adapter has is in its queue ahead of everything that comes later. So the
//! adapter gets no more than keeps it busy. The rest waits here, where it can be ordered. An I/O
//! server with a hundred clients must serve all of them, and a small request must not wait for
//! another client's bulk data.
//!
//! **Protocol**
//!
//! ```text
//!   urgent   (peer 3) (peer 7)              the first peer that has room posts one unit of its first transfer;
//!              │ t9     │ t2  t5            then the transfer and the peer go to the end of their queues
//!   bulk     (peer 1) (peer 3) (peer 4)     when no urgent peer has room, or after 8 urgent units in a row
//!              │ t1 t6   │ t3   │ t4 t8
//! ```
//!
//! - *Peers take turns*, not transfers. A peer with 64 transfers gets no more than one with a
//!   single transfer.
//! - *Urgent* transfers are those of class `Control`, and those of class `Message` that are no
//!   longer than a unit. All others are bulk.
//! - *Room.* [`Config::peer_in_flight_bytes`](crate::Config::peer_in_flight_bytes) bounds the bytes
//!   of each peer, and [`Config::in_flight_bytes`](crate::Config::in_flight_bytes) those of all
//!   peers. A unit is admitted as a whole. A peer without urgent bytes in flight may always post
//!   one urgent unit.
//! - *Stalled.* A peer is stalled if it has bytes in flight and none of its units has ended for
//!   [`Config::stall_patience`](crate::Config::stall_patience). It no longer counts in the common
//!   bound, and gets no further unit until it moves. So there is room for all others, whatever it
//!   holds.
//!
//! **Invariants**
//! 1. A bulk unit waits for at most one unit of each other peer that has room, and for 8 urgent
//!    units for each of these.
//! 2. An urgent transfer whose peer has no urgent bytes in flight waits only for the bulk that the
//!    adapter has: `in_flight_bytes` and one unit.
//! 3. `in_flight` is the sum over the peers. All of them are zero when no transfer is under way.
//!
//! **Source.** [PVFS-IB §3.4]: arranging transfers, network scheduling. Tested by
//! `bmi-sim/tests/pacing.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use super::adapter_side::AdapterSide;
use super::op::State;
use super::operations::Operations;
use super::peer::Peer;
use super::peers::Peers;
use super::transfer::{Outcome, post_unit};
use super::unit::Unit;
use crate::config::Config;
use crate::op::{OpId, PeerId};
use crate::time::Time;
use crate::transport::{ServiceClass, Transport};
use crate::{mutated, mutated_each};

/// Most urgent units in a row while bulk waits.
const URGENT_IN_A_ROW: u32 = 8;

/// The priority of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Urgent = 0,
    Bulk = 1,
}

impl Level {
    /// Returns the level of a transfer of `total` bytes.
    pub(super) fn of(class: ServiceClass, total: u64, unit: usize) -> Level {
        match class {
            ServiceClass::Control => Level::Urgent,
            ServiceClass::Message if total <= unit as u64 => Level::Urgent,
            ServiceClass::Message | ServiceClass::Bulk => Level::Bulk,
        }
    }
}

/// The transfers of a peer.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// The transfers with bytes that the adapter does not have yet, in the order of their turns, by
    /// level.
    queues: [VecDeque<OpId>; 2],
    /// Whether the peer is in the ring of a level.
    listed: [bool; 2],
    /// Bytes with the adapter, by level.
    in_flight: [u64; 2],
    /// Work requests with the adapter.
    requests: usize,
    /// Units whose last request is with the adapter, in the order in which they will end: those
    /// that read, and those that write.
    reads: VecDeque<Unit>,
    writes: VecDeque<Unit>,
    /// The time at which a unit last ended, or the first was begun.
    moved_at: Time,
    /// Set if the bytes of the peer do not count in the common bound.
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
    /// Bytes with the adapter, including those of stalled peers.
    in_flight: u64,
    stalled: u64,
    /// No peer can stall before this time.
    no_stall_before: Time,
    /// No peer has room before this time, unless a unit ends or a transfer comes.
    quiet_until: Option<Time>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Posted,
    /// The peer has reached its bound.
    PeerFull,
    /// All peers together have reached the common bound.
    AdapterFull,
    /// The queue of the connection is full.
    QueueFull,
    /// The peer has no transfers on this level.
    Nothing,
}

impl Turns {
    /// Returns `Ok` if a peer with the transfers `moving` may begin another unit, and otherwise the
    /// bound that was reached.
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

    /// Returns true if no peer has bytes to hand to the adapter.
    #[inline]
    pub(super) fn are_idle(&self) -> bool {
        self.rings.iter().all(VecDeque::is_empty)
    }

    /// Returns true if a transfer of this level may be done at once, without taking the turn of
    /// another.
    #[inline]
    pub(super) fn is_free(&self, level: Level) -> bool {
        let [urgent, bulk] = self.rings.each_ref().map(VecDeque::is_empty);
        urgent && (bulk || (level == Level::Urgent && self.urgent_in_a_row < URGENT_IN_A_ROW))
    }

    /// Records a transfer that was done at once. While bulk waits, it counts as an urgent unit.
    #[inline]
    pub(super) fn taken(&mut self, level: Level) {
        if level == Level::Urgent && !self.rings[Level::Bulk as usize].is_empty() {
            self.urgent_in_a_row += 1;
        }
    }

    /// Appends a transfer to the queue of its peer.
    pub(super) fn queue(&mut self, peer: &mut Peer, id: OpId, level: Level) {
        peer.moving.queues[level as usize].push_back(id);
        if !std::mem::replace(&mut peer.moving.listed[level as usize], true) {
            self.rings[level as usize].push_back(peer.id);
        }
        self.quiet_until = None;
    }

    /// Records that the adapter has taken a request of a unit.
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

    /// Records that the adapter has taken the last request of a unit.
    pub(super) fn closed(&mut self, moving: &mut Moving, unit: Unit, writes: bool) {
        if writes { moving.writes.push_back(unit) } else { moving.reads.push_back(unit) }
    }

    /// Removes and returns the oldest unit that reads, or writes. It has ended.
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

    /// Returns the time at which to check again though nothing arrives.
    pub(super) fn next_check(&self) -> Option<Time> {
        self.quiet_until.filter(|until| *until < Time::from_nanos(u64::MAX))
    }

    /// Marks the peers that have stalled. Returns true if there is a new one. Checks the peers only
    /// when one can have stalled since the last check.
    fn mark_stalled(&mut self, peers: &mut Peers, patience: Duration, now: Time) -> bool {
        if now < self.no_stall_before {
            return false;
        }
        let (mut found, mut next) = (false, now + patience);
        for peer in peers.iter_mut() {
            let moving = &mut peer.moving;
            if moving.requests == 0 || moving.stalled {
                continue;
            }
            if moving.moved_at + patience <= now {
                moving.stalled = true;
                self.stalled += moving.total();
                found = true;
            } else {
                next = next.min(moving.moved_at + patience);
            }
        }
        self.no_stall_before = next;
        found
    }
}

impl<T: Transport> AdapterSide<T> {
    /// Takes back the units and bytes that a lost peer had with the adapter.
    pub(super) fn settle_transfers(&mut self, peer: &Peer) {
        let moving = &peer.moving;
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

/// Hands units to the adapter while there is room, one of each peer in turn. Returns whether any
/// was posted.
pub(super) fn take_turns<T: Transport>(adapter: &mut AdapterSide<T>, ops: &mut Operations, peers: &mut Peers) -> bool {
    if adapter.turns.are_idle() || adapter.turns.quiet_until.is_some_and(|until| adapter.now < until) {
        return false;
    }
    adapter.turns.quiet_until = None;
    let mut any = false;
    loop {
        let order = if adapter.turns.urgent_in_a_row < URGENT_IN_A_ROW {
            [Level::Urgent, Level::Bulk]
        } else {
            [Level::Bulk, Level::Urgent]
        };
        let (mut posted, mut adapter_full, mut queue_full) = (false, false, false);
        for level in order {
            match level_turn(adapter, ops, peers, level) {
                Turn::Posted => posted = true,
                Turn::AdapterFull => adapter_full = true,
                Turn::QueueFull => queue_full = true,
                Turn::PeerFull | Turn::Nothing => {}
            }
            if posted {
                let urgent = level == Level::Urgent;
                let in_a_row = adapter.turns.urgent_in_a_row.saturating_add(1);
                adapter.turns.urgent_in_a_row = if urgent { in_a_row } else { 0 };
                break;
            }
        }
        any |= posted;
        let patience = adapter.config.timeouts.stall_patience;
        if posted || (adapter_full && adapter.turns.mark_stalled(peers, patience, adapter.now)) {
            continue;
        }
        if !queue_full {
            let until = if adapter_full { adapter.turns.no_stall_before } else { Time::from_nanos(u64::MAX) };
            adapter.turns.quiet_until = Some(until);
        }
        return any;
    }
}

/// Lets the first peer of a level that has room post a unit. If no peer can, returns the obstacle.
/// A full queue is reported before the adapter's bound, and this before all else.
fn level_turn<T: Transport>(
    adapter: &mut AdapterSide<T>,
    ops: &mut Operations,
    peers: &mut Peers,
    level: Level,
) -> Turn {
    let mut why = Turn::Nothing;
    for _ in 0..adapter.turns.rings[level as usize].len() {
        let Some(id) = adapter.turns.rings[level as usize].pop_front() else { break };
        let Some(peer) = peers.get_mut(id) else { continue };
        let turn = peer_turn(adapter, ops, peer, level);
        let more = !peer.moving.queues[level as usize].is_empty();
        peer.moving.listed[level as usize] = more;
        if more {
            adapter.turns.rings[level as usize].push_back(id);
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

/// Lets a peer post a unit of its first transfer that has bytes left.
fn peer_turn<T: Transport>(adapter: &mut AdapterSide<T>, ops: &mut Operations, peer: &mut Peer, level: Level) -> Turn {
    loop {
        let Some(id) = peer.moving.queues[level as usize].front().copied() else { return Turn::Nothing };
        // A unit that was begun is finished, whatever the bounds are now, because it was admitted
        // as a whole.
        let begun =
            ops.get(id).is_some_and(|op| matches!(op.state(), State::Moving(transfer) if transfer.open.requests > 0));
        if let (false, Err(full)) = (begun, adapter.turns.room(&peer.moving, level, &adapter.config)) {
            return full;
        }
        peer.moving.queues[level as usize].pop_front();
        let outcome = post_unit(adapter, ops, peer, id);
        match outcome {
            Outcome::Posted => peer.moving.queues[level as usize].push_back(id),
            Outcome::Last => {}
            Outcome::QueueFull if mutated_each(10, "pacing/transfer-forgotten") => {}
            Outcome::QueueFull => peer.moving.queues[level as usize].push_front(id),
            Outcome::Over => continue,
        }
        return if outcome == Outcome::QueueFull { Turn::QueueFull } else { Turn::Posted };
    }
}
