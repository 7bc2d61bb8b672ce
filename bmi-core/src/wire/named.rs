//! Names that a peer gives to what it announces and offers, and by which it takes it back.
//!
//! **Why.** A peer cancels an announcement, and withdraws an offer, by a name that it has chosen.
//! Its credits have room for thousands of them, and a request to take one back is only a header. So
//! no request may cost a search through all of them, or through all operations.
//!
//! **Why an ordered set.** The hash of [`super::matching`] is the same in every run, so a peer
//! could choose names that collide. The cost of a search in an ordered set grows with the logarithm
//! of its length, whatever the names are.
//!
//! **Why an array before it.** Most peers have few names at a time. The first few are in an array
//! and are compared one by one. So an offer that is made and used costs some instructions and no
//! allocation.
//!
//! **Invariants**
//! 1. An entry of a [`NamedMatching`] is in the index of names as long as it is in its queue. An
//!    entry that has no name, such as an eager message, does not touch the index.
//! 2. A name with its key is in the array or in the set, but not in both.
//! 3. A peer may give a name twice. Then both are in the index, and the name finds one of them.
//!    When this one is gone, it finds the other.

use std::collections::BTreeSet;

use super::matching::{Matching, Place};
use crate::hooks::{step, steps};
use crate::ids::{Key, OpId, Tag};
use crate::mutated;

/// Number of names that are compared one by one: as many as fit two cache lines.
const NEAR: usize = 8;

/// What a name stands for. Keys of equal names are ordered.
pub(crate) trait NameKey: Ord + Copy {
    const LEAST: Self;
}

impl NameKey for Place {
    const LEAST: Place = Place::LEAST;
}

impl NameKey for OpId {
    const LEAST: OpId = OpId(Key { slot: 0, generation: 0 });
}

/// An index of names that a peer has given.
#[derive(Debug)]
pub(crate) struct Names<K> {
    near: [(u64, K); NEAR],
    near_len: usize,
    far: BTreeSet<(u64, K)>,
}

impl<K: NameKey> Default for Names<K> {
    fn default() -> Names<K> {
        Names { near: [(0, K::LEAST); NEAR], near_len: 0, far: BTreeSet::new() }
    }
}

impl<K: NameKey> Names<K> {
    #[inline]
    pub(crate) fn insert(&mut self, name: u64, key: K) {
        match self.near.get_mut(self.near_len) {
            Some(place) => {
                *place = (name, key);
                self.near_len += 1;
            }
            None => self.insert_far(name, key),
        }
    }

    #[inline(never)]
    fn insert_far(&mut self, name: u64, key: K) {
        self.far.insert((name, key));
    }

    #[inline]
    pub(crate) fn remove(&mut self, name: u64, key: K) {
        match self.near[..self.near_len].iter().position(|near| *near == (name, key)) {
            Some(at) => {
                self.near_len -= 1;
                self.near[at] = self.near[self.near_len];
            }
            None => self.remove_far(name, key),
        }
    }

    #[inline(never)]
    fn remove_far(&mut self, name: u64, key: K) {
        let found = self.far.remove(&(name, key));
        debug_assert!(found, "what has a name is in the index");
    }

    /// Returns what has this name, if there is anything.
    pub(crate) fn find(&self, name: u64) -> Option<K> {
        let mut near = self.near[..self.near_len].iter().inspect(|_| step());
        if let Some((_, key)) = near.find(|(one, _)| *one == name) {
            return Some(*key);
        }
        if mutated("names/searched-one-by-one") {
            let found = self.far.iter().inspect(|_| step()).find(|(one, _)| *one == name);
            return found.map(|(_, key)| *key);
        }
        // As many rounds as a binary search takes.
        steps((usize::BITS - self.far.len().leading_zeros()) as usize);
        let (found, key) = self.far.range((name, K::LEAST)..).next()?;
        (*found == name).then_some(*key)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.near_len + self.far.len()
    }
}

/// An entry that a peer may have given a name.
pub(crate) trait Named {
    fn name(&self) -> Option<u64>;
}

