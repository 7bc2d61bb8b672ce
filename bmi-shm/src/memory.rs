//! Registrations, exposures and their keys.
//!
//! **Why.** Nothing is pinned: registering only counts, so that limits hold and foreign segments are refused. The exposure is where a
//! peer's key, bounds and rights are checked: by this side for what comes through the ring, and by the peer's own library for what it
//! reaches directly (see `area`).
//!
//! **Invariants**
//! 1. A key names one exposure of one connection; its upper 44 bits come from a keyed hash of a counter with a secret of this
//!    transport, so that it can be neither guessed nor derived from other keys. Its lower 20 bits are the slot.
//! 2. [`Exposures::check`] is the only way from a peer's records to memory. What it returns holds the region.
//!
//! **Source** DESIGN.md, section 5. **Tests** here; forged, foreign, revoked and out-of-bounds keys in the conformance suite.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bmi_core::mem::{LocalKey, RegionOwner, ReleaseQueue};
use bmi_core::{Access, Error, ErrorKind, Memory, MemoryRegion, Segment};
use slab::Slab;

/// Bits of a key that say where its exposure stands.
const SLOT_BITS: u32 = 20;

/// The slot of a key.
pub(crate) fn slot_of(key: u64) -> usize {
    (key & ((1 << SLOT_BITS) - 1)) as usize
}

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
    #[inline]
    pub(crate) fn own(&self, segments: &[Segment]) -> bool {
        segments.iter().all(|segment| segment.region().is_owned_by(&self.owner))
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.collect();
        if self.live >= self.limit {
            let why = format!("{} regions are registered, the limit of ShmConfig::max_regions", self.live);
            return Err(Error::new(ErrorKind::Exhausted, why).during("register"));
        }
        self.live += 1;
        self.next += 1;
        Ok(MemoryRegion::new(memory.clone(), LocalKey(self.next), self.owner.clone()))
    }

    /// Deregisters what was released.
    #[inline]
    pub(crate) fn collect(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.queue.drain(&mut self.released);
        self.live -= self.released.len();
        self.released.clear();
    }
}

/// Makes the keys of a transport.
#[derive(Default)]
pub(crate) struct Keys {
    secret: RandomState,
    made: u64,
}

impl Keys {
    /// Never the same twice, never 0.
    pub(crate) fn next(&mut self) -> u64 {
        loop {
            self.made += 1;
            let key = self.secret.hash_one(self.made);
            if key << SLOT_BITS != 0 {
                return key;
            }
        }
    }
}

struct Exposure {
    key: u64,
    segment: Segment,
    access: Access,
}

/// The exposures of a connection.
#[derive(Default)]
pub(crate) struct Exposures {
    slots: Slab<Exposure>,
}

impl Exposures {
    /// Takes a slot; the key names it.
    pub(crate) fn add(
        &mut self,
        keys: &mut Keys,
        limit: usize,
        segment: &Segment,
        access: Access,
    ) -> Result<u64, Error> {
        if self.slots.len() >= limit.min(1 << SLOT_BITS) {
            let why = format!("{} exposures, the limit of ShmConfig::max_exposures", self.slots.len());
            return Err(Error::new(ErrorKind::Exhausted, why).during("expose"));
        }
        let slot = self.slots.vacant_entry();
        let key = keys.next() << SLOT_BITS | slot.key() as u64;
        slot.insert(Exposure { key, segment: segment.clone(), access });
        Ok(key)
    }

    fn find(&self, key: u64) -> Option<&Exposure> {
        self.slots.get(slot_of(key)).filter(|exposure| exposure.key == key)
    }

    /// Takes an exposure out.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Segment> {
        self.find(key)?;
        Some(self.slots.remove(slot_of(key)).segment)
    }

    /// Takes all out.
    pub(crate) fn drain(&mut self) -> Vec<Segment> {
        self.slots.drain().map(|exposure| exposure.segment).collect()
    }

    /// All keys with what they name, to be advertised.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Segment, Access)> {
        self.slots.iter().map(|(_, exposure)| (exposure.key, &exposure.segment, exposure.access))
    }

    /// The `len` bytes at `offset` of what `key` names, if the peer may reach them with all of `rights`.
    pub(crate) fn check(&self, key: u64, offset: u64, len: u64, rights: Access) -> Option<Segment> {
        let exposure = self.find(key)?;
        let granted = (exposure.access.remote_read || !rights.remote_read)
            && (exposure.access.remote_write || !rights.remote_write);
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let inside = offset.checked_add(len)? <= exposure.segment.len();
        (granted && inside).then(|| exposure.segment.slice(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_bounds_and_rights_pass() {
        let mut regions = Regions::new(1);
        let region = regions.register(&Memory::zeroed(100).unwrap()).unwrap();
        let (mut keys, mut exposures) = (Keys::default(), Exposures::default());
        let key = exposures.add(&mut keys, 10, &region.segment(10, 50), Access::READ).unwrap();
        let found = exposures.check(key, 20, 30, Access::READ).unwrap();
        assert_eq!((found.offset(), found.len()), (30, 30));
        assert!(exposures.check(key, 50, 0, Access::READ).is_some());
        for (key, addr, len, rights) in [
            (key ^ 1 << 30, 0, 1, Access::READ),
            (key ^ 1, 0, 1, Access::READ),
            (key, 20, 31, Access::READ),
            (key, 51, 0, Access::READ),
            (key, u64::MAX, 2, Access::READ),
            (key, 1, u64::MAX, Access::READ),
            (key, 0, 1, Access::WRITE),
            (key, 0, 0, Access::READ_WRITE),
        ] {
            assert!(exposures.check(key, addr, len, rights).is_none(), "{addr} {len} {rights:?}");
        }
        assert!(exposures.remove(key).is_some());
        assert!(exposures.remove(key).is_none());
        assert!(exposures.check(key, 0, 1, Access::READ).is_none());
        let again = exposures.add(&mut keys, 10, &region.segment(10, 50), Access::READ).unwrap();
        assert_ne!(again, key, "a slot used again has another key");
    }

    #[test]
    fn limits_hold_and_released_regions_come_back() {
        let mut regions = Regions::new(1);
        let memory = Memory::zeroed(1).unwrap();
        let region = regions.register(&memory).unwrap();
        assert_eq!(regions.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
        assert!(!Regions::new(1).own(&[region.segment(0, 1)]));
        assert!(regions.own(&[region.segment(0, 1)]));
        let (mut keys, mut exposures) = (Keys::default(), Exposures::default());
        exposures.add(&mut keys, 1, &region.segment(0, 1), Access::READ).unwrap();
        assert!(exposures.add(&mut keys, 1, &region.segment(0, 1), Access::READ).is_err());
        drop((region, exposures));
        regions.register(&memory).unwrap();
    }
}
