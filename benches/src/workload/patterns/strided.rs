//! Regions of one size at one distance, in memory, in the file, or in both.
//!
//! ```text
//!   memory   [0]   [1]   [2]          gap: between two regions of a rank
//!   file     [0 of rank 0] [0 of rank 1] [1 of rank 0] [1 of rank 1] …          spacing: between any two regions
//!   or       [0 of rank 0][1 of rank 0] … [0 of rank 1][1 of rank 1] …          contiguous for each rank
//! ```
//!
//! | pattern | in memory | in the file |
//! |---|---|---|
//! | noncontig | every other block | blocks of the ranks in turns, without holes |
//! | HPIO | contiguous (c), or with a spacing (nc) | the ranks' regions contiguous (c), or in turns with a spacing (nc) |
//! | interleaved | contiguous | elements of 4 bytes of the ranks in turns, without holes |
//!
//! **Differences.** ROMIO's test is for two processes and has blocks of one integer. HPIO takes the
//! spacing as a parameter of its own. Here it is the size of a region.

use std::sync::Arc;

use fs_client::Datatype;

use super::{Failed, Pattern, Share, Size};

#[derive(Debug)]
struct Strided {
    /// The number of regions of a rank.
    count: u64,
    /// The bytes of a region.
    size: u64,
    /// The bytes between two regions of a rank in memory.
    gap: u64,
    /// The bytes between two regions in the file. `None` if those of a rank are contiguous there.
    spacing: Option<u64>,
}

impl Strided {
    fn of(size: Size, piece: u64, gap: u64, spacing: Option<u64>) -> Arc<dyn Pattern> {
        Arc::new(Strided { count: (size.bytes / piece).max(1), size: piece, gap, spacing })
    }
}

pub(super) fn noncontig(size: Size) -> Arc<dyn Pattern> {
    Strided::of(size, size.piece, size.piece, Some(0))
}

pub(super) fn hpio(size: Size, noncontiguous_memory: bool, noncontiguous_file: bool) -> Arc<dyn Pattern> {
    let gap = if noncontiguous_memory { size.piece } else { 0 };
    Strided::of(size, size.piece, gap, noncontiguous_file.then_some(size.piece))
}

pub(crate) fn interleaved(size: Size) -> Arc<dyn Pattern> {
    Strided::of(size, 4, 0, Some(0))
}

impl Pattern for Strided {
    fn parameters(&self) -> String {
        format!("{} regions of {} B", self.count, self.size)
    }

    fn share(&self, rank: u64, ranks: u64) -> Result<Share, Failed> {
        let region = Datatype::bytes(self.size)?;
        let every = |distance: u64| -> Result<Datatype, Failed> {
            Ok(Datatype::hvector(self.count, 1, i64::try_from(distance)?, &region)?)
        };
        let (displacement, filetype) = match self.spacing {
            Some(spacing) => (rank * (self.size + spacing), every((self.size + spacing) * ranks)?),
            None => (rank * self.count * self.size, every(self.size)?),
        };
        Share::new(displacement, filetype, every(self.size + self.gap)?, 1)
    }
}
