//! How bytes get between memory and a file: at once on the event loop, by a worker, or by a ring of
//! the kernel. `files` decides which.
//!
//! | module | contents |
//! |---|---|
//! | `lists` | lists of memory, cut and copied |
//! | `jobs` | a transfer as regions and their memory; made on this thread |
//! | `at_once` | what of it the event loop may do itself |
//! | `parts`, `course` | what of it is direct I/O, and how far it has come |
//! | `ring` | has the kernel make the calls |
//! | `direct_io` | whether a store has direct I/O, and who makes its calls |

mod at_once;
mod course;
mod direct_io;
mod jobs;
mod lists;
mod parts;
mod ring;

pub(super) use at_once::AtOnce;
pub(super) use course::{Course, Direction, is_refusal};
pub(super) use direct_io::{DirectIo, alignment_of};
pub(super) use jobs::{Job, jobs, len, read_all, rest, write_all};
pub(super) use lists::{Rest, copy, cut};
pub(super) use parts::may_be_direct;
#[cfg(test)]
pub(super) use ring::Ring;
