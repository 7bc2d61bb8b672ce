//! The books: records of peers, operations and transfers, and what handlers return. They send
//! nothing and call no handler. The types are the doors; `record` writes the timeline.

mod effect;
mod exposure;
mod lent;
mod op;
mod operations;
mod peer;
mod peers;
pub(in crate::engine) mod record;
mod report;
mod turns;
pub(in crate::engine) mod unit;

pub(in crate::engine) use effect::{Arrival, Effect, End, SlotMessage};
pub use exposure::Exposure;
pub(in crate::engine) use exposure::Revoked;
pub(in crate::engine) use lent::{Lent, is_granted};
pub(in crate::engine) use op::{Offer, Op, Record, State, writes};
pub(in crate::engine) use operations::{Held, Kept, Operations};
pub use peer::MAX_TAG;
pub(in crate::engine) use peer::{
    ACCEPTOR, CALL, Content, FastSlots, Link, Notice, Parked, Peer, ReadyReceive, Repost, SlotUse, TheirSlots, is_call,
    reserved_tag,
};
pub(in crate::engine) use peers::Peers;
pub use report::{Counters, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected};
pub(in crate::engine) use report::{Place, Release, ReleasedSlot};
pub(in crate::engine) use turns::{Turn, Turns, URGENT_IN_A_ROW};
pub(in crate::engine) use unit::{Level, Plan, Transfer, Unit};
