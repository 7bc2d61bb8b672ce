//! The I/O servers of a cluster: which they are and whether they are up ([`Members`]), how one
//! registers, what is to be done at each (`maintenance`), and how far they have come when the
//! metadata was restored ([`RollCall`], `inventory`).

mod inventory;
mod maintenance;
mod members;
mod registration;
mod roll_call;

pub(super) use maintenance::Link;
pub(super) use members::{MEMBERS, Members};
pub(super) use registration::Registering;
pub(crate) use roll_call::RollCall;
