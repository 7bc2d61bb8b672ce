//! The peers of an endpoint: the table of their records, those with something to send, and those
//! that were lost.

use std::collections::VecDeque;

use super::peer::Peer;
use super::report::PeerEvent;
use crate::addr::Addr;
use crate::error::{Error, ErrorKind};
use crate::op::PeerId;
use crate::time::Time;
use crate::transport::ConnId;
use crate::wire::table::Table;

/// Most events about peers that are kept until the program takes them. The oldest are dropped
/// first.
const KEPT_EVENTS: usize = 1024;
/// Number of lost peers whose address and reason are remembered for errors.
const KEPT_LOST: usize = 256;

/// The peers of an endpoint.
pub(in crate::engine) struct Peers {
    table: Table<Peer>,
    /// The number of the endpoint, as it is in the ids of its peers.
    origin: u32,
    /// The peer of each connection, by the connection's slot.
    by_conn: Vec<Option<(ConnId, PeerId)>>,
    dirty: Dirty,
    /// Peers that were lost recently, for errors.
    lost: VecDeque<(PeerId, Addr, Error)>,
    /// What the program has not been told yet.
    events: VecDeque<PeerEvent>,
    pub(in crate::engine) idle: Search,
}

/// The state of the search for idle peers.
#[derive(Debug, Default)]
pub(in crate::engine) struct Search {
    /// Number of peers that are leaving.
    pub(in crate::engine) leaving: usize,
    /// The next search is not before this time.
    pub(in crate::engine) not_before: Time,
}

/// The peers with something to send, each once.
#[derive(Default)]
pub(in crate::engine) struct Dirty(Vec<PeerId>);

impl Dirty {
    /// Lists a peer, if it has something to send. Called after every change that may have given it
    /// something.
    #[inline(always)]
    pub(in crate::engine) fn mark(&mut self, peer: &mut Peer) {
        if !peer.dirty && peer.wants_turn() {
            peer.dirty = true;
            self.0.push(peer.id);
        }
    }
}

impl Peers {
    pub(in crate::engine) fn new() -> Peers {
        Peers {
            table: Table::new(),
            origin: 0,
            by_conn: Vec::new(),
            dirty: Dirty::default(),
            lost: VecDeque::new(),
            events: VecDeque::new(),
            idle: Search::default(),
        }
    }

    /// Sets the number of the endpoint. No peer has an id yet.
    pub(in crate::engine) fn number(&mut self, number: u8) {
        debug_assert!(self.table.len() == 0, "a peer has an id without the number");
        self.origin = u32::from(number) << PeerId::ENDPOINT_SHIFT;
    }

    // ---- records --------------------------------------------------------------------------------

