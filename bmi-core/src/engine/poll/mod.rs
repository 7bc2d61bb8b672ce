//! The poll of an endpoint. It handles what was returned by other threads, the events of the
//! adapter, and the timers that are due. Then it sends what can be sent.

mod events;

use crate::engine::Engine;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Operations, Peer};
use crate::engine::bulk::pacing;
use crate::engine::message::{InlineReceives, pump, return_credits};
use crate::error::{Error, ErrorKind};
use crate::mutated_each;
use crate::time::Time;
use crate::transport::{HostWork, Transport};

impl Engine {
    // Inlined into the loop of a program that polls: a call costs as much as two of the steps.
    #[inline]
    pub(super) fn progress(&mut self, now: Time) -> bool {
        // Most polls find nothing to do, so each step first checks a single word.
        self.adapter.now = self.adapter.now.max(now);
        self.set_fences();
        let mut worked = false;
        if self.has_returns() {
            self.take_returns();
            worked = true;
        }
        // This comes before the transport's poll, which deregisters what is released here.
        worked |= self.adapter.registry.poll(self.adapter.now);
        if self.poll_transport() {
            worked = true;
            self.retry_blocked();
        }
        if !self.events.is_empty() {
            self.take_events();
            self.sweeps.expect_idleness(&self.adapter);
        }
        if self.sweeps.are_due(self.adapter.now) {
            self.sweeps.sweep(&mut self.adapter, &mut self.peers);
        }
        if !self.ops.are_quiet(self.adapter.now) {
            self.expire();
        }
        self.adapter.log.poll(self.adapter.now);
        if !self.adapter.turns.are_idle() {
            worked |= pacing::take_turns(&mut self.adapter, &mut self.ops, &mut self.peers);
        }
        if self.peers.has_dirty() {
            worked |= self.pump_peers();
        }
        self.set_fences();
        worked
    }

    /// Notes what was dropped, and posts what it lets the peers have. Makes no system call.
    pub(super) fn settle_returns(&mut self, now: Time) {
        self.adapter.now = self.adapter.now.max(now);
        self.set_fences();
        if self.has_returns() {
            self.take_returns();
        }
        if self.peers.has_dirty() {
            self.pump_peers();
        }
    }

    /// Sends what was posted, and does not look for what arrives.
    pub(crate) fn send_posted(&mut self, now: Time) {
        self.settle_returns(now);
        if self.adapter.transport.flush(self.adapter.now, &mut self.events) {
            self.retry_blocked();
        }
        if !self.events.is_empty() {
            self.take_events();
            self.sweeps.expect_idleness(&self.adapter);
        }
        // A transfer may have found the queue full that has room now. Nothing else would tell it.
        if !self.adapter.turns.are_idle() {
            pacing::take_turns(&mut self.adapter, &mut self.ops, &mut self.peers);
        }
        if self.peers.has_dirty() {
            self.pump_peers();
        }
        self.set_fences();
    }

    /// Polls the adapter. Inline receives take messages during the poll.
    #[inline]
    fn poll_transport(&mut self) -> bool {
        let Self { adapter, ops, peers, events, .. } = self;
        let AdapterSide { transport, counters, now, short_paths, .. } = adapter;
        if !short_paths.receives {
            return transport.poll(*now, events);
        }
        let mut inline = InlineReceives { peers, ops, counters, now: *now, copied: (0, 0) };
        let moved = transport.poll_inline(*now, events, &mut inline);
        let (bytes, pieces) = inline.copied;
        if bytes > 0 {
            transport.charge(HostWork::Copy { bytes, pieces });
        }
        moved
    }

    fn take_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.on_event(event);
        }
        self.events = events;
    }

    /// Returns true if messages or exposures were dropped since the last call of `take_returns`.
    #[inline]
    pub(super) fn has_returns(&self) -> bool {
        !self.inbox.released.is_empty() || !self.exposures.revoked.is_empty()
    }

    /// Handles the unexpected messages and exposures that were dropped since the last poll.
    #[cold]
    pub(super) fn take_returns(&mut self) {
        self.take_released();
        self.revoke_dropped();
    }

    /// Retries blocked peers. The adapter has made progress, so its queues may have room again.
    fn retry_blocked(&mut self) {
        while let Some(peer) = self.adapter.blocked.pop() {
            if !mutated_each(20, "queue/blocked-peer-forgotten") {
                self.peers.mark_dirty(peer);
            }
        }
    }

    /// Gives a turn to every peer that has something to send.
    fn pump_peers(&mut self) -> bool {
        let Self { adapter, ops, peers, .. } = self;
        let before = adapter.transmitted;
        // By place, because a turn may put peers on the list, even this one. Their turn comes in
        // the next poll.
        let turns = peers.dirty_count();
        for at in 0..turns {
            if let Some(peer) = peers.unmark(at) {
                pump_peer(adapter, ops, peer);
            }
        }
        peers.drop_dirty(turns);
        before != adapter.transmitted
    }
}

/// A turn of a peer: posts receives that wait, sends what is queued, and returns credits.
fn pump_peer(adapter: &mut AdapterSide, ops: &mut Operations, peer: &mut Peer) {
    if !peer.unposted.is_empty()
        && let Err(why) = adapter.repost_rest(peer)
    {
        let text = format!("the transport refuses a receive: {why}");
        return adapter.cut(peer, Error::new(ErrorKind::Io, text));
    }
    pump(adapter, ops, peer);
    return_credits(adapter, peer);
}
