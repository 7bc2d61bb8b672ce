//! Datatypes: which bytes a program means, in memory or in a file, and in which order.
//!
//! **Why.** A program that reads a tile of an array means a million pieces and knows them by a few
//! numbers. A list of the pieces costs the client a pass over them before the first byte moves,
//! costs the network their description, and costs the server memory. So a type travels in their
//! place, and both sides enumerate the pieces that they need when they need them [ECIO-IB §4.1].
//!
//! | file | contents |
//! |---|---|
//! | `constructor`, `array` | MPI's constructors |
//! | `builder` | the normal form |
//! | `table` | nodes and entries, and the steps down to a byte |
//! | `wire` | the encoding |
//! | `cursor` | the pieces of a type, in batches |
//! | `file_view` | a type that is laid over a file again and again |
//!
//! **Terms.** The *stream* of a type is its bytes in the order of its type map, packed. A *piece*
//! is a longest run of bytes that follow each other in the stream and in memory. The *extent* is
//! the distance at which instances of a type follow each other.
//!
//! **Invariants**
//! 1. A type is checked and brought to its normal form when it is built or decoded (`builder`). So
//!    types with the same structure in that form are equal, whatever they were built by, and no
//!    type costs more than [`MAX_TYPE_NODES`] nodes and [`MAX_TYPE_ENTRIES`] entries of lists. The
//!    number of its elements costs nothing.
//! 2. All sizes and displacements are below 2^62. So no operation overflows.
//! 3. After a type was built, each operation takes a step for each level, at most
//!    [`MAX_TYPE_DEPTH`], and a binary search in each list on the way; the enumeration of pieces
//!    takes also a step for each piece.
//!
//! **Layout.** Only the places of bytes matter below the root, so there are two kinds of nodes.
//! Sizes and bounds of inner types have become strides and displacements in bytes:
//!
//! ```text
//!   type    marks: bounds that were set    origin: place of the first byte    root: part
//!   part    bytes (their number)     or    node (its number)
//!   loop    count, stride, part                                    contiguous, vector, subarray
//!   list    (displacement, stream bytes before it, part) …         indexed, struct
//!
//!   vector(3, 2, 4, INT32)        ██░░██░░██       loop 3 × 16:  8 bytes
//!   subarray, 2 of 3 dimensions   █░░█░░ █░░█░░    loop 2 × 48: loop 2 × 24: 8 bytes
//! ```
//!
//! **Source.** MPI-4.1, chapter *Datatypes*; [ECIO-IB §4.1], which sends the type to the server.
//! Differences: bounds have no padding for alignment, extents are not negative, and what a type was
//! built by is forgotten. The tests compare all operations with lists of single bytes.
//!
//! [`MAX_TYPE_NODES`]: crate::limits::MAX_TYPE_NODES
//! [`MAX_TYPE_ENTRIES`]: crate::limits::MAX_TYPE_ENTRIES
//! [`MAX_TYPE_DEPTH`]: crate::limits::MAX_TYPE_DEPTH

mod array;
mod builder;
mod constructor;
mod cursor;
mod file_view;
mod moves;
mod part;
mod table;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::Arc;

use self::builder::spread;
use self::table::{Info, Part, Table};
use crate::error::{ErrorCode, FsError};

pub use array::{Distribute, GridDimension, Order};
pub use cursor::Cursor;
pub use file_view::FileView;
pub(crate) use moves::{Row, rows};
pub use moves::{gather, scatter};
pub use part::{PartCursor, ViewPart};

/// The table of a type that is one piece.
static NO_NODES: Table = Table { nodes: Vec::new(), entries: Vec::new() };

/// A datatype of MPI: bytes at displacements from a base, in order, and the bounds within which the
/// next instance follows. Cheap to clone. Types are equal if their normal forms are equal: they
/// then have the same bytes in the same order, and the same bounds.
///
/// ```
/// use fs_proto::{Datatype, Order, Region};
///
/// # fn main() -> Result<(), fs_proto::FsError> {
/// // Rows 1 and 2 and columns 4 to 7 of a matrix of 3 by 10 integers.
/// let tile = Datatype::subarray(&[3, 10], &[2, 4], &[1, 4], Order::C, &Datatype::INT32)?;
/// assert_eq!((tile.size(), tile.extent(), tile.pieces()), (32, 120, 2));
///
/// let mut pieces = [Region::new(0, 0); 16];
/// let mut cursor = tile.cursor(1, 1000)?;
/// cursor.seek(8);
/// assert_eq!(cursor.next_batch(&mut pieces, u64::MAX), 2);
/// assert_eq!(pieces[..2], [Region::new(1064, 8), Region::new(1096, 16)]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datatype {
    /// Lower and upper bound, if they were set: by [`Datatype::resized`] and for arrays.
    marks: Option<(i64, i64)>,
    /// Displacement of the first byte of the stream.
    origin: i64,
    root: Part,
    /// About the root.
    info: Info,
    table: Option<Arc<Table>>,
}

