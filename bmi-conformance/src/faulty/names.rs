//! Names of connections, as the caller of the wrapper sees them.
//!
//! **Why.** The inner transport may reuse a slot once it has reported the end of its connection. If
//! the wrapper holds that report back, its caller would see two connections in one slot. So the
//! wrapper has its own names for connections.
//!
//! **Invariant.** A slot is free again when the end of its connection has been let through.
//! `reject` does not free it, because completions still come after it.

use std::collections::BTreeMap;

use bmi_core::transport::ConnId;

/// A name that no transport uses for a connection.
const NOBODY: ConnId = ConnId { slot: u32::MAX, generation: u32::MAX };

/// Both directions of the translation.
#[derive(Debug, Default)]
pub(super) struct Names {
    outward: BTreeMap<ConnId, ConnId>,
    /// By slot: how often it was used before, and the inner transport's name of its connection.
    slots: Vec<(u32, Option<ConnId>)>,
}

impl Names {
    /// Returns the caller's name for a connection, and makes one if there is none yet.
    pub(super) fn outward(&mut self, inner: ConnId) -> ConnId {
        if let Some(outer) = self.outward.get(&inner) {
            return *outer;
        }
        let slot = self.slots.iter().position(|(_, inner)| inner.is_none()).unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() - 1
        });
        self.slots[slot].1 = Some(inner);
        let outer = ConnId { slot: slot as u32, generation: self.slots[slot].0 };
        self.outward.insert(inner, outer);
        outer
    }

    /// Returns the inner transport's name. For a name that is not in use, returns a name that the
    /// inner transport does not know.
    pub(super) fn inward(&self, outer: ConnId) -> ConnId {
        match self.slots.get(outer.slot as usize) {
            Some((generation, Some(inner))) if *generation == outer.generation => *inner,
            _ => NOBODY,
        }
    }

    /// Frees the name of a connection whose end the caller has seen.
    pub(super) fn end(&mut self, outer: ConnId) {
        if let Some((generation, inner)) = self.slots.get_mut(outer.slot as usize)
            && *generation == outer.generation
            && let Some(inner) = inner.take()
        {
            *generation += 1;
            self.outward.remove(&inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again_only_after_the_end_was_seen() {
        let mut names = Names::default();
        let inner = |generation| ConnId { slot: 7, generation };
        let first = names.outward(inner(0));
        let second = names.outward(inner(1));
        assert_ne!(first.slot, second.slot);
        assert_eq!((names.outward(inner(0)), names.inward(second)), (first, inner(1)));
        names.end(first);
        assert_eq!(names.inward(first), NOBODY);
        let third = names.outward(inner(2));
        assert_eq!((third.slot, third.generation), (first.slot, 1));
    }
}
