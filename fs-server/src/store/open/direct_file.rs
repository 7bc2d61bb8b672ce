//! The second descriptor of an open file, for direct I/O.

use std::fs::File;

/// Which way bytes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Way {
    /// Between the memory and the disk: direct I/O.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// What can be moved directly. Both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Alignment {
    /// Offset and length in the file are multiples of this.
    pub(in crate::store) unit: u64,
    /// The address in memory is a multiple of this.
    pub(in crate::store) memory: usize,
}

/// A second descriptor of a file, for direct I/O.
#[derive(Debug)]
pub(in crate::store) struct DirectFile {
    pub(in crate::store) file: File,
    pub(in crate::store) alignment: Alignment,
}
