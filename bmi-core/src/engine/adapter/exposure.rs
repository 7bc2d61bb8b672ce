//! Exposures: the pieces of a list are exposed to a peer, and revoked.
//!
//! **Why groups.** If registration costs time, an exposure does too: a memory window or a key for
//! each. The pieces of a list are mostly in one allocation. So one exposure reaches from the first
//! piece to the last, and each piece is a slice of it (group registration, [PVFS-IB §5]). The price
//! is that the peer can also access the gaps, with the same rights, until the exposure ends.
//! [`Config::expose_groups`](crate::Config::expose_groups) turns groups off.
//!
//! If registration is free, each piece has an exposure of its own, which is as narrow as possible.
//! The exception is memory whose pages are given to the peer as a whole
//! ([`Capabilities::shares_pages`](crate::Capabilities)). There a single key exposes no more, and
//! the peer needs no other to map any number of pieces.
//!
//! **Without registration.** An announced send may be copied into one piece that can be registered
//! (a fallback buffer). Memory that the program itself exposes may not be copied. The program can
//! change or read it at any time while it is exposed, and would not see the copy. So
//! [`Engine::expose`] fails with `Exhausted`. A receive that cannot be exposed is not offered,
//! and gets its message in another way.
//!
//! **Invariant.** Exposures of a peer are counted by key. Several slices may share one. Those that
//! nothing of this side waits for are counted apart too ([`Engine::expose_standing`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::side::AdapterSide;
use crate::engine::Engine;
use crate::engine::books::{Exposure, Op, Peer, Revoked};
use crate::error::Error;
use crate::hooks::steps;
use crate::mem::{Access, MemList, MemSlice, Memory, MemoryId, OneOrMany, RemoteSlice, keys_of};
use crate::mutated;
use crate::op::PeerId;
use crate::sync::Returns;
use crate::transport::{ConnId, HostWork, Transport};
use crate::wire::BulkDescriptor;

/// The exposures that the program has dropped, on any thread.
#[derive(Default)]
pub(in crate::engine) struct Exposures {
    pub(in crate::engine) revoked: Arc<Returns<Revoked>>,
    /// Scratch, kept for its capacity.
    notes: Vec<Revoked>,
}

/// The range of one memory that contains pieces of a list.
struct Group {
    memory: Memory,
    start: usize,
    end: usize,
}

impl Engine {
    pub(in crate::engine) fn start_exposure(
        &mut self,
        id: PeerId,
        list: &MemList,
        access: Access,
        standing: bool,
    ) -> Result<Exposure, Error> {
        let Self { adapter, peers, exposures, .. } = self;
        let peer = peers.open_mut(id)?;
        if access.remote_write {
            adapter.check_target(peer, list)?
        } else {
            adapter.check_list(peer, list)?
        }
        let remote = adapter.expose_list(peer, list, access)?;
        let descriptor = BulkDescriptor::try_from(remote)?;
        if standing {
            peer.standing_exposures += keys_of(descriptor.pieces()).as_slice().len();
        }
        Ok(Exposure { peer: id, descriptor, standing, revoked: Arc::clone(&exposures.revoked) })
    }

    /// Revokes the exposures that were dropped since the last call.
    pub(in crate::engine) fn revoke_dropped(&mut self) {
        let Self { adapter, peers, exposures, .. } = self;
        exposures.revoked.drain(&mut exposures.notes);
        for Revoked { peer, key, standing } in exposures.notes.drain(..) {
            if let Some(peer) = peers.get_mut(peer) {
                peer.exposures -= 1;
                peer.standing_exposures -= usize::from(standing);
                if !mutated("exposure/dropped-and-still-good") {
                    adapter.transport.revoke(peer.conn, key);
                }
            }
        }
    }
}

