//! Whose ring is looked at in which poll.
//!
//! **Why.** A server may have hundreds of clients of which few speak. A look at a ring with nothing
//! in it costs some nanoseconds, or more where its line has left the cache. So a connection on
//! which nothing has moved for a while *rests*: each poll looks at all that are awake, and in turn
//! at a few of those that rest. A first message to one of a thousand that rest is found after some
//! hundred polls, a few microseconds; the next ones at once.
//!
//! **Invariants**
//! 1. Every connection with a link stands in exactly one of the two lists.
//! 2. One that rests has nothing to do but to find what its peer sends: whatever gives it more
//!    wakes it.

/// Connections with a link, by slot.
#[derive(Default)]
pub(crate) struct PollSchedule {
    awake: Vec<u32>,
    resting: Vec<u32>,
    /// Whose turn is next among those that rest.
    next: usize,
}

impl PollSchedule {
    pub(crate) fn add(&mut self, slot: u32) {
        self.awake.push(slot);
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.awake.retain(|known| *known != slot);
        self.resting.retain(|known| *known != slot);
    }

    /// All of them.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.awake.iter().chain(&self.resting).copied()
    }

    /// Those that every poll looks at.
    pub(crate) fn awake(&self) -> &[u32] {
        &self.awake
    }

    /// One of those, counted from `first` on, around the end; `step` is below their number.
    #[inline]
    pub(crate) fn awake_from(&self, first: usize, step: usize) -> u32 {
        let (count, at) = (self.awake.len(), first + step);
        if at < count { self.awake[at] } else { self.awake[at % count] }
    }

    /// Takes one out of those that every poll looks at.
    pub(crate) fn rest(&mut self, slot: u32) {
        if let Some(at) = self.awake.iter().position(|known| *known == slot) {
            self.awake.swap_remove(at);
            self.resting.push(slot);
        }
    }

    /// Brings one back.
    pub(crate) fn wake(&mut self, slot: u32) {
        if let Some(at) = self.resting.iter().position(|known| *known == slot) {
            self.resting.swap_remove(at);
            self.awake.push(slot);
        }
    }

    /// How many rest.
    pub(crate) fn resting(&self) -> usize {
        self.resting.len()
    }

    /// The next of those that rest, in turn.
    pub(crate) fn take_turn(&mut self) -> Option<u32> {
        self.next += 1;
        if self.next >= self.resting.len() {
            self.next = 0;
        }
        self.resting.get(self.next).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_in_one_list_and_has_a_turn() {
        let mut schedule = PollSchedule::default();
        (0..5).for_each(|slot| schedule.add(slot));
        (0..3).for_each(|slot| schedule.rest(slot));
        schedule.rest(1);
        assert_eq!((schedule.awake().len(), schedule.resting()), (2, 3));
        let mut turns: Vec<_> = (0..3).filter_map(|_| schedule.take_turn()).collect();
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2]);
        schedule.wake(1);
        schedule.wake(4);
        schedule.remove(0);
        let mut all: Vec<_> = schedule.all().collect();
        all.sort_unstable();
        assert_eq!((all, schedule.resting()), (vec![1, 2, 3, 4], 1));
        schedule.remove(2);
        assert_eq!(schedule.take_turn(), None);
    }
}
