//! The books of pacing ([`crate::engine::bulk::pacing`]): the transfers of each peer, the rings of
//! peers, and the bytes with the adapter.

use std::collections::VecDeque;

use super::unit::{Level, Unit};
use crate::config::Config;
use crate::mutated;
use crate::op::{OpId, PeerId};
use crate::time::Time;
use crate::wire::named::Names;

/// Most urgent units in a row while bulk waits.
pub(in crate::engine) const URGENT_IN_A_ROW: u32 = 8;

/// The transfers of a peer.
#[derive(Debug, Default)]
pub(in crate::engine) struct Moving {
    /// The transfers with bytes that the adapter does not have yet, in the order of their turns, by
    /// level.
    pub(in crate::engine) queues: [VecDeque<OpId>; 2],
    /// Whether the peer is in the ring of a level.
    pub(in crate::engine) listed: [bool; 2],
    /// Bytes with the adapter, by level.
    pub(super) in_flight: [u64; 2],
    /// Work requests with the adapter.
    pub(in crate::engine) requests: usize,
    /// Units whose last request is with the adapter, in the order in which they will end: those
    /// that read, and those that write.
    pub(in crate::engine) reads: VecDeque<Unit>,
    pub(in crate::engine) writes: VecDeque<Unit>,
    /// The messages that are moved by rendezvous, by the peer's names for its operations: those
    /// that this side reads, and those that it writes.
    named: [Names<OpId>; 2],
    /// The time at which a unit last ended, or the first was begun.
    pub(in crate::engine) moved_at: Time,
    /// Set if the bytes of the peer do not count in the common bound.
    pub(in crate::engine) stalled: bool,
}

impl Moving {
    pub(in crate::engine) fn total(&self) -> u64 {
        self.in_flight[0] + self.in_flight[1]
    }

    /// Records that a transfer moves the message that the peer names so.
    #[inline(never)]
    pub(in crate::engine) fn enter_name(&mut self, name: u64, id: OpId, writes: bool) {
        self.named[usize::from(writes)].insert(name, id);
    }

    /// Records that such a transfer has ended.
    #[inline(never)]
    pub(in crate::engine) fn leave_name(&mut self, name: u64, id: OpId, writes: bool) {
        self.named[usize::from(writes)].remove(name, id);
    }

    /// Returns the operation that reads, or writes, the message that the peer names so.
    pub(in crate::engine) fn of_name(&self, name: u64, writes: bool) -> Option<OpId> {
        self.named[usize::from(writes)].find(name)
    }
}

/// The turns of all peers.
#[derive(Debug, Default)]
pub(in crate::engine) struct Turns {
    pub(in crate::engine) rings: [VecDeque<PeerId>; 2],
    pub(in crate::engine) urgent_in_a_row: u32,
    /// Bytes with the adapter, including those of stalled peers.
    pub(super) in_flight: u64,
    pub(in crate::engine) stalled: u64,
    /// No peer can stall before this time.
    pub(in crate::engine) no_stall_before: Time,
    /// No peer has room before this time, unless a unit ends or a transfer comes.
    pub(in crate::engine) quiet_until: Option<Time>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Turn {
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
    pub(in crate::engine) fn room(&self, moving: &Moving, level: Level, config: &Config) -> Result<(), Turn> {
        if level == Level::Urgent && moving.in_flight[0] == 0 {
            return Ok(());
        }
        if moving.stalled || moving.total() >= config.tuning.peer_in_flight_bytes {
            return Err(Turn::PeerFull);
        }
        if self.in_flight - self.stalled >= config.tuning.in_flight_bytes {
            return Err(Turn::AdapterFull);
        }
        Ok(())
    }

    /// Returns true if no peer has bytes to hand to the adapter.
    #[inline]
    pub(in crate::engine) fn are_idle(&self) -> bool {
        self.rings.iter().all(VecDeque::is_empty)
    }

    /// Returns true if a transfer of this level may be done at once, without taking the turn of
    /// another.
    #[inline]
    pub(in crate::engine) fn is_free(&self, level: Level) -> bool {
        let [urgent, bulk] = self.rings.each_ref().map(VecDeque::is_empty);
        urgent && (bulk || (level == Level::Urgent && self.urgent_in_a_row < URGENT_IN_A_ROW))
    }

    /// Records a transfer that was done at once. While bulk waits, it counts as an urgent unit.
    #[inline]
    pub(in crate::engine) fn taken(&mut self, level: Level) {
        if level == Level::Urgent && !self.rings[Level::Bulk as usize].is_empty() {
            self.urgent_in_a_row += 1;
        }
    }

    /// Appends a transfer to the queue of its peer.
    pub(in crate::engine) fn queue(&mut self, moving: &mut Moving, peer: PeerId, id: OpId, level: Level) {
        moving.queues[level as usize].push_back(id);
        if !std::mem::replace(&mut moving.listed[level as usize], true) {
            self.rings[level as usize].push_back(peer);
        }
        self.quiet_until = None;
    }

    /// Records that the adapter has taken a request of a unit.
    pub(in crate::engine) fn posted(&mut self, moving: &mut Moving, level: Level, len: u64, now: Time) {
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
    pub(in crate::engine) fn closed(&mut self, moving: &mut Moving, unit: Unit, writes: bool) {
        if writes { moving.writes.push_back(unit) } else { moving.reads.push_back(unit) }
    }

    /// Removes and returns the oldest unit that reads, or writes. It has ended.
    pub(in crate::engine) fn ended(&mut self, moving: &mut Moving, writes: bool, now: Time) -> Option<Unit> {
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
    pub(in crate::engine) fn next_check(&self) -> Option<Time> {
        self.quiet_until.filter(|until| *until < Time::from_nanos(u64::MAX))
    }

    /// Takes back the bytes of a peer that is lost.
    pub(in crate::engine) fn forget(&mut self, moving: &Moving) {
        self.in_flight -= moving.total();
        if moving.stalled {
            self.stalled -= moving.total();
        }
        self.quiet_until = None;
    }
}
