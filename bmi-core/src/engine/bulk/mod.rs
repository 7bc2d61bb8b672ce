//! Bulk data: what moves the bytes of lists, for rendezvous as for pull and push. `post` and
//! `immediate` begin a transfer, `transfer` moves it in units, `pacing` gives the turns; `grant`
//! and `lent` are about memory that the peer writes.

pub(in crate::engine) mod grant;
mod immediate;
pub(in crate::engine) mod lent;
pub(in crate::engine) mod pacing;
mod post;
pub(in crate::engine) mod transfer;

pub use grant::Grant;
