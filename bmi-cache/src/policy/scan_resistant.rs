//! [`super::Policy::ScanResistant`]: keeps what is used again soon, however much is read once.
//!
//! **Why.** A scan, or a loop over more than the cache can hold, evicts everything from an LRU
//! list, and gains nothing. So a unit must first prove that it is worth the place of another one.
//! The documentation of [`super`] has figures that show why it is this policy.
//!
//! **Layout**
//!
//! ```text
//!              not known                  used again, and sooner than the oldest hot unit was
//!   insert ───────────────> cold ───────────────────────────────────────────────────────> hot
//!      │                    │  ^                                                          │  ^
//!      │              evict │  └─────────────────── hot is too large ─────────────────────┘  │
//!      │                    v                                                                │
//!      │                  ghosts ─── known: inserted, last used after the oldest hot unit ───┘
//!      └──── hot is not full yet ────────────────────────────────────────────────────────────┘
//! ```
//!
//! **Rules**
//! 1. *Soon.* Time is the number of uses. When a unit is used again, the time since its last use is
//!    compared with that of the hot unit that would make room. It becomes hot if its own is less.
//!    Units of a loop are all used equally rarely, so none displaces another one.
//! 2. *Spared.* A hot unit does not move when it is used. It is instead spared once more, up to
//!    [`MOST_SPARED`] times, when it is its turn to leave the hot queue. So frequent units remain.
//! 3. *A burst is one use.* A client that reads a unit in small pieces uses it many times. Uses of
//!    a unit do not count until a twentieth of the cache has entered the cold queue since, even if
//!    the unit was evicted meanwhile.
//! 4. *The size of the cold queue* follows what the last tenth of both queues is worth. Suppose
//!    that a hot unit is used that was unused for longer than nine tenths of them. This would be a
//!    miss if the hot queue was smaller: the cold queue shrinks. A unit that comes back soon after
//!    its eviction would be a hit if the cold queue was larger: it grows. Soon means that at most a
//!    tenth of the cache went through the cold queue since, with those hot units which would then
//!    go through it too. Where both events are equally frequent, neither queue would gain.
//! 5. *A longer memory if the hot queue is of no use.* Ghosts are kept for as many bytes as the
//!    cache has. With more, rule 1 makes units hot that are used rarely. With so few, a loop that
//!    follows other work would never be noticed. So there are [`LONG_MEMORY`] times as many while
//!    no old hot unit was used since as many bytes as the cache has entered the cold queue.
//!
//! **Invariants**
//! 1. Each operation takes at most [`MOVES`] units out of the hot queue, and for each one looks at
//!    as many. Only an eviction allocates, for a ghost.
//! 2. The cold queue is meant to have between a hundredth and nine tenths of the bytes.
//!
//! **Source.** Rule 1 is that of LIRS (Jiang and Zhang, SIGMETRICS 2002), with time stamps in place
//! of its stack. Rule 2 is the main queue of S3-FIFO (Yang et al., SOSP 2023). Rule 3 is that of 2Q
//! (Johnson and Shasha, VLDB 1994). Rule 4 is our own; that ghosts can tell a size is from ARC
//! (Megiddo and Modha, FAST 2003).
//!
//! **Tests.** `tests/scan_resistant.rs` has one for each rule, `tests/rates.rs` hit rates.

use super::ghosts::{Ghost, Ghosts};
use super::queues::{Place, Queues, Unit};

/// How many times a unit is spared: the two bits of S3-FIFO.
pub(super) const MOST_SPARED: u8 = 3;
/// Least part of the bytes that the cold queue has. LIRS has the same.
const LEAST_COLD: u64 = 100;
/// Part of the capacity that enters the cold queue before another use of a unit counts. A tenth is
/// as good, and a hundredth is too little for 32 clients that read 2,000 units.
const BURST: u64 = 20;
/// Part of the bytes whose worth decides about sizes. The hot queue has at least as much.
pub(super) const EDGE: u64 = 10;
/// Part of a unit by which one use changes the size of the queues. The larger, the faster the
/// queues follow the uses, and the more they waver.
const STEP: u64 = 2;
/// How many times the capacity all ghosts together may have, in bytes. A loop of more units would
/// hit less often than one in four times.
const LONG_MEMORY: u64 = 4;
/// Units that one operation takes out of the hot queue, or spares. More gained nothing.
const MOVES: usize = 16;
/// Units that one search for a victim moves from a hot queue that is too large.
const MOVES_OF_SEARCH: usize = 2;

