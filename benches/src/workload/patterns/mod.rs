//! Access patterns of parallel programs: which bytes of a file each rank accesses, and from which
//! bytes of its memory.
//!
//! **Why.** Benchmarks of noncontiguous access differ in little more than two types. A pattern
//! gives a rank its view of the file and the type of its memory. How the bytes are moved is decided
//! elsewhere ([`noncontiguous`](super::noncontiguous)), so every way of moving them can be compared
//! under every pattern.
//!
//! **Invariants**
//! 1. No byte of the file belongs to two ranks, and no byte of a rank's memory to two bytes of the
//!    file.
//! 2. A byte of the file has the content of its offset, whoever writes it. So what a rank wrote can
//!    be checked without knowing how it was written.
//!
//! | file | patterns | source |
//! |---|---|---|
//! | `strided` | noncontig, HPIO's four, interleaved | see [`ALL`] |
//! | `tile` | tiles of a 2-D array | mpi-tile-io |
//! | `bt_io` | BT-IO | NAS Parallel Benchmarks |
//! | `flash` | a checkpoint of FLASH | the FLASH I/O benchmark |
//!
//! **Tests.** Each pattern is compared with a walk over its bytes in plain loops, as its source
//! describes them.

mod bt_io;
mod flash;
mod strided;
#[cfg(test)]
mod tests;
mod tile;

use std::fmt::Debug;
use std::sync::Arc;

use fs_client::{Datatype, FileView, Region};
use fs_proto::Cursor;

use super::{Failed, pattern};
pub(crate) use strided::interleaved;

/// What the ranks of a parallel program access.
pub trait Pattern: Debug + Send + Sync {
    /// Returns in which numbers it differs from others of its name.
    fn parameters(&self) -> String;

    /// Returns what one of `ranks` ranks accesses.
    ///
    /// # Errors
    /// If the pattern does not exist for that number of ranks.
    fn share(&self, rank: u64, ranks: u64) -> Result<Share, Failed>;
}

/// The size of a pattern, as far as its source leaves it open.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The bytes of a piece.
    pub piece: u64,
    /// The bytes of a rank. A pattern has at most as many, but one piece at least.
    pub bytes: u64,
    /// The number of ranks.
    pub ranks: u64,
}

/// A pattern by name.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The name in options and tables.
    pub name: &'static str,
    /// Where it is described.
    pub source: &'static str,
    /// Creates it in a size.
    pub of: fn(Size) -> Arc<dyn Pattern>,
}

const ROMIO: &str = "noncontig.c of ROMIO's tests";
const HPIO: &str = "HPIO; Ching, Choudhary, Liao, Ward and Pundit, IPDPS 2006";

/// All patterns.
pub const ALL: [Known; 9] = [
    Known { name: "noncontig", source: ROMIO, of: strided::noncontig },
    Known { name: "hpio-c-c", source: HPIO, of: |size| strided::hpio(size, false, false) },
    Known { name: "hpio-c-nc", source: HPIO, of: |size| strided::hpio(size, false, true) },
    Known { name: "hpio-nc-c", source: HPIO, of: |size| strided::hpio(size, true, false) },
    Known { name: "hpio-nc-nc", source: HPIO, of: |size| strided::hpio(size, true, true) },
    Known { name: "interleaved", source: "Figure 3 of the paper ECIO-IB", of: strided::interleaved },
    Known { name: "tile", source: "mpi-tile-io of Argonne's parallel I/O benchmarks", of: tile::of },
    Known { name: "bt-io", source: "BT-IO of the NAS Parallel Benchmarks, full MPI-IO", of: bt_io::of },
    Known { name: "flash", source: "the FLASH I/O benchmark of Zingale, checkpoint", of: flash::of },
];

/// What one rank accesses: bytes of the file through a view from its beginning, and as many bytes
/// of memory, in the same order. Shares are equal if they have the same bytes in the same order,
/// whatever numbers they were made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The view of the file.
    pub view: FileView,
    /// The type of the memory.
    pub datatype: Datatype,
    /// The number of its instances.
    pub count: u64,
}

/// A piece that is contiguous in the file and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the file.
    pub file: u64,
    /// Offset in memory.
    pub memory: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Share {
    /// Returns the share whose filetype is `filetype`, from `displacement` on.
    fn new(displacement: u64, filetype: Datatype, datatype: Datatype, count: u64) -> Result<Share, Failed> {
        Ok(Share { view: FileView::new(displacement, Datatype::BYTE, filetype)?, datatype, count })
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.datatype.size() * self.count
    }

    /// Returns the bytes of memory from its beginning to the last one that is accessed.
    ///
    /// # Errors
    /// If there is no such memory.
    pub fn memory_len(&self) -> Result<usize, Failed> {
        Ok(usize::try_from(self.datatype.true_bounds(self.count)?.1)?)
    }

    /// Returns the ranges of the file, in order.
    ///
    /// # Errors
    /// If they are beyond the largest offset.
    pub fn file(&self) -> Result<Vec<Region>, Failed> {
        Ok(regions(self.view.cursor(0, self.bytes())?))
    }

    /// Returns the ranges of memory, in order.
    ///
    /// # Errors
    /// If they are beyond the largest offset.
    pub fn memory(&self) -> Result<Vec<Region>, Failed> {
        Ok(regions(self.datatype.cursor(self.count, 0)?))
    }

    /// Returns the pieces that are contiguous on both sides, in order.
    ///
    /// # Errors
    /// If they are beyond the largest offset.
    pub fn pieces(&self) -> Result<Vec<Piece>, Failed> {
        let (file, memory) = (self.file()?, self.memory()?);
        let mut file = file.into_iter();
        let mut rest = Region::new(0, 0);
        let mut pieces = Vec::new();
        for Region { mut offset, mut len } in memory {
            while len > 0 {
                if rest.len == 0 {
                    rest = file.next().ok_or("a view that is shorter than its memory")?;
                }
                let both = len.min(rest.len);
                pieces.push(Piece { file: rest.offset, memory: offset, len: both });
                rest = Region::new(rest.offset + both, rest.len - both);
                (offset, len) = (offset + both, len - both);
            }
        }
        Ok(pieces)
    }

    /// Returns what memory has to contain: in the pieces the bytes of their places in the file, and
    /// `gap` elsewhere.
    ///
    /// # Errors
    /// As [`Share::memory_len`].
    pub fn image(&self, pieces: &[Piece], gap: u8) -> Result<Vec<u8>, Failed> {
        let mut image = vec![gap; self.memory_len()?];
        for piece in pieces {
            let len = piece.len as usize;
            image[piece.memory as usize..][..len].copy_from_slice(&pattern(piece.file, len));
        }
        Ok(image)
    }
}

/// Returns all pieces of a cursor.
fn regions(mut cursor: Cursor) -> Vec<Region> {
    let mut batch = [Region::new(0, 0); 1024];
    let mut all: Vec<Region> = Vec::new();
    loop {
        let found = cursor.next_batch(&mut batch, u64::MAX);
        if found == 0 {
            return all;
        }
        all.extend(&batch[..found]);
    }
}
