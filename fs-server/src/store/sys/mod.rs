//! Calls of the system on files, and what their errors mean. Everything else of the store is above
//! it.

mod calls;
mod faults;
mod pause;

pub(super) use calls::{
    MOST_PIECES, count, position, read_at, read_at_once, read_pieces_at, resident, start_writeback, vectors, write_at,
    write_at_once, write_out, write_pieces_at,
};
pub(super) use faults::{fault, no_descriptor, trouble};
pub(super) use pause::pause;
