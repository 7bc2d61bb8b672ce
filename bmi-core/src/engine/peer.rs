//! The record of a peer: one connection and all of its state.
//!
//! ```text
//!  Connecting ──connected──┐
//!                          ├──> Up ──disconnect──> Closing ──┐
//!  Accepting  ──connected──┘     └───────────cut─────────────┴──> Cut
//! ```
//!
//! In every state the connection may be lost. The record is removed then.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PeerLimits;
use super::call_ids::{ACCEPTOR, Calls, is_call};
use super::fast_slots::{FastSlots, TheirSlots};
use super::lent::Grants;
use super::offers::{Offers, ReadyReceive, Unseen};
use super::parked::Parked;
use super::turns::Moving;
use crate::addr::Addr;
use crate::config::Config;
use crate::error::Error;
use crate::mem::RemoteSlice;
use crate::mutated;
use crate::op::{OpId, PeerId, Tag};
use crate::proto::Violation;
use crate::proto::credit::{self, Credit, CreditAccount};
use crate::proto::header::{FinishStatus, HEADER_LEN, Returned};
use crate::proto::hello::{CONTROL_CREDITS, FAST_SLOTS, Hello, PROBES, WRITE_RENDEZVOUS};
use crate::proto::matching::Matching;
use crate::proto::named::NamedMatching;
use crate::proto::receive_slots::ReceiveSlots;
use crate::time::Time;
use crate::transport::ConnId;

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Link {
    /// This side asked to connect. The operation completes when the connection is up.
    Connecting(OpId),
    /// This side accepted the request.
    Accepting,
    /// The connection is up.
    Up,
    /// The connection is up, and ends when everything that was posted before is sent. Then the
    /// operation completes.
    Closing(OpId),
    /// This side told the adapter to end the connection. Everything that still arrives is ignored.
    Cut,
}

impl Link {
    /// Goes to the next state. Returns the state before. A debug build checks that the diagram has
    /// the change.
    pub(super) fn enter(&mut self, next: Link) -> Link {
        debug_assert!(self.may_become(&next), "a connection goes from {self:?} to {next:?}");
        std::mem::replace(self, next)
    }

    fn may_become(&self, next: &Link) -> bool {
        match self {
            Link::Connecting(_) | Link::Accepting => matches!(next, Link::Up),
            Link::Up => matches!(next, Link::Closing(_) | Link::Cut),
            Link::Closing(_) => matches!(next, Link::Cut),
            Link::Cut => false,
        }
    }
}

/// The credit that goes back to the peer when a receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repost {
    /// None, because the hello has granted it.
    First,
    /// A message credit.
    Message,
    /// A control credit.
    Control,
}

/// A message of this side that spends no bytes, except Ready, and is sent before all others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Notice {
    Finish {
        op: u64,
        status: FinishStatus,
        len: u64,
    },
    Cancel {
        op: u64,
    },
    /// The Finish of an announcement that was cancelled before it had a receive.
    Cancelled {
        op: u64,
    },
    Ready {
        op: OpId,
    },
    Written {
        op: u64,
        len: u64,
    },
    Withdraw {
        op: u64,
    },
    Withdrawn {
        op: u64,
    },
    /// Tells the sender where to write the message that it announced.
    ClearToWrite {
        op: OpId,
    },
    /// Describes our fast-RDMA slots.
    FastSlots,
    /// Answers a probe.
    Answer {
        name: u64,
        area: Option<RemoteSlice>,
    },
}

/// What is known about the pages of a peer's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotUse {
    /// No page was touched since the last ones were given back.
    #[default]
    Clean,
    /// A message came since the last sweep.
    Used,
    /// No message came between the last two sweeps.
    Quiet,
    /// The pages are to be given back.
    Due,
}

/// The probe areas that an endpoint and a peer know of each other ([`super::probe`]).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Areas {
    /// The peer answers probes.
    pub(super) understood: bool,
    /// Our area, as the peer names it.
    pub(super) ours: Option<RemoteSlice>,
    /// The peer's area.
    pub(super) theirs: Option<RemoteSlice>,
}

