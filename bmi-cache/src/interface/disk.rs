//! What the cache needs of the disk behind it.

use async_trait::async_trait;
use bmi_core::MemList;

use crate::ranges::Extent;

/// The files behind a cache.
///
/// The cache never has two transfers of the same bytes in progress at the same time, except that
/// bytes may change in memory while they are written. It then writes them again.
///
/// **Futures must be run to their end.** A transfer uses the memory of the cache until then.
#[async_trait(?Send)]
pub trait Disk {
    /// Why a transfer failed.
    type Error: Clone;

    /// Reads `extents`, in order, into `into`. They have the same total length. Bytes beyond the
    /// end of the file are zeros.
    ///
    /// # Errors
    /// Any; no byte of `into` then counts as read.
    async fn read(&self, file: u64, extents: &[Extent], into: &MemList) -> Result<(), Self::Error>;

    /// Returns where a file ends. What is ahead of a reader is read up to there.
    ///
    /// # Errors
    /// Any; then nothing is read ahead.
    async fn end(&self, file: u64) -> Result<u64, Self::Error>;

    /// Writes `extents`, in order, from `from`. They have the same total length.
    ///
    /// # Errors
    /// Any; no byte of `from` then counts as written.
    async fn write(&self, file: u64, extents: &[Extent], from: &MemList) -> Result<(), Self::Error>;
}

/// Why an operation of the cache failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheError<E> {
    /// The disk failed. `extents` are those of the operation that were not read or written.
    Disk {
        /// The disk's own error.
        error: E,
        /// Parts of the operation's extents.
        extents: Vec<Extent>,
    },
    /// The operation needs more memory than it may have.
    TooLong {
        /// The bytes of the units that it touches.
        bytes: u64,
        /// The most that it may touch ([`crate::Cache::most`]).
        most: u64,
    },
    /// The extents of a write overlap.
    Overlapping,
    /// A transfer of the disk was dropped before its end. The unit cannot be used any more.
    Abandoned,
}

impl<E> CacheError<E> {
    /// Says that all of an operation failed.
    pub(crate) fn of(self, extents: &[Extent]) -> CacheError<E> {
        match self {
            CacheError::Disk { error, .. } => CacheError::Disk { error, extents: extents.to_vec() },
            other => other,
        }
    }
}
