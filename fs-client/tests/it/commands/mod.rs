//! The commands `pvfs` and `pvfsd` as processes, some of which are stopped, killed or replaced.

mod accidents;
mod cli;
pub(crate) mod control;
mod copies;
mod descriptors;
mod metrics;
mod names;
mod put;
mod restore;
mod trees;
mod whose_bytes;
