//! A range of bytes in a file or datafile.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::MAX_OFFSET;

/// A range of `len` bytes at `offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Region {
    /// Creates a region of `len` bytes at `offset`.
    pub const fn new(offset: u64, len: u64) -> Region {
        Region { offset, len }
    }

    /// Returns the first offset after the region, or `None` if that is beyond [`MAX_OFFSET`].
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len).filter(|end| *end <= MAX_OFFSET)
    }

    /// Returns true if the region has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the smallest region that contains both.
    #[must_use]
    pub fn hull(self, other: Region) -> Region {
        let offset = self.offset.min(other.offset);
        let end = self.offset.saturating_add(self.len).max(other.offset.saturating_add(other.len));
        Region { offset, len: end - offset }
    }

    /// Returns the part of the region that begins `at` bytes into it and has at most `len` bytes.
    #[must_use]
    pub fn part(self, at: u64, len: u64) -> Region {
        let at = at.min(self.len);
        Region { offset: self.offset.saturating_add(at), len: len.min(self.len - at) }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.offset, self.offset.saturating_add(self.len))
    }
}
