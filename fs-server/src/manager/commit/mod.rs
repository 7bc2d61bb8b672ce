//! How a change becomes durable: requests are queued ([`Queue`]), made in groups beside the event
//! loop ([`Database`]), and then seen by every loop ([`Lookups`]). A change of a file's size first
//! asks the file's servers ([`Truncations`]).

mod changes;
mod database;
mod group;
pub(super) mod lookups;
mod truncate;

pub(super) use changes::Queue;
pub(super) use database::{Database, Shared};
pub(super) use group::Requested;
pub(super) use lookups::{Lookups, View};
pub(super) use truncate::Truncations;
