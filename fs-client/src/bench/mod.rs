//! Benchmarks of a cluster: `pvfs bench`.
//!
//! **Why.** Whoever sets up a cluster wants figures that compare with those of other file systems.
//! IOR and mdtest are what people use for that. They need MPI, and a mounted file system or a
//! backend of their own. This does what they do, through the client library, over each transport
//! that the client has.
//!
//! **How.** A run has rounds, a round has a step for each work and lane, in random order, and a
//! step has phases: the files are made, written, read and removed. A lane is a cluster over a
//! transport. The first host leads. It tells all hosts to begin a phase when all have ended the one
//! before. Each host has a crew of tasks. A task is a thread with a client and endpoints of its
//! own, which has one operation in flight, or more.
//!
//! ```text
//!   leader ──┬── crew of this host ──── task 0, task 1, …
//!            ├── TCP, lines of JSON ── follower ── crew ── task n, …
//!            └── …
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`job`] | what is to be measured; what goes from host to host |
//! | [`layout`] | which task accesses which bytes, in which order |
//! | [`task`], [`crew`] | a thread with its clients, its phases, and their plain partners; all of a host |
//! | [`wire`], [`leader`], [`follower`] | several hosts |
//! | [`door`] | which hosts may join |
//! | [`run`], [`outcome`] | rounds, and the report of them |
//! | [`mount`] | a mounted directory, beside others: threads, and no client |
//! | [`usage`] | the processor time and the context switches of processes |
//!
//! **Source.** The IOR and mdtest documentation (<https://ior.readthedocs.io>): the layout of
//! blocks and segments, the order of the phases, and tasks that read what others wrote.

pub(crate) mod crew;
pub(crate) mod door;
pub(crate) mod event;
pub(crate) mod follower;
pub(crate) mod job;
mod layout;
pub(crate) mod leader;
pub(crate) mod mount;
pub(crate) mod outcome;
pub(crate) mod run;
mod task;
pub(crate) mod token;
pub(crate) mod usage;
mod wire;
