//! From a plan to what happens in the world: every event becomes an action at its time, and every fault that lasts another one at its end.

use std::time::Duration;

use super::loss::Loss;
use super::plan::{Fault, Plan};
use crate::disk::DiskFault;
use crate::error::SimError;
use crate::events::Event;
use crate::network::link_key;
use crate::node::Node;
use crate::world::{Core, Sim};

impl Plan {
    /// Schedules all events in `sim`, and the end of all trouble. Names of nodes that are not there are ignored when their time comes: a plan
    /// may have been drawn for a larger world.
    pub fn apply(&self, sim: &Sim) {
        let start = sim.now();
        for event in &self.events {
            let fault = event.fault.clone();
            sim.at(start + Duration::from_micros(event.at_us), move |sim| begin(sim, &fault));
        }
        if !self.events.is_empty() {
            // After the last fault's own end, which was scheduled before.
            sim.at(start + Duration::from_micros(self.end_us() + 1), Sim::calm);
        }
    }
}

fn later(sim: &Sim, us: u64, action: impl FnOnce(&Sim) + 'static) {
    sim.at(sim.now() + Duration::from_micros(us), action);
}

fn on_link(sim: &Sim, a: &str, b: &str, act: impl FnOnce(&Sim, &Node, &Node)) {
    if let (Some(a), Some(b)) = (sim.find_node(a), sim.find_node(b)) {
        act(sim, &a, &b);
    }
}

fn begin(sim: &Sim, fault: &Fault) {
    match fault {
        Fault::Cut { a, b } => on_link(sim, a, b, Sim::cut),
        Fault::Partition { a, b, for_us } => on_link(sim, a, b, |sim, a, b| {
            sim.partition(a, b);
            let (a, b) = (a.clone(), b.clone());
            later(sim, *for_us, move |sim| sim.heal(&a, &b));
        }),
        Fault::Delay { a, b, by_us, for_us, salt } => on_link(sim, a, b, |sim, a, b| {
            let until = (sim.now() + Duration::from_micros(*for_us)).as_nanos();
            let by_ns = by_us.saturating_mul(1000);
            sim.0.with(|core| core.trouble(a.id, b.id, |trouble| trouble.delay(until, by_ns, *salt)));
        }),
        Fault::Lossy { a, b, percent, for_us, salt } => on_link(sim, a, b, |sim, a, b| {
            let until = (sim.now() + Duration::from_micros(*for_us)).as_nanos();
            sim.0.with(|core| core.trouble(a.id, b.id, |trouble| trouble.lose(until, *percent, *salt)));
        }),
        Fault::Corrupt { a, b } => on_link(sim, a, b, |sim, a, b| {
            sim.0.with(|core| core.trouble(a.id, b.id, super::link::Trouble::corrupt_next));
        }),
        Fault::NotReady { a, b } => on_link(sim, a, b, |sim, a, b| {
            sim.0.with(|core| core.trouble(a.id, b.id, super::link::Trouble::miss_next));
        }),
        Fault::Overrun { node }
        | Fault::Pause { node, .. }
        | Fault::Crash { node, .. }
        | Fault::DiskFull { node, .. }
        | Fault::DiskBroken { node, .. }
        | Fault::Registrations { node, .. }
        | Fault::ClockStep { node, .. } => {
            if let Some(node) = sim.find_node(node) {
                begin_at(sim, &node, fault);
            }
        }
    }
}

/// Faults of one node.
fn begin_at(sim: &Sim, node: &Node, fault: &Fault) {
    let node = node.clone();
    match fault {
        Fault::Overrun { .. } => sim.0.with(|core| core.overrun(node.id)),
        Fault::Pause { for_us, .. } => {
            node.pause();
            later(sim, *for_us, move |_| node.resume());
        }
        Fault::Crash { for_us, salt, .. } => {
            node.crash(&mut Loss::drawn(u64::from(*salt)));
            later(sim, *for_us, move |_| node.restart());
        }
        Fault::DiskFull { for_us, .. } => {
            node.disk().set_fault(DiskFault::Full);
            later(sim, *for_us, move |_| node.disk().set_fault(DiskFault::None));
        }
        Fault::DiskBroken { for_us, .. } => {
            node.disk().set_fault(DiskFault::Broken);
            later(sim, *for_us, move |_| node.disk().set_fault(DiskFault::None));
        }
        Fault::Registrations { count, .. } => sim.0.with(|core| core.fail_registrations(node.id, *count as usize)),
        Fault::ClockStep { by_us, .. } => node.step_wall(by_us.saturating_mul(1000)),
        _ => unreachable!("the others are faults of links"),
    }
}

impl Sim {
    /// The node called `name`, if there is one.
    pub fn find_node(&self, name: &str) -> Option<Node> {
        let id = self.0.core.borrow().names.get(name).copied()?;
        Some(Node { sim: self.clone(), id })
    }

    /// Ends all trouble: links are whole, nodes up, disks work. Clocks stay as they are.
    pub fn calm(&self) {
        let (links, nodes) = self.0.with(|core| {
            core.links.values_mut().for_each(|link| link.trouble.end());
            core.adapters.iter_mut().for_each(|adapter| adapter.registrations.failing = 0);
            (core.links.keys().copied().collect::<Vec<_>>(), core.nodes.len() as u32)
        });
        for (a, b) in links {
            self.0.with(|core| core.heal(a, b));
        }
        for id in 0..nodes {
            let node = Node { sim: self.clone(), id };
            node.restart();
            node.resume();
            node.disk().set_fault(DiskFault::None);
        }
    }
}

impl Core {
    pub(crate) fn trouble(&mut self, a: u32, b: u32, act: impl FnOnce(&mut super::link::Trouble)) {
        act(&mut self.links.entry(link_key(a, b)).or_default().trouble);
    }

    /// How much later than it would a packet from one node to another arrives.
    pub(crate) fn lateness(&mut self, from: u32, to: u32) -> u64 {
        let now = self.queue.now;
        let (a, b) = link_key(from, to);
        let Some(link) = self.links.get_mut(&(a, b)) else { return 0 };
        let (late, never) = link.trouble.lateness(now);
        if never {
            self.queue.schedule(now + late, Event::GivenUp { a, b });
        }
        late
    }

    /// The completion queues of a node's adapters overran.
    fn overrun(&mut self, node: u32) {
        let detected = self.queue.now + self.config.profile.detection_ns;
        for adapter in 0..self.adapters.len() as u32 {
            if self.adapters[adapter as usize].node != node || self.adapters[adapter as usize].dead {
                continue;
            }
            for at in self.conns_of(adapter) {
                if let Some(peer) = self.conn(at).and_then(|conn| conn.peer) {
                    self.queue.schedule(detected, Event::PeerGone { conn: peer });
                }
                self.end(at, SimError::Overrun);
            }
        }
    }

    fn fail_registrations(&mut self, node: u32, count: usize) {
        let of_node = self.adapters.iter_mut().filter(|adapter| adapter.node == node && !adapter.dead);
        of_node.for_each(|adapter| adapter.registrations.failing += count);
    }
}
