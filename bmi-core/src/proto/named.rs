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
//! **Invariants**
//! 1. An entry of a [`NamedMatching`] is in the index of names as long as it is in its queue. An
//!    entry that has no name, such as an eager message, does not touch the index.
//! 2. A peer may give a name twice. Then both are in the index, and the name finds the one with the
//!    lesser key. When this one is gone, it finds the other.

use std::collections::BTreeSet;

use super::matching::{Matching, Place};
use super::table::Key;
use crate::mutated;
use crate::op::{OpId, Tag};
use crate::steps::{step, steps};

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
pub(crate) struct Names<K>(BTreeSet<(u64, K)>);

impl<K> Default for Names<K> {
    fn default() -> Names<K> {
        Names(BTreeSet::new())
    }
}

impl<K: NameKey> Names<K> {
    pub(crate) fn insert(&mut self, name: u64, key: K) {
        self.0.insert((name, key));
    }

    pub(crate) fn remove(&mut self, name: u64, key: K) {
        let found = self.0.remove(&(name, key));
        debug_assert!(found, "what has a name is in the index");
    }

    /// Returns what has this name, if there is anything.
    pub(crate) fn find(&self, name: u64) -> Option<K> {
        if mutated("names/searched-one-by-one") {
            let found = self.0.iter().inspect(|_| step()).find(|(one, _)| *one == name);
            return found.map(|(_, key)| *key);
        }
        // As many rounds as a binary search takes.
        steps((usize::BITS - self.0.len().leading_zeros()) as usize);
        let (found, key) = self.0.range((name, K::LEAST)..).next()?;
        (*found == name).then_some(*key)
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
        /// Compares with a list. There are few names, so most of them are given several times.
        #[test]
        fn a_name_finds_one_of_its_entries_as_long_as_there_is_one(
            actions in proptest::collection::vec((0u64..4, 0u64..5, 0u8..5), 0..200),
        ) {
            let mut matching = NamedMatching::new();
            let mut model: Vec<(Tag, Entry)> = Vec::new();
            for (number, (tag, name, action)) in actions.into_iter().enumerate() {
                match action {
                    0 | 1 => {
                        // The last name is none.
                        let entry = Entry(Some(name).filter(|name| *name < 4), number);
                        matching.push(tag, entry);
                        model.push((tag, entry));
                    }
                    2 => {
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
                prop_assert_eq!((matching.len(), matching.names.0.len()), (model.len(), named));
            }
        }
    }

    #[test]
    fn names_at_the_ends_are_found() {
        let mut names = Names::default();
        assert_eq!(names.find(0), None);
        let op = |generation| OpId(Key { slot: 0, generation });
        [0, u64::MAX].into_iter().for_each(|name| names.insert(name, op(3)));
        names.insert(u64::MAX, op(2));
        assert_eq!([0, 1, u64::MAX].map(|name| names.find(name)), [Some(op(3)), None, Some(op(2))]);
        names.remove(u64::MAX, op(2));
        assert_eq!(names.find(u64::MAX), Some(op(3)));
    }
}
