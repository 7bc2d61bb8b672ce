//! The workloads of the papers. Each is written once, as a parallel program over the client of the
//! file system, and runs over the simulator or a real transport.
//!
//! **Why once.** A prediction of the simulator for the machines of 2003 is worth something only if
//! the same program moves the same bytes on a real machine. So a workload does not know where it
//! runs. It is a [`Workload`], and its processes are [`Rank`]s with a client, a barrier and a
//! meter.
//!
//! **Invariants**
//! 1. A workload that reads back what it has written checks it. A wrong byte is an error.
//! 2. Only the work between the barriers of [`Rank::timed`] is measured. Files, memory and
//!    connections are created before.
//! 3. In the simulator the same setup gives the same figures.
//!
//! | module | what | source |
//! |---|---|---|
//! | [`pvfs_test`] | concurrent write and read of one region each | [PVFS-IB §6.3, §6.4], [Quadrics-PVFS2 §4.1] |
//! | [`access`] | time of single small accesses | [PVFS-IB §6.5], [Unifier-PVFS §6.2] |
//! | [`reread`] | a growing file, read again | [Unifier-PVFS §6.2] |
//! | [`tile`] | tiles of a two-dimensional array | [PVFS-IB §6.7, §6.8], [Quadrics-PVFS2 §4.2] |
//! | [`noncontiguous`] | any [pattern](patterns) of noncontiguous access, in several ways side by side | [ECIO-IB §5], others |
//! | [`bed`] | where they run | |
//!
//! **Tests.** `tests/it/paper.rs` and `tests/it/noncontiguous.rs` run each in the simulator and
//! over TCP.

pub mod access;
pub mod bed;
pub mod noncontiguous;
pub mod patterns;
pub mod pvfs_test;
mod rank;
pub mod reread;
pub mod tile;

use std::time::Duration;

use bmi::MemList;

pub use bed::{Bed, Setup};
pub use rank::{Rank, Span};

/// Any error that ends a run.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// A parallel program. Each of its processes runs `run` once, with a rank of its own.
pub trait Workload: Clone + Send + Sync + 'static {
    /// The result of a process.
    type Out: Send + 'static;

    /// Runs the program of one process.
    fn run(&self, rank: Rank) -> impl Future<Output = Result<Self::Out, Failed>>;
}

/// Returns bytes per second in MB, of 2^20 bytes as in the papers.
pub fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64().max(1e-12)
}

/// Returns the duration of a phase that all ranks have run in several rounds.
pub fn elapsed<'a>(ranks: impl IntoIterator<Item = &'a [Span]>) -> Duration {
    slowest(ranks.into_iter().map(|rank| rank.iter().map(|span| span.time))).into_iter().sum()
}

/// Returns the duration of each round that all ranks have run. The slowest rank counts, because the
/// others wait for it.
pub fn slowest<R: IntoIterator<Item = Duration>>(ranks: impl IntoIterator<Item = R>) -> Vec<Duration> {
    let mut slowest: Vec<Duration> = Vec::new();
    for rank in ranks {
        for (round, time) in rank.into_iter().enumerate() {
            match slowest.get_mut(round) {
                Some(slowest) => *slowest = time.max(*slowest),
                None => slowest.push(time),
            }
        }
    }
    slowest
}

/// Returns the `len` bytes at `offset` of every file that a workload writes. The bytes depend on
/// their offset.
pub(crate) fn pattern(offset: u64, len: usize) -> Vec<u8> {
    let within = (offset % 8) as usize;
    let words = (offset / 8..).take((within + len).div_ceil(8));
    let mut bytes = Vec::with_capacity(len + 16);
    words.for_each(|word| bytes.extend((word ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()));
    bytes.drain(..within);
    bytes.truncate(len);
    bytes
}

/// Fills a list with the same number of bytes.
pub(crate) fn fill(list: &MemList, bytes: &[u8]) {
    let mut done = 0;
    for piece in list.pieces() {
        piece.copy_from(&bytes[done..done + piece.len()]);
        done += piece.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_of_each_round_counts() {
        let span = |ms| Span { time: Duration::from_millis(ms), ..Span::default() };
        let ranks = [vec![span(1), span(5)], vec![span(3), span(2)]];
        assert_eq!(elapsed(ranks.iter().map(Vec::as_slice)), Duration::from_millis(8));
    }

    #[test]
    fn bytes_are_those_of_their_place_wherever_one_begins() {
        let all = pattern(0, 100);
        for (offset, len) in [(0, 0), (0, 100), (3, 4), (8, 8), (13, 40), (99, 1)] {
            assert_eq!(pattern(offset, len), all[offset as usize..offset as usize + len], "{len} at {offset}");
        }
        assert_ne!(pattern(4096, 64), pattern(0, 64));
    }
}
