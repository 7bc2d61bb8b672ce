//! The event queue, and the digest of the executed events. Events are ordered by time and, at the
//! same time, by the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use super::packet::{ConnRef, Packet, Side, Unit};

/// An event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A timer of the executor fires.
    Timer { slot: u32, generation: u32 },
    /// One side of a node's adapter may continue: it is free, or a waiting unit is ready.
    Port { node: u32, side: Side },
    /// The first byte of a unit reaches the adapter of a node.
    Arrive { from: u32, to: u32, unit: Unit },
    /// The last byte of a unit arrives. If it was the last unit of a packet, the packet comes with
    /// it.
    Deliver { node: u32, len: u64, packet: Option<Packet> },
    /// The processor of a node with an adapter in software has received a packet.
    Take { node: u32, packet: Packet },
    /// The processor of a node is free for the next task.
    CpuFree { node: u32 },
    /// An acknowledgement, positive or negative, arrives. It takes no adapter time.
    Answer { from: u32, to: u32, packet: Packet },
    /// Connecting to the address of `conn` fails.
    Refuse { conn: ConnRef, why: Refusal },
    /// The deadline of connecting is reached.
    ConnectDeadline { conn: ConnRef },
    /// The deadline of disconnecting is reached.
    CloseDeadline { conn: ConnRef },
    /// The connection's peer is dead, and the connection detects it now.
    PeerGone { conn: ConnRef },
    /// The link between two nodes has been down for the detection time, unless it came up in
    /// between.
    LinkDead { a: u32, b: u32, epoch: u64 },
    /// A packet was lost too often. The adapter that waits for its acknowledgement gives up the
    /// connection.
    GivenUp { conn: ConnRef },
    /// A scheduled fault happens.
    Fault { index: u32 },
}

/// Why a connection request finds no listener.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    UnknownNode,
    NobodyListens,
    NodeDown,
}

impl Event {
    /// Returns the words for the digest: a number for the kind, and values that distinguish it from
    /// other events of its kind.
    fn words(&self) -> [u64; 4] {
        let conn = |conn: &ConnRef| u64::from(conn.adapter) << 32 | u64::from(conn.slot);
        match self {
            Event::Timer { slot, generation } => [1, u64::from(*slot), u64::from(*generation), 0],
            Event::Arrive { from, to, unit } => [2, u64::from(*from) << 32 | u64::from(*to), unit.len, unit.word()],
            Event::Deliver { node, len, packet } => {
                [3, u64::from(*node), *len, packet.as_ref().map_or(0, Packet::word)]
            }
            Event::Answer { from, to, packet } => [4, u64::from(*from) << 32 | u64::from(*to), 0, packet.word()],
            Event::Refuse { conn: at, why } => [5, conn(at), u64::from(at.generation), *why as u64],
            Event::ConnectDeadline { conn: at } => [6, conn(at), u64::from(at.generation), 0],
            Event::CloseDeadline { conn: at } => [7, conn(at), u64::from(at.generation), 0],
            Event::PeerGone { conn: at } => [8, conn(at), u64::from(at.generation), 0],
            Event::LinkDead { a, b, epoch } => [9, u64::from(*a), u64::from(*b), *epoch],
            Event::Fault { index } => [10, u64::from(*index), 0, 0],
            Event::Port { node, side } => [11, u64::from(*node), *side as u64, 0],
            Event::Take { node, packet } => [12, u64::from(*node), 0, packet.word()],
            Event::CpuFree { node } => [13, u64::from(*node), 0, 0],
            Event::GivenUp { conn: at } => [14, conn(at), u64::from(at.generation), 0],
        }
    }
}

/// The queue, the clock that it moves, and the digest.
///
/// The events are in a table. The heap holds only their order, in one integer: the time, then a
/// sequence number, then the place in the table. So the heap moves small entries and compares two
/// events at once.
#[derive(Default)]
pub(crate) struct EventQueue {
    pub(crate) now: u64,
    heap: BinaryHeap<Reverse<u128>>,
    events: Slab<Event>,
    sequence: u64,
    executed: u64,
    digest: u64,
}

/// Bits for the place in the table: 16 million events at a time, 2^40 in a run.
const PLACE_BITS: u32 = 24;

fn time_of(order: u128) -> u64 {
    (order >> 64) as u64
}

fn place_of(order: u128) -> usize {
    (order as usize) & ((1 << PLACE_BITS) - 1)
}

impl EventQueue {
    /// Schedules `event` for `time`, or for now if that time has passed.
    pub(crate) fn schedule(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let place = self.events.insert(event);
        assert!(place < 1 << PLACE_BITS, "more than {} events are to come", 1 << PLACE_BITS);
        let order = u128::from(self.sequence << PLACE_BITS | place as u64);
        self.heap.push(Reverse(u128::from(time.max(self.now)) << 64 | order));
    }

    /// Returns when the next event happens.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|next| time_of(next.0))
    }

    /// Returns the next event and its time.
    pub(crate) fn peek(&self) -> Option<(&Event, u64)> {
        self.heap.peek().map(|next| (&self.events[place_of(next.0)], time_of(next.0)))
    }

    /// Takes the next event out. Time does not move until `executed`.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|next| (time_of(next.0), self.events.remove(place_of(next.0))))
    }

    /// Records that an event happens: moves time to it and adds it to the digest.
    pub(crate) fn executed(&mut self, time: u64, event: &Event) {
        debug_assert!(time >= self.now, "time goes back");
        self.now = time;
        self.executed += 1;
        self.mix(time);
        for word in event.words() {
            self.mix(word);
        }
    }

    fn mix(&mut self, word: u64) {
        // Multiply and rotate by odd constants: any difference in one word reaches all bits within
        // a few more words.
        self.digest = (self.digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Returns the number of events still to come.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Keeps the events for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Event) -> bool) {
        let events = &mut self.events;
        self.heap.retain(|next| {
            let kept = keep(&events[place_of(next.0)]);
            if !kept {
                events.remove(place_of(next.0));
            }
            kept
        });
    }

    pub(crate) fn count(&self) -> u64 {
        self.executed
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest ^ (self.digest >> 32)
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_of_scheduling() {
        let mut queue = EventQueue::default();
        for (time, slot) in [(5, 0), (3, 1), (5, 2), (3, 3)] {
            queue.schedule(time, Event::Timer { slot, generation: 0 });
        }
        let mut order = Vec::new();
        while let Some((time, event)) = queue.pop() {
            queue.executed(time, &event);
            let Event::Timer { slot, .. } = event else { unreachable!("only timers") };
            order.push((time, slot));
        }
        assert_eq!(order, [(3, 1), (3, 3), (5, 0), (5, 2)]);
        assert_eq!(queue.count(), 4);
    }
}
