//! Sizes, limits and hints.

use std::time::Duration;

use crate::memory::{BLOCK, FRAME};
use crate::policy::Policy;

/// Settings of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bytes of a unit, for files for which nobody asks for another size: 4, 8, 16, 32 or 64 KiB.
    pub unit: u32,
    /// Which units stay, where nobody asks for something else.
    pub policy: Policy,
    /// Most dirty bytes. A write that would exceed it writes older ones to the disk first.
    pub dirty: u64,
    /// Dirty bytes are written to the disk after this time, at most half of it later.
    pub age: Duration,
    /// Most bytes that are read ahead of a reader. 0: none are.
    pub read_ahead: u64,
    /// Bytes of chunks that stay registered (*Ready*).
    pub ready: u64,
    /// Every write reaches the disk before it is acknowledged.
    pub write_through: bool,
}

impl Settings {
    /// Returns settings for a cache of `bytes` bytes: a quarter of it may be dirty, half of it
    /// stays registered.
    pub fn for_bytes(bytes: u64) -> Settings {
        Settings {
            unit: BLOCK as u32,
            policy: Policy::Default,
            dirty: bytes / 4,
            age: Duration::from_secs(5),
            read_ahead: (bytes / 16).min(4 << 20),
            ready: bytes / 2,
            write_through: false,
        }
    }
}

/// Returns true if units may have this many bytes.
pub(crate) fn is_unit(bytes: u32) -> bool {
    bytes.is_power_of_two() && (FRAME as u32..=BLOCK as u32).contains(&bytes)
}

/// How a file will be used, as far as somebody knows. All of it is best effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Bytes of a unit. It counts while nothing of the file is in the cache.
    pub unit: Option<u32>,
    /// Which units stay.
    pub policy: Policy,
    /// In which order the file is read.
    pub pattern: Pattern,
    /// Writes reach the disk before they are acknowledged.
    pub write_through: bool,
}

/// In which order a file is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// Not known: the cache watches.
    #[default]
    Unknown,
    /// From the beginning to the end: reading ahead begins with the first read.
    Sequential,
    /// In no order: nothing is read ahead.
    Random,
}
