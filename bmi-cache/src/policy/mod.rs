//! Replacement policies: which unit gives its place to another one.
//!
//! **Why.** No policy is best for all uses. A server cannot know whether a file is read once or all
//! the time, but its clients can. So each file, or each request, may name a policy. This is best
//! effort: it decides which units are evicted first, and reserves nothing.
//!
//! **Order of victims**
//!
//! ```text
//!   1  None                    first in, first out
//!   2  Stream, used up         in the order in which their last bytes were read
//!   3  Stream                  first in, first out
//!   4  Lru, ScanResistant      the one that has more than its share (`balance`), then the other one
//!   5  Keep                    least recently used, only if no other unit is free
//! ```
//!
//! A policy of which many units are in use (half of [`queues::SCAN`] or more) may leave its turn to
//! the next one in this list. But `Keep` always comes last.
//!
//! **Invariants**
//! 1. A resident unit is in exactly one queue.
//! 2. [`Policies::search`] returns only units that are free, and none only if no unit was free when
//!    it was asked for.
//! 3. *Bounded work.* No operation depends on the number of units. `search` asks for a bounded
//!    number of units of each queue. Only if none of them is free, it asks for more, and in the end
//!    for all: in as many calls as that takes. Units that it meets in use are then out of the way
//!    of the next search.
//! 4. *Bounded memory.* What is remembered of evicted units is for as many bytes as the cache has,
//!    at times for four times as many, and for `Lru` for a tenth.
//! 5. No I/O, no clock, no random number, no lock: the same calls give the same victims.
//!
//! | module | what |
//! |---|---|
//! | `scan_resistant` | the policy of most files |
//! | `balance` | the shares of `Lru` and `ScanResistant` |
//! | `queues`, `chain` | the resident units, and the search for a free one |
//! | `ghosts` | what is remembered of evicted units |
//!
//! **Why this scan-resistant policy.** S3-FIFO (Yang et al., SOSP 2023) was to be the policy of
//! most files. It is good at Zipf distributions. But in a loop over more than the cache holds it
//! loses many hits, and all of them if the loop follows other work. It also loses many where units
//! are used for a short time only. `scan_resistant` has another test for admission. These are hit
//! rates in percent, for a cache of 10 % of 20,000 units:
//!
//! | trace | ours | LRU | S3-FIFO | moka | quick_cache | foyer, LFU |
//! |---|--:|--:|--:|--:|--:|--:|
//! | zipf 0.6 | 34.2 | 24.6 | 33.8 | 33.4 | 34.9 | 33.9 |
//! | zipf 1.0 | 75.8 | 69.7 | 75.4 | 75.8 | 76.2 | 75.3 |
//! | zipf, scans | 54.6 | 46.1 | 54.2 | 53.6 | 54.9 | 53.9 |
//! | zipf, scans by pieces | 69.6 | 64.0 | 63.2 | 36.3 | 61.5 | 69.1 |
//! | loop 1.05 | 94.1 | 0.0 | 86.0 | 95.0 | 90.4 | 81.7 |
//! | loop 1.25 | 79.0 | 0.0 | 64.3 | 79.7 | 61.3 | 11.4 |
//! | loop 2 | 49.3 | 0.0 | 0.0 | 49.8 | 48.3 | 0.0 |
//! | zipf and loop | 63.2 | 22.2 | 47.7 | 65.6 | 57.2 | 31.1 |
//! | zipf, then loop 1.2 | 71.2 | 16.1 | 16.4 | 52.4 | 16.0 | 20.1 |
//! | short lives | 72.0 | 74.5 | 53.1 | 11.1 | 51.3 | 35.9 |
//!
//! They were measured when the policy was chosen, with a program that commit c3d63dd has in
//! `bmi-cache/peers`. Of all its traces and sizes the policy is never more than 2.6 points behind
//! the best.
//!
//! **Source.** [Unifier-PVFS §4.4.1] lets applications state what they require of the cache, and
//! calls that best effort. It does not say which policies there are. The sources of the policies
//! are in their modules.
//!
//! **Tests.** `policy/tests`: each policy, the search, a model of all of them, and hit rates.

