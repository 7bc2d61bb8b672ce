//! The memory that a peer may reach, and the keys that name it.

use std::hash::{BuildHasher, RandomState};

use bmi_core::{Access, Error, RemoteKey, RemoteSlice, Segment};
use slab::Slab;

use crate::Limit;

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
    use bmi_core::{ErrorKind, Memory};

    use super::*;
    use crate::Regions;

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
    fn exposures_have_a_limit() {
        let region = regions(1).register(&Memory::zeroed(1).unwrap()).unwrap();
        let (mut keys, mut exposures) = (keys(1), Exposures::default());
        exposures.add(&mut keys, &region.segment(0, 1), Access::READ).unwrap();
        let error = exposures.add(&mut keys, &region.segment(0, 1), Access::READ).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exhausted);
    }
}
