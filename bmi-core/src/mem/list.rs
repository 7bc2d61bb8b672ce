//! Lists of memory pieces, which messages are gathered from and scattered to.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{Memory, Retirement, copy};

/// A piece of a [`Memory`]. It holds a handle, so the bytes stay while it lives.
#[derive(Clone)]
pub struct MemSlice {
    memory: Memory,
    offset: usize,
    len: usize,
}

impl MemSlice {
    /// Creates a slice. The caller has checked the range.
    pub(super) fn new(memory: Memory, offset: usize, len: usize) -> MemSlice {
        MemSlice { memory, offset, len }
    }

    /// Returns the memory that the slice lies in.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the offset in that memory, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the bytes; see [`Memory::as_ptr`].
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr().wrapping_add(self.offset)
    }

    /// Returns the `len` bytes at `offset` of this slice.
    ///
    /// # Panics
    /// If the range does not lie within this slice.
    #[inline]
    pub fn slice(&self, offset: usize, len: usize) -> MemSlice {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {offset} lie outside {self:?}"
        );
        MemSlice { memory: self.memory.clone(), offset: self.offset + offset, len }
    }

    /// Copies `from` to the beginning of this slice.
    ///
    /// # Panics
    /// If `from` is longer.
    #[inline]
    pub fn copy_from(&self, from: &[u8]) {
        assert!(from.len() <= self.len, "{} bytes do not fit {self:?}", from.len());
        self.memory.copy_from(self.offset, from);
    }

    /// Copies the beginning of this slice to `to`.
    ///
    /// # Panics
    /// If `to` is longer.
    pub fn copy_to(&self, to: &mut [u8]) {
        assert!(to.len() <= self.len, "{self:?} has no {} bytes", to.len());
        self.memory.copy_to(self.offset, to);
    }

    /// Copies the beginning of `from` to the beginning of this slice, as many bytes as both have.
    /// Returns the number of bytes.
    ///
    /// # Panics
    /// If this slice is read-only.
    pub fn copy_from_slice_of(&self, from: &MemSlice) -> usize {
        self.memory.check_writable();
        let len = self.len.min(from.len);
        // SAFETY: both ranges were checked when the slices were made, and the handles keep the
        // memory alive.
        unsafe { copy::copy_between(self.as_ptr(), from.as_ptr(), len) };
        len
    }

    /// Fills the slice with zeros.
    ///
    /// # Panics
    /// If the slice is read-only.
    pub fn zero(&self) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (0..self.len).step_by(ZEROS.len()) {
            self.memory.copy_from(self.offset + at, &ZEROS[..ZEROS.len().min(self.len - at)]);
        }
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }
}

impl fmt::Debug for MemSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}..{}]", self.memory, self.offset, self.offset + self.len)
    }
}

/// The memory of a message: one piece, or several in order. Cheap to clone. A single piece needs no
/// allocation.
#[derive(Clone, Debug)]
pub struct MemList(Pieces);

#[derive(Clone, Debug)]
enum Pieces {
    One(MemSlice),
    Many { pieces: Arc<[MemSlice]>, len: usize },
}

impl MemList {
    /// Returns the pieces in order.
    #[inline]
    pub fn pieces(&self) -> &[MemSlice] {
        match &self.0 {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many { pieces, .. } => pieces,
        }
    }

    /// Returns true if at least one piece must not be written ([`Memory::is_read_only`]).
    #[inline]
    pub fn is_read_only(&self) -> bool {
        self.pieces().iter().any(|piece| piece.memory.is_read_only())
    }

    /// Retires the memories of the pieces ([`Memory::is_retired`]) as long as the result lives.
    pub(crate) fn retire(&self) -> Vec<Retirement> {
        let mut retired = Vec::new();
        for piece in self.pieces() {
            if retired.last().is_none_or(|last: &Retirement| last.memory().id() != piece.memory.id()) {
                retired.push(piece.memory.retire());
            }
        }
        retired
    }

