//! A software adapter: the processor moves the bytes, and performs the checks of a hardware
//! adapter.
//!
//! **Why.** A software adapter pins nothing, so registration only counts regions. It enforces
//! limits and refuses foreign segments. The important part is the exposure. It is the only place
//! where a peer's key, bounds and rights are checked (C7), so it is implemented and tested once.
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
//! What it refuses of its peer, and how it tells the peer, is in `refusal`.
//!
//! **Tests.** Here; the forged, foreign, revoked and out-of-bounds keys of the conformance suite;
//! `bmi-tcp/tests/it/remote_access.rs`.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bmi_core::mem::{LocalKey, RegionOwner, ReleaseQueue};
use bmi_core::transport::{PostError, check_writable};
use bmi_core::{
    Access, Capabilities, Error, Memory, MemoryRegion, OneSided, Registration, RemoteKey, RemoteSlice, Segment,
};
use slab::Slab;

use crate::{Limit, WorkLimits};

mod refusal;

pub use refusal::{BadRequest, Blame, Refusal};

/// Longest head of a work request, in bytes. It has room for the protocol's header and its largest
/// control message.
pub const MAX_HEAD: usize = 256;
/// Largest inline send, head included, in bytes. This is an eager message of the protocol by
/// default.
pub const MAX_INLINE: usize = (8 << 10) + MAX_HEAD;
/// Largest number of segments of a work request. This is the limit of one system call (`IOV_MAX`).
pub const MAX_SEGMENTS: usize = 1024;
/// Largest number of reads that a peer may have outstanding on a connection. Both sides count them,
/// so more reads are a violation and need not be queued.
pub const MAX_READS: usize = 64;
/// Longest work request, in bytes. It can be this large because nothing is allocated for it.
pub const MAX_WORK_LEN: u64 = 1 << 40;
/// Most registered regions.
pub const REGIONS: Limit = Limit { max: 1 << 20, what: "regions", setting: None };
/// Most exposures of one connection. A key has as many slots.
pub const EXPOSURES: Limit = Limit { max: 1 << 20, what: "exposures on the connection", setting: None };

/// The limits of a work request of a software adapter.
pub const WORK_LIMITS: WorkLimits =
    WorkLimits { max_segments: MAX_SEGMENTS, max_head: MAX_HEAD, max_inline: MAX_INLINE, max_work_len: MAX_WORK_LEN };

/// Returns the capabilities of a software adapter with queues of these depths. It supports
/// everything, using the processor.
pub fn capabilities(send_queue_depth: usize, recv_queue_depth: usize) -> Capabilities {
    let mut capabilities = Capabilities::minimal();
    capabilities.one_sided = OneSided::Emulated;
    capabilities.rdma_read = true;
    capabilities.write_with_immediate = true;
    capabilities.registration = Registration::Free;
    capabilities.max_segments = MAX_SEGMENTS;
    capabilities.max_head = MAX_HEAD;
    capabilities.max_inline = MAX_INLINE;
    capabilities.max_work_len = MAX_WORK_LEN;
    capabilities.send_queue_depth = send_queue_depth;
    capabilities.recv_queue_depth = recv_queue_depth;
    capabilities.max_outstanding_reads = MAX_READS;
    capabilities.service_levels = 1;
    capabilities.event_fd = true;
    capabilities
}

/// The registered regions of a transport.
pub struct Regions {
    queue: Arc<ReleaseQueue>,
    owner: Arc<dyn RegionOwner>,
    released: Vec<LocalKey>,
    live: usize,
    limit: Limit,
    next: u64,
}

impl Regions {
    /// Returns an empty set. `limit` bounds the number of regions.
    pub fn new(limit: Limit) -> Regions {
        let queue = Arc::new(ReleaseQueue::default());
        Regions { owner: queue.clone(), queue, released: Vec::new(), live: 0, limit, next: 1 }
    }

    /// Returns true if all `segments` were registered here.
    #[inline]
    pub fn own(&self, segments: &[Segment]) -> bool {
        segments.iter().all(|segment| segment.region().is_owned_by(&self.owner))
    }

    /// Checks that all `segments` were registered here.
    ///
    /// # Errors
    /// `Invalid` if one belongs to another transport.
    #[inline]
    pub fn check(&self, segments: &[Segment]) -> Result<(), PostError> {
        if self.own(segments) { Ok(()) } else { Err(PostError::Invalid("a segment belongs to another transport")) }
    }

    /// Checks that all `segments` were registered here and may be written.
    ///
    /// # Errors
    /// `Invalid` otherwise.
    #[inline]
    pub fn check_targets(&self, segments: &[Segment]) -> Result<(), PostError> {
        let fits = |segment: &Segment| segment.region().is_owned_by(&self.owner) && !segment.is_read_only();
        if segments.iter().all(fits) {
            return Ok(());
        }
        check_writable(segments)?;
        self.check(segments)
    }

    /// Registers `memory`, after deregistering the released regions (C13).
    ///
    /// # Errors
    /// `Exhausted` at the limit.
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.collect();
        self.limit.admit(self.live).map_err(|error| error.during("register"))?;
        self.live += 1;
        self.next += 1;
        Ok(MemoryRegion::new(memory.clone(), LocalKey(self.next), self.owner.clone()))
    }

    /// Returns true if [`Regions::collect`] has something to do.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Deregisters the released regions.
    #[inline]
    pub fn collect(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.queue.drain(&mut self.released);
        self.live -= self.released.len();
        self.released.clear();
    }
}

