//! Posting receives and discards: for a message that is parked already, or for one that will come.

use super::rendezvous::Announced;
use super::{eager, fast_rdma, offered_receive, rendezvous};
use crate::engine::Engine;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Content, Effect, Link, Operations, Parked, Peer, State};
use crate::error::Error;
use crate::mem::MemList;
use crate::op::{OpId, OpKind, Options, PeerId, Posted, Tag};

impl Engine {
    /// Posts a receive. The usual one is short, and no message is parked: then its record is all
    /// that is made. This duplicates the end of `start_long_recv` without an offer, and
    /// `bmi-sim/tests/it/endpoints/short_paths` compares both.
    #[inline]
    pub(in crate::engine) fn start_recv(
        &mut self,
        id: PeerId,
        tag: Tag,
        list: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        if let Some(peer) = self.peers.get_mut(id).filter(|peer| matches!(peer.link, Link::Up))
            && peer.parked.is_empty()
            && list.len() <= peer.limits.eager
            && list.pieces().len() < self.adapter.short_paths.pieces
            && !list.is_read_only()
        {
            self.adapter.short_paths.took_receive();
            let matching = |op| State::Matching(peer.posted.push(tag, op));
            return Ok(Posted::Pending(self.ops.insert(OpKind::Recv, Some(id), tag, Some(list), options, matching)));
        }
        self.start_long_recv(id, tag, list, options)
    }

    /// Posts a receive of any kind.
    fn start_long_recv(&mut self, id: PeerId, tag: Tag, list: MemList, options: Options) -> Result<Posted, Error> {
        let Self { adapter, ops, peers, .. } = self;
        let checked = peers.open_mut(id).and_then(|peer| adapter.check_target(peer, &list).map(|()| peer));
        let peer = checked.map_err(|error| error.during("receive"))?;
        if let Some(parked) = peer.unpark(tag) {
            let op = ops.post(OpKind::Recv, Some(id), tag, Some(list), options, State::Waiting);
            self.handle(id, |adapter, ops, peer| Ok(deliver_parked(adapter, ops, peer, op, parked)));
            return Ok(self.ops.posted(op));
        }
        let offered = offered_receive::may_be_offered(adapter, peer, &list);
        let behind = if offered { peer.posted.last(tag).copied() } else { None };
        let matching = |op| State::Matching(peer.posted.push(tag, op));
        let op = ops.insert(OpKind::Recv, Some(id), tag, Some(list), options, matching);
        if offered {
            offered_receive::offer(ops, peer, op, behind);
            peers.mark_dirty(id);
        }
        Ok(Posted::Pending(op))
    }

    /// Posts an operation that drops a message.
    pub(in crate::engine) fn start_discard(&mut self, id: PeerId, tag: Tag, options: Options) -> Result<Posted, Error> {
        let Self { ops, peers, .. } = self;
        let peer = peers.open_mut(id).map_err(|error| error.during("discard"))?;
        let Some(parked) = peer.unpark(tag) else {
            let matching = |op| State::Matching(peer.posted.push(tag, op));
            return Ok(Posted::Pending(ops.insert(OpKind::Discard, Some(id), tag, None, options, matching)));
        };
        let op = ops.post(OpKind::Discard, Some(id), tag, None, options, State::Waiting);
        let len = parked.content.len();
        self.handle(id, |adapter, _, peer| adapter.drop_parked(peer, parked).map(|()| Effect::None));
        self.handle(id, |_, _, _| Ok(Effect::ends(op, Ok(()), len)));
        Ok(self.ops.posted(op))
    }
}

/// Delivers a parked message to its receive.
fn deliver_parked(
    adapter: &mut AdapterSide,
    ops: &mut Operations,
    peer: &mut Peer,
    id: OpId,
    parked: Parked,
) -> Effect {
    peer.account.unparked(parked.cost);
    match parked.content {
        Content::Slot(slot, len) => eager::deliver_from_slot(adapter, ops, peer, id, slot, len),
        Content::Copied(payload) => eager::deliver_copy(adapter, ops, id, &payload),
        Content::Fast(slot, len) => fast_rdma::deliver_parked(adapter, ops, peer, id, slot, len),
        Content::Announced { op: named, len, remote } => {
            rendezvous::start(adapter, ops, peer, id, Announced { named, len, remote })
        }
    }
}
