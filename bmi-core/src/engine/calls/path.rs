//! The facts of an endpoint that the choice of a path depends on (see [`crate::comm`]).

use crate::engine::Engine;
use crate::mem::{Access, MemList, MemSlice, RemoteSlice, RemoteView};
use crate::op::PeerId;
use crate::paths::{Choice, Direction, Facts, PathCounters, Plan, Policy};
use crate::transport::Transport;
use crate::wire::BulkDescriptor;

/// The policy that chooses paths, and how often each was taken.
#[derive(Default)]
pub(in crate::engine) struct Choices {
    policy: Policy,
    paths: PathCounters,
}

impl Engine {
    /// Returns the policy that chooses paths.
    pub fn policy(&self) -> &Policy {
        &self.choices.policy
    }

    /// Sets the policy that chooses paths from now on.
    pub fn set_policy(&mut self, policy: Policy) {
        self.choices.policy = policy;
    }

    /// Returns how often each path was taken, and why cheaper ones were not.
    pub fn path_counters(&self) -> PathCounters {
        self.choices.paths
    }

    /// Returns the path that data of each size takes, and the reason. With `peer`, the plan is for
    /// that peer's limits. Without, it is for two endpoints with these settings.
    pub fn plan(&mut self, peer: Option<PeerId>) -> Plan {
        let limits = peer.and_then(|peer| self.limits(peer));
        let eager = limits.map_or(self.adapter.config.credits.eager_limit, |limits| limits.eager);
        let slots =
            self.adapter.config.tuning.fast_slots > 0 && self.adapter.transport.capabilities().write_with_immediate;
        let own = slots.then_some(self.adapter.config.credits.fast_slot_bytes);
        let fast = limits.map_or(own, |limits| Some(limits.fast).filter(|fast| *fast > 0));
        let best = Facts {
            direction: Direction::Write,
            len: 0,
            registered: false,
            inline_room: eager.saturating_sub(TYPICAL_REQUEST),
            fast_room: fast.map(|fast| fast.saturating_sub(TYPICAL_REQUEST)),
            slot_free: true,
            credit: true,
            rdma_read: self.adapter.transport.capabilities().rdma_read,
            immediate: self.adapter.transport.capabilities().write_with_immediate,
        };
        let mut plan = Plan::new(&self.choices.policy, &best, self.adapter.registration_is_free());
        let conn = peer.and_then(|peer| self.peers.get(peer)).filter(|peer| peer.is_up()).map(|peer| peer.conn);
        plan.ways = conn.map_or_else(Vec::new, |conn| self.adapter.transport.bulk_ways(conn));
        plan
    }

    /// Chooses the path for `data` and counts the choice. The message of the request has `request`
    /// bytes without the data. `forced` replaces the path that the policy forces.
    pub(crate) fn choose_path(
        &mut self,
        peer: PeerId,
        direction: Direction,
        request: usize,
        data: &MemList,
        forced: Option<crate::paths::Path>,
    ) -> Choice {
        let capabilities = self.adapter.transport.capabilities();
        let (rdma_read, immediate) = (capabilities.rdma_read, capabilities.write_with_immediate);
        let limits = self.limits(peer);
        let record = self.peers.get(peer);
        // A send in the queue may be about to take the slot.
        let at_once = record.is_some_and(|record| record.queue.is_empty());
        let credit = record.and_then(|record| record.credit.as_ref());
        let own_fast =
            record.and_then(|record| record.fast.as_ref()).map(|_| self.adapter.config.credits.fast_slot_bytes);
        let (eager, fast) = limits.map_or((0, 0), |limits| (limits.eager, limits.fast));
        let head = match direction {
            Direction::Write => request,
            Direction::Read => crate::wire::call::REPLY_HEAD,
        };
        let fast = match direction {
            Direction::Write => Some(fast).filter(|fast| *fast > 0),
            Direction::Read => own_fast,
        };
        let facts = Facts {
            direction,
            len: data.len() as u64,
            registered: self.adapter.is_registered_or_free(data),
            inline_room: eager.saturating_sub(head),
            fast_room: fast.map(|fast| fast.saturating_sub(head)),
            slot_free: direction == Direction::Read || (credit.is_some_and(|credit| credit.has_slot()) && at_once),
            credit: credit.is_some_and(|credit| credit.has_message()),
            rdma_read,
            immediate,
        };
        let policy = Policy { forced: forced.or(self.choices.policy.forced), ..self.choices.policy };
        let choice = policy.choose(&facts);
        self.choices.paths.count(direction, choice.path, facts.len, choice.missed);
        choice
    }

    /// Returns true if moving a list needs no registration that costs time.
    pub(crate) fn is_registered_or_free(&self, list: &MemList) -> bool {
        self.adapter.is_registered_or_free(list)
    }
}

impl Engine {
    /// Returns the `len` bytes at `at` of the memory that `peer` exposed, as memory of this
    /// process. This is page sharing, which the transport and the memory must allow
    /// ([`Transport::map_remote`]). Returns `None` if they do not, or if the range is in more than
    /// [`MOST_LENT`] exposures, because each takes a claim.
    pub(crate) fn map_remote(
        &mut self,
        peer: PeerId,
        remote: &BulkDescriptor,
        at: u64,
        len: u64,
        access: Access,
    ) -> Option<MemList> {
        let conn = self.peers.get(peer).filter(|peer| peer.is_up())?.conn;
        let (mut skip, mut left) = (at, len);
        let mut cut: Vec<RemoteSlice> = Vec::new();
        for piece in remote.pieces() {
            let start = skip.min(piece.len);
            let take = left.min(piece.len - start);
            (skip, left) = (skip - start, left - take);
            if take > 0 {
                cut.push(piece.slice(start, take)?);
            }
        }
        if left > 0 || len == 0 {
            return None;
        }
        // Pieces of one exposure are mapped together, from the first to the last.
        let (mut lent, mut exposures) = (Vec::with_capacity(cut.len()), 0);
        for group in cut.chunk_by(|a, b| a.key == b.key) {
            exposures += 1;
            if exposures > MOST_LENT {
                return None;
            }
            let begin = group.iter().map(|piece| piece.addr).min()?;
            let end = group.iter().map(|piece| piece.addr.checked_add(piece.len)).max()??;
            let whole = RemoteSlice { key: group[0].key, addr: begin, len: end - begin };
            let memory = self.adapter.transport.map_remote(conn, whole, access)?.into_memory();
            for piece in group {
                lent.push(memory.slice(usize::try_from(piece.addr - begin).ok()?, usize::try_from(piece.len).ok()?));
            }
        }
        Some(match <[MemSlice; 1]>::try_from(lent) {
            Ok([piece]) => MemList::from(piece),
            Err(lent) => lent.into_iter().collect(),
        })
    }
}

impl Engine {
    /// Returns a piece of the memory that `peer` has exposed, as it is mapped in this process, for
    /// reading only ([`Transport::view_remote`]). The peer may change or revoke it at any time.
    pub fn view(&mut self, peer: PeerId, remote: RemoteSlice) -> Option<RemoteView> {
        let conn = self.peers.get(peer).filter(|peer| peer.is_up())?.conn;
        self.adapter.transport.view_remote(conn, remote)
    }
}

/// Most exposures of a peer whose pages one unit of a transfer maps. A transport has a limited
/// number of claims for a connection.
const MOST_LENT: usize = 4;

/// Bytes that a plan reserves for the request: a request with a few ranges.
const TYPICAL_REQUEST: usize = 256;
