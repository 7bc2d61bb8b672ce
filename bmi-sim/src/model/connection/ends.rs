//! How faults end connections: they are cut, their node is killed, their link is down for too long,
//! or a packet is lost too often.
//!
//! **Model.** A killed node falls silent. Its tasks are dropped, its connections end, and its peers
//! notice after the profile's detection time. A paused node's *program* stops while its adapter
//! works on, as with a stopped process. On a link that is down, packets wait at the far end. If the
//! link comes up within the detection time, only time is lost. Otherwise the connections over it
//! end on both sides.

use super::state::{Slot, State};
use crate::engine::{ConnRef, Event};
use crate::error::SimError;
use crate::model::Core;
use crate::model::network::link_key;

impl Core {
    /// Returns all connections of an adapter.
    pub(crate) fn conns_of(&self, adapter: u32) -> Vec<ConnRef> {
        let slots = &self.adapters[adapter as usize].slots;
        let live = |(slot, entry): (usize, &Slot)| {
            entry.conn.as_ref().map(|_| ConnRef { adapter, slot: slot as u32, generation: entry.generation })
        };
        slots.iter().enumerate().filter_map(live).collect()
    }

    /// Returns all connections between two nodes, both sides of each.
    fn conns_between(&self, a: u32, b: u32) -> Vec<ConnRef> {
        let mut found = Vec::new();
        for adapter in 0..self.adapters.len() as u32 {
            let node = self.adapters[adapter as usize].node;
            for at in self.conns_of(adapter) {
                let peer = self.conn(at).and_then(|conn| conn.peer_node);
                if (node == a && peer == Some(b)) || (node == b && peer == Some(a)) {
                    found.push(at);
                }
            }
        }
        found
    }

    pub(crate) fn cut(&mut self, a: u32, b: u32) {
        for at in self.conns_between(a, b) {
            self.end(at, SimError::Cut);
        }
    }

    /// Gives up a connection, because a packet was lost too often. The peer's side notices later.
    /// Other connections are not affected.
    pub(crate) fn give_up(&mut self, at: ConnRef) {
        let Some(conn) = self.conn(at) else { return };
        if let Some(peer) = conn.peer {
            let detected = self.queue.now + self.config.profile.detection_ns;
            self.queue.schedule(detected, Event::PeerGone { conn: peer });
        }
        self.end(at, SimError::RetriesExceeded);
    }

    pub(crate) fn partition(&mut self, a: u32, b: u32) {
        let (a, b) = link_key(a, b);
        let link = self.links.entry((a, b)).or_default();
        if !link.down {
            link.down = true;
            link.epoch += 1;
            let epoch = link.epoch;
            let at = self.queue.now + self.config.profile.detection_ns;
            self.queue.schedule(at, Event::LinkDead { a, b, epoch });
        }
    }

    /// Brings a link up. Packets that waited at the far end arrive now, before any that are still
    /// in flight.
    pub(crate) fn heal(&mut self, a: u32, b: u32) {
        let Some(link) = self.links.get_mut(&link_key(a, b)) else { return };
        let was_down = std::mem::replace(&mut link.down, false);
        let held = std::mem::take(&mut link.held);
        if was_down {
            self.note_heal(a, b);
        }
        for event in held {
            self.arrive(event);
        }
    }

    /// Ends the connections over a link that has been down for the detection time, if it still is.
    /// Connections that are being established have their own deadline.
    pub(crate) fn link_dead(&mut self, a: u32, b: u32, epoch: u64) {
        if self.links.get(&(a, b)).is_none_or(|link| !link.down || link.epoch != epoch) {
            return;
        }
        for at in self.conns_between(a, b) {
            if self.conn(at).is_some_and(|conn| conn.state != State::Connecting) {
                self.end(at, SimError::PeerSilent);
            }
        }
    }

    /// Ends the transports of a killed node. The caller drops its tasks.
    pub(crate) fn kill_node(&mut self, node: u32) {
        let state = &mut self.nodes[node as usize];
        state.alive = false;
        state.paused = false;
        state.lasting.paused = 0;
        state.ports.clear();
        let detected = self.queue.now + self.config.profile.detection_ns;
        for conn in self.untold_ends(node) {
            self.queue.schedule(detected, Event::PeerGone { conn });
        }
        for adapter in 0..self.adapters.len() as u32 {
            if self.adapters[adapter as usize].node != node || self.adapters[adapter as usize].dead {
                continue;
            }
            self.adapters[adapter as usize].dead = true;
            for at in self.conns_of(adapter) {
                if let Some(peer) = self.conn(at).and_then(|conn| conn.peer) {
                    self.queue.schedule(detected, Event::PeerGone { conn: peer });
                }
                self.end(at, SimError::NodeKilled);
            }
        }
    }

    pub(crate) fn peer_gone(&mut self, at: ConnRef) {
        self.end(at, SimError::PeerSilent);
    }

    /// Overruns the completion queues of a node's adapters.
    pub(crate) fn overrun(&mut self, node: u32) {
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

    pub(crate) fn fail_registrations(&mut self, node: u32, count: usize) {
        let of_node = self.adapters.iter_mut().filter(|adapter| adapter.node == node && !adapter.dead);
        of_node.for_each(|adapter| adapter.registrations.failing += count);
    }
}
