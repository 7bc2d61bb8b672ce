//! A cache in front of the files of an I/O server: which service has one ([`Service`]), the store
//! that serves from it ([`UnifiedStore`]), views that clients read in place, and what is left of it
//! by a server that was killed ([`CachedFiles`]).

mod cached_files;
mod queries;
mod service;
mod unified;
mod views;

pub(crate) use cached_files::{AnyStore, CachedFiles};
pub use service::{CacheSettings, LEAST_CACHE, Service};
pub use unified::UnifiedStore;
pub use views::{SharedRange, ViewSettings};
