//! How connections are made and how they end: who may connect (`arrivals`), the `handshake`, what
//! comes on a socket (`packets`), who is heard later (`offenders`), memory that a peer may reach
//! (`exposures`), what happens when a peer dies (`ending`). `connection` has the state, and the
//! fast paths while it is calm.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --connected--> Greeting --ACCEPT--> Established --disconnect()--> Closing --> !
//!                   |                      '--REJECT--> !        |  '--violation: REFUSAL, !
//!                   '--no listener, deadline--> !                '--peer's end: its ring is read to the end, then !
//!
//!   listener  -> HalfOpen --CONNECT--> Requested --accept()--> Established
//!                   |                      '--reject(), peer gone--> !
//!                   '--another user, garbage, other version, handshake_timeout, newcomer--> !
//!                                                                             (reported to no upper layer)
//! ```
//!
//! **Tests**: `tests/it/connection.rs`, `hostile`, `tests/it/process_death.rs`.

mod arrivals;
mod connection;
mod deadlines;
mod ending;
mod exposures;
mod handshake;
mod offenders;
mod packet;
mod packets;

pub(crate) use arrivals::Newcomer;
pub(crate) use connection::{Activity, Connection, Phase, pass_pages};
pub(crate) use offenders::Offenders;
pub(crate) use packet::Packet;
#[cfg(any(test, fuzzing))]
pub(crate) use packet::{Greeting, Hello, MAX_PACKET, encode_hello};
