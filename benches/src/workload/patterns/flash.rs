//! A checkpoint of FLASH: blocks of an adaptive mesh, whose variables are next to each other in
//! memory and apart in the file.
//!
//! ```text
//!   memory   block 0: zone (0, 0, 0) [v0 v1 … v23]  zone (1, 0, 0) [v0 v1 … v23] …    with guard cells on all sides
//!   file     v0: [blocks of rank 0][blocks of rank 1] …    v1: [blocks of rank 0][blocks of rank 1] …
//! ```
//!
//! So each number is a piece of memory of 8 bytes, and a variable of a rank is one piece of the
//! file. The memory is eight times what is written.
//!
//! **Source.** 8 × 8 × 8 zones, 4 guard cells on each side, 24 variables. The benchmark writes each
//! variable in a call of its own. Here they are one access.

use std::sync::Arc;

use fs_client::{Datatype, Order};

use super::{Failed, Pattern, Share, Size};

/// The zones of a block in each direction.
pub(super) const ZONES: u64 = 8;
/// The guard cells on each side of a block.
pub(super) const GUARDS: u64 = 4;
/// The number of variables.
pub(super) const VARIABLES: u64 = 24;
/// The bytes of a number.
pub(super) const NUMBER: u64 = 8;

#[derive(Debug)]
struct Flash {
    /// The blocks of a rank.
    blocks: u64,
}

pub(super) fn of(size: Size) -> Arc<dyn Pattern> {
    Arc::new(Flash { blocks: (size.bytes / (VARIABLES * ZONES.pow(3) * NUMBER)).max(1) })
}

impl Pattern for Flash {
    fn parameters(&self) -> String {
        format!("{VARIABLES} variables of {} blocks of {ZONES} x {ZONES} x {ZONES} zones", self.blocks)
    }

    fn share(&self, rank: u64, ranks: u64) -> Result<Share, Failed> {
        let variable = self.blocks * ZONES.pow(3) * NUMBER;
        let own = Datatype::bytes(variable)?;
        let filetype = Datatype::hvector(VARIABLES, 1, i64::try_from(variable * ranks)?, &own)?;
        let zone = Datatype::resized(0, (VARIABLES * NUMBER) as i64, &Datatype::DOUBLE)?;
        let all = ZONES + 2 * GUARDS;
        let block = Datatype::subarray(&[all; 3], &[ZONES; 3], &[GUARDS; 3], Order::C, &zone)?;
        let blocks = Datatype::contiguous(self.blocks, &block)?;
        let memory = Datatype::hvector(VARIABLES, 1, NUMBER as i64, &blocks)?;
        Share::new(rank * variable, filetype, memory, 1)
    }
}
