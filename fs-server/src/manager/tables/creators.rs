//! Which new files are known to their creators only.
//!
//! **Why.** The manager is not told about writes. So it can record the size of a complete file only
//! if nobody can write to the file without asking for it first. That is so for a file that only one
//! client knows: everyone else finds the recorded size when looking the file up, and withdraws it
//! before writing.
//!
//! **Invariants**
//! 1. A file is listed only while no client but its creator was told its layout.
//! 2. The list is bounded: the oldest files are dropped. Nothing is kept across a restart. For a
//!    file that is not listed, no size is recorded, and clients ask the I/O servers as always.

use std::collections::{BTreeMap, VecDeque};

/// Most files listed.
const KEPT: usize = 1 << 16;

/// New files and their creators.
#[derive(Debug, Default)]
pub(in crate::manager) struct Creators {
    clients: BTreeMap<u64, u128>,
    order: VecDeque<u64>,
}

impl Creators {
    /// A client has created a file.
    pub(in crate::manager) fn created(&mut self, file: u64, client: u128) {
        if self.clients.insert(file, client).is_none() {
            self.order.push_back(file);
        }
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.clients.remove(&oldest);
        }
    }

    /// A client was told where a file is.
    pub(in crate::manager) fn seen(&mut self, file: u64, client: u128) {
        if self.clients.get(&file).is_some_and(|creator| *creator != client) {
            self.clients.remove(&file);
        }
    }

    /// Returns the creator of a file, if nobody else knows where the file is.
    pub(in crate::manager) fn creator(&self, file: u64) -> Option<u128> {
        self.clients.get(&file).copied()
    }

    /// Returns true if only the file's creator, another client than this, knows where the file is.
    pub(in crate::manager) fn is_known_to_other(&self, file: u64, client: u128) -> bool {
        self.creator(file).is_some_and(|creator| creator != client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_its_creators_until_another_client_sees_it() {
        let mut creators = Creators::default();
        creators.created(7, 1);
        creators.seen(7, 1);
        assert_eq!(creators.creator(7), Some(1));
        assert!(creators.is_known_to_other(7, 2) && !creators.is_known_to_other(7, 1));
        creators.seen(7, 2);
        assert_eq!(creators.creator(7), None);
        for file in 10..10 + KEPT as u64 + 5 {
            creators.created(file, 1);
        }
        assert_eq!((creators.creator(12), creators.creator(100)), (None, Some(1)));
        assert!(creators.clients.len() <= KEPT && creators.order.len() <= KEPT);
    }
}
