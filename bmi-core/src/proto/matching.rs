//! Messages wait for their receive, receives for their message: first in, first out, for each tag.
//!
//! **Invariant.** A tag is in the map if and only if it has an entry; so the map does not grow with the tags that were ever used. In
//! the steady state nothing is allocated: slab and map keep their room.
#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same in every run")]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use slab::Slab;

use crate::mutated_each;
use crate::op::Tag;

/// Names an entry of a [`Matching`] until it is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

#[derive(Debug)]
struct Node<V> {
    tag: Tag,
    value: V,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Hashes a tag by one multiplication, whose upper half is folded into the lower: looked up several times for each message. It has no random
/// state, so that a run can be repeated; what a peer can make collide is bounded by its credits.
#[derive(Default)]
struct TagHasher(u64);

impl Hasher for TagHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The golden ratio, as a fraction of 2^64: odd, and without a pattern that tags may have.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Queues of `V`, one for each tag.
#[derive(Debug)]
pub(crate) struct Matching<V> {
    nodes: Slab<Node<V>>,
    ends: HashMap<Tag, (usize, usize), BuildHasherDefault<TagHasher>>,
}

impl<V> Matching<V> {
    pub(crate) fn new() -> Matching<V> {
        Matching { nodes: Slab::new(), ends: HashMap::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn push(&mut self, tag: Tag, value: V) -> Place {
        let place = self.nodes.insert(Node { tag, value, prev: None, next: None });
        match self.ends.entry(tag) {
            Entry::Vacant(entry) => {
                entry.insert((place, place));
            }
            Entry::Occupied(mut entry) => {
                let (_, last) = entry.get_mut();
                self.nodes[*last].next = Some(place);
                self.nodes[place].prev = Some(*last);
                *last = place;
            }
        }
        Place(place)
    }

    /// Takes the oldest of `tag`.
    pub(crate) fn pop(&mut self, tag: Tag) -> Option<V> {
        let (first, last) = *self.ends.get(&tag)?;
        let place = if mutated_each(10, "match/newest-first") { last } else { first };
        Some(self.remove(Place(place)))
    }

    /// The oldest of `tag`.
    pub(crate) fn first(&self, tag: Tag) -> Option<&V> {
        let (first, _) = self.ends.get(&tag)?;
        Some(&self.nodes[*first].value)
    }

    /// The newest of `tag`.
    pub(crate) fn last(&self, tag: Tag) -> Option<&V> {
        let (_, last) = self.ends.get(&tag)?;
        Some(&self.nodes[*last].value)
    }

    /// Takes out one that is known to be there.
    pub(crate) fn remove(&mut self, place: Place) -> V {
        let node = self.nodes.remove(place.0);
        if let Some(prev) = node.prev {
            self.nodes[prev].next = node.next;
        }
        if let Some(next) = node.next {
            self.nodes[next].prev = node.prev;
        }
        match (node.prev, node.next) {
            (None, None) => {
                self.ends.remove(&node.tag);
            }
            (None, Some(next)) => self.ends.get_mut(&node.tag).expect("tag of a node").0 = next,
            (Some(prev), None) => self.ends.get_mut(&node.tag).expect("tag of a node").1 = prev,
            (Some(_), Some(_)) => {}
        }
        node.value
    }

    /// Finds one by its value; slow, for what is rare.
    pub(crate) fn find(&self, wanted: impl Fn(&V) -> bool) -> Option<Place> {
        self.nodes.iter().find(|(_, node)| wanted(&node.value)).map(|(place, _)| Place(place))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a plain model: a queue for each tag.
        #[test]
        fn behaves_like_queues(steps in proptest::collection::vec((0u64..4, 0u8..3), 0..200)) {
            let mut matching = Matching::new();
            let mut model: BTreeMap<u64, VecDeque<(usize, Place)>> = BTreeMap::new();
            for (number, (tag, action)) in steps.into_iter().enumerate() {
                let queue = model.entry(tag).or_default();
                match action {
                    0 => queue.push_back((number, matching.push(tag, number))),
                    1 => prop_assert_eq!(matching.pop(tag), queue.pop_front().map(|(number, _)| number)),
                    _ => {
                        if let Some((number, place)) = queue.remove(queue.len() / 2) {
                            prop_assert_eq!(matching.remove(place), number);
                        }
                    }
                }
                prop_assert_eq!(matching.len(), model.values().map(VecDeque::len).sum::<usize>());
                prop_assert_eq!(matching.ends.len(), model.values().filter(|queue| !queue.is_empty()).count());
            }
        }
    }
}
