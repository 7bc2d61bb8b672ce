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
//!   ends        <══ the last write, with immediate data: bit 31 set, 31 bits that name the grant
//! ```
//!
//! Immediate data without bit 31 is the number of a fast-RDMA slot (see
//! [`crate::engine::message::fast_rdma`]).
//!
//! **Invariants**
//! 1. A grant that ends early is left to the peer ([`super::lent`]). If the peer then writes, the
//!    connection stays. If it announces the end, nothing is left any more.
//! 2. The last write spends a message credit, because its immediate data consumes a receive.
//! 3. *Nothing of others.* An adapter does not tell how many bytes the peer has written. So the
//!    memory is zeroed before it is exposed: bytes that the peer announces and does not write are
//!    zeros, not what another peer left there. This costs one pass over the granted bytes. All
//!    other paths know how much has arrived, and need none.
//!    [`Engine::post_push_granted`](crate::engine::Engine::post_push_granted) refuses to write less
//!    than the whole grant.

use serde::{Deserialize, Serialize};

use super::lent;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Effect, Operations, Peer};
use crate::wire::{BulkDescriptor, Violation};

/// The description of a grant, for the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The granted memory.
    pub descriptor: BulkDescriptor,
    /// The immediate data that the peer returns.
    pub token: u32,
}

/// Handles the immediate data of a granted push.
pub(in crate::engine) fn on_granted(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    immediate: u32,
) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    // If there is none, what was left to the peer was revoked in the meantime.
    Ok(peer.grants.find(immediate).map_or(Effect::None, |id| lent::end(adapter, ops, peer, id, Ok(()))))
}
