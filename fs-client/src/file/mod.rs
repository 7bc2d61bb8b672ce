//! An open file (`handle`) and what is done with its data: reads and writes (`transfer`, `list`,
//! `view`, `shared_read`), its size and space, syncs, hints for the caches of its servers and
//! questions to these (`caches`). Arrays of the crate `ndarray` as types (`ndarray`).

mod advice;
mod caches;
mod handle;
mod list;
#[cfg(feature = "ndarray")]
mod ndarray;
mod shared_read;
mod size;
mod sync;
mod transfer;
mod unsynced;
mod view;

#[cfg(feature = "ndarray")]
pub use self::ndarray::{Number, array_type, slice_type};
pub use caches::{Cached, ServerCache, ServerCoverage};
pub use handle::{File, SharedFile};
pub use list::{Extended, ExtendedRaw};
pub(crate) use sync::sync_files;
pub use view::TypedMemory;
pub(crate) use view::{Joining, stream_range};
