//! Shared reads: an I/O server lends a client on its host a view of bytes of a datafile.
//!
//! **Why.** A client on the same host can read the server's memory where it is, so that nothing is
//! copied. The server must be able to take the bytes back at any time, so a view carries its own
//! validity: a word for each granule, which the server changes before it changes the bytes.
//!
//! **Layout** of a view segment, which the server exposes for reading. It has the bytes of one
//! window of one datafile, and nothing else. All words are little-endian.
//!
//! ```text
//!        0  entry of granule 0     version u64: 0 if the granule is not here
//!                                  length  u64: its bytes that are before the end of the datafile, at least
//!       16  entry of granule 1
//!        …
//!     4096  granule 0              the bytes from window * WINDOW on; zeros beyond the end
//!    69632  granule 1
//!        …
//! ```
//!
//! **Protocol.** `ReadShared` asks the server to put the granules of a range into the segment. It
//! answers with the exposure, or with the reason why not ([`ViewRefusal`]). The client reads the
//! versions, then the bytes, then the versions again. If none is zero and none has changed, what it
//! has read is what the datafile contained at one moment. It may read again without asking, as long
//! as the lease holds; the version alone decides whether what it reads is valid.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::numbered;
use crate::limits::MAX_OFFSET;

/// Bytes of a granule: what is lent and withdrawn as a whole.
pub const VIEW_GRANULE: u64 = 64 << 10;
/// Bytes of a datafile that one view segment covers. A request is about bytes of one window.
pub const VIEW_WINDOW: u64 = 16 << 20;
/// Bytes of a view segment before its first granule.
pub const VIEW_HEADER: u64 = VIEW_WINDOW / VIEW_GRANULE * VIEW_ENTRY;
/// Bytes of the entry of a granule.
pub(super) const VIEW_ENTRY: u64 = 16;
/// Bytes of a view segment.
pub const VIEW_SEGMENT: u64 = VIEW_HEADER + VIEW_WINDOW;

numbered! {
    /// Why a server does not lend a view. The client reads the bytes as usual.
    ViewRefusal {
        /// The server has no cache of its own.
        #[default]
        NoCache = 0, "the server has no cache of its own";
        /// The server was configured to lend none.
        Off = 1, "the server lends no views";
        /// The connection has no way to lend memory.
        NotLocal = 2, "the transport cannot lend memory to this client";
        /// All memory for views is lent, or the range is longer than what may be lent at once.
        Full = 3, "the memory for views is in use";
        /// The range was changed by others while it was prepared.
        Changing = 4, "the range was being changed";
    }
}

/// What a server lends: the range that was asked for, in a view segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewGrant {
    /// The key of the exposure of the segment.
    pub key: u64,
    /// The address of the segment in that exposure.
    pub addr: u64,
    /// The size of the datafile in bytes.
    pub size: u64,
    /// How long the server does not take the granules back without need, in milliseconds. A change
    /// of the bytes withdraws them at once.
    pub lease_ms: u32,
}

/// The place of a range of a datafile in a view segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewRange {
    /// The window of the datafile.
    pub window: u64,
    /// Offset of the first byte in the window.
    pub offset: u64,
    /// Bytes of the range, at least one.
    pub len: u64,
}

impl ViewRange {
    /// Returns the place of a range. `None` if it has no bytes, is not within one window, or its
    /// last granule reaches beyond the largest offset.
    pub fn of(offset: u64, len: u64) -> Option<ViewRange> {
        let last = offset.checked_add(len.checked_sub(1)?)?;
        let (window, end) = (offset / VIEW_WINDOW, (last / VIEW_GRANULE + 1).checked_mul(VIEW_GRANULE)?);
        let fits = last / VIEW_WINDOW == window && end <= MAX_OFFSET;
        fits.then_some(ViewRange { window, offset: offset % VIEW_WINDOW, len })
    }

    /// Returns the granules that the range touches, by their number in the window.
    pub fn granules(&self) -> std::ops::Range<u32> {
        (self.offset / VIEW_GRANULE) as u32..(self.offset + self.len).div_ceil(VIEW_GRANULE) as u32
    }
}

/// Returns the offset of the entry of a granule in its segment.
pub fn view_entry(granule: u32) -> usize {
    granule as usize * VIEW_ENTRY as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_within_one_window_or_refused() {
        let range =
            |offset, len| ViewRange::of(offset, len).map(|range| (range.window, range.offset, range.granules()));
        assert_eq!(range(0, 1), Some((0, 0, 0..1)));
        assert_eq!(range(VIEW_GRANULE - 1, 2), Some((0, VIEW_GRANULE - 1, 0..2)));
        assert_eq!(range(VIEW_WINDOW, VIEW_WINDOW), Some((1, 0, 0..256)));
        assert_eq!(range(MAX_OFFSET - VIEW_GRANULE, 1).map(|(.., granules)| granules), Some(254..255));
        assert_eq!(range(MAX_OFFSET - 1, 1), None);
        assert_eq!(range(3 * VIEW_WINDOW - 1, 1), Some((2, VIEW_WINDOW - 1, 255..256)));
        for (offset, len) in
            [(0, 0), (1, VIEW_WINDOW), (VIEW_WINDOW - 1, 2), (u64::MAX, 1), (0, u64::MAX), (1, u64::MAX)]
        {
            assert_eq!(range(offset, len), None, "{offset} {len}");
        }
        assert_eq!(VIEW_HEADER, 4096);
        assert_eq!(view_entry(255), 4096 - 16);
    }
}
