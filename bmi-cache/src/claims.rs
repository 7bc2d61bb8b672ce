//! Which operations may use which bytes of a file now: readers share, a writer has its ranges
//! alone.
//!
//! **Invariants**
//! 1. Two granted claims have no byte in common, or neither is exclusive.
//! 2. *In order.* A claim is granted as soon as it conflicts with no earlier claim that still
//!    exists, granted or not. So a writer is not overtaken by readers for ever, and operations on
//!    other bytes do not wait.
//! 3. An operation makes one claim, for all its ranges at once.
//!
//! **No deadlock.** A claim waits only for earlier ones, so there is no cycle of claims of a file.
//! An operation claims in one file, and asks for memory only after its claim was granted
//! (`memory.rs`). Whoever has memory waits for no claim.

use crate::extent::{Extent, overlap};

/// The claims of a file, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: Vec<Claim>,
    next: u64,
}

#[derive(Debug)]
struct Claim {
    id: u64,
    exclusive: bool,
    granted: bool,
    /// Sorted and joined.
    extents: Vec<Extent>,
}

impl Claim {
    fn conflicts(&self, other: &Claim) -> bool {
        (self.exclusive || other.exclusive) && overlap(&self.extents, &other.extents)
    }
}

impl Claims {
    /// Makes a claim, which may be granted at once. `extents` are sorted and joined.
    pub(crate) fn make(&mut self, extents: Vec<Extent>, exclusive: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.claims.push(Claim { id, exclusive, granted: false, extents });
        self.grant();
        id
    }

    /// Returns true if a claim was granted.
    pub(crate) fn is_granted(&self, id: u64) -> bool {
        self.claims.iter().any(|claim| claim.id == id && claim.granted)
    }

    /// Ends a claim, granted or not. Returns true if others were granted because of it.
    pub(crate) fn end(&mut self, id: u64) -> bool {
        self.claims.retain(|claim| claim.id != id);
        self.grant()
    }

    fn grant(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.claims.len() {
            let (earlier, rest) = self.claims.split_at_mut(at);
            let claim = &mut rest[0];
            if !claim.granted && !earlier.iter().any(|other| other.conflicts(claim)) {
                claim.granted = true;
                any = true;
            }
        }
        any
    }

    /// Returns the extents of granted exclusive claims: bytes that change under everybody else.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &Extent> {
        self.claims.iter().filter(|claim| claim.exclusive && claim.granted).flat_map(|claim| &claim.extents)
    }

    /// Returns true if a claim waits.
    pub(crate) fn any_waits(&self) -> bool {
        self.claims.iter().any(|claim| !claim.granted)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::extent::joined;

    #[test]
    fn readers_share_and_do_not_overtake_a_writer() {
        let mut claims = Claims::default();
        let of = |offset, len| vec![Extent::new(offset, len)];
        let (one, other) = (claims.make(of(0, 10), false), claims.make(of(5, 10), false));
        let writer = claims.make(of(8, 1), true);
        let late = claims.make(of(0, 100), false);
        let apart = claims.make(of(200, 1), true);
        let granted = |claims: &Claims| [one, other, writer, late, apart].map(|id| claims.is_granted(id));
        assert_eq!(granted(&claims), [true, true, false, false, true]);
        assert!(!claims.end(one));
        assert!(claims.end(other));
        assert_eq!(granted(&claims), [false, false, true, false, true]);
        assert_eq!(claims.changing().count(), 2);
        assert!(claims.end(writer) && claims.is_granted(late) && !claims.any_waits());
    }

    proptest! {
        #[test]
        fn granted_claims_never_conflict_and_every_claim_gets_its_turn(
            steps in prop::collection::vec((any::<bool>(), prop::collection::vec((0u64..50, 1u64..10), 1..4), 0usize..8), 1..40),
        ) {
            let mut claims = Claims::default();
            let mut alive: Vec<(u64, bool, Vec<Extent>)> = Vec::new();
            for (exclusive, list, end) in steps {
                let extents = joined(&list.into_iter().map(|(at, len)| Extent::new(at, len)).collect::<Vec<_>>());
                alive.push((claims.make(extents.clone(), exclusive), exclusive, extents));
                if end < alive.len() {
                    let (id, ..) = alive.remove(end);
                    claims.end(id);
                }
                let granted: Vec<_> = alive.iter().filter(|(id, ..)| claims.is_granted(*id)).collect();
                for (at, (_, one, mine)) in granted.iter().enumerate() {
                    for (_, other, theirs) in &granted[at + 1..] {
                        prop_assert!(!(*one || *other) || !overlap(mine, theirs));
                    }
                }
                prop_assert!(claims.is_granted(alive.first().map_or(u64::MAX, |(id, ..)| *id)) || alive.is_empty());
            }
            while let Some((id, ..)) = alive.first().cloned() {
                prop_assert!(claims.is_granted(id), "the oldest is always granted");
                alive.remove(0);
                claims.end(id);
            }
            prop_assert!(claims.is_empty());
        }
    }
}
