//! Tag matching: queues of messages that wait for a receive, or of receives that wait for a
//! message. Each tag has one queue, first in, first out.
//!
//! **Why two places for tags.** Most peers use a few tags at a time. So the first few tags are in
//! an array and are compared one by one, which costs less than a hash and touches two cache lines.
//! Only further tags are in a map.
//!
//! **Invariant.** A tag is in the array or in the map, but not in both, if and only if it has an
//! entry. So nothing grows with the number of tags that were ever used. In the steady state nothing
//! is allocated: free nodes wait for the next entry, and the map keeps its capacity.
#![expect(clippy::disallowed_types, reason = "a map whose hasher is the same in every run")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::ids::Tag;
use crate::mutated_each;

/// Names an entry of a [`Matching`] until the entry is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u32);

impl Place {
    /// No place is before this one.
    pub(crate) const LEAST: Place = Place(0);
}

#[derive(Debug)]
struct Node<V> {
    tag: Tag,
    /// `None` if the node is free. Then `next` is the next free node.
    value: Option<V>,
    prev: u32,
    next: u32,
}

/// No neighbor.
const NONE: u32 = u32::MAX;
/// Number of tags that are compared one by one: as many as fit two cache lines.
const NEAR: usize = 8;

/// The oldest and the newest entry of a tag.
type Ends = (u32, u32);

/// Hashes one word, a tag or an id, with one multiplication. The upper half of the product is
/// folded into the lower half.
///
/// The hash is fast, because it is computed several times for each message. It has no random state,
/// so that a run can be repeated. The credits of a peer bound how many collisions it can cause.
#[derive(Default)]
pub(crate) struct WordHasher(u64);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        // The golden ratio as a fraction of 2^64. It is odd, and has no pattern that tags may have.
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
    nodes: Vec<Node<V>>,
    free: u32,
    len: usize,
    near: [(Tag, Ends); NEAR],
    near_len: usize,
    far: HashMap<Tag, Ends, BuildHasherDefault<WordHasher>>,
}

