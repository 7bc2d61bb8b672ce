//! What a program sees of a file: the bytes of a type that is laid over the file again and again.
//!
//! **Why.** A server has strips of a file. For each strip it must know which part of a request's
//! stream lies in it, without a walk over what lies in front of it or in other strips.
//!
//! **Invariants**
//! 1. The bytes of a view are in the order of their offsets, and no two are at the same offset. The
//!    structure of the type proves this: parts follow each other and do not interleave. So the
//!    number of stream bytes below an offset is found in the way in which the offset of a stream
//!    byte is found.
//! 2. `size_below(offset_of(n)) == n` for each byte `n` that has an offset.
//!
//! **Source.** MPI-4.1, section *File Views*. Differences: a view is refused if its bytes overlap,
//! where MPI allows this for files that are only read, and if its order is not in its structure.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Cursor, Datatype, invalid, too_large};
use crate::error::FsError;
use crate::limits::MAX_OFFSET;

/// A view of a file: a filetype that is repeated from a displacement on. Its stream is what the
/// program reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileView {
    displacement: u64,
    etype: Datatype,
    filetype: Datatype,
}

impl Default for FileView {
    /// The view that MPI gives a file that was opened: all its bytes.
    fn default() -> FileView {
        FileView { displacement: 0, etype: Datatype::BYTE, filetype: Datatype::BYTE }
    }
}

impl FileView {
    /// Returns a view. Offsets of the program count in units of `etype`.
    ///
    /// # Errors
    /// `Invalid` if the elementary type has no bytes, if the filetype is not made of whole elements
    /// or has a byte in front of the displacement, or if its bytes are not in ascending order or
    /// overlap, within it or with its next instance. `TooLarge` for a displacement beyond
    /// [`MAX_OFFSET`].
    pub fn new(displacement: u64, etype: Datatype, filetype: Datatype) -> Result<FileView, FsError> {
        if displacement > MAX_OFFSET {
            return Err(too_large(format!("a view from {displacement} on")));
        }
        if etype.size() == 0 || filetype.size() == 0 || !filetype.size().is_multiple_of(etype.size()) {
            let (whole, unit) = (filetype.size(), etype.size());
            return Err(invalid(format!("a filetype of {whole} bytes and an elementary type of {unit}")));
        }
        if filetype.true_lb() < 0 {
            return Err(invalid(format!("a filetype with a byte at {}", filetype.true_lb())));
        }
        if !filetype.is_ascending() {
            return Err(invalid("a filetype whose parts overlap, interleave or are not in ascending order"));
        }
        if filetype.extent() < filetype.true_extent() {
            let (extent, bytes) = (filetype.extent(), filetype.true_extent());
            return Err(invalid(format!("a filetype of extent {extent} whose bytes extend over {bytes}")));
        }
        Ok(FileView { displacement, etype, filetype })
    }

    /// Returns where the first instance of the filetype begins in the file.
    pub fn displacement(&self) -> u64 {
        self.displacement
    }

    /// Returns the elementary type.
    pub fn etype(&self) -> &Datatype {
        &self.etype
    }

    /// Returns the filetype.
    pub fn filetype(&self) -> &Datatype {
        &self.filetype
    }

    /// Returns the file offset of a byte of the stream, or `None` if that is beyond [`MAX_OFFSET`].
    pub fn offset_of(&self, position: u64) -> Option<u64> {
        let (size, extent) = (self.filetype.size(), self.filetype.extent());
        let within = self.filetype.table().displacement(self.filetype.root, position % size);
        let first = self.first().checked_add(position.checked_div(size)?.checked_mul(extent)?)?;
        // No byte of an ascending type is below its first one.
        first.checked_add(within as u64).filter(|offset| *offset < MAX_OFFSET)
    }

    /// Returns how many bytes of the stream have offsets below `offset`. A strip of a file from `a`
    /// to `b` has the bytes from `size_below(a)` to `size_below(b)` of the stream.
    pub fn size_below(&self, offset: u64) -> u64 {
        let Some(above) = offset.min(MAX_OFFSET).checked_sub(self.first()) else { return 0 };
        let (size, extent) = (self.filetype.size(), self.filetype.extent());
        let within = self.filetype.table().size_below(self.filetype.root, (above % extent) as i64);
        above / extent * size + within
    }

    /// Returns a cursor over `len` bytes of the stream, beginning with `position`. Its positions
    /// are those of the view. Its pieces are in ascending order.
    ///
    /// # Errors
    /// `TooLarge` if a byte is beyond [`MAX_OFFSET`].
    pub fn cursor(&self, position: u64, len: u64) -> Result<Cursor, FsError> {
        let outside = || too_large(format!("{len} bytes at {position} of a view exceed all offsets"));
        let end = position.checked_add(len).ok_or_else(outside)?;
        if len == 0 {
            return Ok(Cursor::new(&self.filetype, 0, 0, 0));
        }
        self.offset_of(end - 1).ok_or_else(outside)?;
        let count = end.div_ceil(self.filetype.size());
        let mut cursor = Cursor::new(&self.filetype, count, self.first() as i64, end);
        cursor.seek(position);
        Ok(cursor)
    }

    /// Returns the offset of the first byte of the stream.
    fn first(&self) -> u64 {
        self.displacement.saturating_add(self.filetype.origin as u64)
    }
}

impl<'de> Deserialize<'de> for FileView {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FileView, D::Error> {
        let (displacement, etype, filetype) = Deserialize::deserialize(deserializer)?;
        FileView::new(displacement, etype, filetype).map_err(D::Error::custom)
    }
}
