//! The end of an endpoint that goes on to exist: the last handle of a program is gone, but futures,
//! messages and exposures are not.
//!
//! **Protocol.** Connections end as by [`Engine::disconnect`]: what was posted before is sent,
//! and receives are cancelled. Within [`Config::fence_grace`](crate::Config::fence_grace) all are
//! gone. Operations without a peer end at once. Afterwards nothing can be posted: no peer is left,
//! and no new one comes. So every operation has ended, and no adapter is at the memory of any.

use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::op::{OpId, Options, PeerId};
use crate::time::Time;

impl Engine {
    /// Begins to close the endpoint at the time `now`, which may be long after the last poll. It
    /// must be polled until it [has closed](Self::has_closed).
    pub(crate) fn close(&mut self, now: Time) {
        self.closing = true;
        let options = Options::within(now, self.adapter.config.timeouts.fence_grace);
        let without_peer = self.ops.iter().filter(|(_, op)| op.peer.is_none() && !op.is_done());
        let without_peer: Vec<OpId> = without_peer.map(|(id, _)| id).collect();
        without_peer.into_iter().for_each(|op| self.end_operation(op, ErrorKind::Cancelled));
        let peers: Vec<PeerId> = self.peers.iter().map(|peer| peer.id).collect();
        for peer in peers {
            // A connection that is ending already has its own deadline.
            if let Ok(op) = self.start_disconnect(peer, options) {
                self.detach(op);
            }
        }
    }

    /// Returns true if the endpoint is closed or closing.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns true if the endpoint is closed: no peer is left, and every operation has ended.
    pub(crate) fn has_closed(&self) -> bool {
        self.closing && self.peers.len() == 0
    }

    /// Refuses what needs an endpoint that stays.
    ///
    /// # Errors
    /// `Cancelled` if the endpoint is closing.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closing {
            return Err(closed());
        }
        Ok(())
    }
}

/// Returns the error for the use of a closed endpoint.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Cancelled, "the endpoint was closed by this program")
}
