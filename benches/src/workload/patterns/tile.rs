//! Tiles of a 2-D array: each rank has one, whole in memory. The rows of the array are in the file,
//! one after the other, so those of a tile are apart.

use std::sync::Arc;

use fs_client::{Datatype, Order};

use super::{Failed, Pattern, Share, Size};

#[derive(Debug)]
struct Tile {
    /// The bytes of a row of a tile.
    row: u64,
    /// The number of rows of a tile.
    rows: u64,
}

pub(super) fn of(size: Size) -> Arc<dyn Pattern> {
    Arc::new(Tile { row: size.piece, rows: (size.bytes / size.piece).max(1) })
}

/// Returns the number of tiles across and down: as many as there are ranks, as square as possible.
pub(super) fn grid(ranks: u64) -> (u64, u64) {
    let down = (1..=ranks.isqrt()).rev().find(|down| ranks.is_multiple_of(*down)).unwrap_or(1);
    (ranks / down, down)
}

impl Pattern for Tile {
    fn parameters(&self) -> String {
        format!("{} rows of {} B", self.rows, self.row)
    }

    fn share(&self, rank: u64, ranks: u64) -> Result<Share, Failed> {
        let (across, down) = grid(ranks);
        let sizes = [down * self.rows, across * self.row];
        let starts = [rank / across * self.rows, rank % across * self.row];
        let tile = Datatype::subarray(&sizes, &[self.rows, self.row], &starts, Order::C, &Datatype::BYTE)?;
        Share::new(0, tile, Datatype::bytes(self.rows * self.row)?, 1)
    }
}
