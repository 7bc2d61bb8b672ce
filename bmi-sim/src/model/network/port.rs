//! The adapter of a node with what waits at its sides; links that are not whole.

use std::collections::VecDeque;

use bmi_core::ServiceClass;

use crate::engine::{Event, Flow, Packet, Unit};
use crate::faults::link::Trouble;
use crate::model::processor::{Load, over};

/// A message in the sending side's queue.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) to: u32,
    /// The packet, until its last unit has left.
    pub(super) packet: Option<Packet>,
    pub(super) class: ServiceClass,
    pub(super) ready: u64,
    pub(super) extra: u64,
    pub(super) tail: u64,
    pub(super) segments: u64,
    /// Number of its bytes that have not left.
    pub(super) left: u64,
    pub(super) begun: bool,
    /// Its next unit has its place at the port of the switch.
    pub(super) admitted: bool,
    /// Minimum arrival time, used when its connection is gone and no longer keeps its order.
    pub(super) floor: u64,
}

pub(super) trait Waiting {
    fn class(&self) -> ServiceClass;
    fn ready(&self) -> u64;
}

impl Waiting for Outgoing {
    fn class(&self) -> ServiceClass {
        self.class
    }

    fn ready(&self) -> u64 {
        self.ready
    }
}

impl Waiting for Unit {
    fn class(&self) -> ServiceClass {
        self.class
    }

    fn ready(&self) -> u64 {
        0
    }
}

/// Queues that take turns, one for each flow.
#[derive(Debug)]
pub(super) struct Turns<W> {
    pub(super) flows: VecDeque<(Flow, VecDeque<W>)>,
    /// Emptied queues, kept for their capacity.
    pub(super) spare: Vec<VecDeque<W>>,
}

impl<W> Default for Turns<W> {
    fn default() -> Turns<W> {
        Turns { flows: VecDeque::new(), spare: Vec::new() }
    }
}

impl<W: Waiting> Turns<W> {
    /// Number of empty queues to keep.
    const SPARE: usize = 64;

    pub(super) fn push(&mut self, flow: Flow, what: W) {
        match self.flows.iter_mut().rev().find(|(known, _)| *known == flow) {
            Some((_, queue)) => queue.push_back(what),
            None => {
                let mut queue = self.spare.pop().unwrap_or_default();
                queue.push_back(what);
                self.flows.push_back((flow, queue));
            }
        }
    }

    /// Takes out the queue whose turn it is among those that are ready at `now`. Otherwise the
    /// error is the time at which the first one will be ready.
    pub(super) fn next(&mut self, now: u64) -> Result<(Flow, VecDeque<W>), Option<u64>> {
        let fronts = || self.flows.iter().enumerate().filter_map(|(at, (_, queue))| Some((at, queue.front()?)));
        // The first of equals: the queue that was served last is at the end.
        let turn = fronts().filter(|(_, front)| front.ready() <= now).min_by_key(|(at, front)| (front.class(), *at));
        match turn.map(|(at, _)| at) {
            Some(at) => Ok(self.flows.remove(at).expect("just found")),
            None => Err(fronts().map(|(_, front)| front.ready()).min()),
        }
    }

    /// Puts a queue that had its turn behind the others.
    pub(super) fn put_back(&mut self, flow: Flow, queue: VecDeque<W>) {
        if !queue.is_empty() {
            self.flows.push_back((flow, queue));
        } else if self.spare.len() < Self::SPARE {
            self.spare.push(queue);
        }
    }
}

/// One side of an adapter.
#[derive(Debug)]
pub(super) struct Half<W> {
    /// When this side is free again, in ns.
    pub(super) free: u64,
    /// An event at this time will let this side go on; `u64::MAX` for none.
    pub(super) wake: u64,
    pub(super) turns: Turns<W>,
}

impl<W> Default for Half<W> {
    fn default() -> Half<W> {
        Half { free: 0, wake: u64::MAX, turns: Turns::default() }
    }
}

/// The adapter of a node, its bus, and the port of the switch that leads to it.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// When everything that was given to the line has left it.
    pub(super) line_free: u64,
    pub(super) transmit: Half<Outgoing>,
    pub(super) receive: Half<Unit>,
    /// When the bus is free, for each direction. A shared bus is the first entry.
    pub(super) bus: [u64; 2],
    /// When everything that was sent to this port of the switch will have left it.
    pub(super) drained: u64,
    /// Number of units that were lost because the port was full.
    pub(super) lost: u64,
    /// How long each side was busy, in ns.
    pub(super) busy: [u64; 2],
    /// How long the bus was busy in each direction; a shared bus is the first entry.
    pub(super) bus_busy: [u64; 2],
}

impl Port {
    /// Returns the number of units that were lost in the switch on the way to this adapter.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds how long adapter and bus were occupied up to `now`.
    pub(crate) fn add_load(&self, now: u64, load: &mut Load) {
        load.sending = over(self.busy[0], self.line_free, now);
        load.receiving = over(self.busy[1], self.receive.free, now);
        let bus = [0, 1].map(|direction| over(self.bus_busy[direction], self.bus[direction], now));
        load.bus = bus[0].max(bus[1]);
    }
}

/// For one direction of a connection: the earliest times at which the next packet may arrive or be
/// answered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InOrder {
    pub(super) arrival: u64,
    pub(super) answer: u64,
}

/// A link between two nodes that is down, or was, or has faults.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    /// Counts how often it went down.
    pub(crate) epoch: u64,
    pub(crate) down: bool,
    pub(crate) held: Vec<Event>,
    /// The effects of a plan of faults on its packets.
    pub(crate) trouble: Trouble,
}

/// Returns the key of a link: its nodes in ascending order.
pub(crate) fn link_key(a: u32, b: u32) -> (u32, u32) {
    (a.min(b), a.max(b))
}
