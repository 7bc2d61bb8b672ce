//! How connections are made and how they end: listening and dialing (`sockets`), the `handshake` on
//! the side channel, and the drain at the end (`ending`). `connection` has the state.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --socket connected: CONNECT--> Greeting --ACCEPT--> Routing --connected: READY--> Established
//!                   '--refused, deadline--> !              '--REJECT, deadline--> !  '--no route, an end--> !
//!
//!   listener -> HalfOpen --CONNECT--> Requested --accept()--> Routing --connected: ACCEPT--> Accepted
//!                  '--garbage, time--> !   '--reject(), peer gone--> !   '--no route, an end--> !
//!   Accepted --READY or first message--> Established
//!       '--time--> Draining
//!
//!   Established --disconnect()--> Closing --all is sent--> Draining --flushed--> !
//!        '--a failure, BYE, the peer's end, disconnect() without time-----^
//! ```
//!
//! The accepting side's queue pair is ready to send before the connecting side's queue pair can
//! receive, so the accepting side waits for READY. While a connection is in the phase Routing, a
//! helper thread connects its queue pair ([`Helpers`](bmi_backend::Helpers)). Nothing may destroy
//! the queue pair meanwhile. So if the connection ends, the end is reported when the thread is
//! done, which takes about a second if no host has the address that the peer named. While a
//! connection drains, its queue pair is in the error state, and every request comes back flushed.
//! If the adapter reports that the queue pair failed but not why, draining also waits for the
//! peer's reason, which comes over the side channel.
//!
//! **Invariants**
//! 1. A half-open side channel owns a buffer for one message and nothing more. There are at most
//!    `max_half_open` of them. If there is no place for one more, [`bmi_backend::HalfOpen`] says
//!    which one must go.
//! 2. A queue pair exists from `connect` on, or from the arrival of the complete, valid greeting
//!    on. It is destroyed before the end is reported.
//! 3. Every phase except Requested and Established has a deadline. The phase Routing has none once
//!    the connection has ended: the thread's call is over in time.
//!
//! **Tests**: the conformance suite, `tests/it/faults.rs`, `tests/it/side_channel.rs`.

mod connection;
mod ending;
mod handshake;
mod sockets;

pub(crate) use connection::{Connection, Phase};
pub(crate) use sockets::Newcomer;
