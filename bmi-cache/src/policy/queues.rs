//! The resident units and the queues that they are in.
//!
//! **Why.** All policies keep their units in queues, and look for the next victim in the same way.
//! They differ in which queue a unit is in and when it moves.
//!
//! **Layout**
//!
//! ```text
//!   units: id -> Unit { key, bytes, last use, its queue, neighbours }
//!
//!   Queue    fresh:  newest <-> … <-> oldest
//!                                       │ found in use
//!            passed: newest <───────────┘ … <-> oldest        all of them older than `fresh`
//! ```
//!
//! **Invariants**
//! 1. A resident unit is in exactly one chain, and the bytes of a queue are those of its units.
//! 2. *Units in use do not slow the search.* A search for a victim begins at the oldest unit. A
//!    unit that is in use goes from `fresh` to `passed`, so that the next search does not meet it
//!    there again. In `passed` it remains older than those in `fresh`. Each search asks for some of
//!    the passed units again, in turn. A unit that moves leaves `passed`.
//! 3. *Bounded.* [`Queues::find`] asks for at most [`SCAN`] units. [`Queues::find_any`] asks for as
//!    many as it is told, and goes on there the next time, until it has asked for all. What it
//!    passes over is out of the way of the next search, too.
//! 4. *Exact.* While fewer than half of [`SCAN`] units of a queue are in use, both return its
//!    oldest free unit.
//!
//! **Tests.** `tests/model.rs` compares the queues with a model. `tests/search.rs` counts what a
//! search asks.

use super::chain::{Chain, Linked, Links, NONE};

/// Number of units that one search of a queue asks for. Half of them may have been passed over
/// before. The pin-down cache of `bmi-core` has the same bound for the same task.
pub(super) const SCAN: usize = 64;

/// The queue of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Units of [`super::Policy::None`], first in first out.
    Unkept,
    /// Units of [`super::Policy::Stream`] whose last byte was read.
    UsedUp,
    /// The other units of [`super::Policy::Stream`], first in first out.
    Stream,
    /// Units of [`super::Policy::Lru`], least recently used first.
    Recent,
    /// Units of [`super::Policy::ScanResistant`] that go first.
    Cold,
    /// Units of [`super::Policy::ScanResistant`] that were used again soon.
    Hot,
    /// Units of [`super::Policy::Keep`], least recently used first.
    Kept,
    /// No queue: there is no unit with this id.
    Absent,
}

impl Place {
    pub(super) const ALL: [Place; Place::Absent as usize] =
        [Place::Unkept, Place::UsedUp, Place::Stream, Place::Recent, Place::Cold, Place::Hot, Place::Kept];
}

/// What the policies know of a resident unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    pub(super) key: u64,
    /// When it was last used, in uses of scan-resistant units.
    pub(super) used: u64,
    /// When it last began to be used, in bytes that entered the cold queue.
    pub(super) mark: u64,
    /// What [`super::scan_resistant`] knew of the worth of the hot queue when it became cold.
    pub(super) worth: u64,
    pub(super) bytes: u32,
    /// How many times it is spared from leaving the hot queue.
    pub(super) spared: u8,
    pub(super) place: Place,
    /// True in the chain `passed` of its queue.
    passed: bool,
    links: Links,
}

impl Unit {
    pub(super) const ABSENT: Unit = Unit {
        key: 0,
        used: 0,
        mark: 0,
        worth: 0,
        bytes: 0,
        spared: 0,
        place: Place::Absent,
        passed: false,
        links: Links::UNLINKED,
    };
}

impl Linked for Unit {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// Units in the order in which they are evicted.
#[derive(Clone, Copy, Debug)]
struct Queue {
    fresh: Chain,
    passed: Chain,
    /// So many of those that were passed over, the newest, were asked for in this search.
    asked: usize,
    bytes: u64,
}

impl Queue {
    const EMPTY: Queue = Queue { fresh: Chain::EMPTY, passed: Chain::EMPTY, asked: 0, bytes: 0 };

    fn push(&mut self, units: &mut Vec<Unit>, at: u32) {
        self.fresh.push(units, at);
        self.bytes += u64::from(units[at as usize].bytes);
    }

    fn unlink(&mut self, units: &mut Vec<Unit>, at: u32) {
        let unit = &mut units[at as usize];
        self.bytes -= u64::from(unit.bytes);
        let chain = if std::mem::take(&mut unit.passed) {
            // Perhaps it was not, and another one is asked for twice.
            self.asked = self.asked.saturating_sub(1);
            &mut self.passed
        } else {
            &mut self.fresh
        };
        chain.unlink(units, at);
    }

    /// Asks for the `most` oldest of the units that were passed over before.
    fn find_passed(&self, units: &[Unit], most: usize, is_free: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        let mut at = self.passed.oldest;
        for _ in 0..self.passed.len.min(most) {
            if is_free(at as usize) {
                return Some(at as usize);
            }
            at = units[at as usize].links.newer;
        }
        None
    }

    /// Makes the oldest of the units that were passed over the newest of them. It was asked for.
    fn rotate(&mut self, units: &mut Vec<Unit>) {
        self.passed.rotate(units);
        self.asked += 1;
    }

    /// Asks for those of the units that were passed over which were not asked for in this search.
    /// `most` is how many may be.
    fn find_rest(
        &mut self,
        units: &mut Vec<Unit>,
        most: &mut usize,
        is_free: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        // Few were all asked for before, and keep their order.
        while self.passed.len > SCAN / 2 && self.asked < self.passed.len && *most > 0 {
            let at = self.passed.oldest as usize;
            if is_free(at) {
                return Some(at);
            }
            self.rotate(units);
            *most -= 1;
        }
        None
    }

