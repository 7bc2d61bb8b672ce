//! TLS 1.3 for backends that have sockets: certificates, the handshake, and records.
//!
//! **Why a crate of its own.** TCP seals all of its bytes, verbs those of the side channel. The
//! simulator and shared memory need none of it, and are built without it.
//!
//! **Why our own record layer.** `rustls` makes handshakes and keys. Its connections would seal
//! each record into a vector of its own, copy it to a queue, and from there to the socket. Here a
//! record is sealed where it was put together, and opened where it was received, in a buffer of the
//! connection: one copy on each side, of bytes that are in the processor's cache when they are
//! sealed. Without that copy, payload would be sealed and opened in the user's memory. That cannot
//! be: the bytes that are sent are not ours to change, others may write to them meanwhile, and the
//! interfaces of cryptography take references, which such memory must not have (`bmi_core::mem`).
//! Also, bytes reach their target only when they are known to be genuine.
//!
//! ```text
//!   user memory ──copy──> | 5 header | payload, sealed in place | type | 16 tag | ──> socket
//!   socket ──────> | header | payload, opened in place | … | ──copy──> target, or read-ahead
//! ```
//!
//! | where | what |
//! |---|---|
//! | `security` | [`Security`]: files, what is made of them, reading them again |
//! | `certificate` | the names in a certificate, and how long it is good |
//! | `channel` | [`Channel`]: one side of a connection, from the first byte on |
//! | `handshake` | what comes before keys are there |
//! | `session` | [`Session`]: sealing and opening, changes of keys, tickets for the next time |
//! | `record` | one record, and the two buffers |
//! | `breach` | [`Breach`]: why a channel ends |
//!
//! **Invariants**
//! 1. *Both sides prove who they are.* There is no mode in which one does not.
//! 2. *Nothing goes out in the clear* once a program has set a [`Security`], and nothing that comes
//!    in the clear is taken.
//! 3. A key seals a bounded number of records ([`Session`] changes it), and no nonce twice: it is
//!    the number of the record.
//! 4. What a peer can make this side do is bounded: bytes of a handshake, and records that bring
//!    nothing.
//!
//! **Tests.** Here, two channels over bytes in memory, cut and changed; `tests/it/secure` of
//! `bmi-tcp`, over sockets.

mod breach;
mod certificate;
mod channel;
mod handshake;
mod record;
mod security;
mod session;
#[cfg(test)]
mod tests;

pub use breach::Breach;
pub use channel::{Channel, unknown_magic};
pub use security::Security;
pub use session::Session;

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
