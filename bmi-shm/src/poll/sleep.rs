//! Sleeping: when it is safe, what the peers are told, and whom a poll wakes.
//!
//! **Protocol** of waking. `arm` announces a nap in this side's area of every connection, passes a
//! full fence, and looks at every ring once more. A peer that has published a record, or has made
//! room for a side that waits for room, passes a full fence and looks for a nap that it has not
//! ended yet. If there is one it sends a WAKE packet, and the sleeper's epoll descriptor becomes
//! readable. A nap is ended only once. See `ring` for the proof.
//!
//! The fence waits until earlier stores have arrived at the other processor. So it comes once in a
//! poll that finds something for the peer, behind the other work on the connection, and never while
//! posting. No later poll may be waited for: the program may do something else after one.

use std::sync::atomic::Ordering;
use std::task::Waker;

use bmi_core::Time;
use bmi_core::transport::Armed;

use super::progress::wake_peer;
use crate::ShmTransport;
use crate::life::{Activity, Connection, Phase};
use crate::records::Link;
use crate::shared::{RingSpace, ring};
use crate::work::QueuePair;

impl ShmTransport {
    fn has_work(&mut self) -> bool {
        if !self.pending.is_empty() || !self.ready.is_empty() || self.accept_ready {
            return true;
        }
        let Self { schedule, slots, .. } = self;
        schedule.all().any(|slot| {
            // A quiet connection owes nothing.
            slots.at_mut(slot).filter(|connection| connection.activity != Activity::Quiet).is_some_and(|connection| {
                let makes_room = connection.queues.as_deref().is_some_and(QueuePair::makes_room);
                let waits = connection.more || connection.draining.is_some() || makes_room;
                waits || connection.link.as_deref().is_some_and(Link::owes)
            })
        })
    }

    /// Wakes the peers that sleep, in a poll that does not serve their connections.
    #[cold]
    pub(super) fn ring_bells(&mut self) {
        for slot in self.schedule.awake() {
            if let Some(Connection { link: Some(link), socket: Some(socket), .. }) = self.slots.at_mut(*slot)
                && link.ring_bell(true)
            {
                self.wakes += 1;
                wake_peer(socket);
            }
        }
    }

    pub(crate) fn arm(&mut self, _waker: &Waker) -> Armed {
        if self.has_work() {
            return Armed::Busy;
        }
        self.nap += 1;
        self.asleep = true;
        for slot in self.schedule.all() {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            let starved = u64::from(connection.waits_for_room());
            let Some(link) = &connection.link else { continue };
            ring::announce_sleep::<RingSpace>(link.own.sleep(), self.nap << 1 | starved);
        }
        let Self { schedule, slots, .. } = self;
        let arrived = schedule.all().any(|slot| {
            let Some(connection) = slots.at_mut(slot) else { return false };
            let waits_for_room = connection.waits_for_room();
            let Connection { link: Some(link), queues: Some(queues), phase, .. } = connection else { return false };
            // A closing connection reads no more.
            let reads = !matches!(phase, Phase::Closing { .. });
            let room = || link.peer.consumed().load(Ordering::Relaxed) != link.writer.consumed();
            let taken = || link.peer.taken().load(Ordering::Relaxed) != link.in_place_copied;
            reads && link.reader.has_next() || waits_for_room && room() || queues.has_gone() && taken()
        });
        // What has come since the last poll looked makes the descriptor readable. An event that was
        // there before makes no new edge for a thread that sleeps on it. A full answer may not be
        // complete.
        if !self.looked {
            self.ask_epoll();
        }
        if arrived || !self.looked || self.has_work() {
            self.rouse();
            return Armed::Busy;
        }
        self.look_at_latest = Time::ZERO; // look at once after waking
        Armed::Waiting
    }

    /// Withdraws the announcements.
    #[inline]
    pub(super) fn rouse(&mut self) {
        if !self.asleep {
            return;
        }
        self.asleep = false;
        for slot in self.schedule.all() {
            if let Some(Connection { link: Some(link), .. }) = self.slots.at_mut(slot) {
                link.own.sleep().store(0, Ordering::Relaxed);
            }
        }
    }
}
