//! A replicated block store: N replicas, and clients that go on while a majority is up.
//!
//! **Why.** It is the smallest storage system that has to be right under faults. The same
//! code runs over TCP, shared memory and verbs, and in the simulator, where its test is.
//!
//! **Protocol.** Each block has a [`Version`]. Two writes never have the same version.
//!
//! ```text
//! put   1. ask all replicas for their version of the key, wait for a majority
//!       2. write the block with a greater version to all, wait for a majority
//! get   1. ask all replicas for their version of the key, wait for a majority
//!       2. read the block from a replica that has the newest version
//!       3. unless a majority has that version: write it back, as put does
//! ```
//!
//! **Invariants**
//! 1. A replica replaces a block only by one with a greater version, and acknowledges a write when
//!    the block is on its disk. So a majority has each acknowledged write, or a newer one.
//! 2. Two majorities share a replica. So a get returns the last acknowledged write, or a newer one.
//! 3. A put that fails may still become visible, until a later put is acknowledged.
//!
//! Several clients may write: the store is then linearizable. The test has one writer and one
//! reader.
//!
//! **Source.** Attiya, Bar-Noy, Dolev: Sharing Memory Robustly in Message-Passing Systems (1995);
//! for several writers, Lynch and Shvartsman (1997).

mod blocks;
mod client;
mod replica;
#[cfg(test)]
mod tests;
mod wire;

pub use blocks::{Block, Blocks, Folder};
pub use client::Client;
pub use replica::run;
pub use wire::Version;

/// Longest block, in bytes.
pub const MAX_BLOCK: u64 = 16 << 20;
/// Longest key, in bytes.
pub const MAX_KEY: usize = 100;
