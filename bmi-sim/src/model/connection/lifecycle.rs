//! How connections are established.
//!
//! **Protocol**
//!
//! ```text
//!   connect ──Request{private}──▶ ConnectRequest, accept
//!   Established ◀──Accepted{private}──
//!             ──Ready──▶ Established
//! ```
//!
//! A listener may be a member of a group of transports ([`crate::Node::shards`], C17). The request
//! then goes to the member with the fewest connections. Of several, the one that listens has
//! precedence, then the oldest. Members that are left out ([`bmi_core::Transport::spread`]) come
//! last. Every connection counts, in whatever state, also those that the member has begun, and
//! those whose end the member has not polled. A request waits at its member until it is polled. If
//! the member is dropped before that, the request goes to another one.
//!
//! The request can also end in `Rejected`, `Refused`, or at its deadline. A node that is down
//! refuses after the detection time. An unknown node refuses after the setup time. A port without a
//! listener refuses when the request arrives.

use bmi_core::Addr;
use bmi_core::transport::Event as Report;

use super::state::{Conn, State};
use crate::engine::{ConnRef, Event, Flow, Packet, Refusal, Sending};
use crate::error::SimError;
use crate::model::Core;
use crate::model::network::InOrder;
use crate::model::overheard::Verb;
use crate::model::processor::Work;

/// The first port that `listen` chooses when asked for any.
const EPHEMERAL: u16 = 49_152;
/// Number of requests that wait for a member of a group that does not poll. The others get the
/// next ones, as long as one of them has room (C17).
const WAITING_REQUESTS: usize = 64;

impl Core {
    /// Takes a port of a node for an adapter. Port 0 asks for a free one.
    pub(crate) fn take_port(&mut self, node: u32, port: u16, adapter: u32) -> Result<u16, SimError> {
        let state = &mut self.nodes[node as usize];
        let port = match port {
            0 => (EPHEMERAL..=u16::MAX).find(|port| !state.ports.contains_key(port)).ok_or(SimError::NoPort)?,
            port => port,
        };
        if state.ports.contains_key(&port) {
            return Err(SimError::AddressInUse(Addr::sim(state.name.clone(), port).to_string()));
        }
        state.ports.insert(port, adapter);
        Ok(port)
    }

    pub(crate) fn start_connect(&mut self, adapter: u32, addr: &Addr, private: &[u8], deadline: u64) -> ConnRef {
        let node = self.adapters[adapter as usize].node;
        let target = self.names.get(addr.host()).copied();
        let at = self.insert_conn(adapter, Conn::new(State::Connecting, None, target, addr.to_string()));
        let ready = self.charge(node, Work::Protocol, self.config.profile.cpu_post_ns);
        self.set_deadline(at, deadline);
        self.queue.schedule(deadline, Event::ConnectDeadline { conn: at });
        let setup = self.config.profile.connection_setup_ns;
        match target {
            Some(target) => {
                let request = Packet::Request { from: at, port: addr.port(), private: private.into() };
                let sending = Sending { ready, extra: setup, ..Sending::control(request, private.len() as u64) };
                self.transmit((node, target), Flow { from: at, replies: false }, sending);
            }
            None => self.queue.schedule(ready + setup, Event::Refuse { conn: at, why: Refusal::UnknownNode }),
        }
        at
    }

    /// Handles a connection request that has arrived at its node.
    pub(crate) fn handle_request(&mut self, node: u32, from: ConnRef, port: u16, private: Box<[u8]>) {
        if self.conn(from).is_none() {
            return; // given up meanwhile
        }
        self.overhear(from, node, Verb::Connect, &private);
        let state = &self.nodes[node as usize];
        if !state.alive {
            let at = self.queue.now + self.config.profile.detection_ns;
            return self.queue.schedule(at, Event::Refuse { conn: from, why: Refusal::NodeDown });
        }
        let Some(listener) = state.ports.get(&port).copied() else {
            let back = (node, self.adapters[from.adapter as usize].node);
            return self.answer(back, &mut InOrder::default(), Packet::Refused { to: from });
        };
        let adapter = self.least_connected(node, self.adapters[listener as usize].group, listener).unwrap_or(listener);
        self.ask(adapter, from, private);
    }