/// Number of bits of a key that hold the slot of its exposure.
const SLOT_BITS: u32 = 20;

/// Returns the slot of a key among the exposures of its connection. Slots are small and reused.
pub fn slot_of(key: u64) -> usize {
    (key & ((1 << SLOT_BITS) - 1)) as usize
}

/// Generates the keys of a transport.
#[derive(Debug)]
pub struct Keys {
    secret: RandomState,
    made: u64,
    limit: Limit,
}

impl Keys {
    /// Creates a new secret. `limit` bounds the exposures of a connection. It is at most the 1 Mi
    /// that a key can distinguish.
    #[expect(clippy::disallowed_methods, reason = "keys are not to be guessed")]
    pub fn new(limit: Limit) -> Keys {
        Keys { secret: RandomState::new(), made: 0, limit: Limit { max: limit.max.min(1 << SLOT_BITS), ..limit } }
    }

    fn next(&mut self, slot: usize) -> u64 {
        loop {
            self.made += 1;
            let key = self.secret.hash_one(self.made) << SLOT_BITS;
            if key != 0 {
                return key | slot as u64;
            }
        }
    }
}

struct Exposure {
    key: u64,
    segment: Segment,
    access: Access,
}

/// The memory exposed to the peer of one connection.
#[derive(Default)]
pub struct Exposures {
    slots: Slab<Exposure>,
}

impl Exposures {
    /// Exposes a segment with a new key. Addresses begin at 0.
    ///
    /// # Errors
    /// `Exhausted` at the limit of `keys`.
    pub fn add(&mut self, keys: &mut Keys, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        keys.limit.admit(self.slots.len()).map_err(|error| error.during("expose"))?;
        let slot = self.slots.vacant_entry();
        let key = keys.next(slot.key());
        slot.insert(Exposure { key, segment: segment.clone(), access });
        Ok(RemoteSlice { key: RemoteKey(key), addr: 0, len: segment.len() as u64 })
    }

    fn find(&self, key: u64) -> Option<&Exposure> {
        self.slots.get(slot_of(key)).filter(|exposure| exposure.key == key)
    }

    /// Ends an exposure, if it exists, and returns its segment.
    pub fn remove(&mut self, key: u64) -> Option<Segment> {
        self.find(key)?;
        Some(self.slots.remove(slot_of(key)).segment)
    }

    /// Returns true if this key has an exposure.
    pub fn contains(&self, key: u64) -> bool {
        self.find(key).is_some()
    }

    /// Returns each exposure's key, segment and access rights.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Segment, Access)> {
        self.slots.iter().map(|(_, exposure)| (exposure.key, &exposure.segment, exposure.access))
    }

    /// Returns the `len` bytes at `addr` of the exposure of `key`, if the peer has all of `rights`.
    /// An access of no bytes is checked like any other.
    pub fn check(&self, key: u64, addr: u64, len: u64, rights: Access) -> Option<Segment> {
        let exposure = self.find(key)?;
        let granted = (exposure.access.remote_read || !rights.remote_read)
            && (exposure.access.remote_write || !rights.remote_write);
        let (offset, len) = (usize::try_from(addr).ok()?, usize::try_from(len).ok()?);
        let inside = offset.checked_add(len)? <= exposure.segment.len();
        (granted && inside).then(|| exposure.segment.slice(offset, len))
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::ErrorKind;

    use super::*;

    fn regions(max: usize) -> Regions {
        Regions::new(Limit { max, what: "regions", setting: None })
    }

    fn keys(max: usize) -> Keys {
        Keys::new(Limit { max, what: "exposures", setting: None })
    }

    #[test]
    fn only_the_right_key_connection_bounds_and_rights_pass() {
        let region = regions(1).register(&Memory::zeroed(100).unwrap()).unwrap();
        let (mut keys, mut exposures, mut others) = (keys(10), Exposures::default(), Exposures::default());
        let slice = exposures.add(&mut keys, &region.segment(10, 50), Access::READ).unwrap();
        others.add(&mut keys, &region.segment(10, 50), Access::READ).unwrap();
        let key = slice.key.0;
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
        assert!(others.check(key, 0, 1, Access::READ).is_none(), "another connection's key");
        assert!(others.remove(key).is_none());
        assert!(exposures.remove(key).is_some());
        assert!(exposures.remove(key).is_none());
        assert!(exposures.check(key, 0, 1, Access::READ).is_none());
        let again = exposures.add(&mut keys, &region.segment(10, 50), Access::READ).unwrap();
        assert_ne!(again.key.0, key, "a slot used again has another key");
        assert_eq!(slot_of(again.key.0), slot_of(key));
    }

    #[test]
    fn limits_hold_and_released_regions_come_back() {
        let mut known = regions(1);
        let memory = Memory::zeroed(1).unwrap();
        let region = known.register(&memory).unwrap();
        assert_eq!(known.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
        assert!(!regions(1).own(&[region.segment(0, 1)]));
        assert!(known.own(&[region.segment(0, 1)]));
        let (mut keys, mut exposures) = (keys(1), Exposures::default());
        exposures.add(&mut keys, &region.segment(0, 1), Access::READ).unwrap();
        let error = exposures.add(&mut keys, &region.segment(0, 1), Access::READ).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        drop((region, exposures));
        known.register(&memory).unwrap();
    }
}
