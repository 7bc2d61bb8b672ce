//! What the user provides (`disk`), chooses (`settings`), and asks (`query`).

mod disk;
mod query;
mod settings;

pub use disk::{CacheError, Disk};
pub use query::{Busiest, Counters, Coverage, FileCounters, FileStatistics, Statistics};
pub(crate) use settings::is_unit;
pub use settings::{Hints, Pattern, Settings};
