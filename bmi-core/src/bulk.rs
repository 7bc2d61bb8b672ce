//! Bulk transfer: one side exposes a list of memory pieces and sends their small description along with a request; the other
//! pulls or pushes, between any two lists.
//!
//! **Source.** Server-based RDMA of paper 000, section 3.2.3, Figure 3: the client provides the buffers with the request, the server
//! moves the bytes when it can. A pull serves a PVFS write, a push a PVFS read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};
use crate::mem::{RemoteKey, RemoteSlice, keys_of};
use crate::op::PeerId;
use crate::returns::Returns;

/// Describes memory that a peer exposed: what travels in a request. 24 bytes a piece in binary, a little less with postcard.
///
/// A descriptor that came from a peer is a claim, checked by the peer's own adapter when it is used; a lying one costs the liar its
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<RemoteSlice>", into = "Vec<RemoteSlice>")]
pub struct BulkDescriptor {
    pieces: Vec<RemoteSlice>,
    len: u64,
}

impl BulkDescriptor {
    /// The pieces in order.
    pub fn pieces(&self) -> &[RemoteSlice] {
        &self.pieces
    }

    /// Total length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl TryFrom<Vec<RemoteSlice>> for BulkDescriptor {
    type Error = Error;

    /// # Errors
    /// `Invalid` if the total length overflows 64 bits.
    fn try_from(pieces: Vec<RemoteSlice>) -> Result<BulkDescriptor, Error> {
        let len = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len)).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the pieces of a bulk descriptor add up to more than 64 bits")
        })?;
        Ok(BulkDescriptor { pieces, len })
    }
}

impl From<BulkDescriptor> for Vec<RemoteSlice> {
    fn from(descriptor: BulkDescriptor) -> Vec<RemoteSlice> {
        descriptor.pieces
    }
}

/// Memory exposed to one peer. Dropping it revokes the exposure at the endpoint's next poll.
#[derive(Debug)]
pub struct Exposure {
    pub(crate) peer: PeerId,
    pub(crate) descriptor: BulkDescriptor,
    pub(crate) revoked: Arc<Returns<(PeerId, RemoteKey)>>,
}

impl Exposure {
    /// What the peer needs to know.
    pub fn descriptor(&self) -> &BulkDescriptor {
        &self.descriptor
    }

    /// The only peer that may use it.
    pub fn peer(&self) -> PeerId {
        self.peer
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        for key in keys_of(&self.descriptor.pieces).as_slice() {
            self.revoked.push((self.peer, *key));
        }
    }
}
