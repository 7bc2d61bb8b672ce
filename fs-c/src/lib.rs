//! `libpvfs`: the file system for programs in C and C++.
//!
//! `include/pvfs.h` is made of this crate (`cbindgen`) and says what the functions do. README.md
//! says how to build and link.
//!
//! | module | what |
//! |---|---|
//! | `client`, `names`, `file`, `types`, `queue` | the functions that C calls, by what they concern |
//! | `boundary` | what they do first and last: arguments, errors, panics |
//! | `memory` | the program's buffers |
//!
//! **Invariants**
//! 1. No panic crosses the boundary.
//! 2. When an operation has ended, nothing here and at no server can access the memory that came
//!    with it. This holds also for memory that a stalled server of this host may still access: the
//!    operation ends later then.
//! 3. Each function either waits or posts: the last argument decides. So there is one of each.

#![allow(non_camel_case_types, reason = "the types have the names that C sees")]
#![allow(clippy::missing_safety_doc, reason = "one rule for all: pvfs.h and the module `boundary` have it")]

/// Gives functions of the same module their version. The directive must be in the object file of
/// the function, so each module has its own. See `build.rs` for the targets.
macro_rules! versioned {
    ($($name:ident),* $(,)?) => {
        $(#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        core::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@PVFS_0.1"));)*
    };
}

mod boundary;
mod client;
mod file;
mod memory;
mod names;
mod queue;
mod types;

pub use boundary::*;
pub use client::*;
pub use file::*;
pub use memory::pvfs_piece;
pub use names::*;
pub use queue::*;
pub use types::*;
