//! Deadlines, and ending operations early.
//!
//! **Invariant.** An operation has at most one valid timer. At first this is its deadline. Once the
//! operation was asked to end, it is the fence: the time at which the connection is cut because the
//! peer has not released the memory.

use super::op::{Offer, Op, State};
use super::peer::Notice;
use super::{Endpoint, Peer};
use crate::error::{Error, ErrorKind};
use crate::mutated;
use crate::op::{OpId, OpKind};
use crate::proto::table::Key;
use crate::transport::Transport;

impl<T: Transport> Endpoint<T> {
    /// Handles the timers that are due.
    pub(super) fn expire(&mut self) {
        while let Some(id) = self.ops.pop_due(self.now) {
            let op = self.ops.get(id.0).expect("what is due is there");
            match (op.kind, op.ending, op.peer) {
                (OpKind::Timer, ..) => self.finish(id, Ok(()), 0),
                (_, None, _) if mutated("deadline/ignored") => {}
                (_, None, _) => self.end_early(id, ErrorKind::TimedOut),
                (kind, Some(_), Some(peer)) => {
                    let text = format!("it did not let go of the memory of a {} that was ended", kind.as_str());
                    self.cut(peer, Error::new(ErrorKind::TimedOut, text));
                }
                (_, Some(_), None) => {}
            }
        }
        self.ops.tidy_timers();
    }

    /// Ends an operation early with the status `kind`. It ends at once if no adapter can be
    /// accessing its memory.
    pub(super) fn end_early(&mut self, id: OpId, kind: ErrorKind) {
        let Some(op) = self.ops.get_mut(id.0) else { return };
        if op.is_done() || op.ending.is_some() {
            return;
        }
        let peer = op.peer.and_then(|peer| self.peers.get_mut(peer.0));
        match (&op.state, op.kind, peer) {
            (State::Queued, _, Some(peer)) => {
                peer.queue.retain(|queued| *queued != id);
                // Operations behind it may now be able to go, or a closing connection may be
                // drained.
                op.peer.into_iter().for_each(|peer| self.mark_dirty(peer));
            }
            (State::Matching(place), _, Some(peer)) if !matches!(op.offer, Offer::Made(_)) => {
                let found = peer.posted.remove(*place);
                debug_assert!(found.is_some(), "a receive that waits is on the list");
            }
            (State::Granted(_), ..) => return self.end_grant(id, Err(kind)),
            (State::Waiting, OpKind::Timer | OpKind::Probe, _) | (_, _, None) => {}
            _ => return self.fence(id, kind),
        }
        self.finish(id, Err(kind), 0);
    }

    /// Asks the adapter or the peer to stop accessing the memory of an operation. The operation
    /// ends when that is certain, by the end of the grace period at the latest.
    fn fence(&mut self, id: OpId, kind: ErrorKind) {
        let op = self.ops.get_mut(id.0).expect("the caller has it");
        op.ending = Some(kind);
        let peer_id = op.peer.expect("only operations with a peer have a fence");
        let waits_for_adapter = match (&op.state, op.kind) {
            (State::Waiting, _) => {
                let conn = self.peers.get(peer_id.0).map(|peer| peer.conn);
                conn.into_iter().for_each(|conn| self.transport.disconnect(conn, self.now));
                return;
            }
            (State::Announced(_) | State::Matching(_) | State::AwaitingWrite { .. }, _) => false,
            (State::Moving(transfer), _) => {
                if (transfer.outstanding == 0 || mutated("cancel/does-not-wait-for-the-adapter")) && !transfer.broken {
                    return self.finish_transfer(id);
                }
                true
            }
            _ => true,
        };
        // The grace period begins now, and the last poll may be long ago.
        self.ops.clear_timer(id);
        self.fences.push(id);
        if !waits_for_adapter && !mutated("cancel/peer-not-told") {
            let op = name_of(id);
            let receive = self.ops.get(id.0).is_some_and(|op| op.kind == OpKind::Recv);
            self.notify(peer_id, if receive { Notice::Withdraw { op } } else { Notice::Cancel { op } });
        }
    }

    /// Sets the fences of the operations that were asked to end since the last call. Each is the
    /// grace period from now.
    pub(super) fn set_fences(&mut self) {
        while let Some(id) = self.fences.pop() {
            if self.ops.get(id.0).is_some_and(|op| !op.is_done()) {
                self.ops.set_timer(id, self.now + self.config.timeouts.fence_grace);
            }
        }
    }

    /// Sends a notice, now or when there is a credit.
    pub(super) fn notify(&mut self, peer: crate::PeerId, notice: Notice) {
        if let Some(record) = self.peers.get_mut(peer.0) {
            record.notices.push_back(notice);
            self.mark_dirty(peer);
        }
    }

    /// Ends all operations of a peer whose connection is gone. No adapter accesses their memory any
    /// more.
    pub(super) fn end_all_of(&mut self, peer: crate::PeerId, record: &Peer, reason: &Error) {
        let ids: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, op)| op.peer == Some(peer) && !op.is_done())
            .map(|(key, _)| OpId(key))
            .collect();
        self.settle_transfers(record);
        for id in ids.into_iter().skip(usize::from(mutated("lost/operation-left"))) {
            let op = self.ops.get_mut(id.0).expect("listed above");
            if let State::Moving(transfer) = &mut op.state
                && let Some((buffer, _)) = transfer.open.staged.take()
            {
                self.packing.free(buffer);
            }
            let op = self.ops.get(id.0).expect("looked up above");
            self.finish(id, end_with_peer(op, record, reason), 0);
        }
    }
}

/// Returns the status of an operation whose peer is lost.
fn end_with_peer(op: &Op, peer: &Peer, reason: &Error) -> Result<(), ErrorKind> {
    match (op.kind, op.ending) {
        (OpKind::Disconnect, _) => Ok(()),
        (_, Some(kind)) => Err(kind),
        (OpKind::Connect, None) => Err(reason.kind()),
        (OpKind::Recv | OpKind::Discard, None) if matches!(peer.link, super::peer::Link::Closing(_)) => {
            Err(ErrorKind::Cancelled)
        }
        _ => Err(ErrorKind::PeerLost),
    }
}

/// Returns the operation of this side that a peer names. The name is unchecked, and must be looked
/// up.
pub(super) fn op_of(name: u64) -> OpId {
    let slot = u32::try_from(name & u64::from(u32::MAX)).expect("masked");
    OpId(Key { slot, generation: u32::try_from(name >> 32).expect("shifted") })
}

/// Returns the name by which the peer refers to an operation of this side.
pub(super) fn name_of(op: OpId) -> u64 {
    u64::from(op.0.generation) << 32 | u64::from(op.0.slot)
}
