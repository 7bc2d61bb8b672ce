//! An open file (`handle`) and what is done with its data: reads and writes (`transfer`, `list`,
//! `view`, `shared_read`), its size, syncs, hints for the caches of its servers and questions to
//! these (`caches`).

mod advice;
mod caches;
mod handle;
mod list;
mod shared_read;
mod size;
mod sync;
mod transfer;
mod unsynced;
mod view;

pub use caches::{Cached, ServerCache, ServerCoverage};
pub use handle::{File, SharedFile};
pub use list::{Extended, ExtendedRaw};
pub(crate) use sync::sync_files;
pub use view::TypedMemory;
pub(crate) use view::stream_range;
