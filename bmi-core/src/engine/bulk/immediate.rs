//! Immediate completions: pulls and pushes that complete when they are posted.
//!
//! **Why.** If the peer's memory is mapped in this process too, a short transfer is a single copy.
//! A record, a unit, a registration, a turn and a completion would cost more than the bytes: 64 KiB
//! are copied in half a microsecond.
//!
//! **A short path.** It duplicates [`super::transfer`] for one request that ends at once, and
//! `bmi-sim/tests/it/endpoints/short_paths` holds both to the same behaviour. It is one look at the
//! peer, a few comparisons, and [`Transport::write_now`] or [`Transport::read_now`]. If anything is
//! in the way, it returns `None` and has changed nothing. Then the long way ([`super::transfer`])
//! finds the reason and reports it. Transports that cannot do it always return false.
//!
//! **Invariants**
//! 1. A transfer that the long way would reject is not done here.
//! 2. *No transfer is overtaken.* Transfers of a peer have no order among each other, nor with
//!    messages that wait for credits. The transport keeps the order with what it already has (C3).
//!    Turns are kept too ([`super::pacing`]). This way is open only if no transfer of the same
//!    level or above waits for a turn. While bulk waits, a transfer here counts as an urgent unit,
//!    and their number in a row is limited.
//! 3. *No transfer waits longer.* This way adds nothing to the bytes in flight, and takes as long
//!    as a copy that the transport considers short. The program that posts spends that time, as
//!    with an inline send. The program is responsible for polling between two posts.
//! 4. The transfer cannot be cancelled, nor end too late, because it ends before its post returns.
//!    If its deadline has passed, it goes the long way, which reports that.
//!
//! A list of many pieces needs neither packing nor a chain, because the copy goes straight to or
//! from each piece. Only a transfer that asks for packing explicitly is packed.
//!
//! **Tests.** `bmi_conformance::message::immediate`, over transports that can and transports that
//! cannot.

use crate::engine::Engine;
use crate::engine::books::{Level, Link};
use crate::engine::buffers::Cursor;
use crate::lists::Lists;
use crate::mem::MemList;
use crate::op::{Completion, OpId, OpKind, Options, PeerId};
use crate::transport::Transport;
use crate::wire::BulkDescriptor;

impl Engine {
    /// Pulls or pushes now, if that is possible. Returns the completion, or `None` if nothing was
    /// done.
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
        let (len, pieces, limit) = (local.len() as u64, local.pieces(), self.adapter.short_paths.pieces);
        let peer = self.peers.get(id).filter(|peer| matches!(peer.link, Link::Up) && peer.credit.is_some())?;
        // The long way reports lists that are longer than their descriptor, or than allowed.
        if len == 0 || pieces.len() >= limit || remote.pieces().len() >= limit {
            return None;
        }
        let slice = remote.pieces().get(at.piece)?.slice(at.offset, len)?;
        let level = Level::of(options.class, len, self.adapter.config.tuning.transfer_unit);
        let packs = pieces.len() > 1 && options.lists.or(self.adapter.config.memory.lists) == Lists::Pack;
        let late = options.deadline.is_some_and(|deadline| deadline <= self.adapter.now);
        if packs || late || !self.adapter.turns.is_free(level) {
            return None;
        }
        let done = match kind {
            OpKind::Pull => self.adapter.rdma_read && self.adapter.transport.read_now(peer.conn, pieces, slice),
            _ => self.adapter.transport.write_now(peer.conn, pieces, slice),
        };
        if !done {
            return None;
        }
        self.adapter.turns.taken(level);
        let (transfers, bytes) = match kind {
            OpKind::Pull => (&mut self.adapter.counters.pulls, &mut self.adapter.counters.bytes_pulled),
            _ => (&mut self.adapter.counters.pushes, &mut self.adapter.counters.bytes_pushed),
        };
        (*transfers, *bytes) = (*transfers + 1, *bytes + len);
        self.adapter.counters.immediate += 1;
        Some(Completion { op: OpId::NONE, kind, peer: Some(id), tag: 0, len, status: Ok(()), user: options.user })
    }
}