impl<V> Matching<V> {
    pub(crate) fn new() -> Matching<V> {
        Matching {
            nodes: Vec::new(),
            free: NONE,
            len: 0,
            near: [(0, (NONE, NONE)); NEAR],
            near_len: 0,
            far: HashMap::default(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn ends(&self, tag: Tag) -> Option<Ends> {
        match self.near[..self.near_len].iter().find(|(near, _)| *near == tag) {
            Some((_, ends)) => Some(*ends),
            None if self.far.is_empty() => None,
            None => self.far.get(&tag).copied(),
        }
    }

    #[inline]
    fn ends_mut(&mut self, tag: Tag) -> Option<&mut Ends> {
        match self.near[..self.near_len].iter_mut().find(|(near, _)| *near == tag) {
            Some((_, ends)) => Some(ends),
            None if self.far.is_empty() => None,
            None => self.far.get_mut(&tag),
        }
    }

    /// Adds a tag with its first entry.
    #[inline]
    fn enter(&mut self, tag: Tag, place: u32) {
        if self.near_len < NEAR {
            self.near[self.near_len] = (tag, (place, place));
            self.near_len += 1;
        } else {
            self.far.insert(tag, (place, place));
        }
    }

    /// Removes a tag that has lost its last entry.
    #[inline]
    fn leave(&mut self, tag: Tag) {
        match self.near[..self.near_len].iter().position(|(near, _)| *near == tag) {
            Some(at) => {
                self.near_len -= 1;
                self.near[at] = self.near[self.near_len];
            }
            None => {
                self.far.remove(&tag);
            }
        }
    }

    #[inline]
    fn take_node(&mut self, tag: Tag, value: V) -> u32 {
        self.len += 1;
        let place = self.free;
        match self.nodes.get_mut(place as usize) {
            Some(node) => {
                self.free = node.next;
                (node.tag, node.prev, node.next) = (tag, NONE, NONE);
                node.value = Some(value);
                place
            }
            None => {
                self.nodes.push(Node { tag, value: Some(value), prev: NONE, next: NONE });
                u32::try_from(self.nodes.len() - 1).expect("bounded by operations and credits")
            }
        }
    }

    /// Frees a node and returns its value.
    #[inline]
    fn free_node(&mut self, place: u32) -> Option<V> {
        let node = &mut self.nodes[place as usize];
        node.next = self.free;
        (self.free, self.len) = (place, self.len - 1);
        node.value.take()
    }

    #[inline]
    pub(crate) fn push(&mut self, tag: Tag, value: V) -> Place {
        let place = self.take_node(tag, value);
        let before = self.ends_mut(tag).map(|(_, last)| std::mem::replace(last, place));
        match before {
            None => self.enter(tag, place),
            Some(last) => {
                self.nodes[last as usize].next = place;
                self.nodes[place as usize].prev = last;
            }
        }
        Place(place)
    }

    /// Takes the oldest entry of `tag`.
    #[inline]
    pub(crate) fn pop(&mut self, tag: Tag) -> Option<V> {
        self.pop_entry(tag).map(|(_, value)| value)
    }

    /// Takes the oldest entry of `tag`. Also returns the place where it was.
    #[inline]
    pub(crate) fn pop_entry(&mut self, tag: Tag) -> Option<(Place, V)> {
        let (first, last) = self.ends(tag)?;
        let place = Place(if mutated_each(10, "match/newest-first") { last } else { first });
        self.remove(place).map(|value| (place, value))
    }

    /// Takes the oldest entry of `tag` if `wanted` returns true for it. This is [`Matching::first`]
    /// and [`Matching::remove`] with one lookup of the tag.
    #[inline(always)]
    pub(crate) fn pop_if(&mut self, tag: Tag, wanted: impl FnOnce(&V) -> bool) -> Option<V> {
        let Some(near) = self.near[..self.near_len].iter().position(|(near, _)| *near == tag) else {
            return self.first(tag).is_some_and(wanted).then(|| self.pop(tag)).flatten();
        };
        let place = self.near[near].1.0;
        let node = &self.nodes[place as usize];
        if !node.value.as_ref().is_some_and(wanted) {
            return None;
        }
        let next = node.next;
        if next == NONE {
            self.near_len -= 1;
            self.near[near] = self.near[self.near_len];
        } else {
            self.near[near].1.0 = next;
            self.nodes[next as usize].prev = NONE;
        }
        self.free_node(place)
    }

    /// Returns the oldest entry of `tag`.
    #[inline]
    pub(crate) fn first(&self, tag: Tag) -> Option<&V> {
        let (first, _) = self.ends(tag)?;
        self.nodes[first as usize].value.as_ref()
    }

    /// Returns the newest entry of `tag`.
    #[inline]
    pub(crate) fn last(&self, tag: Tag) -> Option<&V> {
        let (_, last) = self.ends(tag)?;
        self.nodes[last as usize].value.as_ref()
    }

    /// Returns the entry of the same tag that is just before the one at `place`.
    pub(crate) fn before(&self, place: Place) -> Option<&V> {
        let node = self.nodes.get(place.0 as usize).filter(|node| node.value.is_some())?;
        self.nodes.get(node.prev as usize)?.value.as_ref()
    }

    /// Takes out the entry at `place`. Returns `None` if it is no longer there.
    #[inline]
    pub(crate) fn remove(&mut self, place: Place) -> Option<V> {
        let node = self.nodes.get(place.0 as usize).filter(|node| node.value.is_some())?;
        let (tag, prev, next) = (node.tag, node.prev, node.next);
        if prev == NONE && next == NONE {
            self.leave(tag);
            return self.free_node(place.0);
        }
        match prev {
            NONE => self.ends_mut(tag).expect("tag of a node").0 = next,
            prev => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.ends_mut(tag).expect("tag of a node").1 = prev,
            next => self.nodes[next as usize].prev = prev,
        }
        self.free_node(place.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a simple model: a queue for each tag.
        #[test]
        fn behaves_like_queues(steps in proptest::collection::vec((0u64..2 * NEAR as u64, 0u8..5), 0..300)) {
            let mut matching = Matching::new();
            let mut model: BTreeMap<u64, VecDeque<(usize, Place)>> = BTreeMap::new();
            for (number, (tag, action)) in steps.into_iter().enumerate() {
                let queue = model.entry(tag).or_default();
                match action {
                    0 => queue.push_back((number, matching.push(tag, number))),
                    1 => prop_assert_eq!(matching.pop(tag), queue.pop_front().map(|(number, _)| number)),
                    2 => prop_assert_eq!(matching.pop_if(tag, |_| true), queue.pop_front().map(|(number, _)| number)),
                    3 => prop_assert_eq!(matching.pop_if(tag, |_| false), None),
                    _ => {
                        if let Some((number, place)) = queue.remove(queue.len() / 2) {
                            prop_assert_eq!(matching.remove(place), Some(number));
                            prop_assert_eq!(matching.remove(place), None);
                        }
                    }
                }
                prop_assert_eq!(matching.len(), model.values().map(VecDeque::len).sum::<usize>());
                let tags = model.values().filter(|queue| !queue.is_empty()).count();
                prop_assert_eq!(matching.near_len + matching.far.len(), tags);
                for (tag, queue) in &model {
                    prop_assert_eq!(matching.first(*tag), queue.front().map(|(number, _)| number));
                    prop_assert_eq!(matching.last(*tag), queue.back().map(|(number, _)| number));
                    for (at, (_, place)) in queue.iter().enumerate() {
                        let before = at.checked_sub(1).and_then(|at| queue.get(at)).map(|(number, _)| number);
                        prop_assert_eq!(matching.before(*place), before);
                    }
                }
            }
        }
    }
}