/// What the policy knows beside the units.
#[derive(Debug)]
pub(super) struct ScanResistant {
    /// Number of uses so far: the time.
    uses: u64,
    /// Bytes that entered the cold queue so far.
    entered: u64,
    /// Bytes that the cold queue should have.
    cold_bytes: u64,
    /// Bytes of old hot units that were used so far: what the last tenth of the hot queue is worth.
    worth: u64,
    /// The value of `entered` when an old hot unit was used last.
    proved: u64,
    capacity_bytes: u64,
    age: Age,
    ghosts: Ghosts,
}

impl ScanResistant {
    pub(super) fn new(capacity_bytes: u64) -> ScanResistant {
        ScanResistant {
            uses: 0,
            entered: 0,
            cold_bytes: 0,
            worth: 0,
            proved: 0,
            capacity_bytes,
            age: Age::new(),
            ghosts: Ghosts::new(capacity_bytes.saturating_mul(LONG_MEMORY)),
        }
    }

    // ---- what happens to a unit -----------------------------------------------------------------

    /// Inserts a unit. `room` is what the two queues may hold together, in bytes. Returns the bytes
    /// that a tenth of the cache would have saved, as [`ScanResistant::touch`] does.
    pub(super) fn insert(&mut self, queues: &mut Queues, id: usize, key: u64, bytes: u32, room: u64) -> u64 {
        self.uses += 1;
        let ghost = self.ghosts.take(key);
        let distance = ghost.map_or(u64::MAX, |ghost| self.ghosts.distance(&ghost));
        let lost = ghost.map_or(0, |ghost| self.worth - ghost.worth);
        if distance.saturating_add(lost) <= room / EDGE {
            self.resize(room, |cold| cold + u64::from(bytes) / STEP);
        }
        let is_hot = match ghost {
            _ if self.has_room(queues, bytes, room) => true,
            Some(Ghost { used, mark, .. }) if self.entered - mark >= self.capacity_bytes / BURST => {
                self.wins(queues, used)
            }
            _ => false,
        };
        queues.insert(id, key, bytes, if is_hot { Place::Hot } else { Place::Cold });
        self.enter(queues, id, room);
        let is_saved = distance <= self.capacity_bytes / EDGE && !self.is_cold_least(room);
        u64::from(bytes) * u64::from(is_saved)
    }

    /// Notes that a unit of these queues was used. Returns the bytes that a tenth of the cache
    /// saves: those of the uses that would be misses if these queues had that much less. While the
    /// cold queue is as small as it may be, this is about old hot units, and else about ghosts. If
    /// both have the same worth, as they then have, it does not matter which one counts.
    pub(super) fn touch(&mut self, queues: &mut Queues, id: usize, room: u64) -> u64 {
        self.uses += 1;
        self.age.sample(queues, self.uses, room / EDGE);
        let unit = queues.unit_mut(id);
        let used = std::mem::replace(&mut unit.used, self.uses);
        let (place, bytes) = (unit.place, unit.bytes);
        let is_old = place == Place::Hot && self.age.is_old(self.uses - used);
        let saved = u64::from(bytes) * u64::from(is_old && self.is_cold_least(room));
        if is_old {
            self.worth += u64::from(bytes);
            self.proved = self.entered;
            self.resize(room, |cold| cold.saturating_sub(u64::from(bytes) / STEP));
        }
        if self.entered - unit.mark < self.capacity_bytes / BURST {
            return saved;
        }
        unit.mark = self.entered;
        if place == Place::Hot {
            unit.spared = (unit.spared + 1).min(MOST_SPARED);
            return saved;
        }
        let is_hot = self.has_room(queues, bytes, room) || self.wins(queues, used);
        queues.move_to(id, if is_hot { Place::Hot } else { Place::Cold });
        self.enter(queues, id, room);
        saved
    }

    /// Remembers a unit that was evicted.
    pub(super) fn evicted(&mut self, unit: &Unit) {
        let is_hot_used = self.entered - self.proved <= self.capacity_bytes;
        self.ghosts.put(unit, if is_hot_used { self.capacity_bytes } else { u64::MAX });
    }

    /// Moves units to the cold queue if the hot queue is too large.
    pub(super) fn before_search(&mut self, queues: &mut Queues, room: u64) {
        self.shrink_hot(queues, room, MOVES_OF_SEARCH);
    }

    // ---- sizes ----------------------------------------------------------------------------------

    /// Returns the bytes that the hot queue may have.
    fn hot_bytes(&self, room: u64) -> u64 {
        room - self.clamped(self.cold_bytes, room)
    }

