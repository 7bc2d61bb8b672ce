//! Memory that is lent to a peer, and the grants of a connection. [`crate::engine::bulk::lent`]
//! ends them.

use std::collections::BTreeMap;

use crate::mem::{MemList, OneOrMany, RemoteSlice, Retirement, keys_of};
use crate::op::OpId;

/// Set in the immediate data of a granted push.
pub(super) const GRANTED: u32 = 1 << 31;

/// Returns true if immediate data announces a granted push.
pub(in crate::engine) fn is_granted(immediate: u32) -> bool {
    immediate & GRANTED != 0
}

/// Memory that a peer may access.
#[derive(Debug)]
pub(in crate::engine) struct Lent {
    pub(in crate::engine) remote: OneOrMany<RemoteSlice>,
    /// The token of a grant.
    pub(in crate::engine) token: Option<u32>,
    _retired: Vec<Retirement>,
}

impl Default for Lent {
    fn default() -> Lent {
        Lent { remote: OneOrMany::None, token: None, _retired: Vec::new() }
    }
}

impl Lent {
    /// The memory of a grant.
    pub(in crate::engine) fn granted(remote: OneOrMany<RemoteSlice>, token: u32, list: &MemList) -> Lent {
        Lent { remote, token: Some(token), _retired: list.retire() }
    }

    /// The memory of an exposure. `retired` holds it.
    pub(in crate::engine) fn exposed(remote: OneOrMany<RemoteSlice>, retired: Vec<Retirement>) -> Lent {
        Lent { remote, token: None, _retired: retired }
    }

    /// Returns the number of keys of the memory.
    pub(in crate::engine) fn keys(&self) -> usize {
        keys_of(self.remote.as_slice()).as_slice().len()
    }
}

/// The grants of a connection, by token.
#[derive(Debug, Default)]
pub(in crate::engine) struct Grants {
    ops: BTreeMap<u32, OpId>,
    last: u32,
}

impl Grants {
    /// Returns a token that names nothing. The caller [inserts](Grants::insert) it.
    pub(in crate::engine) fn draw(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1) | GRANTED;
            if !self.ops.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Records which operation holds the memory.
    pub(in crate::engine) fn insert(&mut self, token: u32, op: OpId) {
        self.ops.insert(token, op);
    }

    /// Returns the operation that holds the memory. The token may come from the peer, unchecked.
    pub(in crate::engine) fn find(&self, token: u32) -> Option<OpId> {
        self.ops.get(&token).copied()
    }
    /// Forgets a grant whose memory is revoked.
    pub(in crate::engine) fn remove(&mut self, token: u32) {
        self.ops.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Key;

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