/// The record of a peer.
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) conn: ConnId,
    pub(super) addr: Addr,
    pub(super) outgoing: bool,
    /// Our open calls to the peer.
    pub(super) calls: Calls,
    pub(super) link: Link,
    pub(super) limits: PeerLimits,
    /// The credits of this side. `None` until the peer's hello has arrived.
    pub(super) credit: Option<Credit>,
    /// The credits of the peer.
    pub(super) account: CreditAccount,
    pub(super) slots: ReceiveSlots,
    /// Slots that the transport did not take: its queue was full, or it calls the slot invalid.
    pub(super) unposted: Vec<(usize, Repost)>,
    /// Slots that hold a message for the program.
    pub(super) held: usize,
    /// Whether pages of slots may be resident that could go back.
    pub(super) slot_use: SlotUse,
    /// Set if the peer understands fast-RDMA slots, and may be told of ours.
    pub(super) takes_slots: bool,
    /// Set if the peer writes announced messages where it is told to.
    pub(super) understands_write_rendezvous: bool,
    pub(super) areas: Areas,
    /// Our fast-RDMA slots, once the peer was told of them.
    pub(super) fast: Option<FastSlots>,
    /// The peer's fast-RDMA slots.
    pub(super) their_fast: Option<TheirSlots>,
    pub(super) notices: VecDeque<Notice>,
    /// How many of the notices answer a Withdraw, a Cancel or a probe, and cost this side nothing
    /// else. They are counted because a peer that takes no answers could go on asking without end.
    pub(super) answers: usize,
    /// Sends, pulls and pushes, in the order in which they were posted. Some in between may have
    /// ended early. The first and the last one have not.
    pub(super) queue: VecDeque<OpId>,
    /// How many have ended early since the queue was cleared of them.
    pub(super) left_queue: usize,
    pub(super) offers: Offers,
    /// Receives of the peer that this side may write into.
    pub(super) ready: NamedMatching<ReadyReceive>,
    /// Expected messages that were sent and that the peer may not have seen, in order.
    pub(super) unseen: Unseen,
    /// Number of expected messages sent and received on this connection.
    pub(super) sent: u64,
    pub(super) seen: u64,
    /// Number of unexpected messages sent and received on it.
    pub(super) sent_unexpected: u64,
    pub(super) seen_unexpected: u64,
    /// Our receives that have no message.
    pub(super) posted: Matching<OpId>,
    /// Messages that have no receive.
    pub(super) parked: NamedMatching<Parked>,
    /// The bytes that these messages keep.
    pub(super) parked_bytes: u64,
    /// The program was warned of parked messages that use up the peer's credits.
    pub(super) warned_of_parked: bool,
    /// Number of operations that `Closing` waits for: sends that are announced or with the adapter,
    /// pulls and pushes that are moving, and receives that are read or await a write.
    pub(super) busy: usize,
    pub(super) exposures: usize,
    /// Those of them that nothing of this side waits for.
    pub(super) standing_exposures: usize,
    /// The memory that the peer may write once, by its token.
    pub(super) grants: Grants,
    /// The transfers of the peer.
    pub(super) moving: Moving,
    /// Number of messages, units and sends that the peer or the adapter has done with (see
    /// [`super::awaited_peers`]).
    pub(super) steps: u64,
    /// Set while the peer is on the list of those with something to send ([`super::peers`]).
    pub(super) dirty: bool,
    /// The reason for which this side cut the connection, if it did.
    pub(super) cut_reason: Option<Error>,
    /// The time of the last message, in either direction.
    pub(super) used: Time,
    /// Clones of it keep the connection although it is idle.
    pub(super) kept: Arc<()>,
    /// Set if this side closes the connection because it was idle.
    pub(super) leaving: bool,
}

impl Peer {
    /// Creates the record of a connection that is being made. Its slots are not posted yet.
    pub(super) fn new(
        id: PeerId,
        conn: ConnId,
        addr: Addr,
        link: Link,
        slots: ReceiveSlots,
        config: &Config,
        now: Time,
    ) -> Peer {
        let limits = PeerLimits {
            eager: config.credits.eager_limit,
            fast: 0,
            message: config.limits.max_message,
            pieces: config.tuning.max_pieces,
        };
        Peer {
            id,
            conn,
            addr,
            outgoing: matches!(link, Link::Connecting(_)),
            calls: Calls::default(),
            link,
            limits,
            credit: None,
            account: CreditAccount::of(&Hello::of(config)),
            slots,
            unposted: Vec::new(),
            held: 0,
            slot_use: SlotUse::default(),
            takes_slots: false,
            understands_write_rendezvous: false,
            areas: Areas::default(),
            fast: None,
            their_fast: None,
            notices: VecDeque::new(),
            answers: 0,
            queue: VecDeque::new(),
            left_queue: 0,
            offers: Offers::default(),
            ready: NamedMatching::new(),
            unseen: Unseen::default(),
            sent: 0,
            seen: 0,
            sent_unexpected: 0,
            seen_unexpected: 0,
            posted: Matching::new(),
            parked: NamedMatching::new(),
            parked_bytes: 0,
            warned_of_parked: false,
            busy: 0,
            exposures: 0,
            standing_exposures: 0,
            grants: Grants::default(),
            moving: Moving::default(),
            steps: 0,
            dirty: false,
            cut_reason: None,
            used: now,
            kept: Arc::default(),
            leaving: false,
        }
    }

