//! A cluster on this machine that lasts as long as a command, or a program, and leaves nothing
//! behind: `pvfsd scratch`, and how another program starts it.

mod command;
mod servers;

pub(crate) use command::Scratch;
pub use servers::Servers;
