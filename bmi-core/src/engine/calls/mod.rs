//! What an endpoint does for calls ([`crate::comm`]): opening and closing them, the facts that
//! their path depends on, and those that are dropped before their reply.

mod dropped;
mod open;
mod path;

pub(crate) use dropped::DroppedCall;
pub(crate) use open::{CallPart, leave_unanswered};
pub(in crate::engine) use path::Choices;
