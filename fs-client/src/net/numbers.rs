//! The numbers of requests, by which the manager recognises one that is sent again.

use std::collections::BTreeSet;

use crate::locked::Locked;

/// The numbers of requests. A request says below which number the client has all replies, and the
/// manager forgets the replies to these. So a number is drawn and entered in one step: no request
/// can name a limit above the number of a change that is about to be sent.
#[derive(Default)]
pub(super) struct Numbers {
    last: u64,
    /// The changes whose reply has not arrived.
    pub(super) unanswered: BTreeSet<u64>,
}

impl Numbers {
    /// Returns a number that no earlier request had. The first one is 1.
    pub(super) fn draw(&mut self, change: bool) -> u64 {
        self.last += 1;
        if change {
            self.unanswered.insert(self.last);
        }
        self.last
    }
}

/// The sequence number of a request. The number of a change is in the set of unanswered requests
/// until its reply arrives. Other requests are not in the set, because the manager keeps only the
/// replies to changes. A slow read or write must not make the manager keep all later replies.
pub(crate) struct Ticket<'a> {
    numbers: &'a Locked<Numbers>,
    pub(super) seq: u64,
}

impl<'a> Ticket<'a> {
    pub(super) fn new(numbers: &'a Locked<Numbers>, change: bool) -> Ticket<'a> {
        Ticket { seq: numbers.with(|numbers| numbers.draw(change)), numbers }
    }
}

impl Drop for Ticket<'_> {
    /// Also runs when the caller drops its future: the request will not be sent again.
    fn drop(&mut self) {
        self.numbers.with(|numbers| numbers.unanswered.remove(&self.seq));
    }
}