    /// Records what the hello of the peer allows.
    pub(super) fn agree(&mut self, hello: &Hello, config: &Config) {
        self.credit = Some(Credit::granted_by(hello));
        self.takes_slots = hello.has(FAST_SLOTS);
        self.understands_write_rendezvous = hello.has(WRITE_RENDEZVOUS);
        self.areas.understood = hello.has(PROBES);
        self.limits = PeerLimits {
            eager: match mutated("hello/own-limit-only") {
                true => config.credits.eager_limit,
                false => config.credits.eager_limit.min(hello.eager as usize),
            },
            fast: 0,
            message: config.limits.max_message.min(hello.message),
            pieces: config.tuning.max_pieces.min(hello.pieces as usize),
        };
    }

    /// Returns true if the peer may access memory of this side, and something waits for it.
    pub(super) fn has_awaited_exposures(&self) -> bool {
        self.exposures > self.standing_exposures
    }

    // ---- credits --------------------------------------------------------------------------------

    /// Returns true if there is credit for a message that costs so many bytes.
    #[inline]
    pub(super) fn can_spend(&self, cost: u32) -> bool {
        self.credit.as_ref().is_some_and(|credit| credit.can_spend(cost))
    }

    /// Spends a message credit and `cost` bytes. Returns false if they are not there.
    #[inline]
    pub(super) fn spend(&mut self, cost: u32) -> bool {
        self.credit.as_mut().is_some_and(|credit| credit.spend(cost))
    }

    /// Spends a message credit and no bytes. Returns false if there is none.
    pub(super) fn spend_message(&mut self) -> bool {
        self.credit.as_mut().is_some_and(|credit| credit.spend_message())
    }

    /// Takes back what was spent for a message that was not sent.
    pub(super) fn unspend(&mut self, cost: u32) {
        if let Some(credit) = self.credit.as_mut() {
            credit.unspend(cost);
        }
    }

    /// Adds the credits that the peer returned.
    #[inline]
    pub(super) fn take_credits(&mut self, returned: Returned) -> Result<(), Violation> {
        if returned == Returned::default() {
            return Ok(());
        }
        self.credit.as_mut().map_or(Ok(()), |credit| credit.refill(returned))
    }

    /// Records the arrival of a message that costs a message credit and no bytes.
    pub(super) fn arrived_without_bytes(&mut self) -> Result<(), Violation> {
        self.account.arrived(0)
    }

    // ---- notices --------------------------------------------------------------------------------

    /// Queues a notice. It is sent in a turn of the peer, when there is a credit.
    pub(super) fn notify(&mut self, notice: Notice) {
        self.notices.push_back(notice);
    }

    /// Queues an answer. A peer that keeps the protocol has no more open questions than its credits
    /// allow, which is `limit`.
    pub(super) fn answer(&mut self, limit: usize, notice: Notice) -> Result<(), Violation> {
        if self.answers >= limit {
            return Err("more requests for answers than it takes answers");
        }
        self.answers += 1;
        self.notify(notice);
        Ok(())
    }

    /// Removes the notice at the head of the queue.
    pub(super) fn drop_notice(&mut self) {
        self.notices.pop_front();
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Counts down the operations that `Closing` waits for.
    pub(super) fn no_longer_busy(&mut self) {
        self.busy -= 1;
        self.steps += 1;
    }

    /// Returns true if everything that was posted to the peer is sent.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.notices.is_empty() && self.busy == 0
    }

    // ---- expected messages and calls ------------------------------------------------------------

    /// Records an expected message that is sent. It removes the oldest offer of its tag.
    #[inline]
    pub(super) fn sent_expected(&mut self, tag: Tag) {
        self.sent += 1;
        let matched = !self.ready.is_empty() && self.ready.pop(tag).is_some();
        if matched {
            self.account.unparked(credit::cost(RemoteSlice::WIRE_LEN));
        }
        if self.unseen.is_full() {
            self.forget_seen();
        }
        self.unseen.push(tag, matched);
    }

