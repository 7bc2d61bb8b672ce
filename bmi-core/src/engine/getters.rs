//! What an endpoint tells about itself and its peers.

use super::Engine;
use crate::addr::Addr;
use crate::config::Config;
use crate::engine::books::{Counters, PeerLimits, Pinned, ResourceUsage};
use crate::engine::buffers::PinCounts;
use crate::error::{Error, ErrorKind};
use crate::identity::PeerIdentity;
use crate::op::{Completion, OpKind, PeerId};
use crate::time::Time;
use crate::transport::Transport;
use crate::transport::capability::Capabilities;
use crate::wire::credit;

impl Engine {
    /// Returns the settings of the endpoint.
    pub fn config(&self) -> &Config {
        &self.adapter.config
    }

    /// Returns the capabilities of the adapter.
    pub fn capabilities(&self) -> &Capabilities {
        self.adapter.transport.capabilities()
    }

    /// Returns the transport.
    pub fn transport(&self) -> &dyn Transport {
        &*self.adapter.transport
    }

    /// Returns the transport, for settings that only the backend has. The caller must not post work
    /// on it, because the endpoint does not expect that.
    pub fn transport_mut(&mut self) -> &mut dyn Transport {
        &mut *self.adapter.transport
    }

    /// Returns the time of the last poll.
    pub fn now(&self) -> Time {
        self.adapter.now
    }

    /// Returns the counters of everything that the endpoint has done.
    pub fn counters(&self) -> Counters {
        let PinCounts { hits, misses, evictions, failures, batches } = self.adapter.registry.counts();
        Counters {
            pin_hits: hits,
            pin_misses: misses,
            pin_evictions: evictions,
            pin_failures: failures,
            pin_batches: batches,
            ..self.adapter.counters
        }
    }

    /// Returns the contents of the pin-down cache. Checks every entry.
    pub fn pinned(&self) -> Pinned {
        let (entries, bytes) = self.adapter.registry.held();
        Pinned { entries, bytes, in_use: self.adapter.registry.in_use() }
    }

    /// Returns the resources that the endpoint holds.
    pub fn resource_usage(&self) -> ResourceUsage {
        let peers = || self.peers.iter();
        let adapter = &self.adapter;
        let retired = adapter.transport.retired_memory();
        ResourceUsage {
            peers: self.peers.len(),
            operations: self.ops.len(),
            slots: peers().map(|peer| peer.held).sum(),
            fast_slots: peers().map(|peer| peer.account.slots_in_use()).sum(),
            parked: peers().map(|peer| peer.parked.len()).sum(),
            parked_bytes: peers().map(|peer| peer.parked_bytes).sum(),
            exposures: peers().map(|peer| peer.exposures).sum(),
            work: adapter.work + adapter.bounce.in_use() + adapter.staging.in_use() + adapter.packing.in_use(),
            fallback_buffers: adapter.fallback_buffers.in_use(),
            retired: retired.exposures,
            retired_bytes: retired.bytes,
        }
    }

    /// Returns the resources of work that must end at some time. This is
    /// [`Engine::resource_usage`] without connections, timers and retired memory.
    pub fn unfinished(&self) -> ResourceUsage {
        let timers = self.ops.iter().filter(|(_, op)| op.kind == OpKind::Timer).count();
        let held = self.resource_usage();
        ResourceUsage { peers: 0, operations: held.operations - timers, retired: 0, retired_bytes: 0, ..held }
    }

    /// Returns true if the adapter has work of this side: sends, reads and writes that have not
    /// completed.
    pub fn is_sending(&self) -> bool {
        self.adapter.work > 0 || self.adapter.bounce.in_use() > 0
    }

    /// Returns the address of a peer (BMI's reverse look-up). Peers that were lost recently also
    /// have one.
    pub fn peer_addr(&self, peer: PeerId) -> Option<Addr> {
        self.peers.addr(peer).cloned()
    }

    /// Returns who a peer is, as far as the transport has proved it. Nobody until the peer is
    /// connected, and after it is lost.
    pub fn peer_identity(&self, peer: PeerId) -> PeerIdentity {
        self.peers.get(peer).filter(|peer| peer.is_up()).map(|peer| peer.identity.clone()).unwrap_or_default()
    }

    /// Returns the limits agreed with a peer. `None` until the peer is connected, and after it is
    /// lost.
    pub fn limits(&self, peer: PeerId) -> Option<PeerLimits> {
        self.peers.get(peer).filter(|peer| peer.is_up()).map(|peer| peer.limits)
    }

    /// Returns the error of a failed completion, with operation, peer and reason. Returns `None` on
    /// success.
    pub fn explain(&self, completion: &Completion) -> Option<Error> {
        let kind = completion.status.err()?;
        let reason = completion.peer.and_then(|peer| self.peers.reason_of_loss(peer));
        let error = match (kind, reason) {
            (ErrorKind::TimedOut, _) if self.lacks_credit(completion) => Error::new(
                kind,
                "the deadline passed, and the peer has given no credit back: it does not take its messages",
            ),
            (ErrorKind::TimedOut, _) => Error::new(kind, "the deadline passed"),
            (_, Some(reason)) => Error::because(kind, reason),
            (ErrorKind::Cancelled, None) => Error::new(kind, "by this side or the peer"),
            (ErrorKind::TooLarge, None) => Error::new(kind, format!("{} bytes are more than fit", completion.len)),
            _ => Error::new(kind, ""),
        };
        let error = error.during(completion.kind.as_str());
        Some(match completion.peer.and_then(|peer| self.peer_addr(peer)) {
            Some(addr) => error.with_peer(addr),
            None => error,
        })
    }

    /// Returns true if the operation is a send, and there is no credit for a message of full length
    /// now.
    fn lacks_credit(&self, completion: &Completion) -> bool {
        let peer = completion.peer.and_then(|peer| self.peers.get(peer));
        matches!(completion.kind, OpKind::Send | OpKind::SendUnexpected)
            && peer.is_some_and(|peer| {
                let cost = credit::cost(self.adapter.eager_limit(peer));
                peer.credit.as_ref().is_some_and(|credit| !credit.can_spend(cost))
            })
    }

    /// Returns whether the program should write a log line of this kind about a peer. The endpoint
    /// counts the lines that are not written, and reports their number
    /// ([`LogLimit`](crate::LogLimit)).
    pub fn admits_log_line(&mut self, kind: &'static str, peer: PeerId) -> bool {
        let host = self.peers.addr(peer).map_or("lost peers", Addr::host);
        self.adapter.log.admits(kind, host, self.adapter.now)
    }
}
