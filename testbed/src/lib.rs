//! What tests of whole programs share.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | a test of command lines: every option of every subcommand is parsed |
//! | [`process`] | processes that end with their parent, what the system says about one, and time |
//! | [`sandbox`] | a directory that goes with the process that made it |
//! | [`cluster`] | servers of the file system, each a process |
//! | [`command`] | one command of `pvfs` with a time limit |
//! | [`names`] | the models that say which bytes can be read under a name |
//!
//! The program `stress` has the two long tests of a cluster, `cargo xtask storm` and `cargo xtask
//! hostile`.
//!
//! **Invariant.** This library depends on no other crate of the file system or of a transport, so
//! that each of them can use it in its tests.

pub mod cli;
pub mod cluster;
pub mod command;
pub mod names;
pub mod process;
pub mod sandbox;

use std::error::Error;
use std::fmt::Display;

/// A reason why this machine cannot do what a test needs.
pub type Failed = Box<dyn Error + Send + Sync>;

/// The result of what depends on this machine.
pub type Outcome<T = ()> = Result<T, Failed>;

/// Returns a function that adds the name of a file or a program to an error.
pub fn named<E: Display>(name: impl Display) -> impl FnOnce(E) -> Failed {
    move |error| format!("{name}: {error}").into()
}
