//! The request loop of every server: receives requests, decodes them, works on several at the same
//! time and replies.
//!
//! A server that listens on several transports runs one loop for each ([`serve_all`]), over one
//! store. A request has the same effect over each transport, and no transport waits for another. An
//! I/O server may have several threads, each with such loops (`embedded/loops.rs`).
//!
//! **Invariants**
//! 1. Concurrency is bounded: at most [`Limits::requests`] requests are in progress,
//!    [`Limits::per_peer`] of them from one peer, and fewer if many peers have requests
//!    ([`Admission`](bmi::calls::Admission)). Further messages wait as they arrived and hold their
//!    sender's credits, so the sender stops. Peers whose requests wait take turns.
//! 2. Requests that move much data ([`Handler::class`]) are counted separately from all others,
//!    with the same limits. So a small request begins at once, however many long ones are in
//!    progress or wait.
//!    A request that is answered from memory ([`Handler::never_waits`]) needs no place either. So a
//!    disk that does not answer does not stop what needs no disk.
//! 3. A request's future runs to its end and is never dropped. So no buffer returns to its pool
//!    while a disk or an adapter still uses it. The future ends in time, because everything that it
//!    waits for has a deadline or fails when the peer is lost. The only exception is a stopping
//!    server: it drops the futures that have not ended after [`Limits::reply_timeout`].
//! 4. A request whose time limit has passed when its turn comes is answered with `Timeout` and not
//!    begun. Its client has given up, and the request must not undo what the client does next.
//! 5. A malformed request costs only its sender the connection. The reason is logged, and no other
//!    client is affected.
//! 6. What a stalled client holds is taken back within 1.25 [`Limits::stall_timeout`] while others
//!    wait (`stall.rs`).
//!
//! **Protocol.** See `fs_proto` for requests and replies, and [`bmi::calls`] for the calls that
//! carry them and their data.

mod balance;
mod context;
mod party;
mod serve;
mod stall;

pub(crate) use balance::{Balance, Meter, Seat};
pub(crate) use context::Session;
pub use context::{Answer, Context, Handler, Limits, ReadData, Standing};
pub(crate) use party::{Party, Rights, audit};
pub use serve::{Front, serve, serve_all};
pub(crate) use serve::{beside, serve_beside, serve_until};
