//! Grants: memory that a peer may write once. The peer reports the end of the write with immediate
//! data.
//!
//! **Why.** If RDMA read is missing or slow, data moves in the other direction. The side with the
//! buffers describes them, and the side with the data writes it there (client-based RDMA,
//! [PVFS-IB §3.2.3]). The last write carries immediate data, so its end is known without a message.
//!
//! **Protocol**
//!
//! ```text
//!   post_grant  ──the program sends the grant──>  post_push_granted
//!                                                  ══ RDMA writes, in units ══
//!   ends        <══ the last write, with immediate data: bit 31 set, 20 bits slot, 11 bits generation of the operation
//! ```
//!
//! Immediate data without bit 31 is the number of a fast-RDMA slot (see [`super::fast_rdma`]).
//!
//! **Invariants**
//! 1. A grant that ends early is revoked first. If the peer still announces its end, no operation
//!    is found and the announcement is dropped.
//! 2. The last write spends a message credit, because its immediate data consumes a receive.
//! 3. *Nothing of others.* An adapter does not tell how many bytes the peer has written. So the
//!    memory is zeroed before it is exposed: bytes that the peer announces and does not write are
//!    zeros, not what another peer left there. This costs one pass over the granted bytes. All
//!    other paths know how much has arrived, and need none. [`Endpoint::post_push_granted`] refuses
//!    to write less than the whole grant.

use serde::{Deserialize, Serialize};

use super::Endpoint;
use super::op::{Op, State};
use super::receive::Violation;
use crate::bulk::BulkDescriptor;
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice};
use crate::mutated;
use crate::op::{OpId, OpKind, Options, PeerId, Posted};
use crate::transport::Transport;

/// Set in the immediate data of a granted push.
const GRANTED: u32 = 1 << 31;
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 11;

/// The description of a grant, for the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The granted memory.
    pub descriptor: BulkDescriptor,
    /// The immediate data that the peer returns.
    pub token: u32,
}

/// Returns the immediate data that names an operation.
fn token_of(id: OpId) -> Option<u32> {
    let generation = id.0.generation & ((1 << GENERATION_BITS) - 1);
    (id.0.slot < 1 << SLOT_BITS).then_some(GRANTED | (id.0.slot << GENERATION_BITS) | generation)
}

/// Returns true if immediate data announces a granted push.
pub(super) fn is_granted(immediate: u32) -> bool {
    immediate & GRANTED != 0
}

impl<T: Transport> Endpoint<T> {
    /// Lets `peer` write `list` once, with [`Endpoint::post_push_granted`]. The operation
    /// (`OpKind::Grant`) ends when the peer has written the data. It may also end early, and then
    /// the peer can no longer write.
    ///
    /// The memory is filled with zeros first. So it holds nothing but zeros where the peer does not
    /// write, even if the peer claims that it has written everything.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`; `Invalid` for an empty list or too many pieces; `Unsupported`
    /// without immediate data.
    pub fn post_grant(
        &mut self,
        peer: PeerId,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<(Grant, OpId), Error> {
        self.start_grant(peer, list.into(), options).map_err(|error| error.during(OpKind::Grant.as_str()))
    }

    fn start_grant(&mut self, peer: PeerId, list: MemList, options: Options) -> Result<(Grant, OpId), Error> {
        self.check_target(peer, &list)?;
        if list.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a grant of no bytes"));
        }
        if !self.transport.capabilities().write_with_immediate {
            return Err(Error::new(ErrorKind::Unsupported, "the adapter has no write with immediate data"));
        }
        list.pieces().iter().for_each(MemSlice::zero);
        let remote = self.expose_list(peer, &list, Access::WRITE)?;
        let descriptor = BulkDescriptor::try_from(remote.as_slice().to_vec())?;
        let id = self.insert_op(OpKind::Grant, Some(peer), 0, Some(list), options, State::Granted(remote));
        let Some(token) = token_of(id) else {
            self.end_grant(id, Err(ErrorKind::Exhausted));
            self.ops.collect(id);
            return Err(Error::new(ErrorKind::Exhausted, "more operations than a grant can name"));
        };
        Ok((Grant { descriptor, token }, id))
    }

    /// Writes `local` to the memory of `grant`. The last write notifies the peer.
    ///
    /// # Errors
    /// As [`Endpoint::post_push`]; `Invalid` for an empty list, and for a list that is not as long
    /// as the grant. The peer would take a shorter one for complete.
    pub fn post_push_granted(
        &mut self,
        peer: PeerId,
        grant: &Grant,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        let local = local.into();
        if local.is_empty() || !is_granted(grant.token) {
            return Err(Error::new(ErrorKind::Invalid, "a push of no bytes, or a grant that is none").during("push"));
        }
        if local.len() as u64 != grant.descriptor.len() {
            let text = format!("{} bytes for a grant of {}", local.len(), grant.descriptor.len());
            return Err(Error::new(ErrorKind::Invalid, text).during("push"));
        }
        self.start_push(peer, &grant.descriptor, local, grant.token, options)
    }

    /// Handles the announcement of a granted push.
    pub(super) fn on_granted(&mut self, peer_id: PeerId, immediate: u32) -> Result<(), Violation> {
        self.spent_message(peer_id)?;
        let slot = (immediate & !GRANTED) >> GENERATION_BITS;
        let named = |key: crate::proto::table::Key| token_of(OpId(key)) == Some(immediate);
        let granted = |op: &Op| op.peer == Some(peer_id) && matches!(op.state, State::Granted(_));
        // The grant most likely ended early, and then the peer could no longer write.
        let Some((key, op)) = self.ops.at(slot).filter(|(key, op)| named(*key) && granted(op)) else { return Ok(()) };
        debug_assert_eq!(op.kind, OpKind::Grant);
        self.end_grant(OpId(key), Ok(()));
        Ok(())
    }

    /// Revokes the memory and ends the operation.
    pub(super) fn end_grant(&mut self, id: OpId, status: Result<(), ErrorKind>) {
        let Some(op) = self.ops.get(id.0) else { return };
        let (State::Granted(remote), Some(peer), len) = (&op.state, op.peer, op.len()) else { return };
        let remote = remote.clone();
        if !mutated("grant/good-for-ever") {
            self.revoke_all(peer, remote.as_slice());
        }
        if status.is_ok() {
            self.counters.bytes_received += len as u64;
        }
        self.finish(id, status, len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::table::Key;

    #[test]
    fn tokens_name_one_operation_of_a_slot() {
        let id = |slot, generation| OpId(Key { slot, generation });
        assert_eq!(token_of(id(1 << SLOT_BITS, 0)), None);
        let token = token_of(id(7, 9)).unwrap();
        assert!(is_granted(token) && !is_granted(7));
        assert_ne!(Some(token), token_of(id(7, 10)));
        assert_eq!(token_of(id((1 << SLOT_BITS) - 1, u32::MAX)), Some(u32::MAX));
    }
}
