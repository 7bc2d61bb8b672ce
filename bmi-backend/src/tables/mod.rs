//! What a poll works through: the connections, those with something to do, the events that are not
//! reported yet, and the earliest deadline.

mod connection_table;
mod deadlines;
mod event_queue;
mod slot_queue;

pub use connection_table::ConnectionTable;
pub use deadlines::Deadlines;
pub use event_queue::EventQueue;
pub use slot_queue::{SlotQueue, Turn};
