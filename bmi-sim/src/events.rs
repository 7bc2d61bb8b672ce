//! The event queue: what will happen, in order of time and, at the same time, in order of
//! scheduling; and the digest over what did.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

use crate::network::{Packet, Side, Unit};

/// Names a connection of the world: adapter, slot, and how often the slot was used before. Never
/// names two connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnRef {
    pub(crate) adapter: u32,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Something that happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A timer of the executor.
    Timer { slot: u32, generation: u32 },
    /// One side of a node's adapter may go on: it is free, or what waits is ready.
    Port { node: u32, side: Side },
    /// The first byte of a unit reaches the adapter of a node.
    Arrive { from: u32, to: u32, unit: Unit },
    /// The last byte of a unit is there, and with it, if it was the last unit, a packet.
    Deliver { node: u32, len: u64, packet: Option<Packet> },
    /// The processor of a node with an adapter in software has taken a packet in.
    Take { node: u32, packet: Packet },
    /// The processor of a node is free for the next task.
    CpuFree { node: u32 },
    /// An acknowledgement, good or bad; takes no adapter's time.
    Answer { from: u32, to: u32, packet: Packet },
    /// Connecting to `conn`'s address cannot succeed.
    Refuse { conn: ConnRef, why: Refusal },
    /// The deadline of connecting.
    ConnectDeadline { conn: ConnRef },
    /// The deadline of disconnecting.
    CloseDeadline { conn: ConnRef },
    /// The connection's peer is dead, and that shows now.
    PeerGone { conn: ConnRef },
    /// The link between two nodes has been down for the detection time, unless it came up in
    /// between.
    LinkDead { a: u32, b: u32, epoch: u64 },
    /// A packet was lost too often: the adapter that waits for its acknowledgement gives the
    /// connection up.
    GivenUp { conn: ConnRef },
    /// A fault that was scheduled.
    Fault { index: u32 },
}

/// Why a connection request finds nobody.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    UnknownNode,
    NobodyListens,
    NodeDown,
}

impl Event {
    /// What goes into the digest: a number for the kind, and what tells it from others of its kind.
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
/// Events stand in a table; the heap has only their order: time, then a number that counts up, then
/// the place in the table, in one integer. So what the heap moves is small, and two events are
/// compared at once.
#[derive(Default)]
pub(crate) struct EventQueue {
    pub(crate) now: u64,
    heap: BinaryHeap<Reverse<u128>>,
    events: Slab<Event>,
    sequence: u64,
    executed: u64,
    digest: u64,
}

/// Bits of an order that are the place in the table: 16 million events at a time, 2^40 in a run.
const PLACE_BITS: u32 = 24;

fn time_of(order: u128) -> u64 {
    (order >> 64) as u64
}

fn place_of(order: u128) -> usize {
    (order as usize) & ((1 << PLACE_BITS) - 1)
}

impl EventQueue {
    /// Schedules `event` for `time`, or for now if that has passed.
    pub(crate) fn schedule(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        let place = self.events.insert(event);
        assert!(place < 1 << PLACE_BITS, "more than {} events are to come", 1 << PLACE_BITS);
        let order = u128::from(self.sequence << PLACE_BITS | place as u64);
        self.heap.push(Reverse(u128::from(time.max(self.now)) << 64 | order));
    }

    /// When the next event happens.
    pub(crate) fn next_time(&self) -> Option<u64> {
        self.heap.peek().map(|next| time_of(next.0))
    }

    /// The next event and when it happens.
    pub(crate) fn peek(&self) -> Option<(&Event, u64)> {
        self.heap.peek().map(|next| (&self.events[place_of(next.0)], time_of(next.0)))
    }

    /// Takes the next event out; time stands still until `executed`.
    pub(crate) fn pop(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|next| (time_of(next.0), self.events.remove(place_of(next.0))))
    }

    /// The event happens: time moves to it, the digest takes it in.
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
        // a few more.
        self.digest = (self.digest.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Events still to come.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Keeps the events for which `keep` says so.
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
