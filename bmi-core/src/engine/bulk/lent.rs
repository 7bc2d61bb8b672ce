//! Memory that is lent to a peer for one access, and what becomes of it if this side ends the
//! operation early.
//!
//! **Why.** A peer that was told of memory writes to it or reads it when it gets to that. Until a
//! word of this side has reached it, it knows nothing of a deadline or a cancel here. If the memory
//! were revoked at once, the access of an honest peer would be a violation, and would end the
//! connection with all that others do there. So the operation ends, and the memory is left to the
//! peer for a while. It is held, and retired ([`Memory::is_retired`](crate::Memory::is_retired)),
//! so no pool gives it to anybody else.
//!
//! ```text
//!  lent ──the peer is done──────────────> revoked
//!   └──deadline, cancel──> left ──the peer is done, the connection ends, Config::dropped_call────> revoked
//!                              └──MOST_LEFT others were left since──────────────────────────────> revoked
//! ```
//!
//! A program does the same for the calls that it drops ([`crate::engine::calls::dropped`]).
//!
//! **Invariants**
//! 1. Memory is retired as long as it is lent, from before the peer hears of it. So whoever has
//!    dropped the operation finds it retired, even if the endpoint hears of that later.
//! 2. A token names one memory of its connection until that is revoked. A late announcement ends
//!    the access that it is about, or nothing.
//! 3. The operation that holds what was left is abandoned. It ends by its timer at the latest.
//! 4. At most [`MOST_LEFT`] memories are left at a time, so clients whose operations end early can
//!    make a server hold no more than those. For a newer one, the oldest is revoked.
//!
//! **Tests.** `bmi-sim/tests/it/calls/ended_early.rs`; `bmi-conformance/src/message/ends/late.rs`.

use crate::engine::Engine;
use crate::engine::adapter::AdapterSide;
use crate::engine::books::{Effect, Exposure, Lent, Operations, Peer, State};
use crate::error::ErrorKind;
use crate::mem::Retirement;
use crate::mutated;
use crate::op::{OpId, OpKind, Options};

/// Largest number of memories of an endpoint that are left to peers.
const MOST_LEFT: usize = 64;

/// Ends a grant early. What it has lent is left to the peer.
pub(in crate::engine) fn leave(ops: &mut Operations, peer: &mut Peer, id: OpId, kind: ErrorKind) -> Effect {
    if let Some(lent) = ops.get_mut(id).and_then(|op| op.take_lent()) {
        keep(ops, peer, lent);
    }
    Effect::ends(id, Err(kind), 0)
}

/// Keeps what is left to a peer. Nothing waits for the peer to access it.
fn keep(ops: &mut Operations, peer: &mut Peer, lent: Lent) {
    peer.standing_exposures += lent.keys();
    let token = lent.token;
    let id = ops.post(OpKind::Grant, Some(peer.id), 0, None, Options::default(), State::Left(Box::new(lent)));
    if let Some(op) = ops.get_mut(id) {
        op.abandoned = true;
    }
    if let Some(token) = token {
        peer.grants.insert(token, id);
    }
    // Its period begins with the next poll, because the last one may be long ago.
    ops.fences.push(id);
}

/// Revokes memory that is lent or left, and ends the operation that holds it.
pub(in crate::engine) fn end(
    adapter: &mut AdapterSide,
    ops: &Operations,
    peer: &mut Peer,
    id: OpId,
    status: Result<(), ErrorKind>,
) -> Effect {
    let Some(op) = ops.get(id) else { return Effect::None };
    let (State::Granted(lent) | State::Left(lent)) = op.state() else { return Effect::None };
    if matches!(op.state(), State::Left(_)) {
        peer.standing_exposures -= lent.keys();
    }
    if let Some(token) = lent.token {
        peer.grants.remove(token);
    }
    if !mutated("grant/good-for-ever") {
        adapter.revoke_all(peer, lent.remote.as_slice());
    }
    let len = op.len() as u64;
    if status.is_ok() {
        adapter.counters.bytes_received += len;
    }
    Effect::ends(id, status, len)
}

impl Engine {
    /// Leaves exposed memory to its peer, which has not said that it is done. `retired` holds the
    /// memory.
    pub(crate) fn leave_exposure(&mut self, exposure: Exposure, retired: Vec<Retirement>) {
        let (peer, remote) = (exposure.peer, exposure.take());
        self.handle(peer, |_, ops, peer| {
            keep(ops, peer, Lent::exposed(remote, retired));
            Ok(Effect::None)
        });
    }

    /// Counts one more memory that was left to its peer. The oldest is revoked if there are too
    /// many.
    #[cold]
    pub(in crate::engine) fn count_left(&mut self, id: OpId) {
        self.ops.left.push_back(id);
        if self.ops.left.len() > MOST_LEFT
            && !mutated("lent/left-without-bound")
            && let Some(oldest) = self.ops.left.pop_front()
        {
            self.end_operation(oldest, ErrorKind::Cancelled);
        }
    }
}
