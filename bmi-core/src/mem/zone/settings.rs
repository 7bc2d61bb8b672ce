//! The settings of zones, and their counters.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// The amount of memory in zones, the buffer sizes, and when memory is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// Sizes of the buffers in bytes, ascending. There is one zone for each.
    pub sizes: Vec<usize>,
    /// Bytes of all buffers together.
    pub total: usize,
    /// Bytes that are kept once they were allocated, even if unused.
    pub keep: usize,
    /// A free buffer is stale if it was not used for this long.
    pub idle: Duration,
    /// A free buffer is also stale if it was not used for this many takes.
    pub idle_takes: u64,
}

impl ZoneSettings {
    /// Size of the smallest buffers of the paper's zones, in bytes: 64 KiB. The largest have 2 MiB.
    pub const SMALLEST: usize = 64 << 10;
    /// See [`ZoneSettings::SMALLEST`].
    pub const LARGEST: usize = 2 << 20;

    /// Returns settings with zones of `smallest` bytes, twice that, and so on up to `largest`.
    /// `largest` is always the last size, whether it is `smallest` times a power of two or not.
    pub fn doubling(smallest: usize, largest: usize, total: usize) -> ZoneSettings {
        let mut sizes: Vec<usize> = std::iter::successors(Some(smallest.max(1)), |size| size.checked_mul(2))
            .take_while(|size| *size < largest)
            .collect();
        sizes.push(largest);
        ZoneSettings { sizes, total, keep: total / 8, idle: Duration::from_secs(10), idle_takes: 1024 }
    }

    /// Checks that there are sizes, in ascending order, and that the total has room for four of the
    /// smallest buffers.
    ///
    /// # Errors
    /// `Invalid`, with a description of the problem.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let Some(smallest) = self.sizes.first().copied().filter(|size| *size > 0) else {
            return invalid(format!(
                "zones of {:?} bytes; there must be at least one, and of no buffer without bytes",
                self.sizes
            ));
        };
        if !self.sizes.is_sorted_by(|one, next| one < next) {
            return invalid(format!("zones of {:?} bytes are not in ascending order", self.sizes));
        }
        if smallest > self.total / 4 {
            return invalid(format!(
                "{} bytes for zones whose smallest buffers have {smallest}; four must fit",
                self.total
            ));
        }
        Ok(())
    }

    /// Returns the budget of small transfers.
    pub(super) fn small(&self) -> usize {
        (self.total / 8).max(self.sizes[0])
    }
}

impl Default for ZoneSettings {
    /// Returns zones of 64 KiB to 2 MiB ([PVFS-IB §3.3.2]) with 32 MiB in total. Buffers that were
    /// unused for 10 seconds or 1024 takes are stale, and 4 MiB are kept.
    fn default() -> ZoneSettings {
        ZoneSettings::doubling(ZoneSettings::SMALLEST, ZoneSettings::LARGEST, 32 << 20)
    }
}

/// Counters and current usage of zones. Bytes count whole buffers, even if a transfer uses only a
/// part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneCounters {
    /// Buffers requested.
    pub takes: u64,
    /// Takes that had to wait.
    pub waits: u64,
    /// Takes that got a free buffer of the right zone.
    pub exact: u64,
    /// Takes that got a larger buffer instead.
    pub larger: u64,
    /// Takes that got a smaller buffer, so that the transfer was cut.
    pub cut: u64,
    /// Buffers allocated and registered.
    pub made: u64,
    /// Buffers returned to the system.
    pub retired: u64,
    /// Buffers that could not be allocated or registered.
    pub failed: u64,
    /// Bytes leased now.
    pub leased: u64,
    /// Largest number of bytes leased at the same time.
    pub most_leased: u64,
    /// Bytes of all buffers that exist now.
    pub bytes: u64,
}
