//! BT-IO: the solution of a 3-D problem, five numbers for each point, in a file that has the points
//! in the order of Fortran.
//!
//! **Decomposition.** Diagonal multi-partitioning: *p*² ranks cut the cube into *p* × *p* × *p*
//! cells. Each rank has one cell in each layer, so that it has work in whichever direction a solver
//! sweeps. From a layer to the next the cell of a rank moves by one in *x* and back by one in *y*:
//!
//! ```text
//!   p = 2      layer 0  0 1      layer 1  3 2         ranks, x to the right, y down
//!                       2 3               1 0
//! ```
//!
//! **Memory.** All cells of a rank are in one array. Each has room for the largest cell, one point
//! more, and two ghost points on each side. The program has the cells' interiors only.
//!
//! **Source.** `define.f`, `full_mpiio.f` and `header.h` of the benchmark. Points do not have to
//! come out even: the first cells of a direction are then larger by one.

use std::sync::Arc;

use fs_client::{Datatype, Order};

use super::{Failed, Pattern, Share, Size};

/// The bytes of a point.
pub(super) const POINT: u64 = 5 * 8;
/// Points around a cell in memory, on each side.
pub(super) const GHOSTS: u64 = 2;

#[derive(Debug)]
struct BtIo {
    /// The points of the problem in each direction.
    points: u64,
}

pub(super) fn of(size: Size) -> Arc<dyn Pattern> {
    let all = size.bytes * size.ranks / POINT;
    let fits = |points: &u64| points.pow(3) <= all;
    // A cell has a point at least.
    let points = (1..).take_while(fits).last().unwrap_or(1).max(size.ranks.isqrt());
    Arc::new(BtIo { points })
}

/// Returns the first point and the number of points of a cell in one direction.
fn extent(points: u64, cells: u64, cell: u64) -> (u64, u64) {
    let (even, more) = (points / cells, points % cells);
    (cell * even + cell.min(more), even + u64::from(cell < more))
}

impl Pattern for BtIo {
    fn parameters(&self) -> String {
        format!("{0} x {0} x {0} points of {POINT} B", self.points)
    }

    fn share(&self, rank: u64, ranks: u64) -> Result<Share, Failed> {
        let cells = ranks.isqrt();
        if cells * cells != ranks || cells > self.points {
            return Err(format!("{ranks} ranks for {} points in each direction; BT has a square", self.points).into());
        }
        let point = Datatype::bytes(POINT)?;
        let side = self.points / cells + 1 + 2 * GHOSTS;
        let (mut file, mut memory) = (Vec::new(), Vec::new());
        for layer in 0..cells {
            let cell = [(rank + layer) % cells, (rank / cells + cells - layer) % cells, layer];
            let extents = cell.map(|at| extent(self.points, cells, at));
            let (starts, sizes) = (extents.map(|(start, _)| start), extents.map(|(_, size)| size));
            file.push(Datatype::subarray(&[self.points; 3], &sizes, &starts, Order::Fortran, &point)?);
            let [x, y, z] = sizes;
            memory.push(Datatype::subarray(
                &[side, side, side, cells],
                &[x, y, z, 1],
                &[GHOSTS, GHOSTS, GHOSTS, layer],
                Order::Fortran,
                &point,
            )?);
        }
        let combined = |types: &[Datatype]| {
            Datatype::structure(&types.iter().map(|datatype| (1, 0, datatype)).collect::<Vec<_>>())
        };
        Share::new(0, combined(&file)?, combined(&memory)?, 1)
    }
}
