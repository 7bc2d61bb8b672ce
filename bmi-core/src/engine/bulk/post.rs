//! Posting bulk transfers: pulls, pushes, grants, and pushes to a grant.

use super::grant::Grant;
use super::transfer;
use crate::engine::Engine;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Lent, Peer, Plan, State, is_granted, record, unit};
use crate::error::{Error, ErrorKind};
use crate::mem::{Access, MemList, MemSlice};
use crate::op::{OpId, OpKind, Options, PeerId, Posted};
use crate::transport::Transport;
use crate::wire::BulkDescriptor;

impl Engine {
    #[inline]
    pub(in crate::engine) fn start_bulk(
        &mut self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: MemList,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk_with(kind, peer, remote, at, local, None, options)
    }

    /// Starts a push to the beginning of `remote` whose last write carries immediate data.
    pub(super) fn start_push(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        local: MemList,
        immediate: u32,
        options: Options,
    ) -> Result<Posted, Error> {
        self.start_bulk_with(OpKind::Push, peer, remote, 0, local, Some(immediate), options)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one transfer")]
    fn start_bulk_with(
        &mut self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: MemList,
        immediate: Option<u32>,
        options: Options,
    ) -> Result<Posted, Error> {
        let cursor = unit::seek(remote.pieces(), at);
        if immediate.is_none()
            && let Some(done) = self.transfer_immediately(kind, peer, remote, cursor, &local, &options)
        {
            return Ok(Posted::Done(done));
        }
        if self.adapter.short_paths.are_set_aside() {
            return self.start_bulk_recorded(kind, peer, remote, at, local, immediate, options);
        }
        let Self { adapter, ops, peers, .. } = self;
        let record = peers.open_mut(peer).map_err(|error| error.during(kind.as_str()))?;
        check(adapter, record, kind, remote, at, &local).map_err(|error| error.during(kind.as_str()))?;
        let total = local.len() as u64;
        let plan = Plan { remote: remote.shared(), at: cursor, total, announced_as: None, immediate };
        let id = ops.post(kind, Some(peer), 0, Some(local), options, State::Queued);
        if record.is_up() {
            self.handle(peer, |adapter, ops, peer| Ok(transfer::begin(adapter, ops, peer, id, kind, plan)));
        } else if let Some(op) = ops.get_mut(id) {
            op.plan = Some(Box::new(plan));
            record.queue.push_back(id);
        }
        Ok(self.ops.posted(id))
    }

    /// Starts a transfer, by the short path if that is possible, and records one that ends at once.
    /// Units record the others.
    #[expect(clippy::too_many_arguments, reason = "the parts of one transfer")]
    #[cold]
    #[inline(never)]
    fn start_bulk_recorded(
        &mut self,
        kind: OpKind,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        local: MemList,
        immediate: Option<u32>,
        options: Options,
    ) -> Result<Posted, Error> {
        let (begun, before, bytes) = (self.adapter.recorder.now(), self.adapter.counters.immediate, local.len() as u64);
        self.adapter.short_paths.set_aside(false);
        let started = self.start_bulk_with(kind, peer, remote, at, local, immediate, options);
        self.adapter.short_paths.set_aside(true);
        if self.adapter.counters.immediate > before {
            record::unit(&self.adapter.recorder, peer, kind == OpKind::Push, begun, bytes);
        }
        started
    }

    /// Returns true if all of a transfer is with the adapter, or if it is over. Messages that are
    /// sent from now on arrive after it.
    pub fn is_issued(&self, op: OpId) -> bool {
        match self.ops.get(op).map(|op| op.state()) {
            Some(State::Queued) => false,
            Some(State::Moving(transfer)) => transfer.issued == transfer.total,
            _ => true,
        }
    }
}

/// Checks a pull or push.
fn check(
    adapter: &AdapterSide,
    peer: &Peer,
    kind: OpKind,
    remote: &BulkDescriptor,
    at: u64,
    local: &MemList,
) -> Result<(), Error> {
    if kind == OpKind::Pull {
        adapter.check_target(peer, local)?
    } else {
        adapter.check_list(peer, local)?
    }
    let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
    if at.checked_add(local.len() as u64).is_none_or(|end| end > remote.len()) {
        let text = format!("{} bytes at {at} lie outside a descriptor of {}", local.len(), remote.len());
        return Err(invalid(text));
    }
    let (pieces, limit) = (remote.pieces().len(), adapter.config.tuning.max_pieces);
    if pieces > limit {
        return Err(invalid(format!("a descriptor of {pieces} pieces; at most {limit} are allowed")));
    }
    if kind == OpKind::Pull && !adapter.rdma_read {
        return Err(Error::new(ErrorKind::Unsupported, "the adapter has no RDMA read"));
    }
    Ok(())
}

impl Engine {
    /// Lets `peer` write `list` once, with [`Engine::post_push_granted`]. The operation
    /// (`OpKind::Grant`) ends when the peer has written the data. If it ends early, the peer may
    /// still be writing, and to revoke the memory would end the connection. So the memory is held
    /// and [retired](crate::Memory::is_retired) until the peer says that it is done, until the
    /// connection ends, or for [`TimeoutConfig::dropped_call`](crate::TimeoutConfig::dropped_call).
    /// An endpoint holds at most 64 of them.
    ///
    /// The memory is filled with zeros first. So it holds nothing but zeros where the peer does not
    /// write, even if the peer claims that it has written everything.
    ///
    /// # Errors
    /// `PeerLost`, `Exhausted`; `Invalid` for an empty list or too many pieces; `Unsupported`
    /// without immediate data.
    pub fn post_grant(
        &mut self,
        peer: PeerId,
        list: impl Into<MemList>,
        options: Options,
    ) -> Result<(Grant, OpId), Error> {
        self.start_grant(peer, list.into(), options).map_err(|error| error.during(OpKind::Grant.as_str()))
    }

