//! The books of offered receives ([`super::offered_receive`]): whether offers pay, and which
//! messages the peer may not have seen when it made one.

use crate::mem::RemoteSlice;
use crate::op::Tag;
use crate::proto::named::Named;

/// Number of unused offers in a row after which no more are made. A program that posts its receives
/// in pairs may waste this many while it starts.
pub(super) const WASTED: u8 = 8;
/// After that, one receive in this many is offered, to find out whether offers are used again.
pub(super) const TRIAL: u8 = 64;

/// Statistics of the offers to a peer.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// Unused offers in a row.
    wasted: u8,
    /// Receives since then that were not offered.
    skipped: u8,
}

impl Offers {
    /// Returns true if the next receive should be offered.
    pub(super) fn are_worth_it(&mut self) -> bool {
        if self.wasted < WASTED {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRIAL;
        self.skipped == 0
    }

    /// Records the end of an offered receive, by a message that used the offer or in another way.
    pub(super) fn ended(&mut self, used: bool) {
        self.wasted = if used { 0 } else { self.wasted.saturating_add(1) };
    }
}

/// A receive of the peer that this side may write into.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyReceive {
    pub(super) op: u64,
    pub(super) memory: RemoteSlice,
}

impl Named for ReadyReceive {
    /// Returns the peer's name for the receive, by which it may withdraw the offer.
    #[inline]
    fn name(&self) -> Option<u64> {
        Some(self.op)
    }
}

/// An expected message that the peer may not have seen yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    pub(super) number: u64,
    pub(super) tag: Tag,
    /// Set if a receive of this tag was set off against the message, because the peer offered it
    /// too late.
    pub(super) matched: bool,
}
