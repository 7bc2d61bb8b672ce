//! The records of the ring (`layout`): from the queues into it (`outbound`, `now` while posting),
//! out of it to the receives (`inbound`, `whole` in the common case), or past it through memory
//! that both sides have mapped. `link` is the shared half of a connection: its rings, its ways to
//! that memory.

mod inbound;
mod layout;
mod link;
mod now;
mod outbound;
mod whole;

pub(crate) use inbound::{Context, Inbound};
pub(crate) use layout::{BUDGET, LEFT_LEN, POST_BUDGET};
pub(crate) use link::Link;
pub(crate) use now::{Ring, leave_now, len_now, len_now_into, read_now, send_now, write_now};
pub(crate) use outbound::Outbound;
pub(crate) use whole::Pass;
