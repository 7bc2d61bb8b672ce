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
//! 3. `in_flight` is the sum over the peers. All of them are zero when no transfer is in flight.
//!
//! **Source.** [PVFS-IB §3.4]: arranging transfers, network scheduling. Tested by
//! `bmi-sim/tests/it/calls/pacing.rs`.

use std::time::Duration;

use super::transfer::{Outcome, post_unit};
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Level, Operations, Peer, Peers, State, Turn, Turns, URGENT_IN_A_ROW};
use crate::mutated_each;
use crate::time::Time;

/// Hands units to the adapter while there is room, one of each peer in turn. Returns whether any
/// was posted.
pub(in crate::engine) fn take_turns(adapter: &mut AdapterSide, ops: &mut Operations, peers: &mut Peers) -> bool {
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
        let patience = adapter.config.tuning.stall_patience;
        if posted || (adapter_full && mark_stalled(&mut adapter.turns, peers, patience, adapter.now)) {
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
fn level_turn(adapter: &mut AdapterSide, ops: &mut Operations, peers: &mut Peers, level: Level) -> Turn {
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
fn peer_turn(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer, level: Level) -> Turn {
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

/// Marks the peers that have stalled. Returns true if there is a new one. Checks the peers only
/// when one can have stalled since the last check.
fn mark_stalled(turns: &mut Turns, peers: &mut Peers, patience: Duration, now: Time) -> bool {
    if now < turns.no_stall_before {
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
            turns.stalled += moving.total();
            found = true;
        } else {
            next = next.min(moving.moved_at + patience);
        }
    }
    turns.no_stall_before = next;
    found
}

/// Takes back the units and bytes that a lost peer had with the adapter.
pub(in crate::engine) fn settle(adapter: &mut AdapterSide, peer: &Peer) {
    let moving = &peer.moving;
    adapter.work -= moving.requests;
    adapter.turns.forget(moving);
    for unit in moving.reads.iter().chain(&moving.writes) {
        unit.staged.into_iter().for_each(|(buffer, _)| adapter.packing.free(buffer));
    }
}