    fn start_grant(&mut self, id: PeerId, list: MemList, options: Options) -> Result<(Grant, OpId), Error> {
        let Self { adapter, ops, peers, .. } = self;
        let peer = peers.open_mut(id)?;
        adapter.check_target(peer, &list)?;
        if list.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a grant of no bytes"));
        }
        if !adapter.transport.capabilities().write_with_immediate {
            return Err(Error::new(ErrorKind::Unsupported, "the adapter has no write with immediate data"));
        }
        list.pieces().iter().for_each(MemSlice::zero);
        let remote = adapter.expose_list(peer, &list, Access::WRITE)?;
        let descriptor = BulkDescriptor::try_from(remote.as_slice().to_vec())?;
        let token = peer.grants.draw();
        let lent = Box::new(Lent::granted(remote, token, &list));
        let op = ops.post(OpKind::Grant, Some(id), 0, Some(list), options, State::Granted(lent));
        peer.grants.insert(token, op);
        Ok((Grant { descriptor, token }, op))
    }

    /// Writes `local` to the memory of `grant`. The last write notifies the peer.
    ///
    /// # Errors
    /// As [`Engine::post_push`]; `Invalid` for an empty list, and for a list that is not as long
    /// as the grant. The peer would take a shorter one for complete.
    pub fn post_push_granted(
        &mut self,
        peer: PeerId,
        grant: &Grant,
        local: impl Into<MemList>,
        options: Options,
    ) -> Result<Posted, Error> {
        let local = local.into();
        if local.is_empty() || !is_granted(grant.token) {
            return Err(Error::new(ErrorKind::Invalid, "a push of no bytes, or a grant that is none").during("push"));
        }
        if local.len() as u64 != grant.descriptor.len() {
            let text = format!("{} bytes for a grant of {}", local.len(), grant.descriptor.len());
            return Err(Error::new(ErrorKind::Invalid, text).during("push"));
        }
        self.start_push(peer, &grant.descriptor, local, grant.token, options)
    }
}