    /// Reports a request of `from` to a transport.
    fn ask(&mut self, adapter: u32, from: ConnRef, private: Box<[u8]>) {
        let seen = self.address_of(from.adapter);
        let peer_node = self.adapters[from.adapter as usize].node;
        let conn =
            self.insert_conn(adapter, Conn::new(State::Requested, Some(from), Some(peer_node), seen.to_string()));
        if let Some(from) = self.conn_mut(from) {
            from.peer = Some(conn);
        }
        let identity = self.adapters[from.adapter as usize].identity.clone();
        self.report(adapter, Report::ConnectRequest { conn: conn.id(), from: Box::new(seen), identity, private });
    }

    /// Returns the member of a group that gets the next connection of a listener.
    fn least_connected(&self, node: u32, group: u32, listener: u32) -> Option<u32> {
        let state = |adapter: u32| &self.adapters[adapter as usize];
        let members = self.nodes[node as usize].adapters.iter().copied();
        let members = members.filter(|adapter| state(*adapter).group == group).enumerate();
        let members = members.filter(|(_, adapter)| !state(*adapter).dead);
        let is_left_out = |at: usize| at >= state(group).taking;
        let reports = |adapter: u32, of: fn(&&Report) -> bool| state(adapter).reports.iter().filter(of).count();
        let requests = |adapter| reports(adapter, |report| matches!(report, Report::ConnectRequest { .. }));
        let ends = |adapter| {
            reports(adapter, |report| matches!(report, Report::Disconnected { .. } | Report::Rejected { .. }))
        };
        // A connection has ended when its member has polled the end.
        let live = |adapter: u32| state(adapter).slots.iter().filter(|slot| slot.conn.is_some()).count();
        let (full, connections) =
            (|adapter| requests(adapter) >= WAITING_REQUESTS, |adapter| live(adapter) + ends(adapter));
        // In order of creation, so the first of equals is the oldest.
        let key = |at, adapter| (full(adapter), is_left_out(at), connections(adapter), adapter != listener);
        members.min_by_key(|(at, adapter)| key(*at, *adapter)).map(|(_, adapter)| adapter)
    }

    /// Returns the address that peers see for a transport: the first port that it listens on, or 0.
    fn address_of(&self, adapter: u32) -> Addr {
        let state = &self.nodes[self.adapters[adapter as usize].node as usize];
        let port = state.ports.iter().find(|(_, owner)| **owner == adapter).map_or(0, |(port, _)| *port);
        Addr::sim(state.name.clone(), port)
    }

    pub(crate) fn start_accept(&mut self, at: ConnRef, private: &[u8]) -> Result<(), SimError> {
        let conn = self.conn_mut(at).filter(|conn| conn.state == State::Requested).ok_or(SimError::RequestGone)?;
        let peer = conn.peer.ok_or(SimError::RequestGone)?;
        conn.state = State::Accepting;
        let packet = Packet::Accepted { to: peer, private: private.into() };
        self.send_packet(at, peer, Sending::control(packet, private.len() as u64));
        Ok(())
    }

    pub(crate) fn start_reject(&mut self, at: ConnRef, private: &[u8]) {
        let Some(conn) = self.conn(at).filter(|conn| conn.state == State::Requested) else { return };
        if let Some(peer) = conn.peer {
            let packet = Packet::Rejected { to: peer, private: private.into() };
            self.send_packet(at, peer, Sending::control(packet, private.len() as u64));
        }
        if let Some(mut conn) = self.remove_conn(at) {
            self.flush_receives(at, &mut conn);
            self.free_slot(at);
        }
    }

    pub(crate) fn handle_accepted(&mut self, to: ConnRef, private: Box<[u8]>) {
        let Some(conn) = self.conn_mut(to).filter(|conn| conn.state == State::Connecting) else { return };
        let Some(peer) = conn.peer else { return };
        // The answer may have waited at a link that was down, while the other side was given up.
        if self.conn(peer).is_none() {
            return self.end(to, SimError::PeerSilent);
        }
        if let Some(conn) = self.conn_mut(to) {
            conn.state = State::Open;
        }
        self.set_deadline(to, u64::MAX);
        self.overhear(peer, self.route(to, peer).0, Verb::Accept, &private);
        let identity = self.adapters[peer.adapter as usize].identity.clone();
        self.report(to.adapter, Report::Established { conn: to.id(), identity, private });
        self.send_packet(to, peer, Sending::control(Packet::Ready { to: peer }, 0));
    }

