//! The open files of a store: a datafile's descriptors ([`OpenFile`]), the table of those that are
//! kept ([`OpenFiles`]), and the openings in flight ([`Openings`]).

mod direct_file;
mod file;
mod openings;
mod order;
mod table;

pub(super) use direct_file::{Alignment, DirectFile, Way};
pub(super) use file::OpenFile;
pub(super) use openings::{Begun, Openings};
pub(super) use table::{Closing, Named, OPEN_FILES, OpenFiles};
