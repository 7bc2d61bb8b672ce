//! The open files of a store: a datafile's descriptors ([`OpenFile`]), the table of those that are
//! kept ([`OpenFiles`]), and the openings under way ([`Openings`]).

mod bypass;
mod file;
mod openings;
mod order;
mod table;

pub(super) use bypass::{Alignment, Bypass, Way};
pub(super) use file::OpenFile;
pub(super) use openings::{Begun, Openings};
pub(super) use table::{Closing, Named, OPEN_FILES, OpenFiles};
