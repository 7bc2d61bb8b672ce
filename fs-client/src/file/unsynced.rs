//! What was written to a file and may not be on the disks yet.

use std::collections::BTreeMap;

use crate::locked::Locked;

/// What was written to a datafile and may not be on the disk yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Written {
    #[default]
    Nothing,
    /// Written to this start of the server only.
    At(u64),
    /// Written to a server that has been restarted since.
    Doubtful,
}

impl Written {
    /// Adds a write to the start `start` of the server.
    fn and(self, start: u64) -> Written {
        match self {
            Written::Nothing => Written::At(start),
            Written::At(before) if before == start => self,
            Written::At(_) | Written::Doubtful => Written::Doubtful,
        }
    }

    /// Adds the writes of a later period.
    fn merge(self, other: Written) -> Written {
        match other {
            Written::Nothing => self,
            Written::At(start) => self.and(start),
            Written::Doubtful => other,
        }
    }
}

/// By datafile of a file: what was written and not synced since.
#[derive(Debug)]
pub(crate) struct Unsynced(Locked<Record>);

/// Every write is in `written`, or in what one of the running syncs has taken. A sync takes and
/// looks at the others in one step, so it misses none that was recorded before.
#[derive(Debug)]
struct Record {
    /// What no running sync has taken.
    written: Vec<Written>,
    /// What each running sync has taken.
    running: BTreeMap<u64, Vec<Written>>,
    /// The number of the next sync.
    next: u64,
}

impl Unsynced {
    pub(crate) fn new(datafiles: usize) -> Unsynced {
        Unsynced(Locked::new(Record { written: nothing(datafiles), running: BTreeMap::new(), next: 0 }))
    }

    /// Bytes were written to a datafile under this start of its server.
    pub(crate) fn note(&self, datafile: usize, start: u64) {
        self.0.with(|record| record.written[datafile] = record.written[datafile].and(start));
    }
}

fn nothing(datafiles: usize) -> Vec<Written> {
    vec![Written::Nothing; datafiles]
}

/// Adds the writes of a later period, by datafile.
fn merge(earlier: &[Written], later: &mut [Written]) {
    for (later, earlier) in later.iter_mut().zip(earlier) {
        *later = earlier.merge(*later);
    }
}

/// The unsynced writes that a running sync covers. Everything that is still in it when it is
/// dropped goes back into the file's record, even if the sync's future is dropped early.
pub(super) struct Taken<'a> {
    unsynced: &'a Unsynced,
    /// The number of the sync.
    number: u64,
    /// What this sync has taken from the record.
    pub(super) before: Vec<Written>,
    /// All that was written before this sync, including what other running syncs have taken.
    pub(super) covered: Vec<Written>,
}

impl<'a> Taken<'a> {
    pub(super) fn new(unsynced: &'a Unsynced) -> Taken<'a> {
        unsynced.0.with(|record| {
            let none = nothing(record.written.len());
            let before = std::mem::replace(&mut record.written, none);
            let mut covered = before.clone();
            record.running.values().rev().for_each(|earlier| merge(earlier, &mut covered));
            let number = record.next;
            record.next += 1;
            record.running.insert(number, before.clone());
            Taken { unsynced, number, before, covered }
        })
    }

    /// A datafile was synced under this start of its server. Returns whether all bytes that were
    /// written to it before are on the disk.
    pub(super) fn synced(&mut self, datafile: usize, start: u64) -> bool {
        self.before[datafile] = Written::Nothing;
        self.covered[datafile].and(start) == Written::At(start)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.unsynced.0.with(|record| {
            record.running.remove(&self.number);
            merge(&self.before, &mut record.written);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(unsynced: &Unsynced) -> Vec<Written> {
        unsynced.0.with(|record| record.written.clone())
    }

    /// A sync that began while another one ran did not look at what that one had taken. It
    /// succeeded after a restart of the server, although bytes may have been lost.
    #[test]
    fn a_sync_beside_another_one_notices_a_restart_too() {
        let unsynced = Unsynced::new(2);
        unsynced.note(0, 1);
        let mut first = Taken::new(&unsynced);
        let mut second = Taken::new(&unsynced);
        assert!(!first.synced(0, 2) && !second.synced(0, 2), "the write was taken by start 1");
        assert!(first.synced(1, 2) && second.synced(1, 2));
        drop((first, second));
        assert!(Taken::new(&unsynced).synced(0, 2), "it was reported");
    }

    #[test]
    fn what_was_taken_and_not_synced_goes_back_once() {
        let unsynced = Unsynced::new(1);
        unsynced.note(0, 1);
        let first = Taken::new(&unsynced);
        let mut second = Taken::new(&unsynced);
        assert!(second.synced(0, 1));
        drop(second);
        assert_eq!(record(&unsynced), [Written::Nothing]);
        drop(first);
        assert_eq!(record(&unsynced), [Written::At(1)]);
        unsynced.note(0, 2);
        assert_eq!(record(&unsynced), [Written::Doubtful]);
        assert!(unsynced.0.with(|record| record.running.is_empty()));
    }
}
