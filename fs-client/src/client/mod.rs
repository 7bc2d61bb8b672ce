//! A client (`handle`), what it knows of open files (`open_state`, `sizes`), what it holds
//! (`holds`) and what it asks about servers (`servers`). What is done with names and with data is
//! in the rooms above.

mod answers;
mod handle;
mod holds;
mod open_state;
mod options;
mod servers;
mod sizes;

pub use answers::{ClientStats, Datafile, Latency, Pong, ServerSpace, Space, Stat, Unfinished};
pub use handle::{Client, SharedClient};
pub use options::{ClientOptions, CreateOptions, OpenFileOptions};
