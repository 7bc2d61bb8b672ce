//! The registered ring of a connection, to which posting copies heads and inline payload.
//!
//! **Layout.** Places are handed out in order and come back in order. A place that would not fit
//! before the end begins at the start. The skipped bytes come back together with it.
//!
//! ```text
//!   [ free | oldest place … newest place | free ]      head = oldest, used = bytes from there on, with skipped ones
//! ```

use std::sync::Arc;

use bmi_core::{Error, MemSlice, Memory};

use crate::memory::pin;
use crate::verbs::{Domain, Region, Rights, Sge};

pub(crate) struct Staging {
    // Declared, and so dropped, before the memory that it registers.
    region: Option<Region>,
    memory: Memory,
    head: usize,
    used: usize,
}

/// A place in the ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// The bytes of the ring that it takes, including skipped ones.
    pub(crate) taken: usize,
}

impl Staging {
    pub(crate) fn new(domain: &Arc<Domain>, len: usize) -> Result<Staging, Error> {
        let memory = Memory::zeroed(len)?;
        let region = pin(domain, memory.as_ptr(), len, memory.as_ptr() as u64, Rights::default())?;
        Ok(Staging { region: Some(region), memory, head: 0, used: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.memory.len()
    }

    /// Returns a place of `len` bytes, if there is room.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        if len == 0 {
            return Some(Place::default());
        }
        if self.used == 0 {
            self.head = 0; // stay in the bytes that are in the processor's cache
        }
        let size = self.memory.len();
        let tail = (self.head + self.used) % size;
        let skip = if tail + len > size { size - tail } else { 0 };
        if self.used + skip + len > size {
            return None;
        }
        self.used += skip + len;
        Some(Place { at: (tail + skip) % size, len, taken: skip + len })
    }

    /// Takes back the oldest places, which together take `taken` bytes.
    pub(crate) fn give_back(&mut self, taken: usize) {
        self.head = (self.head + taken) % self.memory.len();
        self.used -= taken;
    }

    /// Copies a head and slices to a place.
    pub(crate) fn fill(&self, place: Place, head: &[u8], slices: &[MemSlice]) {
        self.memory.copy_from(place.at, head);
        let mut at = place.at + head.len();
        for slice in slices {
            at += self.memory.slice(at, slice.len()).copy_from_slice_of(slice);
        }
    }

    pub(crate) fn entry(&self, place: Place) -> Sge {
        let key = self.region.as_ref().map_or(0, Region::local_key);
        Sge::new(self.memory.as_ptr() as u64 + place.at as u64, place.len as u32, key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_do_not_overlap(steps in proptest::collection::vec((0usize..50, any::<bool>()), 1..200)) {
            let mut ring = Staging { region: None, memory: Memory::zeroed(100).unwrap(), head: 0, used: 0 };
            let mut out: VecDeque<Place> = VecDeque::new();
            for (len, back) in steps {
                if back {
                    if let Some(place) = out.pop_front() {
                        ring.give_back(place.taken);
                    }
                } else if let Some(place) = ring.take(len) {
                    prop_assert!(place.at + place.len <= 100);
                    let overlaps = |other: &Place| place.at < other.at + other.len && other.at < place.at + place.len;
                    prop_assert!(place.len == 0 || !out.iter().any(|other| other.len > 0 && overlaps(other)), "{place:?} {out:?}");
                    out.push_back(place);
                }
            }
            while let Some(place) = out.pop_front() {
                ring.give_back(place.taken);
            }
            prop_assert_eq!(ring.used, 0);
            prop_assert!(ring.take(100).is_some());
        }
    }
}
