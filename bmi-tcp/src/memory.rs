//! Registrations, and what is exposed to which peer.
//!
//! **Why.** A software adapter pins nothing: registering only counts, so that limits hold and foreign segments are refused. What matters is the
//! exposure: the one place where a peer's key, bounds and rights are checked.
//!
//! **Invariants**
//! 1. A key names one exposure of one connection; its upper 44 bits come from a keyed hash of a counter with a secret of this
//!    transport, so that it can be neither guessed nor derived from other keys. Its lower 20 bits are the slot.
//! 2. [`Exposures::check`] is the only way from a peer's bytes to memory. What it returns holds the region.
//!
//! **Source** DESIGN.md, section 5. **Tests** here, and the forged, foreign, revoked and out-of-bounds keys of `tests/remote_access.rs`.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bmi_core::mem::{LocalKey, RegionOwner, ReleaseQueue};
use bmi_core::transport::ConnId;
use bmi_core::{Access, Error, ErrorKind, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment};
use slab::Slab;

/// Bits of a key that say where its exposure stands.
const SLOT_BITS: u32 = 20;

/// The regions of a transport.
pub(crate) struct Regions {
    queue: Arc<ReleaseQueue>,
    owner: Arc<dyn RegionOwner>,
    released: Vec<LocalKey>,
    live: usize,
    limit: usize,
    next: u64,
}

impl Regions {
    pub(crate) fn new(limit: usize) -> Regions {
        let queue = Arc::new(ReleaseQueue::default());
        Regions { owner: queue.clone(), queue, released: Vec::new(), live: 0, limit, next: 1 }
    }

    /// Whether all `segments` were registered here.
    pub(crate) fn own(&self, segments: &[Segment]) -> bool {
        segments.iter().all(|segment| segment.region().is_owned_by(&self.owner))
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.collect();
        if self.live >= self.limit {
            let why = format!("{} regions are registered, the limit of TcpConfig::max_regions", self.live);
            return Err(Error::new(ErrorKind::Exhausted, why).during("register"));
        }
        self.live += 1;
        self.next += 1;
        Ok(MemoryRegion::new(memory.clone(), LocalKey(self.next), self.owner.clone()))
    }

    /// Deregisters what was released.
    pub(crate) fn collect(&mut self) {
        self.queue.drain(&mut self.released);
        self.live -= self.released.len();
        self.released.clear();
    }
}

struct Exposure {
    conn: ConnId,
    key: u64,
    segment: Segment,
    access: Access,
}

/// All exposures of a transport.
pub(crate) struct Exposures {
    slots: Slab<Exposure>,
    secret: RandomState,
    made: u64,
    limit: usize,
}

impl Exposures {
    #[expect(clippy::disallowed_methods, reason = "keys are not to be guessed")]
    pub(crate) fn new(limit: usize) -> Exposures {
        Exposures { slots: Slab::new(), secret: RandomState::new(), made: 0, limit: limit.min(1 << SLOT_BITS) }
    }

    pub(crate) fn add(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        if self.slots.len() >= self.limit {
            let why = format!("{} exposures, the limit of TcpConfig::max_exposures", self.slots.len());
            return Err(Error::new(ErrorKind::Exhausted, why).during("expose"));
        }
        self.made += 1;
        let slot = self.slots.vacant_entry();
        let key = self.secret.hash_one(self.made) << SLOT_BITS | slot.key() as u64;
        slot.insert(Exposure { conn, key, segment: segment.clone(), access });
        Ok(RemoteSlice { key: RemoteKey(key), addr: 0, len: segment.len() as u64 })
    }

    fn find(&self, conn: ConnId, key: u64) -> Option<(usize, &Exposure)> {
        let slot = (key & ((1 << SLOT_BITS) - 1)) as usize;
        let exposure = self.slots.get(slot)?;
        (exposure.key == key && exposure.conn == conn).then_some((slot, exposure))
    }

    /// Whether there was such an exposure.
    pub(crate) fn remove(&mut self, conn: ConnId, key: u64) -> bool {
        let slot = self.find(conn, key).map(|(slot, _)| slot);
        slot.map(|slot| self.slots.remove(slot)).is_some()
    }

    pub(crate) fn remove_all(&mut self, conn: ConnId) {
        self.slots.retain(|_, exposure| exposure.conn != conn);
    }

    /// The `len` bytes at `addr` of what `key` names, if `conn` may reach them with all of `rights`.
    pub(crate) fn check(&self, conn: ConnId, key: u64, addr: u64, len: u64, rights: Access) -> Option<Segment> {
        let (_, exposure) = self.find(conn, key)?;
        let granted = (exposure.access.remote_read || !rights.remote_read)
            && (exposure.access.remote_write || !rights.remote_write);
        let (offset, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        let inside = offset.checked_add(len)? <= exposure.segment.len();
        (granted && inside).then(|| exposure.segment.slice(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnId = ConnId { slot: 0, generation: 0 };
    const B: ConnId = ConnId { slot: 0, generation: 1 };

    #[test]
    fn only_the_right_key_connection_bounds_and_rights_pass() {
        let mut regions = Regions::new(1);
        let region = regions.register(&Memory::zeroed(100).unwrap()).unwrap();
        let mut exposures = Exposures::new(10);
        let slice = exposures.add(A, &region.segment(10, 50), Access::READ).unwrap();
        let key = slice.key.0;
        let found = exposures.check(A, key, 20, 30, Access::READ).unwrap();
        assert_eq!((found.offset(), found.len()), (30, 30));
        assert!(exposures.check(A, key, 50, 0, Access::READ).is_some());
        for (conn, key, addr, len, rights) in [
            (B, key, 0, 1, Access::READ),
            (A, key ^ 1 << 30, 0, 1, Access::READ),
            (A, key ^ 1, 0, 1, Access::READ),
            (A, key, 20, 31, Access::READ),
            (A, key, 51, 0, Access::READ),
            (A, key, u64::MAX, 2, Access::READ),
            (A, key, 1, u64::MAX, Access::READ),
            (A, key, 0, 1, Access::WRITE),
            (A, key, 0, 0, Access::READ_WRITE),
        ] {
            assert!(exposures.check(conn, key, addr, len, rights).is_none(), "{addr} {len} {rights:?}");
        }
        assert!(!exposures.remove(B, key));
        assert!(exposures.remove(A, key));
        assert!(exposures.check(A, key, 0, 1, Access::READ).is_none());
        let again = exposures.add(A, &region.segment(10, 50), Access::READ).unwrap();
        assert_ne!(again.key.0, key, "a slot used again has another key");
    }

    #[test]
    fn limits_hold_and_released_regions_come_back() {
        let mut regions = Regions::new(1);
        let memory = Memory::zeroed(1).unwrap();
        let region = regions.register(&memory).unwrap();
        assert_eq!(regions.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
        assert!(!Regions::new(1).own(&[region.segment(0, 1)]));
        assert!(regions.own(&[region.segment(0, 1)]));
        drop(region);
        regions.register(&memory).unwrap();
    }
}