    pub(in crate::engine) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(in crate::engine) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.table.get(id.in_endpoint(self.origin))
    }

    #[inline]
    pub(in crate::engine) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.table.get_mut(id.in_endpoint(self.origin))
    }

    /// Returns the record of a peer, and the list to mark it on.
    #[inline]
    pub(in crate::engine) fn get_with_dirty(&mut self, id: PeerId) -> Option<(&mut Peer, &mut Dirty)> {
        Some((self.table.get_mut(id.in_endpoint(self.origin))?, &mut self.dirty))
    }

    /// Returns the peer at the other end of a connection.
    #[inline]
    pub(in crate::engine) fn of_conn(&self, conn: ConnId) -> Option<PeerId> {
        let (known, peer) = (*self.by_conn.get(conn.slot as usize)?)?;
        (known == conn).then_some(peer)
    }

    /// Returns the record of a peer that operations can be posted to.
    ///
    /// # Errors
    /// `PeerLost`.
    #[inline]
    pub(in crate::engine) fn open_mut(&mut self, id: PeerId) -> Result<&mut Peer, Error> {
        if !self.get(id).is_some_and(Peer::is_open) {
            return Err(self.lost_error(id));
        }
        self.get_mut(id).ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))
    }

    pub(in crate::engine) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.table.iter().map(|(_, peer)| peer)
    }

    pub(in crate::engine) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.table.values_mut()
    }

    /// Inserts the record of the peer at the other end of `conn`.
    pub(in crate::engine) fn insert(&mut self, conn: ConnId, record: impl FnOnce(PeerId) -> Peer) -> PeerId {
        let origin = self.origin;
        let id = PeerId::new(self.table.insert_with(|key| record(PeerId::new(key, origin))), origin);
        let at = conn.slot as usize;
        if self.by_conn.len() <= at {
            self.by_conn.resize(at + 1, None);
        }
        self.by_conn[at] = Some((conn, id));
        id
    }

    pub(in crate::engine) fn remove(&mut self, id: PeerId) -> Option<Peer> {
        let peer = self.table.remove(id.in_endpoint(self.origin))?;
        self.idle.leaving -= usize::from(peer.leaving);
        let entry = &mut self.by_conn[peer.conn.slot as usize];
        if entry.is_some_and(|(conn, _)| conn == peer.conn) {
            *entry = None;
        }
        Some(peer)
    }

    /// Gives the room of removed records back.
    pub(in crate::engine) fn shrink(&mut self) {
        self.table.shrink();
    }

    // ---- those with something to send -----------------------------------------------------------

    pub(in crate::engine) fn mark_dirty(&mut self, id: PeerId) {
        if let Some((peer, dirty)) = self.get_with_dirty(id) {
            dirty.mark(peer);
        }
    }

    #[inline]
    pub(in crate::engine) fn has_dirty(&self) -> bool {
        !self.dirty.0.is_empty()
    }

    /// Returns the number of peers on the list.
    pub(in crate::engine) fn dirty_count(&self) -> usize {
        self.dirty.0.len()
    }

    /// Takes the mark of the peer at a place of the list, and returns the peer. Its place remains
    /// until [`Peers::drop_dirty`].
    pub(in crate::engine) fn unmark(&mut self, at: usize) -> Option<&mut Peer> {
        let id = *self.dirty.0.get(at)?;
        let peer = self.table.get_mut(id.in_endpoint(self.origin))?;
        peer.dirty = false;
        Some(peer)
    }

    /// Removes the first places of the list.
    pub(in crate::engine) fn drop_dirty(&mut self, count: usize) {
        self.dirty.0.drain(..count);
    }

    // ---- those that were lost -------------------------------------------------------------------

    /// Remembers why a peer was lost.
    pub(in crate::engine) fn remember_lost(&mut self, peer: &Peer, reason: &Error) {
        if self.lost.len() == KEPT_LOST {
            self.lost.pop_front();
        }
        self.lost.push_back((peer.id, peer.addr.clone(), reason.clone()));
    }

    /// Returns the reason for which a peer was lost, if that was recently.
    pub(in crate::engine) fn reason_of_loss(&self, id: PeerId) -> Option<&Error> {
        self.lost.iter().find(|(lost, ..)| *lost == id).map(|(_, _, reason)| reason)
    }

    /// Returns the address of a peer that is connected or was lost recently.
    pub(in crate::engine) fn addr(&self, id: PeerId) -> Option<&Addr> {
        let known = self.get(id).map(|peer| &peer.addr);
        known.or_else(|| self.lost.iter().find(|(lost, ..)| *lost == id).map(|(_, addr, _)| addr))
    }

    /// Returns the error for a peer that is gone.
    pub(in crate::engine) fn lost_error(&self, id: PeerId) -> Error {
        let error = match self.reason_of_loss(id) {
            Some(reason) => Error::because(ErrorKind::PeerLost, reason),
            None => Error::new(ErrorKind::PeerLost, "not connected"),
        };
        match self.addr(id) {
            Some(addr) => error.with_peer(addr),
            None => error.with_peer(format_args!("{id:?}")),
        }
    }

    // ---- events ---------------------------------------------------------------------------------

    pub(in crate::engine) fn push_event(&mut self, event: PeerEvent) {
        if self.events.len() == KEPT_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(in crate::engine) fn next_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    pub(in crate::engine) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }
}