    /// Returns the total length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Pieces::One(piece) => piece.len(),
            Pieces::Many { len, .. } => *len,
        }
    }

    /// Returns true if the list has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Scatters `from` over the pieces, starting `at` bytes into the list. Returns the number of
    /// bytes that fit.
    ///
    /// # Panics
    /// If a piece that would be written is read-only.
    #[inline]
    pub fn copy_from(&self, at: usize, from: &[u8]) -> usize {
        let mut done = 0;
        for (piece, start, len) in self.cuts(at, from.len()) {
            piece.memory.copy_from(piece.offset + start, &from[done..done + len]);
            done += len;
        }
        done
    }

    /// Gathers the bytes from `at` on into `to`. Returns the number of bytes copied.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) -> usize {
        let mut done = 0;
        for (piece, start, len) in self.cuts(at, to.len()) {
            piece.memory.copy_to(piece.offset + start, &mut to[done..done + len]);
            done += len;
        }
        done
    }

    /// Returns the parts of the pieces that hold the `len` bytes from `at` on, up to the end of the
    /// list.
    pub fn range(&self, at: usize, len: usize) -> impl Iterator<Item = MemSlice> {
        self.cuts(at, len).map(|(piece, start, len)| piece.slice(start, len))
    }

    /// Returns the parts of [`MemList::range`] as piece, offset in the piece and length, without
    /// cloning handles.
    #[inline]
    fn cuts(&self, at: usize, len: usize) -> impl Iterator<Item = (&MemSlice, usize, usize)> {
        let (mut skip, mut left) = (at, len);
        self.pieces().iter().filter_map(move |piece| {
            let start = skip.min(piece.len());
            skip -= start;
            let take = left.min(piece.len() - start);
            left -= take;
            (take > 0).then_some((piece, start, take))
        })
    }

    /// Returns a copy of all bytes in order.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }
}

impl From<MemSlice> for MemList {
    #[inline]
    fn from(piece: MemSlice) -> MemList {
        MemList(Pieces::One(piece))
    }
}

impl From<&MemSlice> for MemList {
    fn from(piece: &MemSlice) -> MemList {
        MemList(Pieces::One(piece.clone()))
    }
}

impl From<Memory> for MemList {
    fn from(memory: Memory) -> MemList {
        let len = memory.len();
        MemList(Pieces::One(MemSlice::new(memory, 0, len)))
    }
}

impl From<&Memory> for MemList {
    fn from(memory: &Memory) -> MemList {
        MemList::from(memory.clone())
    }
}

impl From<Bytes> for MemList {
    /// Makes a list of read-only memory ([`Memory::is_read_only`]), without a copy.
    fn from(bytes: Bytes) -> MemList {
        Memory::from(bytes).into()
    }
}

impl From<BytesMut> for MemList {
    fn from(bytes: BytesMut) -> MemList {
        Memory::from(bytes).into()
    }
}

impl From<Vec<u8>> for MemList {
    /// Takes over the vector without a copy.
    fn from(vec: Vec<u8>) -> MemList {
        MemList::from(Memory::from(vec))
    }
}

impl Default for MemList {
    /// Returns a list without bytes.
    fn default() -> MemList {
        std::iter::empty().collect()
    }
}

impl FromIterator<MemSlice> for MemList {
    /// Collects pieces into a list.
    ///
    /// # Panics
    /// If the total length overflows `usize`. No address space can hold such a list.
    fn from_iter<I: IntoIterator<Item = MemSlice>>(pieces: I) -> MemList {
        let pieces: Arc<[MemSlice]> = pieces.into_iter().collect();
        let len = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len())).expect("length of a list");
        MemList(Pieces::Many { pieces, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroing_stays_within_the_slice() {
        for (offset, len) in [(0, 0), (3, 1), (1, 4096), (7, 9000)] {
            let memory = Memory::from(vec![9; 10_000]);
            memory.slice(offset, len).zero();
            let bytes = memory.to_vec();
            assert!(bytes[offset..offset + len].iter().all(|byte| *byte == 0), "{len} bytes at {offset}");
            assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), len);
        }
    }

    #[test]
    fn ranges_cut_pieces_where_they_must() {
        let memory = Memory::from((0..100u8).collect::<Vec<_>>());
        let list: MemList =
            [memory.slice(10, 5), memory.slice(0, 0), memory.slice(50, 3), memory.slice(20, 10)].into_iter().collect();
        assert_eq!(list.len(), 18);
        let mut bytes = [0; 8];
        assert_eq!(list.copy_to(3, &mut bytes), 8);
        assert_eq!(bytes, [13, 14, 50, 51, 52, 20, 21, 22]);
        assert_eq!(list.copy_to(16, &mut bytes), 2);
        assert_eq!(list.range(18, 5).count(), 0);
        assert_eq!(list.copy_from(4, &[1, 2, 3]), 3);
        assert_eq!(list.to_vec()[3..8], [13, 1, 2, 3, 52]);
    }
}
