//! Memory that one side has passed to the other: what is mapped and what the peer has (`pages`),
//! how much may be mapped (`room`), and what a peer may still write to after the end (`retired`).

mod pages;
mod retired;
mod room;
mod unmap;

pub(crate) use pages::{Mapped, Passed};
pub(crate) use retired::{Holder, Retired, release_orphans};
pub(crate) use room::Room;
