//! The commands `pvfs` and `pvfsd` as processes, some of which are stopped, killed or replaced.

mod accidents;
mod cli;
mod control;
mod descriptors;
mod metrics;
mod put;
mod restore;
mod trees;
mod whose_bytes;