impl AdapterSide {
    /// Exposes all pieces of a list, or none.
    pub(in crate::engine) fn expose_list(
        &mut self,
        peer: &mut Peer,
        list: &MemList,
        access: Access,
    ) -> Result<OneOrMany<RemoteSlice>, Error> {
        let (conn, shares_pages) = (peer.conn, self.transport.capabilities().shares_pages);
        let shared = |piece: &MemSlice| shares_pages && piece.memory().shared_pages().is_some();
        let narrow = self.registration_is_free() && !list.pieces().iter().all(shared);
        let remote = match list.pieces() {
            [piece] => OneOrMany::One(self.expose_piece(conn, piece, access)?),
            pieces if narrow || !self.config.memory.expose_groups => {
                OneOrMany::Many(self.expose_each(conn, pieces, access)?.into())
            }
            pieces => OneOrMany::Many(self.expose_groups(conn, pieces, access)?.into()),
        };
        peer.exposures += keys_of(remote.as_slice()).as_slice().len();
        Ok(remote)
    }

    fn expose_piece(&mut self, conn: ConnId, piece: &MemSlice, access: Access) -> Result<RemoteSlice, Error> {
        let region = self.registry.register(&mut self.transport, piece.memory())?;
        self.transport.expose(conn, &region.into_segment(piece.offset(), piece.len()), access)
    }

    fn expose_each(&mut self, conn: ConnId, pieces: &[MemSlice], access: Access) -> Result<Vec<RemoteSlice>, Error> {
        let mut made = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match self.expose_piece(conn, piece, access) {
                Ok(slice) => made.push(slice),
                Err(error) => {
                    made.iter().for_each(|slice| self.transport.revoke(conn, slice.key));
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    fn expose_groups(&mut self, conn: ConnId, pieces: &[MemSlice], access: Access) -> Result<Vec<RemoteSlice>, Error> {
        let mut groups: BTreeMap<MemoryId, Group> = BTreeMap::new();
        for piece in pieces {
            let (start, end) = (piece.offset(), piece.offset() + piece.len());
            let group = groups.entry(piece.memory().id());
            let group = group.or_insert_with(|| Group { memory: piece.memory().clone(), start, end });
            (group.start, group.end) = (group.start.min(start), group.end.max(end));
        }
        let stretches: Vec<MemSlice> =
            groups.values().map(|group| group.memory.slice(group.start, group.end - group.start)).collect();
        let remote = self.expose_each(conn, &stretches, access)?;
        let exposed: BTreeMap<MemoryId, (usize, RemoteSlice)> =
            groups.into_iter().zip(remote).map(|((id, group), remote)| (id, (group.start, remote))).collect();
        let slice = |piece: &MemSlice| {
            let (start, remote) = &exposed[&piece.memory().id()];
            let at = (piece.offset() - start) as u64;
            remote.slice(at, piece.len() as u64).expect("a piece lies within its group")
        };
        Ok(pieces.iter().map(slice).collect())
    }

    /// Exposes the list of a send to its reader. If its memory cannot be registered, exposes a copy
    /// in one piece, which the operation keeps.
    pub(in crate::engine) fn expose_send(
        &mut self,
        peer: &mut Peer,
        op: &mut Op,
        list: &MemList,
    ) -> Result<OneOrMany<RemoteSlice>, Error> {
        let refused = match self.expose_list(peer, list, Access::READ) {
            Ok(remote) => return Ok(remote),
            Err(error) => error,
        };
        // The peer may take its time, so the last reserved buffer is not used for this.
        let Some(fallback) = self.fallback_buffers.take(&mut self.transport, &mut self.registry, list.len(), 1) else {
            return Err(refused);
        };
        fallback.fill(list);
        self.transport.charge(HostWork::copy(list.len(), list));
        let remote = self.transport.expose(peer.conn, &fallback.segment(list.len()), Access::READ)?;
        peer.exposures += 1;
        op.fallback = Some(Box::new(fallback));
        Ok(OneOrMany::One(remote))
    }

    /// Revokes exposures that `expose_list` or `expose_send` made.
    pub(in crate::engine) fn revoke_all(&mut self, peer: &mut Peer, remote: &[RemoteSlice]) {
        let keys = keys_of(remote);
        steps(keys.as_slice().len());
        peer.exposures -= keys.as_slice().len();
        for key in keys.as_slice() {
            if !mutated("exposure/key-of-an-ended-operation-stays-good") {
                self.transport.revoke(peer.conn, *key);
            }
        }
    }
}
