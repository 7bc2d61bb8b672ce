//! One side of a connection, and the processing of the work requests that are posted to it.
//!
//! **Invariants**
//! 1. A request is in exactly one of `sends`, `reads` and `receives` from its post to its
//!    completion. So are its regions.
//! 2. `sends` and `reads` complete from the front, because packets of a connection and their
//!    answers keep their order.
//! 3. A place in a queue is taken from the post until the completion is *polled*; for an
//!    unsignalled success, until it is acknowledged. So neither a queue nor the list of unpolled
//!    events grows without bound.
//! 4. Bytes are copied once, when the target's adapter has them all and has checked the access. The
//!    bytes of a read are copied when the owner's adapter begins to reply. If a connection ends
//!    while a write is on its way, some bytes of the write may be in place. Nothing is copied for a
//!    connection that has ended on either side.
//!
//! **States**
//!
//! ```text
//!   Connecting ──Accepted──▶ Open ──disconnect──▶ Closing
//!   Requested ──accept──▶ Accepting ──Ready──▶ Open ──disconnect──▶ Closing
//!   any state ──(refused, rejected, deadline, cut, violation, peer's end, queues drained)──▶ gone:
//!       flushed, Disconnected
//! ```

mod ends;
mod lifecycle;
mod memory;
mod state;
mod work;

pub(crate) use memory::Registrations;
pub(crate) use state::{Bytes, Conn, Pool, ReadWork, RecvWork, SendWork, Slot, State, is_message};
