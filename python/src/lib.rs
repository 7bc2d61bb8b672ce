//! The module `bmi._native`: what the Python package `bmi` is made of.
//!
//! | module | what |
//! |---|---|
//! | `buffer` | objects with the buffer protocol as memory of the transport, without a copy |
//! | `operation` | how every operation runs: blocking, or under a loop of `asyncio` |
//! | `driver` | the futures that a loop of `asyncio` waits for |
//! | `client`, `server` | calls |
//! | `files` | the files of a cluster |
//! | `error` | errors as exceptions |
//!
//! **Invariants**
//! 1. The interpreter's lock is never held while a future is polled or a thread waits. So a driver
//!    never waits for the interpreter, and neither waits for the other.
//! 2. A driver's thread never takes that lock. It writes to an event fd, or wakes a thread.
//! 3. Memory that an operation uses is kept by its Python object until the engine has let go, also
//!    after the operation was cancelled.
//!
//! **Tests.** `python/tests`, run by `cargo xtask test --only python`.

mod buffer;
mod client;
mod driver;
mod error;
mod files;
mod operation;
mod server;

/// The native half of the Python package `bmi`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::driver::Driver;
    #[pymodule_export]
    use super::files::{Cluster, File};
    #[pymodule_export]
    use super::server::{Call, Server, report};
}
