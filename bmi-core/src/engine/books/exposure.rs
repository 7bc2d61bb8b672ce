//! Memory that is exposed to a peer, as the program holds it.

use std::sync::Arc;

use crate::mem::{OneOrMany, RemoteKey, RemoteSlice, keys_of};
use crate::op::PeerId;
use crate::sync::Returns;
use crate::wire::BulkDescriptor;

/// Memory exposed to one peer. Dropping it revokes the exposure at the endpoint's next poll.
#[derive(Debug)]
pub struct Exposure {
    pub(crate) peer: PeerId,
    pub(crate) descriptor: BulkDescriptor,
    /// Nothing of this side waits for it.
    pub(crate) standing: bool,
    pub(crate) revoked: Arc<Returns<Revoked>>,
}

/// A note that an exposure was dropped: one of its keys.
#[derive(Debug)]
pub(crate) struct Revoked {
    pub(crate) peer: PeerId,
    pub(crate) key: RemoteKey,
    pub(crate) standing: bool,
}

impl Exposure {
    /// Returns the descriptor that the peer needs in order to use the exposure.
    pub fn descriptor(&self) -> &BulkDescriptor {
        &self.descriptor
    }

    /// Takes what is exposed. It stays exposed, and the drop of this value does not end it.
    pub(crate) fn take(mut self) -> OneOrMany<RemoteSlice> {
        self.descriptor.take()
    }

    /// Returns the only peer that may use the exposure.
    pub fn peer(&self) -> PeerId {
        self.peer
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        for key in keys_of(self.descriptor.pieces()).as_slice() {
            self.revoked.push(Revoked { peer: self.peer, key: *key, standing: self.standing });
        }
    }
}
