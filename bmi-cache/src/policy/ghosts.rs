//! Ghosts: what is known of units that were evicted.
//!
//! **Why.** A unit that comes back soon after its eviction shows two things: how soon it is used
//! again, and that a larger queue would still have it. Neither can be seen in resident units.
//!
//! **Invariants**
//! 1. There is one ghost for a key at most, and none for a unit that was forgotten.
//! 2. *Bounded.* All ghosts together stand for at most the bytes that [`Ghosts::new`] was given. A
//!    unit counts as [`LEAST_BYTES`] at least, so that this bounds their number too. The oldest go
//!    first.
//!
//! **Tests.** Below, and `tests/model.rs`.
#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same in every run")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use slab::Slab;

use super::chain::{Chain, Linked, Links};
use super::queues::Unit;

/// Bytes that a ghost stands for at least: the smallest unit of the cache.
const LEAST_BYTES: u32 = 4 << 10;

/// Ghosts that one eviction removes if there are too many: as many of the smallest units as the
/// largest unit has bytes for, and one more.
const MOST_REMOVED: usize = 17;

/// A unit that was evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    key: u64,
    /// When the unit was last used, in uses of scan-resistant units.
    pub(super) used: u64,
    /// Those of the unit.
    pub(super) mark: u64,
    pub(super) worth: u64,
    /// Bytes evicted before it.
    evicted: u64,
    bytes: u32,
    links: Links,
}

impl Linked for Ghost {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// The ghosts of one kind of units.
#[derive(Debug)]
pub(super) struct Ghosts {
    most_bytes: u64,
    bytes: u64,
    /// Bytes evicted so far.
    evicted: u64,
    ghosts: Slab<Ghost>,
    order: Chain,
    index: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
}

impl Ghosts {
    pub(super) fn new(most_bytes: u64) -> Ghosts {
        Ghosts { most_bytes, bytes: 0, evicted: 0, ghosts: Slab::new(), order: Chain::EMPTY, index: HashMap::default() }
    }

    /// Returns the bytes evicted since this ghost's unit was the next one to be evicted.
    pub(super) fn distance(&self, ghost: &Ghost) -> u64 {
        self.evicted - ghost.evicted
    }

    /// Remembers a unit that was evicted. If all ghosts stand for more than `target_bytes`, the
    /// oldest ones go, but not many at once.
    pub(super) fn put(&mut self, unit: &Unit, target_bytes: u64) {
        let Unit { key, used, mark, worth, bytes, .. } = *unit;
        self.take(key);
        let bytes = bytes.max(LEAST_BYTES);
        let ghost = Ghost { key, used, mark, worth, evicted: self.evicted, bytes, links: Links::UNLINKED };
        let at = self.ghosts.insert(ghost) as u32;
        self.index.insert(key, at);
        self.order.push(&mut self.ghosts, at);
        self.evicted += u64::from(bytes);
        self.bytes += u64::from(bytes);
        let mut removed = 0;
        while self.bytes > self.most_bytes || (self.bytes > target_bytes && removed < MOST_REMOVED) {
            self.remove(self.order.oldest);
            removed += 1;
        }
    }

    /// Removes and returns the ghost of a key.
    pub(super) fn take(&mut self, key: u64) -> Option<Ghost> {
        let at = *self.index.get(&key)?;
        Some(self.remove(at))
    }

    fn remove(&mut self, at: u32) -> Ghost {
        self.order.unlink(&mut self.ghosts, at);
        let ghost = self.ghosts.remove(at as usize);
        self.index.remove(&ghost.key);
        self.bytes -= u64::from(ghost.bytes);
        ghost
    }
}

/// Spreads the bits of a key, which is a hash already, over those that the map uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        /// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4).
        const RATIO: u64 = 0x9E37_79B9_7F4A_7C15;
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(RATIO);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
impl Ghosts {
    /// Checks the invariants, and returns the number of ghosts.
    pub(super) fn check(&self) -> usize {
        let bytes: u64 = self.ghosts.iter().map(|(_, ghost)| u64::from(ghost.bytes)).sum();
        assert_eq!(bytes, self.bytes);
        assert!(bytes <= self.most_bytes);
        assert_eq!(self.order.len, self.ghosts.len());
        assert_eq!(self.index.len(), self.ghosts.len());
        assert!(self.ghosts.iter().all(|(at, ghost)| self.index[&ghost.key] as usize == at));
        self.ghosts.len()
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.index.contains_key(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u32 = 64 << 10;

    fn unit(key: u64, used: u64, bytes: u32) -> Unit {
        let mut unit = Unit::ABSENT;
        (unit.key, unit.used, unit.bytes) = (key, used, bytes);
        unit
    }

    #[test]
    fn the_oldest_ghost_goes_first() {
        let mut ghosts = Ghosts::new(3 * u64::from(UNIT));
        (0..5).for_each(|key| ghosts.put(&unit(key, key, UNIT), u64::MAX));
        assert_eq!(ghosts.check(), 3);
        assert!(ghosts.take(1).is_none());
        assert_eq!(ghosts.take(2).map(|ghost| ghost.used), Some(2));
        assert!(ghosts.take(2).is_none());
        assert_eq!(ghosts.check(), 2);
    }

    #[test]
    fn units_without_bytes_are_bounded_too() {
        let mut ghosts = Ghosts::new(u64::from(10 * LEAST_BYTES));
        (0..100).for_each(|key| ghosts.put(&unit(key, 0, 0), u64::MAX));
        assert_eq!(ghosts.check(), 10);
    }

    #[test]
    fn a_lower_target_is_reached_step_by_step() {
        let mut ghosts = Ghosts::new(100 * u64::from(UNIT));
        (0..100).for_each(|key| ghosts.put(&unit(key, 0, UNIT), u64::MAX));
        ghosts.put(&unit(100, 0, UNIT), 50 * u64::from(UNIT));
        assert_eq!(ghosts.check(), 101 - MOST_REMOVED);
        (101..110).for_each(|key| ghosts.put(&unit(key, 0, UNIT), 50 * u64::from(UNIT)));
        assert_eq!(ghosts.check(), 50);
    }

    #[test]
    fn a_key_has_one_ghost() {
        let mut ghosts = Ghosts::new(1 << 30);
        ghosts.put(&unit(7, 1, UNIT), u64::MAX);
        ghosts.put(&unit(7, 2, UNIT), u64::MAX);
        assert_eq!(ghosts.check(), 1);
        assert_eq!(ghosts.take(7).map(|ghost| ghost.used), Some(2));
    }

    #[test]
    fn the_distance_is_the_bytes_evicted_since() {
        let mut ghosts = Ghosts::new(1 << 30);
        (0..3).for_each(|key| ghosts.put(&unit(key, 0, UNIT), u64::MAX));
        let first = ghosts.take(0).unwrap();
        assert_eq!(ghosts.distance(&first), 3 * u64::from(UNIT));
        let last = ghosts.take(2).unwrap();
        assert_eq!(ghosts.distance(&last), u64::from(UNIT));
    }

    #[test]
    fn no_room_means_no_ghosts() {
        let mut ghosts = Ghosts::new(0);
        ghosts.put(&unit(1, 1, UNIT), u64::MAX);
        assert_eq!(ghosts.check(), 0);
    }
}
