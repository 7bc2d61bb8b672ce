//! Queues of places in a table, in the order of last use.
//!
//! **Why.** A table of open files asks for the oldest one whenever it is full, and moves a file to
//! the end of a queue whenever it is used. Both happen for every request, so neither may depend on
//! the number of files, nor allocate.
//!
//! **Layout.** A place has two links, to the next older and the next newer one. Each queue is a
//! ring that begins and ends at a place of its own, its head.
//!
//! **Invariant.** A place is in one queue at most.

/// A queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Queue {
    /// Files that were used since they were looked at.
    Recent = 0,
    /// Files that were looked at since, and that are written or being written.
    Settled = 1,
}

/// The number of heads.
const HEADS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: usize,
    newer: usize,
}

/// The queues. Places are numbers from 0 on.
#[derive(Debug)]
pub(in crate::store) struct Order {
    /// The heads, and then the places.
    links: Vec<Link>,
    lens: [usize; HEADS],
}

impl Default for Order {
    fn default() -> Order {
        // An empty ring is a head that is linked to itself.
        Order { links: (0..HEADS).map(|head| Link { older: head, newer: head }).collect(), lens: [0; HEADS] }
    }
}

impl Order {
    /// Returns the number of places in a queue.
    pub(in crate::store) fn len(&self, queue: Queue) -> usize {
        self.lens[queue as usize]
    }

    /// Makes a place the newest of a queue. It is in none.
    pub(in crate::store) fn append(&mut self, queue: Queue, place: usize) {
        let (head, at) = (queue as usize, place + HEADS);
        if at >= self.links.len() {
            self.links.resize(at + 1, Link { older: at, newer: at });
        }
        let newest = self.links[head].older;
        self.links[at] = Link { older: newest, newer: head };
        self.links[newest].newer = at;
        self.links[head].older = at;
        self.lens[head] += 1;
    }

    /// Takes a place out of the queue that it is in.
    pub(in crate::store) fn remove(&mut self, queue: Queue, place: usize) {
        let Link { older, newer } = self.links[place + HEADS];
        self.links[older].newer = newer;
        self.links[newer].older = older;
        self.lens[queue as usize] -= 1;
    }

    /// Returns the oldest place of a queue.
    pub(in crate::store) fn oldest(&self, queue: Queue) -> Option<usize> {
        self.links[queue as usize].newer.checked_sub(HEADS)
    }

    /// Returns the next newer place in the same queue.
    pub(in crate::store) fn newer(&self, place: usize) -> Option<usize> {
        self.links[place + HEADS].newer.checked_sub(HEADS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn places(order: &Order, queue: Queue) -> Vec<usize> {
        std::iter::successors(order.oldest(queue), |place| order.newer(*place)).collect()
    }

    proptest! {
        /// Moves places between the queues, to the end of either or out of both.
        #[test]
        fn the_queues_are_in_order(moves in prop::collection::vec((0..12usize, 0..3usize), 0..60)) {
            let queues = [Queue::Recent, Queue::Settled];
            let mut order = Order::default();
            let mut model = [Vec::new(), Vec::new()];
            for (place, target) in moves {
                for (queue, model) in queues.into_iter().zip(&mut model) {
                    if let Some(at) = model.iter().position(|other| *other == place) {
                        model.remove(at);
                        order.remove(queue, place);
                    }
                }
                if target < 2 {
                    model[target].push(place);
                    order.append(queues[target], place);
                }
                for (queue, model) in queues.into_iter().zip(&model) {
                    prop_assert_eq!(&places(&order, queue), model);
                    prop_assert_eq!(order.len(queue), model.len());
                }
            }
        }
    }
}
