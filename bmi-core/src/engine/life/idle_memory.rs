//! The memory of idle connections: pages of receive slots and fast-RDMA slots that messages have
//! touched go back to the system when no message has come for a while.
//!
//! **Why.** A connection has 1.3 MiB of slots, all of which a burst of messages touches. Where
//! receives are consumed in the order of posting ([`Transport::post_alike`]), any 128 messages do.
//! With thousands of clients that come, work for a while and stay connected, this adds up to
//! gigabytes. The slots stay posted and the credits stay granted: only the pages go. So flow
//! control, and the argument that it cannot deadlock (`wire::credit`), are as before.
//!
//! **Protocol.** A message marks its peer as used, which costs a store. Every [`IDLE`] a sweep
//! looks at the marks. A peer whose slots were used, and then were not for a whole interval, gives
//! back its pages, with one system call for each of its memories. If no peer is marked there is no
//! sweep.
//!
//! ```text
//!   Clean ──message──> Used ──sweep──> Quiet ──sweep──> Due ──poll──> Clean
//!                       ^────message─────┴───────────────┘
//! ```
//!
//! Peers that are gone have unmapped their slots. The records of many small pieces that each had
//! from the allocator stay in the process, because any byte in use behind them keeps them there. So
//! the sweep after the loss of many peers asks the allocator to return its free pages.
//!
//! **Invariants**
//! 1. Pages are discarded only if all slots are posted or free: no message of the peer is held by
//!    the program, parked in a slot or on its way into one. The last is known to the transport only
//!    ([`Transport::release_idle`]).
//! 2. Only where registration is free. An adapter that pins pages would write to the old ones.
//!    There is no sweep for it, except after the loss of many peers. Its connections cost what they
//!    have registered.
//! 3. A poll discards for at most [`BATCH`] peers, so that it returns soon.
//!
//! **Tests.** `bmi_conformance::idle_memory`.

use std::time::Duration;

use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Peer, Peers, SlotUse};
use crate::mem::trim_allocator;
use crate::time::Time;
use crate::transport::{IdleMemory, Transport};

/// How long no message must have come. A page that is needed again costs a page fault, so a client
/// that sends a message each second should keep its pages.
const IDLE: Duration = Duration::from_secs(2);
/// Most peers whose pages one poll gives back. One with 650 KiB in memory took 0.3 ms on a busy
/// machine.
const BATCH: usize = 8;
/// Number of lost peers after which the next sweep gives back what they had from the allocator.
const MANY_LOST: usize = 64;

/// When to look for idle peers.
#[derive(Debug, Default)]
pub(in crate::engine) struct Sweeps {
    next: Option<Time>,
    /// The last sweep was not finished.
    unfinished: bool,
    /// Number of peers lost since the allocator was asked to return pages.
    lost_since_trim: usize,
}

impl Sweeps {
    /// Makes sure that there will be a sweep. Called when events have come.
    #[inline]
    pub(in crate::engine) fn expect_idleness(&mut self, adapter: &AdapterSide) {
        if self.next.is_none() && adapter.registration_is_free() {
            self.next = Some(adapter.now + IDLE);
        }
    }

    /// Notes that a peer is gone.
    pub(super) fn note_lost_peer(&mut self, adapter: &AdapterSide) {
        self.lost_since_trim += 1;
        self.expect_idleness(adapter);
        if self.lost_since_trim >= MANY_LOST && self.next.is_none() {
            self.next = Some(adapter.now + IDLE);
        }
    }

    /// Returns the time of the next sweep.
    pub(in crate::engine) fn next(&self) -> Option<Time> {
        self.next
    }

    /// Returns true if a sweep is due.
    #[inline]
    pub(in crate::engine) fn are_due(&self, now: Time) -> bool {
        self.next.is_some_and(|at| at <= now)
    }

    /// Gives back the pages of idle peers.
    #[cold]
    pub(in crate::engine) fn sweep(&mut self, adapter: &mut AdapterSide, peers: &mut Peers) {
        if !self.unfinished {
            peers.iter_mut().for_each(|peer| {
                peer.slot_use = match peer.slot_use {
                    SlotUse::Used => SlotUse::Quiet,
                    SlotUse::Quiet => SlotUse::Due,
                    other => other,
                }
            });
        }
        let mut left = BATCH;
        for peer in peers.iter_mut().filter(|peer| peer.slot_use == SlotUse::Due) {
            if left == 0 {
                // The rest follows in the next polls.
                (self.next, self.unfinished) = (Some(adapter.now), true);
                return;
            }
            left -= 1;
            release(adapter, peer);
        }
        if self.lost_since_trim >= MANY_LOST {
            self.lost_since_trim = 0;
            peers.shrink();
            trim_allocator();
        }
        let more = peers.iter_mut().any(|peer| peer.slot_use != SlotUse::Clean);
        (self.next, self.unfinished) = (more.then_some(adapter.now + IDLE), false);
    }
}

/// Gives back the pages of a peer, if no slot holds a message.
fn release(adapter: &mut AdapterSide, peer: &mut Peer) {
    peer.slot_use = SlotUse::Clean;
    if !peer.has_empty_slots() {
        return;
    }
    let idle = adapter.transport.release_idle(peer.conn);
    if idle != IdleMemory::Nothing {
        peer.slots.memory().discard();
    }
    if idle == IdleMemory::ReceivesAndExposures {
        peer.fast.as_ref().inspect(|slots| slots.discard());
    }
}

impl Peer {
    /// Returns true if no slot holds a message, or may be about to: all are posted or free.
    fn has_empty_slots(&self) -> bool {
        self.is_up() && self.held == 0 && self.unposted.is_empty() && self.account.slots_in_use() == 0
    }
}
