//! Endpoints, their handles and their shards: the order of messages, the short paths, registered
//! memory, recordings, and bugs that are gone.

mod endpoint;
mod handle;
mod matching_order;
mod pin_cache;
mod regressions;
mod shards;
mod short_paths;
mod timeline;
