//! The books of offered receives ([`crate::engine::message::offered_receive`]): whether offers pay,
//! and which messages the peer may not have seen when it made one.

use std::collections::BTreeSet;

use crate::hooks::{step, steps};
use crate::mem::RemoteSlice;
use crate::mutated;
use crate::op::Tag;
use crate::wire::named::Named;

/// Number of unused offers in a row after which no more are made. A program that posts its receives
/// in pairs may waste this many while it starts.
pub(super) const WASTED: u8 = 8;
/// After that, one receive in this many is offered, to find out whether offers are used again.
pub(super) const TRIAL: u8 = 64;

/// Statistics of the offers to a peer.
#[derive(Debug, Default)]
pub(in crate::engine) struct Offers {
    /// Unused offers in a row.
    wasted: u8,
    /// Receives since then that were not offered.
    skipped: u8,
}

impl Offers {
    /// Returns true if the next receive should be offered.
    pub(in crate::engine) fn are_worth_it(&mut self) -> bool {
        if self.wasted < WASTED {
            return true;
        }
        self.skipped = (self.skipped + 1) % TRIAL;
        self.skipped == 0
    }

    /// Records the end of an offered receive, by a message that used the offer or in another way.
    pub(in crate::engine) fn ended(&mut self, used: bool) {
        self.wasted = if used { 0 } else { self.wasted.saturating_add(1) };
    }
}

/// A receive of the peer that this side may write into.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct ReadyReceive {
    pub(in crate::engine) op: u64,
    pub(in crate::engine) memory: RemoteSlice,
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
struct Message {
    tag: Tag,
    /// Set if a receive of this tag was set off against the message, because the peer offered it
    /// too late.
    matched: bool,
}

/// Least spare room in the list of messages, after it was cleared of those that were seen. This
/// keeps clearing rare.
const SPARE: usize = 256;
/// Number of messages that are compared with an offer one by one.
const NEAR: usize = 32;

/// The expected messages that the peer may not have seen yet, in order.
///
/// **Why an index.** The credits of the peer bound the list, but it can grant tens of thousands and
/// return none. Then an offer must not cost a search through all of them. The list of a peer that
/// keeps up is short, and is searched one by one, so it needs no index.
///
/// **Invariant.** In the list, messages before `seen` were seen. Those from there to `indexed` are
/// in the index if they are not matched. A message enters the index once at most.
#[derive(Debug, Default)]
pub(in crate::engine) struct Unseen {
    messages: Vec<Message>,
    /// The number of the first message of the list. The others have the numbers that follow.
    first: u64,
    seen: usize,
    indexed: usize,
    index: BTreeSet<(Tag, u64)>,
}

