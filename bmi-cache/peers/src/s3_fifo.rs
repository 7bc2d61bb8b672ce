//! S3-FIFO as its paper describes it (Yang et al., SOSP 2023, algorithm 1), for units of one size.
//!
//! **Why.** The other caches took its idea and changed it. This one has no changes: a tenth of the
//! units in the small queue, as many ghosts as the main queue has units, and two bits of frequency.
//! It is written to be short.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The small queue has one of so many units.
const SMALL_PART: usize = 10;
const MOST_FREQUENT: u8 = 3;

/// The cache.
pub(crate) struct S3Fifo {
    capacity: usize,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    /// How many times each unit was used since it was inserted or moved.
    uses: BTreeMap<u64, u8>,
    ghosts: VecDeque<u64>,
    /// The ghosts that have not come back.
    is_ghost: BTreeSet<u64>,
}

impl S3Fifo {
    /// Makes a cache for that many units.
    pub(crate) fn new(capacity: usize) -> S3Fifo {
        S3Fifo {
            capacity,
            small: VecDeque::new(),
            main: VecDeque::new(),
            uses: BTreeMap::new(),
            ghosts: VecDeque::new(),
            is_ghost: BTreeSet::new(),
        }
    }

    /// Uses a unit. Returns true if it was there.
    pub(crate) fn request(&mut self, unit: u64) -> bool {
        if let Some(uses) = self.uses.get_mut(&unit) {
            *uses = (*uses + 1).min(MOST_FREQUENT);
            return true;
        }
        while self.uses.len() >= self.capacity {
            if self.small.len() > self.capacity / SMALL_PART || self.main.is_empty() {
                self.evict_small();
            } else {
                self.evict_main();
            }
        }
        self.uses.insert(unit, 0);
        let queue = if self.is_ghost.remove(&unit) { &mut self.main } else { &mut self.small };
        queue.push_back(unit);
        false
    }

    fn evict_small(&mut self) {
        let Some(unit) = self.small.pop_front() else { return };
        if self.uses[&unit] > 1 {
            self.uses.insert(unit, 0);
            self.main.push_back(unit);
            return;
        }
        self.uses.remove(&unit);
        self.ghosts.push_back(unit);
        self.is_ghost.insert(unit);
        if self.ghosts.len() > self.capacity - self.capacity / SMALL_PART {
            let oldest = self.ghosts.pop_front();
            oldest.map(|unit| self.is_ghost.remove(&unit));
        }
    }

    fn evict_main(&mut self) {
        let Some(unit) = self.main.pop_front() else { return };
        match self.uses.get_mut(&unit) {
            Some(uses) if *uses > 0 => {
                *uses -= 1;
                self.main.push_back(unit);
            }
            _ => drop(self.uses.remove(&unit)),
        }
    }
}
