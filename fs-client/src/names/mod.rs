//! What is done with names: directories, files, attributes (`namespace`), a new file that gets its
//! name when it is complete (`draft`), links and extended attributes (`links`), files that are kept
//! as long as they are open (`held`), whole trees that are removed (`remove`).

mod draft;
mod held;
mod links;
mod namespace;
mod remove;

pub use draft::{Draft, Publish};
pub use held::Held;
pub use namespace::ReadDir;
