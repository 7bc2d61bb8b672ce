//! What the manager keeps: the tables of its database, and the rules for changing them. A function
//! here takes a transaction, and knows neither requests nor servers.

mod check;
pub(super) mod dedup;
mod holds;
mod identity;
pub(super) mod names;
pub(super) mod placement;
pub(super) mod pools;
mod revoked;

pub(super) use check::{CheckFrom, check_page};
#[cfg(test)]
pub(super) use dedup::WINDOW;
pub(super) use dedup::{CLIENTS, Dedup};
pub(super) use holds::{HOLDERS, Held, Holds, NOBODY};
pub(super) use identity::{ASKED, IDENTITY, RESTORED, STARTS, identity, not_formatted};
#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(super) use names::fuzz_view;
pub(super) use names::{
    Birth, COUNTERS, Change, Decided, NAMELESS, NAMES, NewFile, OBJECTS, ORPHANS, Object, Publication, Stored,
    TRUNCATES, Truncates, XATTRS, kind_number, objects_from,
};
pub(super) use placement::{Candidate, Unplaced, Wanted};
pub(super) use pools::{DISCARDS, POOLS, Pools};
pub(super) use revoked::revoked;
