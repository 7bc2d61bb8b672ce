//! `libbmi`: the interface of BMI, the messaging library of OrangeFS, for programs in C and C++.
//!
//! The headers in `include` say what the functions do; README.md has the differences from BMI.
//!
//! | module | what |
//! |---|---|
//! | `abi` | the functions that C calls: they check arguments, and let no panic out |
//! | `library` | the state of the process: transports, contexts, memory |
//! | `port` | a transport that is open: its engine, and the operations of the program |
//! | `turn` | how threads wait in test calls |
//! | `address` | addresses, which outlive their connections |
//! | `memory` | the program's buffers |
//! | `handle`, `number` | the numbers of things, and of errors |
//!
//! **Threads.** The library has no thread. The calls of the program drive the transports, one
//! thread at a time for each.

/// Gives functions for C the version of this interface, in the module that they are in.
macro_rules! versioned {
    ($($name:ident),* $(,)?) => {
        $(#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        core::arch::global_asm!(concat!(".symver ", stringify!($name), ", ", stringify!($name), "@@@BMI_0.1"));)*
    };
}

mod abi;
mod address;
mod handle;
mod library;
mod memory;
mod number;
mod port;
mod turn;
