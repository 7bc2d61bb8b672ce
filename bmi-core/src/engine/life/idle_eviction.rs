//! Closing idle connections: an endpoint that has as many peers as it may closes the connection
//! that was idle longest, and one that goes down closes all that are idle. A program may dismiss
//! one peer, which then connects again: to another event loop of the same server.
//!
//! **Why under pressure only.** An idle connection costs memory and nothing else, and its peer may
//! want it again. So it stays as long as there is room. Without this rule a crowd of peers that
//! only connect would keep everybody else out.
//!
//! **Invariants**
//! 1. A connection is closed only if nothing is lost with it: no operation, message, exposure or
//!    [`Kept`] belongs to it, and no message has come or gone for
//!    [`LimitConfig::evict_idle_after`](crate::LimitConfig::evict_idle_after). Exposures that
//!    nothing waits for do not count ([`Engine::expose_standing`]). Connections that this side
//!    has made stay. What a peer has sent that is dismissed is dropped, as if it came later.
//! 2. After the decision, nothing that the peer sends is handled. So a request that was on its way
//!    is not carried out. The last message says so: when the peer handles a GoAway, it has all
//!    answers that there are, and everything else ends as `Refused`. It may be repeated, whatever
//!    it was. Only a peer that has returned no credit gets no GoAway.
//! 3. The newcomer does not wait until the other peer has left. Peers that are leaving count apart,
//!    and they are limited too.
//! 4. A search that finds nothing is not repeated at once. So newcomers that are refused cost
//!    little.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::adapter::{AdapterSide, Message};
use crate::engine::books::{Effect, Link, Operations, Peer};
use crate::error::{Error, ErrorKind};
use crate::hooks::step;
use crate::mutated;
use crate::op::PeerId;
use crate::time::Time;
use crate::transport::Transport;
use crate::wire::Violation;
use crate::wire::header::Kind;

