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
//! A program does the same for the calls that it drops ([`super::dropped_calls`]).
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
//! **Tests.** `bmi-sim/tests/it/ended_early.rs`; `bmi-conformance/src/message/late.rs`.

use std::collections::BTreeMap;

use super::Engine;
use super::adapter_side::AdapterSide;
use super::effect::Effect;
use super::grant::GRANTED;
use super::op::State;
use super::operations::Operations;
use super::peer::Peer;
use crate::bulk::Exposure;
use crate::error::ErrorKind;
use crate::mem::{MemList, RemoteSlice, Retirement, keys_of};
use crate::mutated;
use crate::op::{OpId, OpKind, Options};
use crate::proto::one_or_many::OneOrMany;

/// Largest number of memories of an endpoint that are left to peers.
const MOST_LEFT: usize = 64;

/// Memory that a peer may access.
#[derive(Debug)]
pub(super) struct Lent {
    remote: OneOrMany<RemoteSlice>,
    /// The token of a grant.
    token: Option<u32>,
    _retired: Vec<Retirement>,
}

impl Default for Lent {
    fn default() -> Lent {
        Lent { remote: OneOrMany::None, token: None, _retired: Vec::new() }
    }
}

impl Lent {
    /// The memory of a grant.
    pub(super) fn granted(remote: OneOrMany<RemoteSlice>, token: u32, list: &MemList) -> Lent {
        Lent { remote, token: Some(token), _retired: list.retire() }
    }

    fn keys(&self) -> usize {
        keys_of(self.remote.as_slice()).as_slice().len()
    }
}

/// The grants of a connection, by token.
#[derive(Debug, Default)]
pub(super) struct Grants {
    ops: BTreeMap<u32, OpId>,
    last: u32,
}

impl Grants {
    /// Returns a token that names nothing. The caller [inserts](Grants::insert) it.
    pub(super) fn draw(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) | GRANTED;
            if !self.ops.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Records which operation holds the memory.
    pub(super) fn insert(&mut self, token: u32, op: OpId) {
        self.ops.insert(token, op);
    }

    /// Returns the operation that holds the memory. The token may come from the peer, unchecked.
    pub(super) fn find(&self, token: u32) -> Option<OpId> {
        self.ops.get(&token).copied()
    }
}

/// Ends a grant early. What it has lent is left to the peer.
pub(super) fn leave(ops: &mut Operations, peer: &mut Peer, id: OpId, kind: ErrorKind) -> Effect {
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
pub(super) fn end(
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
        peer.grants.ops.remove(&token);
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
            keep(ops, peer, Lent { remote, token: None, _retired: retired });
            Ok(Effect::None)
        });
    }

    /// Counts one more memory that was left to its peer. The oldest is revoked if there are too
    /// many.
    #[cold]
    pub(super) fn count_left(&mut self, id: OpId) {
        self.ops.left.push_back(id);
        if self.ops.left.len() > MOST_LEFT
            && !mutated("lent/left-without-bound")
            && let Some(oldest) = self.ops.left.pop_front()
        {
            self.end_operation(oldest, ErrorKind::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::grant::is_granted;
    use crate::proto::table::Key;

    #[test]
    fn a_token_that_is_in_use_is_not_drawn_again() {
        let mut grants = Grants::default();
        let op = OpId(Key { slot: 1, generation: 1 });
        let token = grants.draw();
        grants.insert(token, op);
        grants.last = token.wrapping_sub(1);
        let next = grants.draw();
        assert!(next != token && is_granted(token) && is_granted(next));
        assert_eq!((grants.find(token), grants.find(token + 7)), (Some(op), None));
    }
}
