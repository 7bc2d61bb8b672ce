//! A client (`handle`), what it knows of files that it uses (`files`, `sizes`, `striping`), and
//! what it asks about servers (`servers`). What is done with names and with data is in the rooms
//! above.

mod answers;
mod files;
mod handle;
mod options;
mod servers;
mod sizes;
mod striping;

pub use answers::{ClientStats, Datafile, Latency, Pong, ServerSpace, Space, Stat, Unfinished};
pub use handle::{Client, SharedClient};
pub use options::{ClientOptions, CreateOptions, OpenFileOptions};
pub(crate) use sizes::Writing;
pub(crate) use striping::Striping;