    /// Removes messages that the peer has certainly seen, before the list would grow.
    #[cold]
    fn forget_seen(&mut self) {
        // The Written of a message that was just written has not spent its credit yet. There is
        // only one such message, because nothing is sent before its Written.
        self.unseen.make_room(self.credit.as_ref().map_or(0, credit::Credit::messages_out));
    }

    /// Returns true if this side makes the call with this id.
    fn is_ours(&self, id: Tag) -> bool {
        (id & ACCEPTOR == 0) == self.outgoing
    }

    /// Returns true if a message that has no receive belongs to a call that is over.
    pub(super) fn is_late(&self, tag: Tag) -> bool {
        is_call(tag) && !(self.is_ours(tag) && self.calls.is_open(tag)) && !mutated("call/late-reply-parked")
    }

    /// Returns true if the peer makes the call with this id.
    pub(super) fn is_theirs(&self, tag: Tag) -> bool {
        is_call(tag) && !self.is_ours(tag)
    }

    // ---- messages without a receive -------------------------------------------------------------

    /// Returns the bytes of a receive slot behind the header.
    ///
    /// # Safety
    /// The slot holds a message of `len` bytes behind the header, and is not posted again while the
    /// result lives.
    #[inline]
    pub(super) unsafe fn payload(&self, slot: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        let message = unsafe { self.slots.bytes(slot, HEADER_LEN + len) };
        &message[HEADER_LEN..]
    }

    /// Returns true if one more slot may hold a message for the program (invariant 3 of
    /// `proto::credit`).
    pub(super) fn may_hold(&self) -> bool {
        self.held < (self.slots.count() - usize::from(CONTROL_CREDITS)) / 2
    }

    /// Takes the oldest parked message with this tag.
    pub(super) fn unpark(&mut self, tag: Tag) -> Option<Parked> {
        let parked = self.parked.pop(tag)?;
        self.unparked(&parked);
        Some(parked)
    }

    /// Parks a message. If the parked messages leave the peer no credit for one more of full
    /// length, warns the program, once until all were taken.
    pub(super) fn park(&mut self, tag: Tag, parked: Parked) {
        self.parked_bytes += parked.bytes();
        self.parked.push(tag, parked);
        if !self.warned_of_parked && self.account.is_used_up_by(self.parked_bytes) {
            self.warned_of_parked = true;
            let (addr, messages, bytes) = (&self.addr, self.parked.len(), self.parked_bytes);
            tracing::warn!(%addr, messages, bytes, tag, "messages without a receive use up the credits of the peer: receive or discard them");
        }
    }

    /// Takes back the bytes of a message that is no longer parked.
    pub(super) fn unparked(&mut self, parked: &Parked) {
        self.parked_bytes -= parked.bytes();
        self.warned_of_parked &= !self.parked.is_empty();
    }

    // ---- the connection -------------------------------------------------------------------------

    /// Returns true if a turn of [`super::progress`] would find something to do for the peer:
    /// something to send, credits that must go back, slots to post, or a connection to close.
    #[inline]
    pub(super) fn wants_turn(&self) -> bool {
        !self.notices.is_empty()
            || !self.queue.is_empty()
            || self.account.is_pressing()
            || !self.unposted.is_empty()
            || matches!(self.link, Link::Closing(_))
    }

    /// Returns true if operations can still be posted to the peer.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.link, Link::Connecting(_) | Link::Accepting | Link::Up)
    }

    /// Returns true if a message may leave at once: nothing is queued before it.
    pub(super) fn is_idle_for_sends(&self) -> bool {
        self.queue.is_empty() && self.notices.is_empty() && self.is_up()
    }

    /// Returns true if a message of this length could go into a slot of the peer right now.
    pub(super) fn has_fast_slot(&self, len: usize) -> bool {
        let credit = self.credit.as_ref().filter(|_| self.is_up() && len <= self.limits.fast);
        credit.is_some_and(|credit| credit.has_slot() && credit.has_message())
    }

    /// Returns true if messages can be sent to the peer now.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up | Link::Closing(_)) && self.credit.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::table::Key;

    #[test]
    fn a_connection_goes_through_the_diagram_and_no_other_way() {
        let op = OpId(Key { slot: 0, generation: 0 });
        let all = || [Link::Connecting(op), Link::Accepting, Link::Up, Link::Closing(op), Link::Cut];
        let allowed = [(0, 2), (1, 2), (2, 3), (2, 4), (3, 4)];
        for (from, before) in all().iter().enumerate() {
            for (to, next) in all().iter().enumerate() {
                assert_eq!(before.may_become(next), allowed.contains(&(from, to)), "{before:?} to {next:?}");
            }
        }
    }
}