    pub(crate) fn handle_ready(&mut self, to: ConnRef) {
        let Some(conn) = self.conn_mut(to).filter(|conn| conn.state == State::Accepting) else { return };
        conn.state = State::Open;
        let identity = conn.peer.map(|peer| self.adapters[peer.adapter as usize].identity.clone()).unwrap_or_default();
        self.report(to.adapter, Report::Established { conn: to.id(), identity, private: Box::default() });
    }

    pub(crate) fn handle_rejected(&mut self, to: ConnRef, private: Box<[u8]>) {
        let Some(mut conn) = self.remove_conn(to) else { return };
        if let Some(peer) = conn.peer {
            self.overhear(peer, self.route(to, peer).0, Verb::Reject, &private);
        }
        self.flush_receives(to, &mut conn);
        self.report(to.adapter, Report::Rejected { conn: to.id(), private });
    }

    pub(crate) fn handle_refusal(&mut self, to: ConnRef, why: Refusal) {
        let Some(conn) = self.conn(to).filter(|conn| conn.state == State::Connecting) else { return };
        let name = || conn.peer_node.map_or_else(String::new, |node| self.nodes[node as usize].name.clone());
        let error = match why {
            Refusal::UnknownNode => SimError::UnknownNode(conn.peer_name.clone()),
            Refusal::NobodyListens => SimError::NobodyListens(conn.peer_name.clone()),
            Refusal::NodeDown => SimError::NodeDown(name()),
        };
        self.end(to, error);
    }

    pub(crate) fn handle_connect_deadline(&mut self, at: ConnRef) {
        if self.conn(at).is_some_and(|conn| conn.state == State::Connecting) {
            self.close(at, SimError::HandshakeTimeout);
        }
    }

    pub(crate) fn handle_close_deadline(&mut self, at: ConnRef) {
        let now = self.queue.now;
        if self.conn(at).is_some_and(|conn| conn.state == State::Closing && conn.deadline <= now) {
            self.close(at, SimError::ClosedHere);
        }
    }
}

impl Core {
    /// Handles the end of an adapter's transport: frees its ports, ends its connections, and
    /// discards the reports that are no longer polled.
    pub(crate) fn drop_adapter(&mut self, adapter: u32) {
        let node = self.adapters[adapter as usize].node;
        self.nodes[node as usize].ports.retain(|_, owner| *owner != adapter);
        self.nodes[node as usize].adapters.retain(|known| *known != adapter);
        let reports = std::mem::take(&mut self.adapters[adapter as usize].reports);
        for report in reports {
            if let Report::ConnectRequest { conn, private, .. } = report {
                self.hand_on(node, ConnRef { adapter, slot: conn.slot, generation: conn.generation }, private);
            }
        }
        for at in self.conns_of(adapter) {
            self.close(at, SimError::ClosedHere);
        }
        let state = &mut self.adapters[adapter as usize];
        state.dead = true;
        state.reports = Default::default();
        state.at_hand = Default::default();
        state.slots = Vec::new();
        state.deadlines.clear();
        state.waiter.take();
    }

    /// Gives a request that waits for a member that is dropped to another member of its group. If
    /// there is none, it ends with the connections of the one that is dropped.
    fn hand_on(&mut self, node: u32, at: ConnRef, private: Box<[u8]>) {
        let group = self.adapters[at.adapter as usize].group;
        let listening = |adapter: &u32| self.adapters[*adapter as usize].group == group;
        let listener = self.nodes[node as usize].ports.values().copied().find(listening);
        let Some(other) = self.least_connected(node, group, listener.unwrap_or(group)) else { return };
        let waits = |conn: &&Conn| conn.state == State::Requested;
        let Some(from) = self.conn(at).filter(waits).and_then(|conn| conn.peer) else { return };
        if self.conn(from).is_none() {
            return; // given up meanwhile
        }
        self.remove_conn(at);
        self.ask(other, from, private);
    }
}