/// Keeps the connection to a peer from being closed because it is idle. It ends when the last clone
/// is dropped. It does not keep the connection from being lost.
#[derive(Clone, Debug)]
pub struct Kept(#[expect(dead_code, reason = "it is counted, not read")] Arc<()>);

impl Peer {
    /// Returns true if nothing but operations could be lost with the connection.
    fn is_idle(&self) -> bool {
        self.is_answered() && self.account.parked_bytes() == 0 && self.account.slots_in_use() == 0
    }

    /// Returns true if nothing but operations and messages could be lost with the connection.
    fn is_answered(&self) -> bool {
        !self.outgoing
            && matches!(self.link, Link::Up)
            && self.notices.is_empty()
            && !self.has_awaited_exposures()
            && Arc::strong_count(&self.kept) == 1
    }
}

impl Engine {
    /// Keeps the connection to a peer from being closed because it is idle, for instance while its
    /// request is worked at ([`Incoming`](crate::comm::Incoming) does so), or while the program has
    /// state that would be lost. Returns `None` if the peer is gone.
    pub fn keep(&self, peer: PeerId) -> Option<Kept> {
        self.peers.get(peer).map(|peer| Kept(peer.kept.clone()))
    }

    /// Closes the connections that peers have made and that are idle, before this side goes down.
    /// What the peers still send is not carried out, and they know: their operations end as
    /// `Refused`, and may be repeated elsewhere. The other connections stay. `now` is the time,
    /// which may be long after the last poll.
    pub fn dismiss_idle(&mut self, now: Time) {
        self.adapter.now = self.adapter.now.max(now);
        let Self { adapter, ops, peers, .. } = self;
        let engaged = engaged(ops);
        let mut leaving = 0;
        for peer in peers.iter_mut().filter(|peer| peer.is_idle() && !engaged.contains(&peer.id)) {
            evict(adapter, peer, "this side goes down".to_owned());
            leaving += 1;
        }
        peers.idle.leaving += leaving;
    }

    /// Closes the connection that a peer has made, although it may be busy. The peer learns that
    /// what was not answered was not handled, and may repeat it over a new connection, as by
    /// [`Engine::dismiss_idle`]. The caller handles no message of the peer any more. Returns false,
    /// and does nothing, if something would be lost: an operation, an exposure or a [`Kept`]; if
    /// the peer cannot be told now; and while many peers are leaving.
    pub fn dismiss(&mut self, peer: PeerId, why: &str) -> bool {
        let Self { adapter, ops, peers, .. } = self;
        if peers.idle.leaving >= most_leaving(adapter) || engaged(ops).contains(&peer) {
            return false;
        }
        let Some(peer) = peers.get_mut(peer).filter(|peer| peer.is_answered()) else { return false };
        if !send_go_away(adapter, peer) {
            return false;
        }
        leave(adapter, peer, why.to_owned());
        peers.idle.leaving += 1;
        true
    }

    /// Makes sure that there is room for one more peer.
    pub(super) fn make_room_for_peer(&mut self) -> Result<(), Error> {
        let most = self.adapter.config.limits.max_peers;
        if self.peers.len() - self.peers.idle.leaving < most || self.evict_idlest() {
            return Ok(());
        }
        let text = format!("this side keeps {} connections and takes no more (Config::max_peers)", self.peers.len());
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// Closes the connection that was idle longest, if one was idle long enough.
    fn evict_idlest(&mut self) -> bool {
        let Self { adapter, ops, peers, .. } = self;
        let (limits, now) = (&adapter.config.limits, adapter.now);
        let Some(least) = limits.evict_idle_after else { return false };
        if peers.idle.leaving >= most_leaving(adapter) || now < peers.idle.not_before {
            return false;
        }
        let engaged = engaged(ops);
        let idle = peers.iter_mut().inspect(|_| step()).filter(|peer| peer.is_idle() && !engaged.contains(&peer.id));
        match idle.min_by_key(|peer| peer.used) {
            Some(peer) if now.since(peer.used) >= least => {
                let idle = now.since(peer.used);
                let AdapterSide { log, .. } = adapter;
                if log.admits("idle connection closed", peer.addr.host(), now) {
                    tracing::warn!(peer = %peer.addr, ?idle, "idle connection closed, to make room for another");
                }
                evict(adapter, peer, format!("it was idle for {} s, and others needed the place", idle.as_secs()));
                peers.idle.leaving += 1;
                true
            }
            _ => {
                peers.idle.not_before = now + least / 64;
                false
            }
        }
    }
}

/// Returns how many peers may be leaving at a time.
fn most_leaving(adapter: &AdapterSide) -> usize {
    (adapter.config.limits.max_peers / 8).max(1)
}

/// Returns the peers that have operations.
fn engaged(ops: &Operations) -> BTreeSet<PeerId> {
    ops.iter().filter(|(_, op)| !op.is_done()).filter_map(|(_, op)| op.peer).collect()
}

/// Closes an idle connection. What its peer still sends is ignored.
fn evict(adapter: &mut AdapterSide, peer: &mut Peer, why: String) {
    if !mutated("eviction/without-a-word") {
        // If it is not sent, the peer learns only that the connection is gone.
        send_go_away(adapter, peer);
    }
    leave(adapter, peer, why);
}

/// Returns false, and sends nothing, without a credit or a place in the adapter's queue.
fn send_go_away(adapter: &mut AdapterSide, peer: &mut Peer) -> bool {
    if !peer.spend_message() {
        return false;
    }
    let sent = adapter.transmit_control(peer, Message { kind: Kind::GoAway, tag: 0, len: 0, op: 0 }).is_ok();
    if !sent {
        peer.unspend(0);
    }
    sent
}

/// Ends a connection, of which nothing is handled from now on.
fn leave(adapter: &mut AdapterSide, peer: &mut Peer, why: String) {
    let AdapterSide { transport, config, now, .. } = adapter;
    peer.cut_reason = Some(Error::new(ErrorKind::Cancelled, why));
    peer.link.enter(Link::Cut);
    peer.leaving = true;
    transport.disconnect(peer.conn, *now + config.timeouts.fence_grace);
}

/// Handles a GoAway: the peer handles nothing more.
pub(in crate::engine) fn on_go_away(adapter: &mut AdapterSide, peer: &mut Peer) -> Result<Effect, Violation> {
    peer.arrived_without_bytes()?;
    if !peer.outgoing {
        return Err("a GoAway to the side that accepted the connection");
    }
    let text = "it closes the connection, and has done nothing of what it has not answered";
    peer.cut_reason = Some(Error::new(ErrorKind::Refused, text));
    peer.link.enter(Link::Cut);
    adapter.transport.disconnect(peer.conn, Time::ZERO);
    Ok(Effect::None)
}
