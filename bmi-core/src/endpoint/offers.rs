//! The books of offered receives ([`super::offered_receive`]): whether offers pay, and which
//! messages the peer may not have seen when it made one.

use super::peer::{Peer, Unseen};
use crate::mem::RemoteSlice;
use crate::op::Tag;
use crate::proto::credit;

/// Least spare room in the list of messages that the peer may not have seen, after it was cleared
/// of the others. This keeps clearing rare.
const KEPT_UNSEEN: usize = 256;
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

impl Peer {
    /// Records an expected message that is sent. It removes the oldest offer of its tag.
    #[inline]
    pub(super) fn sent_expected(&mut self, tag: Tag) {
        let number = self.sent;
        self.sent += 1;
        let matched = !self.ready.is_empty() && self.ready.pop(tag).is_some();
        if matched {
            self.account.unparked(credit::cost(RemoteSlice::WIRE_LEN));
        }
        if self.unseen.len() == self.unseen.capacity() {
            self.forget_seen();
        }
        self.unseen.push(Unseen { number, tag, matched });
    }

    /// Removes messages that the peer has certainly seen, before the list would grow.
    #[cold]
    fn forget_seen(&mut self) {
        let out = self.credit.as_ref().map_or(0, credit::Credit::messages_out);
        // The Written of a message that was just written has not spent its credit yet. There is
        // only one such message, because nothing is sent before its Written.
        let seen = self.unseen.len().saturating_sub(out);
        self.unseen.drain(..seen);
        // Reserves as much as is left, so that this is rare even with many credits.
        self.unseen.reserve(KEPT_UNSEEN.max(self.unseen.len()));
    }
}
