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
//!    other paths know how much has arrived, and need none.
//!    [`Endpoint::post_push_granted`](super::Endpoint::post_push_granted) refuses to write less
//!    than the whole grant.

use serde::{Deserialize, Serialize};

use super::adapter_side::AdapterSide;
use super::effect::Effect;
use super::op::{Op, State};
use super::operations::Operations;
use super::peer::Peer;
use crate::bulk::BulkDescriptor;
use crate::error::ErrorKind;
use crate::mutated;
use crate::op::OpId;
use crate::proto::Violation;
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
pub(super) fn token_of(id: OpId) -> Option<u32> {
    let generation = id.0.generation & ((1 << GENERATION_BITS) - 1);
    (id.0.slot < 1 << SLOT_BITS).then_some(GRANTED | (id.0.slot << GENERATION_BITS) | generation)
}

/// Returns true if immediate data announces a granted push.
pub(super) fn is_granted(immediate: u32) -> bool {
    immediate & GRANTED != 0
}

/// Handles the immediate data of a granted push.
pub(super) fn on_granted<T: Transport>(
    adapter: &mut AdapterSide<T>,
    ops: &Operations,
    peer: &mut Peer,
    immediate: u32,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    let slot = (immediate & !GRANTED) >> GENERATION_BITS;
    let granted = |op: &Op| op.peer == Some(peer.id) && matches!(op.state(), State::Granted(_));
    let named = ops.at(slot).filter(|(id, op)| token_of(*id) == Some(immediate) && granted(op));
    // If there is none, the grant most likely ended early, and then the peer could no longer write.
    Ok(named.map_or(Effect::None, |(id, _)| end(adapter, ops, peer, id, Ok(()))))
}

/// Revokes the memory of a grant and ends the operation.
pub(super) fn end<T: Transport>(
    adapter: &mut AdapterSide<T>,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    status: Result<(), ErrorKind>,
) -> Effect {
    let Some((op, State::Granted(remote))) = ops.get(id).map(|op| (op, op.state())) else { return Effect::None };
    if !mutated("grant/good-for-ever") {
        adapter.revoke_all(peer, remote.as_slice());
    }
    let len = op.len() as u64;
    if status.is_ok() {
        adapter.counters.bytes_received += len;
    }
    Effect::ends(id, status, len)
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
