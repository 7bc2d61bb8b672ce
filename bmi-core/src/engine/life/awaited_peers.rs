//! The peers that work of this side waits for, and whether that work goes on.
//!
//! **Why.** A server shares buffers and other resources among its clients. To take back what a
//! stopped client holds, it must know two things. First, that its work waits for the client, and
//! not for a disk or for another client. Second, that nothing has moved for some time. A client
//! that is slow moves a little each time, and must not be mistaken for one that has stopped.
//!
//! **Rules.** Work waits for a peer if the adapter has requests for it, if the peer may access
//! memory of this side, or if a message for it is queued. A transfer that waits for its turn among
//! other peers ([`crate::engine::bulk::pacing`]) does not wait for its own peer. Nothing waits for
//! memory that the peer may access as it likes, for any time ([`Engine::expose_standing`]).
//!
//! **Source.** An addition. [PVFS-IB] has no rule for clients that stop. Tested by
//! `fs-server/tests/sim/iod/stalled.rs` and `fs-server/tests/sim/iod/disk_stall.rs`.

use std::collections::BTreeMap;

use crate::engine::Engine;
use crate::engine::books::{Op, Peer, State};
use crate::mutated;
use crate::op::PeerId;
use crate::transport::Transport;

impl Engine {
    /// Returns the peers that work of this side waits for. Each has a number that grows whenever
    /// something of its connection has moved: bytes, as far as the adapter counts them
    /// ([`Transport::moved_bytes`]), messages that arrived, and transfer units and sends that
    /// ended. If two calls return the same number, nothing has moved between them.
    ///
    /// Visits every operation, so it is not for the data path.
    pub fn awaited_peers(&self) -> BTreeMap<PeerId, u64> {
        let exposed = self.peers.iter().filter(|peer| awaits_access(peer)).map(|peer| peer.id);
        let operations = self.ops.iter().filter(|(_, op)| waits_for_peer(op)).filter_map(|(_, op)| op.peer);
        let progress = |id: PeerId| {
            let peer = self.peers.get(id).filter(|peer| peer.is_up())?;
            Some((id, peer.steps + peer.seen + self.adapter.transport.moved_bytes(peer.conn)))
        };
        exposed.chain(operations).filter_map(progress).collect()
    }
}

/// Returns true if something waits for the peer to access memory of this side.
fn awaits_access(peer: &Peer) -> bool {
    peer.has_awaited_exposures() || peer.exposures > 0 && mutated("endpoint/view-counts-as-awaited")
}

/// Returns true if an operation can end only after its peer, or its connection, has moved.
fn waits_for_peer(op: &Op) -> bool {
    match op.state() {
        State::Queued | State::Posted | State::Announced(_) | State::AwaitingWrite { .. } | State::Granted(_) => true,
        State::Moving(transfer) => transfer.outstanding > 0,
        State::Matching(_) | State::Left(_) | State::Waiting | State::Vacant | State::Done { .. } => false,
    }
}
