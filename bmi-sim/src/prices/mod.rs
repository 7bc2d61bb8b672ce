//! The price of each operation, and the files that prices are read from. Ways in: [`Profile`],
//! [`DiskProfile`], and [`per_bytes`] for what a number of bytes costs.

mod file;
mod profile;

pub use file::ProfileError;
pub(crate) use profile::per_bytes;
pub use profile::{DiskProfile, Profile};
