//! The connections that have something to do.

use std::collections::VecDeque;

/// The slots of connections that wait for their turn, each listed at most once. A transport has one
/// queue for each kind of work, for instance for sockets to read and for requests to send.
///
/// **Why.** The work of a poll is proportional to the connections that have work, not to all
/// connections. A connection with work beyond its budget is listed again, behind the others.
///
/// **Invariants**
/// 1. A slot is listed at most once, however often it is added. So the queue is never longer than
///    the table of connections.
/// 2. A turn visits each slot at most once. Slots that are added during a turn wait for the next
///    one, so a turn ends.
///
/// A slot may outlive its connection here. The caller ignores a slot without a connection.
///
/// ```
/// use bmi_backend::SlotQueue;
///
/// let mut dirty = SlotQueue::default();
/// dirty.add(7);
/// let mut turn = dirty.turn();
/// while let Some(slot) = dirty.next(&mut turn) {
///     dirty.add(slot); // it has more to send, in the next turn
/// }
/// assert!(!dirty.is_empty());
/// ```
#[derive(Debug)]
pub struct SlotQueue {
    queue: VecDeque<u32>,
    /// For each slot, whether it is in `queue`.
    listed: Vec<bool>,
}

/// One pass over a [`SlotQueue`]: the number of slots still to visit.
#[derive(Debug)]
pub struct Turn(usize);

impl Default for SlotQueue {
    fn default() -> SlotQueue {
        SlotQueue { queue: VecDeque::with_capacity(64), listed: Vec::with_capacity(64) }
    }
}

impl SlotQueue {
    /// Lists a slot behind the others. Returns false if it is listed already. Allocates only for a
    /// slot that is larger than all before.
    #[inline]
    pub fn add(&mut self, slot: u32) -> bool {
        let index = slot as usize;
        if index >= self.listed.len() {
            self.grow(index);
        }
        if std::mem::replace(&mut self.listed[index], true) {
            return false;
        }
        self.queue.push_back(slot);
        true
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        self.listed.resize(index + 1, false);
        self.queue.reserve(index + 1 - self.queue.len());
    }

    /// Returns true if no slot is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Begins a pass over the slots that are listed now.
    #[inline]
    pub fn turn(&self) -> Turn {
        Turn(self.queue.len())
    }

    /// Takes the next slot of a pass off the list. Returns `None` at the end of the pass. Slots
    /// that a pass does not reach stay listed.
    #[inline]
    pub fn next(&mut self, turn: &mut Turn) -> Option<u32> {
        turn.0 = turn.0.checked_sub(1)?;
        let slot = self.queue.pop_front()?;
        self.listed[slot as usize] = false;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut SlotQueue) -> Vec<u32> {
        let mut turn = queue.turn();
        std::iter::from_fn(|| queue.next(&mut turn)).collect()
    }

    #[test]
    fn each_slot_is_listed_once_in_order() {
        let mut queue = SlotQueue::default();
        assert_eq!([5, 200, 5, 0, 200].map(|slot| queue.add(slot)), [true, true, false, true, false]);
        assert_eq!(all(&mut queue), [5, 200, 0]);
        assert!(queue.is_empty());
        assert!(queue.add(5), "it was taken off the list");
    }

    #[test]
    fn a_turn_ends_although_slots_are_added_and_keeps_what_it_does_not_reach() {
        let mut queue = SlotQueue::default();
        (0..3).for_each(|slot| assert!(queue.add(slot)));
        let mut turn = queue.turn();
        for slot in 0..2 {
            assert_eq!(queue.next(&mut turn), Some(slot));
            assert!(queue.add(slot), "a slot may be added during its turn");
        }
        // The poll has reported as many events as it may, and ends.
        assert_eq!(all(&mut queue), [2, 0, 1]);
        let mut turn = queue.turn();
        assert!(queue.add(9));
        assert_eq!(queue.next(&mut turn), None, "added after the turn began");
    }

    #[test]
    fn the_queue_does_not_grow_beyond_the_slots() {
        let mut queue = SlotQueue::default();
        queue.add(999);
        let capacity = queue.queue.capacity();
        for _ in 0..3 {
            (0..1000).for_each(|slot| {
                queue.add(slot);
            });
        }
        assert_eq!(queue.queue.len(), 1000);
        assert_eq!(queue.queue.capacity(), capacity, "nothing is allocated for a slot that was known");
    }
}