mod balance;
mod chain;
mod ghosts;
mod queues;
mod scan_resistant;

use self::balance::Balance;
use self::ghosts::Ghosts;
use self::queues::{Place, Queues};
use self::scan_resistant::{EDGE, ScanResistant};

/// How long the cache keeps the units of a file, or of a request, after their use.
///
/// A policy is a wish. The cache may evict any unit that is not in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Policy {
    /// The policy that the cache was made with: [`Policy::Lru`] or [`Policy::ScanResistant`].
    #[default]
    Default,
    /// Evicts the least recently used unit first. For files whose next uses are near their last
    /// ones, and which together fit into the cache.
    Lru,
    /// Keeps units that are used again soon, even if much else is read once, or in a loop that does
    /// not fit into the cache. For all files of which nothing is known.
    ScanResistant,
    /// Evicts a unit soon after its last byte was read. For files that are read once, from the
    /// beginning to the end.
    Stream,
    /// Evicts a unit only if no unit of another policy is free. For small files that must always be
    /// fast. More of them than the cache can hold leave no room for anything else.
    Keep,
    /// Evicts a unit as soon as its place is needed. For files that are not used again.
    None,
}

/// The policies of one cache, and all of its units as they see them.
///
/// The cache names a unit by its `id` and its `key`. The id is a small index, which may be used
/// again after the unit is gone. The key is a hash of file and position, which stays the same.
#[derive(Debug)]
pub(crate) struct Policies {
    is_lru_default: bool,
    capacity_bytes: u64,
    /// See [`Policies::room`].
    room: u64,
    queues: Queues,
    scan_resistant: ScanResistant,
    balance: Balance,
    lru_ghosts: Ghosts,
    searching: bool,
}

/// What a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    Found(usize),
    /// It has asked for all units, and none is free.
    None,
    /// It goes on with the next call.
    Goes,
}

impl Policies {
    /// `default` is what [`Policy::Default`] means. A value other than `Lru` means `ScanResistant`.
    pub(crate) fn new(default: Policy, capacity_bytes: u64) -> Policies {
        Policies {
            is_lru_default: default == Policy::Lru,
            capacity_bytes,
            room: capacity_bytes,
            queues: Queues::new(),
            scan_resistant: ScanResistant::new(capacity_bytes),
            balance: Balance::new(capacity_bytes),
            lru_ghosts: Ghosts::new(capacity_bytes / EDGE),
            searching: false,
        }
    }

    // ---- what happens to a unit -----------------------------------------------------------------

    /// Adds a unit.
    ///
    /// # Panics
    /// If there is a unit with this id.
    pub(crate) fn insert(&mut self, id: usize, key: u64, bytes: u32, policy: Policy) {
        let place = match self.resolved(policy) {
            Policy::ScanResistant | Policy::Default => {
                let room = self.room();
                let saved = self.scan_resistant.insert(&mut self.queues, id, key, bytes, room);
                return self.balance.scan_resistant_saves(saved, room);
            }
            Policy::Lru => {
                let ghost = self.lru_ghosts.take(key);
                if ghost.is_some_and(|ghost| self.lru_ghosts.distance(&ghost) <= self.capacity_bytes / EDGE) {
                    self.balance.lru_saves(u64::from(bytes));
                }
                Place::Recent
            }
            Policy::Stream => Place::Stream,
            Policy::Keep => Place::Kept,
            Policy::None => Place::Unkept,
        };
        self.queues.insert(id, key, bytes, place);
    }

    /// Notes that a unit was used again. If it has another policy now, it moves.
    pub(crate) fn touch(&mut self, id: usize, policy: Policy) {
        let policy = self.resolved(policy);
        let place = self.queues.unit(id).place;
        if policy != policy_of(place) {
            let unit = self.queues.remove(id);
            return self.insert(id, unit.key, unit.bytes, policy);
        }
        match place {
            Place::Recent | Place::Kept => self.queues.move_to(id, place),
            // It is read once more.
            Place::UsedUp => self.queues.move_to(id, Place::Stream),
            Place::Cold | Place::Hot => {
                let room = self.room();
                let saved = self.scan_resistant.touch(&mut self.queues, id, room);
                self.balance.scan_resistant_saves(saved, room);
            }
            Place::Unkept | Place::Stream | Place::Absent => {}
        }
    }

