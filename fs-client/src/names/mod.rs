//! What is done with names: directories, files, attributes (`namespace`), a new file that gets its
//! name when it is complete (`draft`), links and extended attributes (`links`), whole trees that are
//! removed (`remove`).

mod draft;
mod links;
mod namespace;
mod remove;

pub use draft::{Draft, Publish};
pub use namespace::ReadDir;
