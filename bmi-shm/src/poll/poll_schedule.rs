//! Decides which rings each poll looks at.
//!
//! **Why.** A server may have hundreds of clients of which few are active. A look at an empty ring
//! costs some nanoseconds, or more if its line has left the cache. So a connection on which nothing
//! has moved for a while *rests*. Each poll looks at all connections that are awake, and in turn at
//! a few of the resting ones. With a thousand resting connections, the first message on one of them
//! is found after some hundred polls, a few microseconds. The next messages on it are found at
//! once.
//!
//! **Invariants**
//! 1. Every connection with a link is in exactly one of the two lists.
//! 2. A resting connection has nothing to do except receive what its peer sends. Whatever gives it
//!    other work wakes it.

/// Connections with a link, by slot.
#[derive(Default)]
pub(crate) struct PollSchedule {
    awake: Vec<u32>,
    resting: Vec<u32>,
    /// The resting connection whose turn is next.
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

    /// Returns the slots of all connections.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.awake.iter().chain(&self.resting).copied()
    }

    /// Returns the slots that every poll looks at.
    pub(crate) fn awake(&self) -> &[u32] {
        &self.awake
    }

    /// Returns the awake slot at `step`, counted from `first` on and wrapping around. `step` must
    /// be below their number.
    #[inline]
    pub(super) fn awake_from(&self, first: usize, step: usize) -> u32 {
        let (count, at) = (self.awake.len(), first + step);
        if at < count { self.awake[at] } else { self.awake[at % count] }
    }

    /// Moves an awake connection to the resting ones.
    pub(crate) fn rest(&mut self, slot: u32) {
        if let Some(at) = self.awake.iter().position(|known| *known == slot) {
            self.awake.swap_remove(at);
            self.resting.push(slot);
        }
    }

    /// Moves a resting connection to the awake ones.
    pub(crate) fn wake(&mut self, slot: u32) {
        if let Some(at) = self.resting.iter().position(|known| *known == slot) {
            self.resting.swap_remove(at);
            self.awake.push(slot);
        }
    }

    /// Returns the number of resting connections.
    pub(super) fn resting(&self) -> usize {
        self.resting.len()
    }

    /// Returns the resting connection whose turn is next.
    pub(super) fn take_turn(&mut self) -> Option<u32> {
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
