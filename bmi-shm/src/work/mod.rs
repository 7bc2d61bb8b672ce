//! Posted work and the memory that it holds: the queues of a connection (`queue_pair`), their
//! segments (`segments`), and the completions that the next poll reports (`completions`). Sends
//! nothing.

mod completions;
mod pen;
mod queue_pair;
mod request;
mod segments;

pub(crate) use completions::{Completions, Pending};
pub(crate) use pen::{Pen, Shortcut};
pub(crate) use queue_pair::QueuePair;
pub(crate) use segments::{Cursor, Recv};
