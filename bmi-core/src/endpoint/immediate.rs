//! Pulls and pushes that are over when they are posted.
//!
//! **Why.** Where the peer's memory stands in this process too, a short transfer is one copy. A
//! record, a unit, a registration, a turn and a completion of its own would cost more than the
//! bytes: 64 KiB are copied in half a microsecond.
//!
//! **The short way** is one look at the peer, a few comparisons, and [`Transport::write_now`] or
//! [`Transport::read_now`]. Whatever stands in the way, it says no and nothing has happened; then
//! the long way ([`super::transfer`]) finds out what it is, and says so. Transports that cannot do
//! it always say no.
//!
//! **Invariants**
//! 1. What the long way would refuse is not done here.
//! 2. *Nobody is overtaken.* Transfers of a peer have no order among each other, and none with
//!    messages that wait for credits; with what the transport has got, the transport keeps it (C3).
//!    But turns are kept ([`super::pacing`]): this way is open only when nobody of the transfer's
//!    level or above waits for a turn, and while bulk waits it counts as an urgent unit, of which
//!    there are only so many in a row.
//! 3. *Nobody waits longer.* It adds nothing to what is in flight, and takes as long as a copy that
//!    the transport calls short; the time is that of the program which posts, as with an inline
//!    send. Between two posts it is the program's to poll.
//! 4. It cannot be cancelled, nor come too late: it ends before its post returns. One whose
//!    deadline has passed goes the long way, which says so.
//!
//! Neither packing nor a chain is needed for a list of many pieces: the copy goes straight to, or
//! from, each of them. Only who asks for packing by name gets it.
//!
//! **Tests.** `bmi_conformance::message::immediate`, over transports that can and those that
//! cannot.

use super::Endpoint;
use super::op::Cursor;
use super::pacing::Level;
use super::peer::Link;
use crate::bulk::BulkDescriptor;
use crate::lists::Lists;
use crate::mem::MemList;
use crate::op::{Completion, OpId, OpKind, Options, PeerId};
use crate::transport::Transport;

impl<T: Transport> Endpoint<T> {
    /// Pulls or pushes now, if that can be; then this was all.
    #[inline]
    pub(super) fn transfer_immediately(
        &mut self,
        kind: OpKind,
        id: PeerId,
        remote: &BulkDescriptor,
        at: Cursor,
        local: &MemList,
        options: &Options,
    ) -> Option<Completion> {
        let (len, pieces, most) = (local.len() as u64, local.pieces(), self.config.limits.max_pieces);
        let peer = self.peers.get(id.0).filter(|peer| matches!(peer.link, Link::Up) && peer.credit.is_some())?;
        // What a list longer than its descriptor, or than may be, is, the long way says.
        if len == 0 || pieces.len() > most || remote.pieces().len() > most {
            return None;
        }
        let slice = remote.pieces().get(at.piece)?.slice(at.offset, len)?;
        let level = Level::of(options.class, len, self.config.limits.transfer_unit);
        let packs = pieces.len() > 1 && options.lists.or(self.config.memory.lists) == Lists::Pack;
        let late = options.deadline.is_some_and(|deadline| deadline <= self.now);
        if packs || late || !self.turns.is_free(level) {
            return None;
        }
        let done = match kind {
            OpKind::Pull => {
                self.transport.capabilities().rdma_read && self.transport.read_now(peer.conn, pieces, slice)
            }
            _ => self.transport.write_now(peer.conn, pieces, slice),
        };
        if !done {
            return None;
        }
        self.turns.taken(level);
        let (transfers, bytes) = match kind {
            OpKind::Pull => (&mut self.counters.pulls, &mut self.counters.bytes_pulled),
            _ => (&mut self.counters.pushes, &mut self.counters.bytes_pushed),
        };
        (*transfers, *bytes) = (*transfers + 1, *bytes + len);
        self.counters.immediate += 1;
        Some(Completion { op: OpId::NONE, kind, peer: Some(id), tag: 0, len, status: Ok(()), user: options.user })
    }
}