    /// Notes that the last byte of a unit was read. If its policy is [`Policy::Stream`], it is
    /// evicted before other units of that policy.
    pub(crate) fn used_up(&mut self, id: usize) {
        if self.queues.unit(id).place == Place::Stream {
            self.queues.move_to(id, Place::UsedUp);
        }
    }

    /// Removes a unit that will not come back, because its file was removed or truncated.
    pub(crate) fn remove(&mut self, id: usize) {
        self.queues.remove(id);
    }

    /// Removes a unit that was evicted and may come back.
    pub(crate) fn evicted(&mut self, id: usize) {
        let unit = self.queues.remove(id);
        match unit.place {
            Place::Cold | Place::Hot => self.scan_resistant.evicted(&unit),
            Place::Recent => self.lru_ghosts.put(&unit, u64::MAX),
            Place::Unkept | Place::UsedUp | Place::Stream | Place::Kept | Place::Absent => {}
        }
    }

    // ---- victims --------------------------------------------------------------------------------

    /// Looks for the next unit to evict among those for which `is_free` returns true, but for
    /// `most` units at most beyond the first ones. The unit is not removed.
    pub(crate) fn search(&mut self, most: usize, is_free: &mut dyn FnMut(usize) -> bool) -> Search {
        let room = self.room();
        self.scan_resistant.before_search(&mut self.queues, room);
        let order = self.order();
        let near = order.iter().find_map(|place| self.queues.find(*place, is_free));
        let (mut left, all) = (most, order.iter().chain(&[Place::Kept]));
        let found = near.or_else(|| all.into_iter().find_map(|place| self.queues.find_any(*place, &mut left, is_free)));
        self.searching = found.is_none() && left == 0;
        if self.searching {
            return Search::Goes;
        }
        self.queues.end_search();
        found.map_or(Search::None, Search::Found)
    }

    /// Returns true if the last search has not asked for all units, and has found none.
    pub(crate) fn is_searching(&self) -> bool {
        self.searching
    }

    /// Returns all queues but that of `Keep`, in the order in which they give up units.
    fn order(&self) -> [Place; 6] {
        let [lru, cold, hot] = [Place::Recent, Place::Cold, Place::Hot].map(|place| self.queues.bytes(place));
        let [first, second, third] = match self.balance.is_lru_next(lru, cold + hot) {
            true => [Place::Recent, Place::Cold, Place::Hot],
            false => [Place::Cold, Place::Hot, Place::Recent],
        };
        [Place::Unkept, Place::UsedUp, Place::Stream, first, second, third]
    }

    // ---- getters --------------------------------------------------------------------------------

    fn resolved(&self, policy: Policy) -> Policy {
        match policy {
            Policy::Default if self.is_lru_default => Policy::Lru,
            Policy::Default => Policy::ScanResistant,
            policy => policy,
        }
    }

    /// Returns the bytes that units of `ScanResistant` may have: all that others do not use. If
    /// others use less than before, it grows slowly. Otherwise each unit of another policy that
    /// comes and goes would let a unit into the hot queue that has proved nothing.
    fn room(&mut self) -> u64 {
        /// Part of a new room that one call gives.
        const PART: u64 = 1024;
        let others = [Place::Unkept, Place::UsedUp, Place::Stream, Place::Recent, Place::Kept];
        let used: u64 = others.iter().map(|place| self.queues.bytes(*place)).sum();
        let room = self.capacity_bytes.saturating_sub(used);
        self.room = room.min(self.room + room.saturating_sub(self.room) / PART);
        self.room
    }
}

fn policy_of(place: Place) -> Policy {
    match place {
        Place::Unkept => Policy::None,
        Place::UsedUp | Place::Stream => Policy::Stream,
        Place::Recent => Policy::Lru,
        Place::Cold | Place::Hot => Policy::ScanResistant,
        Place::Kept => Policy::Keep,
        Place::Absent => Policy::Default,
    }
}

#[cfg(test)]
mod tests;
