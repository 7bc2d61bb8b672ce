//! The mount of the file system: the program `pvfs-mount`, which `pvfs mount` and mount(8) run.
//! docs/operating.md tells how to use it, and what programs can expect.
//!
//! | module | contents |
//! |---|---|
//! | `program`, `options` | the program, its daemon, its end; the command line |
//! | `session` | requests side by side, and processes that are killed |
//! | `served` | the operations, as requests to the servers |
//! | `through` | a directory of this machine, for the benchmark |
//! | `nodes` | the objects that the kernel knows |
//! | `errors` | errors as error numbers |
//! | `fuse` | the kernel's protocol, and why it is not a crate's |

mod errors;
mod fuse;
mod nodes;
mod options;
mod program;
mod served;
mod session;
mod through;

/// Runs the program. For its own `main` only.
#[doc(hidden)]
pub fn main() -> std::process::ExitCode {
    program::main()
}