    fn clamped(&self, cold: u64, room: u64) -> u64 {
        cold.clamp(room / LEAST_COLD, room - room / EDGE)
    }

    fn is_cold_least(&self, room: u64) -> bool {
        self.cold_bytes <= room / LEAST_COLD
    }

    fn resize(&mut self, room: u64, change: impl FnOnce(u64) -> u64) {
        let cold = self.clamped(self.cold_bytes, room);
        self.cold_bytes = self.clamped(change(cold), room);
    }

    fn has_room(&self, queues: &Queues, bytes: u32, room: u64) -> bool {
        queues.bytes(Place::Hot) + u64::from(bytes) <= self.hot_bytes(room)
    }

    // ---- the hot queue --------------------------------------------------------------------------

    /// Returns true if a unit that was last used then is used again sooner than the hot unit that
    /// would make room for it.
    fn wins(&self, queues: &mut Queues, used: u64) -> bool {
        next_to_leave(queues).is_some_and(|id| used > queues.unit(id).used)
    }

    /// Completes what is known of a unit that was put into one of the queues.
    fn enter(&mut self, queues: &mut Queues, id: usize, room: u64) {
        let place = queues.unit(id).place;
        if place == Place::Cold {
            self.entered += u64::from(queues.unit(id).bytes);
        }
        let unit = queues.unit_mut(id);
        (unit.used, unit.mark, unit.worth, unit.spared) = (self.uses, self.entered, self.worth, 0);
        if place == Place::Hot {
            self.shrink_hot(queues, room, MOVES);
        }
    }

    fn shrink_hot(&mut self, queues: &mut Queues, room: u64, most: usize) {
        for _ in 0..most {
            if queues.bytes(Place::Hot) <= self.hot_bytes(room) {
                return;
            }
            let Some(id) = next_to_leave(queues) else { return };
            queues.move_to(id, Place::Cold);
            self.entered += u64::from(queues.unit(id).bytes);
            let unit = queues.unit_mut(id);
            (unit.mark, unit.worth) = (self.entered, self.worth);
        }
    }
}

/// Returns the oldest hot unit that is not spared any more. None if the oldest [`MOVES`] are
/// spared: they have then moved to the other end.
fn next_to_leave(queues: &mut Queues) -> Option<usize> {
    for _ in 0..MOVES {
        let id = queues.oldest(Place::Hot)?;
        match queues.unit(id).spared {
            0 => return Some(id),
            spared => queues.unit_mut(id).spared = spared - 1,
        }
        queues.move_to(id, Place::Hot);
    }
    None
}

/// An estimate of how long a hot unit must be unused to be in the last tenth of them.
///
/// Each use looks at one unit, in turn. If the estimate is right, one in ten is older than it. So
/// it grows by nine parts if the unit is older, and shrinks by one part if it is not.
#[derive(Debug)]
struct Age {
    /// In uses, times [`Age::ONE`].
    limit: u64,
    next: usize,
}

impl Age {
    const ONE: u64 = 1 << 10;
    /// The estimate changes by at most this part of itself.
    const PART: u64 = 32;
    /// The least estimate, which can still change. It is also the first: as long as all uses seem
    /// to be old, the hot queue keeps what it has.
    const LEAST: u64 = Age::ONE * Age::PART;

    fn new() -> Age {
        Age { limit: Age::LEAST, next: 0 }
    }

    fn is_old(&self, unused: u64) -> bool {
        unused * Age::ONE > self.limit
    }

    /// Looks at the next unit, if it is hot. `edge` is the part of the hot queue to be found, in
    /// bytes.
    fn sample(&mut self, queues: &Queues, now: u64, edge: u64) {
        self.next = (self.next + 1) % queues.end();
        let unit = queues.unit(self.next);
        if unit.place != Place::Hot {
            return;
        }
        let part = (edge.saturating_mul(Age::ONE) / queues.bytes(Place::Hot).max(1)).min(Age::ONE / 2);
        let change = self.limit / Age::PART;
        match self.is_old(now - unit.used) {
            true => self.limit += change * (Age::ONE - part) / Age::ONE,
            false => self.limit = (self.limit - change * part / Age::ONE).max(Age::LEAST),
        }
    }
}

#[cfg(test)]
impl ScanResistant {
    /// Checks the bounds, and returns the bytes that the cold queue should have.
    pub(super) fn check(&self, room: u64) -> u64 {
        self.ghosts.check();
        self.clamped(self.cold_bytes, room)
    }

    pub(super) fn knows(&self, key: u64) -> bool {
        self.ghosts.contains(key)
    }
}
