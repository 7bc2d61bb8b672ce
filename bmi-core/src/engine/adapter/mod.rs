//! The adapter side of an endpoint: the transport, what is exposed through it, and what the program
//! holds of its receive slots. The door is `AdapterSide`.

mod exposure;
mod inbox;
mod short_paths;
mod side;
mod work;

pub(in crate::engine) use exposure::Exposures;
pub(in crate::engine) use inbox::Inbox;
pub(crate) use side::read_only;
pub(in crate::engine) use side::{AdapterSide, Attempt, Message, unsignalled};
pub(in crate::engine) use work::Work;