impl Unseen {
    /// Returns true if the list must grow for one more message.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.messages.len() == self.messages.capacity()
    }

    #[inline]
    pub(in crate::engine) fn push(&mut self, tag: Tag, matched: bool) {
        self.messages.push(Message { tag, matched });
    }

    /// Removes messages that the peer has certainly seen, before the list would grow. It has not
    /// seen at most the last `most`.
    #[cold]
    pub(super) fn make_room(&mut self, most: usize) {
        self.forget(self.messages.len().saturating_sub(most));
        self.drop_seen();
        // Reserves as much as is left, so that this is rare even with many credits.
        self.messages.reserve(SPARE.max(self.messages.len()));
    }

    /// Records that the peer has seen all messages with lesser numbers.
    #[inline]
    pub(in crate::engine) fn seen_before(&mut self, number: u64) {
        let (seen, len) = (number.saturating_sub(self.first), self.messages.len());
        if seen >= len as u64 && self.index.is_empty() {
            self.messages.clear();
            self.first += len as u64;
            (self.seen, self.indexed) = (0, 0);
            return;
        }
        self.forget(usize::try_from(seen).map_or(len, |seen| seen.min(len)));
        // What is left is moved only if there is less of it than goes.
        if 2 * self.seen >= self.messages.len() {
            self.drop_seen();
        }
    }

    /// Sets an offer off against the oldest message of its tag that is not matched. Returns false
    /// if there is none.
    #[inline]
    pub(in crate::engine) fn set_off(&mut self, tag: Tag) -> bool {
        if self.messages.len() - self.indexed > NEAR && !mutated("offered-receive/unseen-searched-one-by-one") {
            self.enter_all();
        }
        if !self.index.is_empty() && self.set_off_indexed(tag) {
            return true;
        }
        let mut near = self.messages[self.indexed..].iter_mut().inspect(|_| step());
        let Some(message) = near.find(|message| message.tag == tag && !message.matched) else { return false };
        message.matched = true;
        true
    }

    /// Sets an offer off against the oldest message of its tag that is in the index, as
    /// [`Unseen::set_off`] does.
    #[cold]
    fn set_off_indexed(&mut self, tag: Tag) -> bool {
        // As many rounds as a binary search takes.
        steps((usize::BITS - self.index.len().leading_zeros()) as usize);
        let Some(&(other, number)) = self.index.range((tag, 0)..).next().filter(|(other, _)| *other == tag) else {
            return false;
        };
        self.index.remove(&(other, number));
        let place = usize::try_from(number - self.first).expect("in the list");
        self.messages[place].matched = true;
        true
    }

    /// Enters the messages into the index that are not in it.
    #[cold]
    fn enter_all(&mut self) {
        for (place, message) in (0..).zip(&self.messages).skip(self.indexed) {
            step();
            if !message.matched {
                self.index.insert((message.tag, self.first + place));
            }
        }
        self.indexed = self.messages.len();
    }

    /// Counts the first `seen` messages of the list as seen.
    fn forget(&mut self, seen: usize) {
        for place in self.seen..seen.min(self.indexed) {
            step();
            let Message { tag, matched } = self.messages[place];
            if !matched {
                self.index.remove(&(tag, self.first + place as u64));
            }
        }
        self.seen = self.seen.max(seen);
        self.indexed = self.indexed.max(self.seen);
    }

    /// Removes the messages that were seen from the list.
    fn drop_seen(&mut self) {
        steps(self.messages.len() - self.seen);
        self.messages.drain(..self.seen);
        self.first += self.seen as u64;
        self.indexed -= self.seen;
        self.seen = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a list that is searched. Most offers come behind more messages than are
        /// compared one by one.
        #[test]
        fn an_offer_is_set_off_against_the_oldest_message_of_its_tag(
            actions in proptest::collection::vec((0u64..6, 0u64..60, 0u8..8), 0..600),
        ) {
            let mut unseen = Unseen::default();
            let mut model: VecDeque<(u64, Tag, bool)> = VecDeque::new();
            let mut sent = 0;
            for (tag, back, action) in actions {
                match action {
                    0..5 => {
                        unseen.push(tag, back == 0);
                        model.push_back((sent, tag, back == 0));
                        sent += 1;
                    }
                    5 => {
                        let number = sent.saturating_sub(2 * back);
                        unseen.seen_before(number);
                        model.retain(|(one, ..)| *one >= number);
                    }
                    6 => {
                        let left = model.len().min(3 * back as usize);
                        // The list may still have what was seen.
                        unseen.make_room(left);
                        model.drain(..model.len() - left);
                    }
                    _ => {
                        let oldest = model.iter_mut().find(|(_, other, matched)| *other == tag && !matched);
                        let found = oldest.map(|(.., matched)| *matched = true).is_some();
                        prop_assert_eq!(unseen.set_off(tag), found);
                    }
                }
                let list = (unseen.first..).zip(&unseen.messages).skip(unseen.seen);
                let list: Vec<_> = list.map(|(number, message)| (number, message.tag, message.matched)).collect();
                prop_assert_eq!(&model, &list);
                let of_index = list[..unseen.indexed - unseen.seen].iter().filter(|(.., matched)| !matched).count();
                prop_assert_eq!(unseen.index.len(), of_index);
            }
        }
    }
}
