//! A list whose links are indices into a table.
//!
//! **Why.** A hit moves an entry from the middle of a list to its end. With links in the entries
//! themselves this is O(1), and allocates nothing.
//!
//! **Invariant.** An entry is in at most one chain. The owner of the table knows which one.
//!
//! **Tests.** Those of the queues and of the ghosts, which are made of chains.

use std::ops::IndexMut;

/// The index that no entry has.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of an entry in its chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) newer: u32,
    pub(super) older: u32,
}

impl Links {
    pub(super) const UNLINKED: Links = Links { newer: NONE, older: NONE };
}

/// An entry of a table that can be in a chain.
pub(super) trait Linked {
    fn links(&mut self) -> &mut Links;
}

/// A list of entries, from the newest to the oldest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    pub(super) newest: u32,
    pub(super) oldest: u32,
    pub(super) len: usize,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { newest: NONE, oldest: NONE, len: 0 };

    /// Puts an entry that is in no chain at the newest end.
    pub(super) fn push<T: Linked>(&mut self, table: &mut impl IndexMut<usize, Output = T>, at: u32) {
        *table[at as usize].links() = Links { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = at,
            newest => table[newest as usize].links().newer = at,
        }
        self.newest = at;
        self.len += 1;
    }

    /// Takes an entry of this chain out of it.
    pub(super) fn unlink<T: Linked>(&mut self, table: &mut impl IndexMut<usize, Output = T>, at: u32) {
        let Links { newer, older } = std::mem::replace(table[at as usize].links(), Links::UNLINKED);
        match newer {
            NONE => self.newest = older,
            newer => table[newer as usize].links().older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => table[older as usize].links().newer = newer,
        }
        self.len -= 1;
    }

    /// Moves the oldest entry to the newest end.
    pub(super) fn rotate<T: Linked>(&mut self, table: &mut impl IndexMut<usize, Output = T>) {
        let at = self.oldest;
        self.unlink(table, at);
        self.push(table, at);
    }
}
