//! How bytes get between memory and a file: at once on the event loop, by a worker, or past the
//! page cache by a ring of the kernel. `files` decides which.
//!
//! | module | contents |
//! |---|---|
//! | `lists` | lists of memory, cut and copied |
//! | `jobs` | a transfer as regions and their memory; made on this thread |
//! | `at_once` | what of it the event loop may do itself |
//! | `parts`, `course` | what of it goes past the page cache, and how far it has come |
//! | `ring` | has the kernel make the calls |
//! | `direct` | which of them a store uses |

mod at_once;
mod course;
mod direct;
mod jobs;
mod lists;
mod parts;
mod ring;

pub(super) use at_once::AtOnce;
pub(super) use course::{Course, Direction, is_refusal};
pub(super) use direct::{Direct, alignment_of};
pub(super) use jobs::{Job, jobs, len, read_all, rest, write_all};
pub(super) use lists::{Rest, copy, cut};
pub(super) use parts::may_be_direct;
#[cfg(test)]
pub(super) use ring::Ring;
