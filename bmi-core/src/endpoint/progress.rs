//! The poll of an endpoint. It handles what was returned by other threads, the events of the
//! adapter, and the timers that are due. Then it sends what can be sent.

use super::Endpoint;
use super::inline_receive::InlineReceives;
use super::op::State;
use super::work::Work;
use crate::op::PeerId;
use crate::time::Time;
use crate::transport::{Event, HostWork, Transport, WorkCompletion, WorkStatus};
use crate::{mutated, mutated_each};

impl<T: Transport> Endpoint<T> {
    pub(super) fn progress(&mut self, now: Time) -> bool {
        // Most polls find nothing to do, so each step first checks a single word.
        self.now = self.now.max(now);
        self.set_fences();
        let mut worked = false;
        if !self.released.is_empty() || !self.revoked.is_empty() {
            self.take_returns();
            worked = true;
        }
        // This comes before the transport's poll, which deregisters what is released here.
        worked |= self.registry.poll(self.now);
        if self.poll_transport() {
            worked = true;
            self.retry_blocked();
        }
        if !self.events.is_empty() {
            self.take_events();
            self.expect_idleness();
        }
        if self.is_sweep_due() {
            self.sweep_idle_memory();
        }
        if !self.ops.are_quiet(self.now) {
            self.expire();
        }
        self.log.poll(self.now);
        if !self.turns.are_idle() {
            worked |= self.pump_transfers();
        }
        if !self.dirty.is_empty() {
            worked |= self.pump_peers();
        }
        self.set_fences();
        worked
    }

    /// Polls the adapter. Inline receives take messages during the poll.
    #[inline]
    fn poll_transport(&mut self) -> bool {
        let Self { transport, by_conn, peers, ops, dirty, counters, events, .. } = self;
        let mut inline = InlineReceives { by_conn, peers, ops, dirty, counters, now: self.now, copied: (0, 0) };
        let moved = transport.poll_inline(self.now, events, &mut inline);
        let (bytes, pieces) = inline.copied;
        if bytes > 0 {
            self.transport.charge(HostWork::Copy { bytes, pieces });
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

    /// Handles the unexpected messages and exposures that were dropped since the last poll.
    #[cold]
    pub(super) fn take_returns(&mut self) {
        let mut notes = std::mem::take(&mut self.release_notes);
        self.released.drain(&mut notes);
        for release in notes.drain(..) {
            self.on_release(release);
        }
        self.release_notes = notes;
        let mut notes = std::mem::take(&mut self.revoke_notes);
        self.revoked.drain(&mut notes);
        for (peer, key) in notes.drain(..) {
            if let Some(record) = self.peers.get_mut(peer.0) {
                record.exposures -= 1;
                if !mutated("exposure/dropped-and-still-good") {
                    self.transport.revoke(record.conn, key);
                }
            }
        }
        self.revoke_notes = notes;
    }

    /// Retries blocked peers. The adapter has made progress, so its queues may have room again.
    fn retry_blocked(&mut self) {
        while let Some(peer) = self.blocked.pop() {
            if !mutated_each(20, "queue/blocked-peer-forgotten") {
                self.mark_dirty(peer);
            }
        }
    }

    #[inline]
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Work(completion) => self.on_work(&completion),
            event => self.on_connection(event),
        }
    }

    #[cold]
    fn on_connection(&mut self, event: Event) {
        match event {
            Event::Work(_) => {}
            Event::ConnectRequest { conn, from, private } => self.on_request(conn, from, &private),
            Event::Established { conn, private } => self.on_established(conn, &private),
            Event::Rejected { conn, private } => self.on_rejected(conn, &private),
            Event::Disconnected { conn, reason } => self.on_disconnected(conn, reason),
        }
    }

    fn on_work(&mut self, completion: &WorkCompletion) {
        let WorkCompletion { conn, work, status, len, .. } = *completion;
        let peer = self.peer_of(conn);
        match (Work::from_id(work), peer) {
            (Work::Slot(slot), Some(peer)) if status == WorkStatus::Ok => {
                if let Some(immediate) = completion.immediate {
                    return self.on_immediate(peer, slot as usize, immediate);
                }
                self.on_message(peer, slot as usize, usize::try_from(len).unwrap_or(usize::MAX));
            }
            (Work::Bounce(slot), _) => {
                self.bounce.free(slot);
                peer.into_iter().for_each(|peer| self.sent_copy(peer));
            }
            (Work::Staged(buffer), _) => {
                self.staging.free(buffer);
                peer.into_iter().for_each(|peer| self.sent_copy(peer));
            }
            (Work::Op(op), Some(peer)) => match self.ops.get(op.0).map(|op| &op.state) {
                Some(State::Posted) => {
                    self.work -= 1;
                    if status == WorkStatus::Ok {
                        self.eager_done(op, peer);
                    }
                }
                _ => self.unit_done(peer, op, len, status),
            },
            // A receive was flushed, or a silent message failed. The end of the connection follows.
            (Work::Slot(_) | Work::Silent | Work::Op(_), _) => {}
        }
    }

    /// Handles the end of a send whose message was copied.
    fn sent_copy(&mut self, peer: PeerId) {
        if let Some(record) = self.peers.get_mut(peer.0) {
            record.steps += 1;
        }
        self.mark_dirty(peer);
    }

    /// Gives a turn to every peer that has something to send.
    fn pump_peers(&mut self) -> bool {
        let before = self.transmitted;
        // By index, because a turn may put peers on the list, even this one. Their turn comes in
        // the next poll.
        let turns = self.dirty.len();
        for at in 0..turns {
            let peer = self.dirty[at];
            if let Some(record) = self.peers.get_mut(peer.0) {
                record.dirty = false;
                self.pump_peer(peer);
            }
        }
        self.dirty.drain(..turns);
        before != self.transmitted
    }

    fn pump_peer(&mut self, peer: PeerId) {
        self.repost_rest(peer);
        self.pump(peer);
        self.return_credits(peer);
    }
}
