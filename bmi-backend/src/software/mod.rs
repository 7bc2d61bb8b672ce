//! A software adapter: the processor moves the bytes, and performs the checks of a hardware
//! adapter.
//!
//! **Why.** A software adapter pins nothing, so registration only counts regions
//! ([`Regions`](crate::Regions)). The important part is the exposure. It is the only place where a
//! peer's key, bounds and rights are checked (C7), so it is implemented and tested once.
//!
//! **Invariants**
//! 1. A key identifies one exposure of one connection. Its upper 44 bits are a keyed hash of a
//!    counter, with a secret of this transport. So it can be neither guessed nor derived from other
//!    keys. Its lower 20 bits are the slot. No key is used twice, and none has only zeros above the
//!    slot.
//! 2. [`Exposures::check`] is the only way from a peer's bytes to memory. The segment that it
//!    returns holds the region.
//! 3. Each connection has [`Exposures`] of its own. So a key of another connection finds nothing,
//!    and the end of a connection ends its exposures.
//!
//! What it refuses of its peer, and how it tells the peer, is in `refusal`; what it can do, in
//! `capabilities`.
//!
//! **Tests.** In each module; the forged, foreign, revoked and out-of-bounds keys of the
//! conformance suite; `bmi-tcp/tests/it/remote_access.rs`.

mod capabilities;
mod exposures;
mod refusal;

pub use capabilities::{
    EXPOSURES, MAX_HEAD, MAX_INLINE, MAX_READS, MAX_SEGMENTS, MAX_WORK_LEN, REGIONS, WORK_LIMITS, capabilities,
};
pub use exposures::{Exposures, Keys, slot_of};
pub use refusal::{BadRequest, Blame, Refusal};
