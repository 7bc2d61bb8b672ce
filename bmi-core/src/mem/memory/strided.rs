//! Copies between places at one distance and their bytes in one piece.

use super::super::copy;
use super::{MemSlice, Memory};

/// Places in a memory: `count` of `len` bytes each. The first one is at `at`, and each further one
/// is `every` bytes behind the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// Offset of the first place.
    pub at: usize,
    /// Bytes of a place.
    pub len: usize,
    /// Bytes from the begin of one place to the begin of the next.
    pub every: usize,
    /// The number of places.
    pub count: usize,
}

impl Strided {
    /// Returns the bytes of all places.
    ///
    /// # Panics
    /// If they are not within a memory of `end` bytes, or are more than `other`.
    fn checked(self, end: usize, other: usize) -> usize {
        let Strided { at, len, every, count } = self;
        let last = count.saturating_sub(1).checked_mul(every).and_then(|last| last.checked_add(at)?.checked_add(len));
        let bytes = len.checked_mul(count).filter(|bytes| *bytes <= other);
        assert!(last.is_some_and(|last| last <= end), "{self:?} of {end} bytes");
        bytes.unwrap_or_else(|| panic!("{self:?} and {other} bytes"))
    }
}

impl Memory {
    /// Copies the first bytes of `from` to places of this memory. Returns their number. For many
    /// short pieces it is faster than a call for each.
    ///
    /// # Panics
    /// If `from` is shorter, a place is not within this memory, or this memory is read-only.
    #[inline]
    pub fn scatter(&self, from: &MemSlice, to: Strided) -> usize {
        self.check_writable();
        let bytes = to.checked(self.len(), from.len());
        let source = from.memory().as_ptr();
        if bytes > 0 {
            // SAFETY: as in `copy_from`, for both: all places and all bytes are within.
            unsafe {
                let (to_ptr, from_ptr) = (self.as_ptr().add(to.at), source.add(from.offset()));
                copy::copy_strided((to_ptr, to.every), (from_ptr, to.len), to.len, to.count);
            }
        }
        bytes
    }

    /// Copies places of this memory to the first bytes of `into`, the other way round as
    /// [`Memory::scatter`].
    ///
    /// # Panics
    /// If `into` is shorter or read-only, or a place is not within this memory.
    #[inline]
    pub fn gather(&self, into: &MemSlice, from: Strided) -> usize {
        into.memory().check_writable();
        let bytes = from.checked(self.len(), into.len());
        let target = into.memory().as_ptr();
        if bytes > 0 {
            // SAFETY: as in `scatter`.
            unsafe {
                let (from_ptr, to_ptr) = (self.as_ptr().add(from.at), target.add(into.offset()));
                copy::copy_strided((to_ptr, from.len), (from_ptr, from.every), from.len, from.count);
            }
        }
        bytes
    }
}
