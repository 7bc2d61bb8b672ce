//! Datafiles that the I/O servers have created in advance, for files that do not exist yet.
//!
//! **Why.** A datafile exists once its server has recorded it durably, so a missing one is an error
//! and never reads as zeros. But if each create of a file waited for its servers' disks, it would
//! take several times as long. So the manager lets each I/O server create many datafiles at a time,
//! before they are needed, and a create takes one of each from here.
//!
//! **Invariants**
//! 1. A datafile is in a pool only after its server has created it durably.
//! 2. A datafile is taken once: the pools are stored in the transaction of the change that takes
//!    from them.
//! 3. A range of handles that was assigned, but is in no pool, is in the table of discards. So
//!    datafiles of an order that was cut off are removed.
//! 4. Pools do not outlive the start of a manager: what is left becomes discards. A manager that
//!    was restored from a copy does not know which of them were taken since. Discarding removes
//!    only datafiles that were never written.
//!
//! **Layout**
//!
//! ```text
//!   pools      (I/O server, end of the range) → first handle that is left
//!   discards   (I/O server, first handle) → number of handles
//! ```
//!
//! **Source.** PVFS2 has pools of precreated datafiles for the same reason.

use std::collections::VecDeque;
use std::ops::Range;

use bmi::hooks::step;
use fs_proto::DatafileHandle;
use redb::{ReadTransaction, ReadableTable, TableDefinition, WriteTransaction};

use crate::manager::Fault;

pub(in crate::manager) const POOLS: TableDefinition<'static, (u32, u64), u64> = TableDefinition::new("pools");
pub(in crate::manager) const DISCARDS: TableDefinition<'static, (u32, u64), u32> = TableDefinition::new("discards");

/// The pools of all I/O servers, as in the last commit and as changed by the current transaction.
#[derive(Clone, Debug, Default)]
pub(in crate::manager) struct Pools {
    ranges: Vec<VecDeque<Range<u64>>>,
    /// What the current transaction has taken, in order.
    taken: Vec<(u32, u64)>,
}

impl Pools {
    /// Creates empty pools for `iods` servers. What an earlier start of the manager left becomes
    /// discards.
    pub(in crate::manager) fn begin(transaction: &WriteTransaction, iods: usize) -> Result<Pools, Fault> {
        let mut left = Vec::new();
        let mut pools = transaction.open_table(POOLS)?;
        for row in pools.iter()? {
            let (key, first) = row?;
            let ((iod, end), first) = (key.value(), first.value());
            left.push((iod, first, end));
        }
        let mut discards = transaction.open_table(DISCARDS)?;
        for (iod, first, end) in left {
            pools.remove((iod, end))?;
            discards.insert((iod, first), u32::try_from(end - first).unwrap_or(u32::MAX))?;
        }
        Ok(Pools { ranges: vec![VecDeque::new(); iods], taken: Vec::new() })
    }

    /// Returns the number of datafiles in the pool of a server.
    pub(in crate::manager) fn left(&self, iod: u32) -> u64 {
        let ranges = self.ranges.get(iod as usize);
        ranges.map_or(0, |ranges| ranges.iter().inspect(|_| step()).map(|range| range.end - range.start).sum())
    }

    /// Returns the number of datafiles in all pools.
    pub(in crate::manager) fn total(&self) -> u64 {
        (0..self.ranges.len() as u32).map(|iod| self.left(iod)).sum()
    }

    /// Returns true if a datafile is in the pool of a server.
    pub(in crate::manager) fn has(&self, iod: u32, datafile: DatafileHandle) -> bool {
        self.ranges.get(iod as usize).is_some_and(|ranges| ranges.iter().any(|range| range.contains(&datafile.0)))
    }

    /// Takes a datafile, in the current transaction.
    pub(in crate::manager) fn take(&mut self, iod: u32) -> Option<DatafileHandle> {
        let range = self.ranges.get_mut(iod as usize)?.iter_mut().find(|range| !range.is_empty())?;
        let handle = range.start;
        range.start += 1;
        self.taken.push((iod, handle));
        Some(DatafileHandle(handle))
    }

    /// Stores what the current transaction has taken.
    pub(in crate::manager) fn store(&self, transaction: &WriteTransaction) -> Result<(), Fault> {
        if self.taken.is_empty() {
            return Ok(());
        }
        let mut pools = transaction.open_table(POOLS)?;
        let mut iods: Vec<u32> = self.taken.iter().map(|(iod, _)| *iod).collect();
        iods.sort_unstable();
        iods.dedup();
        for iod in iods {
            for range in &self.ranges[iod as usize] {
                if range.is_empty() {
                    pools.remove((iod, range.end))?;
                } else {
                    pools.insert((iod, range.end), range.start)?;
                }
            }
        }
        Ok(())
    }

    /// The current transaction is durable.
    pub(in crate::manager) fn committed(&mut self) {
        for (iod, _) in self.taken.drain(..) {
            self.ranges[iod as usize].retain(|range| !range.is_empty());
        }
    }

    /// The current transaction is lost. What it has taken goes back.
    pub(in crate::manager) fn undo(&mut self) {
        while let Some((iod, handle)) = self.taken.pop() {
            if let Some(range) = self.ranges[iod as usize].iter_mut().find(|range| range.start == handle + 1) {
                range.start = handle;
            }
        }
    }