    /// Asks for the oldest of the other units, and passes over those in use. `most` is how many may
    /// be.
    fn find_fresh(
        &mut self,
        units: &mut Vec<Unit>,
        most: &mut usize,
        is_free: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        while self.fresh.len > 0 && *most > 0 {
            let at = self.fresh.oldest;
            if is_free(at as usize) {
                return Some(at as usize);
            }
            self.fresh.unlink(units, at);
            self.passed.push(units, at);
            units[at as usize].passed = true;
            (self.asked, *most) = (self.asked + 1, *most - 1);
        }
        None
    }
}

/// All resident units, and all queues.
#[derive(Debug)]
pub(super) struct Queues {
    units: Vec<Unit>,
    queues: [Queue; Place::ALL.len()],
}

impl Queues {
    pub(super) const fn new() -> Queues {
        Queues { units: Vec::new(), queues: [Queue::EMPTY; Place::ALL.len()] }
    }

    // ---- getters --------------------------------------------------------------------------------

    /// Returns a number above all ids.
    pub(super) fn end(&self) -> usize {
        self.units.len()
    }

    pub(super) fn unit(&self, id: usize) -> &Unit {
        &self.units[id]
    }

    /// Returns the bytes of the units in a queue.
    pub(super) fn bytes(&self, place: Place) -> u64 {
        self.queues[place as usize].bytes
    }

    /// Returns the unit that leaves a queue first, in use or not.
    pub(super) fn oldest(&self, place: Place) -> Option<usize> {
        let Queue { fresh, passed, .. } = &self.queues[place as usize];
        let at = if passed.oldest == NONE { fresh.oldest } else { passed.oldest };
        (at != NONE).then_some(at as usize)
    }

    // ---- mutators -------------------------------------------------------------------------------

    pub(super) fn unit_mut(&mut self, id: usize) -> &mut Unit {
        &mut self.units[id]
    }

    /// Puts a new unit at the newest end of a queue.
    ///
    /// # Panics
    /// If there is a unit with this id.
    pub(super) fn insert(&mut self, id: usize, key: u64, bytes: u32, place: Place) {
        let at = u32::try_from(id).ok().filter(|at| *at != NONE).expect("an id is an index of a unit");
        if id >= self.units.len() {
            self.units.resize(id + 1, Unit::ABSENT);
        }
        assert_eq!(self.units[id].place, Place::Absent, "unit {id} is resident already");
        self.units[id] = Unit { key, bytes, place, ..Unit::ABSENT };
        self.queues[place as usize].push(&mut self.units, at);
    }

    /// Moves a unit to the newest end of a queue, which may be the one that it is in.
    pub(super) fn move_to(&mut self, id: usize, place: Place) {
        let from = self.units[id].place;
        assert_ne!(from, Place::Absent, "unit {id} is not resident");
        self.queues[from as usize].unlink(&mut self.units, id as u32);
        self.units[id].place = place;
        self.queues[place as usize].push(&mut self.units, id as u32);
    }

    /// Removes a unit, and returns what was known of it.
    ///
    /// # Panics
    /// If there is no unit with this id.
    pub(super) fn remove(&mut self, id: usize) -> Unit {
        let unit = self.units[id];
        assert_ne!(unit.place, Place::Absent, "unit {id} is not resident");
        self.queues[unit.place as usize].unlink(&mut self.units, id as u32);
        self.units[id] = Unit::ABSENT;
        unit
    }

    // ---- search ---------------------------------------------------------------------------------

    /// Returns a free unit of a queue, if one is among its oldest [`SCAN`].
    pub(super) fn find(&mut self, place: Place, is_free: &mut dyn FnMut(usize) -> bool) -> Option<usize> {
        let Queues { units, queues } = self;
        let queue = &mut queues[place as usize];
        let again = queue.find_passed(units, SCAN / 2, is_free);
        if again.is_none() && queue.passed.len > SCAN / 2 {
            // Next time, others are the oldest of them.
            (0..SCAN / 2).for_each(|_| queue.rotate(units));
        }
        again.or_else(|| queue.find_fresh(units, &mut (SCAN / 2), is_free))
    }

    /// Returns a free unit of a queue. Asks for `most` units, which it counts down. If it returns
    /// none although some are left of them, it has asked for all units of the queue since the end
    /// of the last search.
    pub(super) fn find_any(
        &mut self,
        place: Place,
        most: &mut usize,
        is_free: &mut dyn FnMut(usize) -> bool,
    ) -> Option<usize> {
        let Queues { units, queues } = self;
        let queue = &mut queues[place as usize];
        let again = queue.find_passed(units, SCAN / 2, is_free);
        // Before the others that were passed over, because what is passed over now is then out of
        // the way.
        let fresh = again.or_else(|| queue.find_fresh(units, most, is_free));
        fresh.or_else(|| queue.find_rest(units, most, is_free))
    }

    /// Ends a search: the next one asks for all units again.
    pub(super) fn end_search(&mut self) {
        self.queues.iter_mut().for_each(|queue| queue.asked = 0);
    }
}

#[cfg(test)]
impl Queues {
    /// Returns the units of a queue, oldest first, as its chains have them.
    pub(super) fn order(&self, place: Place) -> Vec<usize> {
        let Queue { fresh, passed, .. } = &self.queues[place as usize];
        let mut order = Vec::new();
        for chain in [passed, fresh] {
            let (mut at, before) = (chain.oldest, order.len());
            while at != NONE {
                order.push(at as usize);
                at = self.units[at as usize].links.newer;
            }
            assert_eq!(order.len() - before, chain.len);
        }
        order
    }
}