impl Datatype {
    /// A byte, MPI's `MPI_BYTE`.
    pub const BYTE: Datatype = Datatype::elementary(1);
    /// An integer of 16 bits.
    pub const INT16: Datatype = Datatype::elementary(2);
    /// An integer of 32 bits.
    pub const INT32: Datatype = Datatype::elementary(4);
    /// An integer of 64 bits.
    pub const INT64: Datatype = Datatype::elementary(8);
    /// A floating-point number of 32 bits.
    pub const FLOAT: Datatype = Datatype::elementary(4);
    /// A floating-point number of 64 bits.
    pub const DOUBLE: Datatype = Datatype::elementary(8);

    const fn elementary(len: u64) -> Datatype {
        Datatype { marks: None, origin: 0, root: Part::Bytes(len), info: Info::bytes(len), table: None }
    }

    /// Returns the number of bytes of one instance.
    pub fn size(&self) -> u64 {
        self.info.size
    }

    /// Returns the distance at which instances follow each other, in bytes.
    pub fn extent(&self) -> u64 {
        self.ub().abs_diff(self.lb())
    }

    /// Returns the lower bound: the one that was set, or the displacement of the lowest byte.
    pub fn lb(&self) -> i64 {
        self.marks.map_or(self.true_lb(), |(lb, _)| lb)
    }

    /// Returns the upper bound: the one that was set, or the displacement after the highest byte.
    pub fn ub(&self) -> i64 {
        self.marks.map_or(self.true_ub(), |(_, ub)| ub)
    }

    /// Returns the displacement of the lowest byte; 0 if there is none.
    pub fn true_lb(&self) -> i64 {
        self.origin + self.info.low
    }

    /// Returns the displacement after the highest byte; 0 if there is none.
    pub fn true_ub(&self) -> i64 {
        self.origin + self.info.high
    }

    /// Returns the distance from the lowest byte to the end of the highest one.
    pub fn true_extent(&self) -> u64 {
        self.info.high.abs_diff(self.info.low)
    }

    /// Returns the displacement of the lowest byte of `count` instances, and the one after the
    /// highest byte. Both are 0 if there are no bytes.
    ///
    /// # Errors
    /// `TooLarge` for displacements of 2^62 or more.
    pub fn true_bounds(&self, count: u64) -> Result<(i64, i64), FsError> {
        if count == 0 || self.size() == 0 {
            return Ok((0, 0));
        }
        spread((self.true_lb(), self.true_ub()), count, self.extent().into())
    }

    /// Returns the number of pieces of one instance.
    pub fn pieces(&self) -> u64 {
        if self.info.size == 0 { 0 } else { self.info.pieces }
    }

    /// Returns true if any number of instances is one piece that begins at the base.
    pub fn is_contiguous(&self) -> bool {
        self.origin == 0 && matches!(self.root, Part::Bytes(_)) && self.lb() == 0 && self.extent() == self.size()
    }

    /// Returns true if each byte of one instance is behind all bytes before it in the stream, which
    /// implies that no two are at the same place. Types whose instances of a part interleave with
    /// each other do not have this form, even if the bytes are in order in the end.
    pub fn is_ascending(&self) -> bool {
        self.info.ascending
    }

    /// Returns false if no two bytes of one instance are at the same place. May return true for a
    /// type of which only a walk over its bytes would show this: one with a list of parts that
    /// interleave. For several instances, ask their [`Datatype::contiguous`].
    pub fn may_overlap(&self) -> bool {
        !self.info.disjoint
    }

    fn table(&self) -> &Table {
        self.table.as_deref().unwrap_or(&NO_NODES)
    }
}

fn invalid(what: impl Into<String>) -> FsError {
    FsError::new(ErrorCode::Invalid, what)
}

fn too_large(what: impl Into<String>) -> FsError {
    FsError::new(ErrorCode::TooLarge, what)
}
