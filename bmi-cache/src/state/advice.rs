//! The hints that were given for files.
//!
//! **Why.** The state of a file exists only while something of it is cached or in progress. Hints
//! are given before that, and must not end with it: of a file whose units are never kept, nothing
//! is cached between two reads. On the other hand anybody may give hints for any number of files.
//!
//! **Invariants**
//! 1. At most [`MOST`] files have hints. The one whose hints were given longest ago loses them
//!    first.
//! 2. A file that was given the default hints is not in the table.

use std::collections::BTreeMap;

use crate::interface::Hints;

/// Most files with hints: some 2 MiB of memory.
pub(crate) const MOST: usize = 16_384;

/// Hints by file.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    /// The hints of each file, and their number.
    files: BTreeMap<u64, (Hints, u64)>,
    /// The files by the numbers of their hints.
    order: BTreeMap<u64, u64>,
    /// How often hints were given.
    given: u64,
}

impl Advice {
    /// Returns the hints of a file.
    pub(crate) fn of(&self, file: u64) -> Hints {
        self.files.get(&file).map_or_else(Hints::default, |(hints, _)| *hints)
    }

    /// Sets the hints of a file.
    pub(crate) fn give(&mut self, file: u64, hints: Hints) {
        self.forget(file);
        if hints == Hints::default() {
            return;
        }
        self.given += 1;
        self.files.insert(file, (hints, self.given));
        self.order.insert(self.given, file);
        if self.files.len() > MOST
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.files.remove(&oldest);
        }
    }

    fn forget(&mut self, file: u64) {
        if let Some((_, number)) = self.files.remove(&file) {
            self.order.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn the_table_is_bounded_and_the_last_hints_stay() {
        let (mut advice, keep) = (Advice::default(), Hints { policy: Policy::Keep, ..Hints::default() });
        (0..MOST as u64).for_each(|file| advice.give(file, keep));
        advice.give(0, Hints { policy: Policy::Stream, ..keep });
        advice.give(u64::MAX, keep);
        assert_eq!((advice.files.len(), advice.order.len()), (MOST, MOST));
        assert_eq!(advice.of(1), Hints::default(), "its hints are the oldest");
        assert_eq!((advice.of(0).policy, advice.of(2), advice.of(u64::MAX)), (Policy::Stream, keep, keep));
        advice.give(2, Hints::default());
        assert_eq!((advice.of(2), advice.files.len(), advice.order.len()), (Hints::default(), MOST - 1, MOST - 1));
    }
}