/// Queues of `V`, one for each tag, with an index of the names of their entries.
#[derive(Debug)]
pub(crate) struct NamedMatching<V> {
    queues: Matching<V>,
    names: Names<Place>,
}

impl<V: Named> NamedMatching<V> {
    pub(crate) fn new() -> NamedMatching<V> {
        NamedMatching { queues: Matching::new(), names: Names::default() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Returns the oldest entry of `tag`.
    #[inline]
    pub(crate) fn first(&self, tag: Tag) -> Option<&V> {
        self.queues.first(tag)
    }

    #[inline]
    pub(crate) fn push(&mut self, tag: Tag, value: V) {
        let name = value.name();
        let place = self.queues.push(tag, value);
        if let Some(name) = name {
            self.names.insert(name, place);
        }
    }

    /// Takes the oldest entry of `tag`.
    #[inline]
    pub(crate) fn pop(&mut self, tag: Tag) -> Option<V> {
        let (place, value) = self.queues.pop_entry(tag)?;
        if let Some(name) = value.name()
            && !mutated("names/kept-without-their-entries")
        {
            self.names.remove(name, place);
        }
        Some(value)
    }

    /// Takes an entry with this name, whatever its tag is.
    pub(crate) fn take_named(&mut self, name: u64) -> Option<V> {
        let place = self.names.find(name)?;
        self.names.remove(name, place);
        let value = self.queues.remove(place);
        debug_assert_eq!(value.as_ref().and_then(V::name), Some(name), "the index is right");
        value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry that may have a name, and its number.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Entry(Option<u64>, usize);

    impl Named for Entry {
        fn name(&self) -> Option<u64> {
            self.0
        }
    }

    proptest! {
        /// Compares with a list. There are few names, so most of them are given several times, and
        /// most of the entries are not in the array.
        #[test]
        fn a_name_finds_one_of_its_entries_as_long_as_there_is_one(
            actions in proptest::collection::vec((0u64..4, 0u64..5, 0u8..5), 0..200),
        ) {
            let mut matching = NamedMatching::new();
            let mut model: Vec<(Tag, Entry)> = Vec::new();
            for (number, (tag, name, action)) in actions.into_iter().enumerate() {
                match action {
                    0..3 => {
                        // The last name is none.
                        let entry = Entry(Some(name).filter(|name| *name < 4), number);
                        matching.push(tag, entry);
                        model.push((tag, entry));
                    }
                    3 => {
                        let oldest = model.iter().position(|(one, _)| *one == tag).map(|at| model.remove(at).1);
                        prop_assert_eq!(matching.pop(tag), oldest);
                    }
                    _ => {
                        let taken = matching.take_named(name);
                        let at = model.iter().position(|(_, entry)| Some(*entry) == taken);
                        let has_name = model.iter().any(|(_, entry)| entry.name() == Some(name));
                        prop_assert_eq!(at.is_some(), has_name);
                        if let Some(at) = at {
                            prop_assert_eq!(model.remove(at).1.name(), Some(name));
                        }
                    }
                }
                let named = model.iter().filter(|(_, entry)| entry.name().is_some()).count();
                prop_assert_eq!((matching.len(), matching.names.len()), (model.len(), named));
            }
        }
    }

    #[test]
    fn names_at_the_ends_are_found() {
        let op = |generation| OpId(Key { slot: 0, generation });
        // In the array, and in the set.
        for others in [0, NEAR as u32] {
            let mut names = Names::default();
            assert_eq!(names.find(0), None);
            (0..others).for_each(|number| names.insert(5, op(number)));
            for (name, generation) in [(0, 3), (u64::MAX, 2), (u64::MAX, 3)] {
                names.insert(name, op(generation));
            }
            assert_eq!([0, 1, u64::MAX].map(|name| names.find(name)), [Some(op(3)), None, Some(op(2))]);
            names.remove(u64::MAX, op(2));
            assert_eq!(names.find(u64::MAX), Some(op(3)));
            names.remove(u64::MAX, op(3));
            assert_eq!((names.find(u64::MAX), names.len()), (None, others as usize + 1));
        }
    }
}