    /// Records that an order to create datafiles is about to be sent.
    pub(in crate::manager) fn order(
        transaction: &WriteTransaction,
        iod: u32,
        first: u64,
        count: u32,
    ) -> Result<(), Fault> {
        transaction.open_table(DISCARDS)?.insert((iod, first), count)?;
        Ok(())
    }

    /// Records in a transaction that ordered datafiles exist. [`Pools::add`] follows the commit.
    pub(in crate::manager) fn created(
        transaction: &WriteTransaction,
        iod: u32,
        first: u64,
        count: u32,
    ) -> Result<(), Fault> {
        transaction.open_table(DISCARDS)?.remove((iod, first))?;
        transaction.open_table(POOLS)?.insert((iod, first + u64::from(count)), first)?;
        Ok(())
    }

    /// Adds datafiles that exist.
    pub(in crate::manager) fn add(&mut self, iod: u32, first: u64, count: u32) {
        if let Some(ranges) = self.ranges.get_mut(iod as usize) {
            ranges.push_back(first..first + u64::from(count));
        }
    }

    /// Forgets everything about a server whose store was replaced. [`Pools::clear`] follows the
    /// commit.
    pub(in crate::manager) fn forget(transaction: &WriteTransaction, iod: u32) -> Result<(), Fault> {
        transaction.open_table(POOLS)?.retain_in((iod, 0)..=(iod, u64::MAX), |_, _| false)?;
        transaction.open_table(DISCARDS)?.retain_in((iod, 0)..=(iod, u64::MAX), |_, _| false)?;
        Ok(())
    }

    /// Empties the pool of a server.
    pub(in crate::manager) fn clear(&mut self, iod: u32) {
        if let Some(ranges) = self.ranges.get_mut(iod as usize) {
            ranges.clear();
        }
    }
}

/// Returns a range of handles of a server that must be discarded, if there is any.
pub(in crate::manager) fn discard(
    transaction: &ReadTransaction,
    iod: u32,
) -> Result<Option<(DatafileHandle, u32)>, Fault> {
    let table = transaction.open_table(DISCARDS)?;
    let Some(row) = table.range((iod, 0)..=(iod, u64::MAX))?.next() else { return Ok(None) };
    let (key, count) = row?;
    Ok(Some((DatafileHandle(key.value().1), count.value())))
}

/// Records that a range of handles was discarded.
pub(in crate::manager) fn discarded(
    transaction: &WriteTransaction,
    iod: u32,
    first: DatafileHandle,
) -> Result<(), Fault> {
    transaction.open_table(DISCARDS)?.remove((iod, first.0))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MetaStore;

    #[test]
    fn a_datafile_is_taken_once_and_comes_back_if_the_change_is_lost() {
        let store = MetaStore::in_memory().unwrap();
        let write = || store.write().unwrap();
        let transaction = write();
        let mut pools = Pools::begin(&transaction, 2).unwrap();
        for (iod, first, count) in [(0, 100, 2), (1, 200, 2)] {
            Pools::order(&transaction, iod, first, count).unwrap();
            Pools::created(&transaction, iod, first, count).unwrap();
            pools.add(iod, first, count);
        }
        transaction.commit().unwrap();
        assert_eq!((pools.left(0), pools.left(1), pools.left(2), pools.total()), (2, 2, 0, 4));
        assert_eq!(pools.take(0), Some(DatafileHandle(100)));
        assert_eq!(pools.take(0), Some(DatafileHandle(101)));
        assert_eq!(pools.take(0), None);
        pools.undo();
        assert_eq!(pools.take(0), Some(DatafileHandle(100)), "the transaction was lost");
        let transaction = write();
        pools.store(&transaction).unwrap();
        transaction.commit().unwrap();
        pools.committed();
        assert_eq!((pools.left(0), pools.take(0)), (1, Some(DatafileHandle(101))));
        // The next start of the manager: what was not taken, as far as is durable, is discarded.
        let transaction = write();
        let pools = Pools::begin(&transaction, 2).unwrap();
        transaction.commit().unwrap();
        assert_eq!(pools.total(), 0);
        let read = store.read().unwrap();
        assert_eq!(discard(&read, 0).unwrap(), Some((DatafileHandle(101), 1)));
        assert_eq!(discard(&read, 1).unwrap(), Some((DatafileHandle(200), 2)));
        let transaction = write();
        discarded(&transaction, 0, DatafileHandle(101)).unwrap();
        Pools::forget(&transaction, 1).unwrap();
        transaction.commit().unwrap();
        let read = store.read().unwrap();
        assert_eq!((discard(&read, 0).unwrap(), discard(&read, 1).unwrap()), (None, None));
    }

    #[test]
    fn an_order_that_was_cut_off_is_discarded() {
        let store = MetaStore::in_memory().unwrap();
        let transaction = store.write().unwrap();
        Pools::begin(&transaction, 1).unwrap();
        Pools::order(&transaction, 0, 7, 3).unwrap();
        transaction.commit().unwrap();
        assert_eq!(discard(&store.read().unwrap(), 0).unwrap(), Some((DatafileHandle(7), 3)));
    }
}
