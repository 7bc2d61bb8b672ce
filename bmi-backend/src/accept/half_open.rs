//! Connections that were accepted and have not introduced themselves yet.

use std::collections::{BTreeMap, VecDeque};

use bmi_core::transport::ConnId;

/// The half-open connections of a transport, by their origin: a remote host, or a process.
///
/// **Why.** Each half-open connection takes a place, and there are few. If a full table turned
/// newcomers away, sockets that send nothing would keep everybody out. So a newcomer always gets a
/// place, and the table names the connection that must go. An honest peer introduces itself at
/// once, so it needs its place for a moment only.
///
/// **Invariants**
/// 1. *Shares count under pressure only.* Honest and hostile peers may have one origin. So an
///    origin may have all places as long as there are enough.
/// 2. *The largest crowd loses first.* The connection that must go is the oldest one of the origin
///    that has most. If several origins have most, it is the oldest of all of these.
///
/// The table is small: looking for the connection that must go visits each origin.
#[derive(Debug)]
pub struct HalfOpen<O> {
    /// Of each origin, the connections and their numbers, the oldest first.
    by_origin: BTreeMap<O, VecDeque<(u64, ConnId)>>,
    len: usize,
    max: usize,
    next_number: u64,
}

impl<O: Copy + Ord> HalfOpen<O> {
    /// Returns an empty table with `max` places, at least one.
    pub fn new(max: usize) -> HalfOpen<O> {
        HalfOpen { by_origin: BTreeMap::new(), len: 0, max: max.max(1), next_number: 0 }
    }

    /// Adds a connection that was just accepted.
    pub fn add(&mut self, origin: O, conn: ConnId) {
        self.by_origin.entry(origin).or_default().push_back((self.next_number, conn));
        (self.len, self.next_number) = (self.len + 1, self.next_number + 1);
    }

    /// Removes a connection that is no longer half-open. An unknown one is ignored.
    pub fn remove(&mut self, origin: O, conn: ConnId) {
        let Some(crowd) = self.by_origin.get_mut(&origin) else { return };
        let Some(at) = crowd.iter().position(|(_, known)| *known == conn) else { return };
        crowd.remove(at);
        self.len -= 1;
        if crowd.is_empty() {
            self.by_origin.remove(&origin);
        }
    }

    /// Returns the connection that must go to make room for a newcomer: if all places are taken, or
    /// if the table of all connections `is_full`. It stays here until it is removed. Returns `None`
    /// if nothing must go, or if nothing is here.
    pub fn first_to_go(&self, is_full: bool) -> Option<ConnId> {
        if self.len < self.max && !is_full {
            return None;
        }
        let oldest = |crowd: &VecDeque<(u64, ConnId)>| crowd.front().copied();
        let crowds = self.by_origin.values().filter_map(|crowd| Some((crowd.len(), oldest(crowd)?)));
        crowds.max_by_key(|(len, (number, _))| (*len, std::cmp::Reverse(*number))).map(|(_, (_, conn))| conn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    #[test]
    fn the_largest_crowd_loses_its_oldest_first() {
        let mut half_open = HalfOpen::new(9);
        assert!(half_open.first_to_go(true).is_none());
        // 'a' is first, and 'b' comes in numbers.
        for (slot, origin) in [(0, 'a'), (1, 'b'), (2, 'b'), (3, 'b'), (4, 'a')] {
            half_open.add(origin, conn(slot));
        }
        let mut gone = Vec::new();
        while let Some(first) = half_open.first_to_go(true) {
            gone.push(first.slot);
            half_open.remove(if [0, 4].contains(&first.slot) { 'a' } else { 'b' }, first);
        }
        assert_eq!(gone, [1, 0, 2, 3, 4], "one of three, then the oldest of two and two, then of one and two");
        assert_eq!(half_open.len, 0);
    }

    #[test]
    fn a_connection_leaves_from_any_place_and_once() {
        let mut half_open = HalfOpen::new(9);
        (0..3).for_each(|slot| half_open.add('a', conn(slot)));
        half_open.remove('a', conn(1));
        half_open.remove('a', conn(1));
        half_open.remove('b', conn(0));
        assert_eq!((half_open.len, half_open.first_to_go(true)), (2, Some(conn(0))));
        half_open.remove('a', conn(0));
        assert_eq!(half_open.first_to_go(true), Some(conn(2)));
    }

    #[test]
    fn nothing_goes_while_there_is_a_place() {
        let mut half_open = HalfOpen::new(2);
        half_open.add('a', conn(0));
        assert_eq!(half_open.first_to_go(false), None);
        half_open.add('b', conn(1));
        assert_eq!(half_open.first_to_go(false), Some(conn(0)));
        half_open.remove('a', conn(0));
        assert_eq!((half_open.first_to_go(false), half_open.first_to_go(true)), (None, Some(conn(1))));
        let mut least = HalfOpen::new(0);
        assert_eq!(least.first_to_go(false), None, "there is always one place");
        least.add('a', conn(0));
        assert_eq!(least.first_to_go(false), Some(conn(0)));
    }
}
