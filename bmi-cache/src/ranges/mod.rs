//! Bytes of a file: lists of extents (`extent`), who may use which bytes (`range_locks`), and the
//! steps that a list costs (`steps`).

mod extent;
mod range_locks;
mod steps;

pub use extent::Extent;
pub(crate) use extent::{Spans, by_unit, joined};
pub(crate) use range_locks::{Progress, RangeLocks};
pub(crate) use steps::steps;
#[cfg(test)]
pub(crate) use steps::steps_of;
