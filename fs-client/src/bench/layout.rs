//! Which bytes of which file a task writes and reads: the layout of IOR.
//!
//! **Layout.** A shared file has segments. A segment has a block of each task, in the order of the
//! tasks. A block has transfers. With a file for each task, a segment has only the task's block.
//!
//! ```text
//!   ├────────── segment 0 ──────────┼────────── segment 1 ──────────┤
//!   │ block of task 0 │ … of task 1 │ block of task 0 │ … of task 1 │
//!   │ t0 │ t1 │ t2 │  │ t0 │ …      │
//! ```
//!
//! **Pieces.** A transfer may have pieces that are apart. Four transfers then share a range of the
//! file, in turns, so that together they still access each byte once:
//!
//! ```text
//!   │ t0 │ t1 │ t2 │ t3 │ t0 │ t1 │ t2 │ t3 │ …     a piece of each
//! ```
//!
//! **Source.** IOR's user guide, section *Tutorial*, figure of a shared file.

use crate::Region;
use bmi_report::stats::Random;

/// The transfers with pieces that share a range of the file.
pub(crate) const TRANSFERS_OF_A_GROUP: u64 = 4;

/// The shape of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of one operation.
    pub(crate) transfer: u64,
    /// Bytes that are contiguous for one task. A multiple of `transfer`.
    pub(crate) block: u64,
    pub(crate) segments: u64,
    /// Parts of a transfer that are apart in the file.
    pub(crate) pieces: u64,
    /// All tasks of all hosts.
    pub(crate) tasks: u32,
    /// One file for all tasks.
    pub(crate) shared: bool,
}

impl Layout {
    /// Returns the number of transfers of a task.
    pub(crate) fn transfers(&self) -> u64 {
        self.block / self.transfer * self.segments
    }

    /// Returns the number of the file of a task.
    pub(crate) fn file(&self, task: u32) -> u32 {
        if self.shared { 0 } else { task }
    }

    /// Returns where a transfer of a task begins in its file.
    pub(crate) fn offset(&self, task: u32, number: u64) -> u64 {
        let in_block = self.block / self.transfer;
        let (segment, inside) = (number / in_block, number % in_block * self.transfer);
        let (blocks, place) = if self.shared { (u64::from(self.tasks), u64::from(task)) } else { (1, 0) };
        (segment * blocks + place) * self.block + inside
    }

    /// Returns the parts of a file that a transfer accesses.
    pub(crate) fn regions(&self, task: u32, number: u64) -> Vec<Region> {
        if self.pieces == 1 {
            return vec![Region::new(self.offset(task, number), self.transfer)];
        }
        // A block has whole groups.
        let (first, turn) = (number - number % TRANSFERS_OF_A_GROUP, number % TRANSFERS_OF_A_GROUP);
        let (begin, piece) = (self.offset(task, first), self.transfer / self.pieces);
        let at = |number: u64| begin + (number * TRANSFERS_OF_A_GROUP + turn) * piece;
        (0..self.pieces).map(|number| Region::new(at(number), piece)).collect()
    }

    /// Returns the transfers of a task in the order in which it does them: ascending, or random.
    pub(crate) fn order(&self, task: u32, random: Option<u64>) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..self.transfers()).collect();
        if let Some(seed) = random {
            Random::new(seed ^ (u64::from(task) << 32)).shuffle(&mut numbers);
        }
        numbers
    }
}

/// Returns the task whose files a task reads: that of the next host, so that no host reads what it
/// wrote itself.
pub(crate) fn partner(task: u32, shift: u32, tasks: u32) -> u32 {
    ((u64::from(task) + u64::from(shift)) % u64::from(tasks)) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHARED: Layout = Layout { transfer: 10, block: 30, segments: 2, pieces: 1, tasks: 2, shared: true };

    #[test]
    fn blocks_are_where_ior_has_them() {
        let offsets = |layout: Layout, task| (0..6).map(|n| layout.offset(task, n)).collect::<Vec<_>>();
        assert_eq!(offsets(SHARED, 0), [0, 10, 20, 60, 70, 80]);
        assert_eq!(offsets(SHARED, 1), [30, 40, 50, 90, 100, 110]);
        let own = Layout { shared: false, ..SHARED };
        assert_eq!(offsets(own, 1), [0, 10, 20, 30, 40, 50]);
        assert_eq!([SHARED.file(1), own.file(1)], [0, 1]);
    }

    #[test]
    fn a_random_order_has_every_transfer_once_and_repeats() {
        let layout = Layout { segments: 100, ..SHARED };
        let order = layout.order(1, Some(7));
        assert!(order != layout.order(1, None) && order != layout.order(0, Some(7)));
        assert_eq!(order, layout.order(1, Some(7)));
        assert_eq!(order.into_iter().collect::<BTreeSet<_>>().len(), 300);
    }

    #[test]
    fn pieces_of_all_transfers_are_each_byte_once() {
        let layout = Layout { transfer: 6, block: 48, pieces: 3, ..SHARED };
        let of = |task, number| layout.regions(task, number);
        assert_eq!(of(0, 1), [Region::new(2, 2), Region::new(10, 2), Region::new(18, 2)]);
        let all = (0..2).flat_map(|task| (0..layout.transfers()).flat_map(move |number| of(task, number)));
        let begins: BTreeSet<u64> = all.map(|region| region.offset).collect();
        assert_eq!(begins.into_iter().collect::<Vec<_>>(), (0..2 * 2 * 48).step_by(2).collect::<Vec<_>>());
        assert_eq!(SHARED.regions(1, 0), [Region::new(30, 10)]);
    }

    #[test]
    fn partners_are_a_permutation_and_on_another_host() {
        let partners: Vec<u32> = (0..6).map(|task| partner(task, 2, 6)).collect();
        assert_eq!(partners, [2, 3, 4, 5, 0, 1]);
        assert_eq!(partner(0, 0, 1), 0);
        assert_eq!(partner(u32::MAX - 1, u32::MAX - 1, u32::MAX), u32::MAX - 2);
    }
}
