//! The record of a peer: one connection and all of its state. [`Link`] draws how it begins and
//! ends; the other files are the books that the record holds, one matter each.
mod call_ids;
mod fast_slots;
mod link;
mod offers;
mod parked;

pub use call_ids::MAX_TAG;
pub(in crate::engine) use call_ids::{ACCEPTOR, CALL, is_call, reserved_tag};
pub(in crate::engine) use fast_slots::{FastSlots, TheirSlots};
pub(in crate::engine) use link::{Link, Notice, Repost, SlotUse};
pub(in crate::engine) use offers::ReadyReceive;
pub(in crate::engine) use parked::{Content, Parked};

use std::collections::VecDeque;
use std::sync::Arc;

use super::lent::Grants;
use super::report::PeerLimits;
use super::turns::Moving;
use crate::addr::Addr;
use crate::config::Config;
use crate::engine::buffers::ReceiveSlots;
use crate::error::Error;
use crate::identity::PeerIdentity;
use crate::mem::RemoteSlice;
use crate::mutated;
use crate::op::{OpId, PeerId, Tag};
use crate::time::Time;
use crate::transport::ConnId;
use crate::wire::credit::{Credit, CreditAccount};
use crate::wire::header::{HEADER_LEN, Returned};
use crate::wire::hello::{CONTROL_CREDITS, FAST_SLOTS, Hello, PROBES, WRITE_RENDEZVOUS};
use crate::wire::matching::Matching;
use crate::wire::named::NamedMatching;
use crate::wire::{Violation, credit};
use call_ids::Calls;
use offers::{Offers, Unseen};

/// The probe areas that an endpoint and a peer know of each other
/// ([`crate::engine::message::probe`]).
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Areas {
    /// The peer answers probes.
    pub(in crate::engine) understood: bool,
    /// Our area, as the peer names it.
    pub(in crate::engine) ours: Option<RemoteSlice>,
    /// The peer's area.
    pub(in crate::engine) theirs: Option<RemoteSlice>,
}

/// The record of a peer.
pub(in crate::engine) struct Peer {
    pub(in crate::engine) id: PeerId,
    pub(in crate::engine) conn: ConnId,
    pub(in crate::engine) addr: Addr,
    pub(in crate::engine) outgoing: bool,
    /// Who it is. Nobody while this side is connecting.
    pub(in crate::engine) identity: PeerIdentity,
    /// Our open calls to the peer.
    pub(in crate::engine) calls: Calls,
    pub(in crate::engine) link: Link,
    pub(in crate::engine) limits: PeerLimits,
    /// The credits of this side. `None` until the peer's hello has arrived.
    pub(in crate::engine) credit: Option<Credit>,
    /// The credits of the peer.
    pub(in crate::engine) account: CreditAccount,
    pub(in crate::engine) slots: ReceiveSlots,
    /// Slots that the transport did not take: its queue was full, or it calls the slot invalid.
    pub(in crate::engine) unposted: Vec<(usize, Repost)>,
    /// Slots that hold a message for the program.
    pub(in crate::engine) held: usize,
    /// Whether pages of slots may be resident that could go back.
    pub(in crate::engine) slot_use: SlotUse,
    /// Set if the peer understands fast-RDMA slots, and may be told of ours.
    pub(in crate::engine) takes_slots: bool,
    /// Set if the peer writes announced messages where it is told to.
    pub(in crate::engine) understands_write_rendezvous: bool,
    pub(in crate::engine) areas: Areas,
    /// Our fast-RDMA slots, once the peer was told of them.
    pub(in crate::engine) fast: Option<FastSlots>,
    /// The peer's fast-RDMA slots.
    pub(in crate::engine) their_fast: Option<TheirSlots>,
    pub(in crate::engine) notices: VecDeque<Notice>,
    /// How many of the notices answer a Withdraw, a Cancel or a probe, and cost this side nothing
    /// else. They are counted because a peer that takes no answers could go on asking without end.
    pub(in crate::engine) answers: usize,
    /// Sends, pulls and pushes, in the order in which they were posted. Some in between may have
    /// ended early. The first and the last one have not.
    pub(in crate::engine) queue: VecDeque<OpId>,
    /// How many have ended early since the queue was cleared of them.
    pub(in crate::engine) left_queue: usize,
    pub(in crate::engine) offers: Offers,
    /// Receives of the peer that this side may write into.
    pub(in crate::engine) ready: NamedMatching<ReadyReceive>,
    /// Expected messages that were sent and that the peer may not have seen, in order.
    pub(in crate::engine) unseen: Unseen,
    /// Number of expected messages sent and received on this connection.
    pub(in crate::engine) sent: u64,
    pub(in crate::engine) seen: u64,
    /// Number of unexpected messages sent and received on it.
    pub(in crate::engine) sent_unexpected: u64,
    pub(in crate::engine) seen_unexpected: u64,
    /// Our receives that have no message.
    pub(in crate::engine) posted: Matching<OpId>,
    /// Messages that have no receive.
    pub(in crate::engine) parked: NamedMatching<Parked>,
    /// The bytes that these messages keep.
    pub(in crate::engine) parked_bytes: u64,
    /// The program was warned of parked messages that use up the peer's credits.
    pub(super) warned_of_parked: bool,
    /// Number of operations that `Closing` waits for: sends that are announced or with the adapter,
    /// pulls and pushes that are moving, and receives that are read or await a write.
    pub(in crate::engine) busy: usize,
    pub(in crate::engine) exposures: usize,
    /// Those of them that nothing of this side waits for.
    pub(in crate::engine) standing_exposures: usize,
    /// The memory that the peer may write once, by its token.
    pub(in crate::engine) grants: Grants,
    /// The transfers of the peer.
    pub(in crate::engine) moving: Moving,
    /// Number of messages, units and sends that the peer or the adapter has done with (see
    /// [`crate::engine::life::awaited_peers`]).
    pub(in crate::engine) steps: u64,
    /// Set while the peer is on the list of those with something to send
    /// ([`crate::engine::books::peers`]).
    pub(in crate::engine) dirty: bool,
    /// The reason for which this side cut the connection, if it did.
    pub(in crate::engine) cut_reason: Option<Error>,
    /// The time of the last message, in either direction.
    pub(in crate::engine) used: Time,
    /// Clones of it keep the connection although it is idle.
    pub(in crate::engine) kept: Arc<()>,
    /// Set if this side closes the connection because it was idle.
    pub(in crate::engine) leaving: bool,
}

impl Peer {
    /// Creates the record of a connection that is being made. Its slots are not posted yet.
    pub(in crate::engine) fn new(
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
            identity: PeerIdentity::Nobody,
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
    pub(in crate::engine) fn agree(&mut self, hello: &Hello, config: &Config) {
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
    pub(in crate::engine) fn has_awaited_exposures(&self) -> bool {
        self.exposures > self.standing_exposures
    }

    // ---- credits --------------------------------------------------------------------------------

    /// Returns true if there is credit for a message that costs so many bytes.
    #[inline]
    pub(in crate::engine) fn can_spend(&self, cost: u32) -> bool {
        self.credit.as_ref().is_some_and(|credit| credit.can_spend(cost))
    }

    /// Spends a message credit and `cost` bytes. Returns false if they are not there.
    #[inline]
    pub(in crate::engine) fn spend(&mut self, cost: u32) -> bool {
        self.credit.as_mut().is_some_and(|credit| credit.spend(cost))
    }

    /// Spends a message credit and no bytes. Returns false if there is none.
    pub(in crate::engine) fn spend_message(&mut self) -> bool {
        self.credit.as_mut().is_some_and(|credit| credit.spend_message())
    }

    /// Takes back what was spent for a message that was not sent.
    pub(in crate::engine) fn unspend(&mut self, cost: u32) {
        if let Some(credit) = self.credit.as_mut() {
            credit.unspend(cost);
        }
    }

    /// Adds the credits that the peer returned.
    #[inline]
    pub(in crate::engine) fn refill_credits(&mut self, returned: Returned) -> Result<(), Violation> {
        if returned == Returned::default() {
            return Ok(());
        }
        self.credit.as_mut().map_or(Ok(()), |credit| credit.refill(returned))
    }

    /// Records the arrival of a message that costs a message credit and no bytes.
    pub(in crate::engine) fn arrived_without_bytes(&mut self) -> Result<(), Violation> {
        self.account.arrived(0)
    }

    // ---- notices --------------------------------------------------------------------------------

    /// Queues a notice. It is sent in a turn of the peer, when there is a credit.
    pub(in crate::engine) fn notify(&mut self, notice: Notice) {
        self.notices.push_back(notice);
    }

    /// Queues an answer. A peer that keeps the protocol has no more open questions than its credits
    /// allow, which is `limit`.
    pub(in crate::engine) fn answer(&mut self, limit: usize, notice: Notice) -> Result<(), Violation> {
        if self.answers >= limit {
            return Err("more requests for answers than it takes answers");
        }
        self.answers += 1;
        self.notify(notice);
        Ok(())
    }

    /// Removes the notice at the head of the queue.
    pub(in crate::engine) fn drop_notice(&mut self) {
        self.notices.pop_front();
    }

    // ---- operations -----------------------------------------------------------------------------

    /// Counts down the operations that `Closing` waits for.
    pub(in crate::engine) fn no_longer_busy(&mut self) {
        self.busy -= 1;
        self.steps += 1;
    }

    /// Returns true if everything that was posted to the peer is sent.
    pub(in crate::engine) fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.notices.is_empty() && self.busy == 0
    }

    // ---- expected messages and calls ------------------------------------------------------------

    /// Records an expected message that is sent. It removes the oldest offer of its tag.
    #[inline]
    pub(in crate::engine) fn sent_expected(&mut self, tag: Tag) {
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
    pub(in crate::engine) fn is_late(&self, tag: Tag) -> bool {
        is_call(tag) && !(self.is_ours(tag) && self.calls.is_open(tag)) && !mutated("call/late-reply-parked")
    }

    /// Returns true if the peer makes the call with this id.
    pub(in crate::engine) fn is_theirs(&self, tag: Tag) -> bool {
        is_call(tag) && !self.is_ours(tag)
    }

    // ---- messages without a receive -------------------------------------------------------------

    /// Returns the bytes of a receive slot behind the header.
    ///
    /// # Safety
    /// The slot holds a message of `len` bytes behind the header, and is not posted again while the
    /// result lives.
    #[inline]
    pub(in crate::engine) unsafe fn payload(&self, slot: usize, len: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        let message = unsafe { self.slots.bytes(slot, HEADER_LEN + len) };
        &message[HEADER_LEN..]
    }

    /// Returns true if one more slot may hold a message for the program (invariant 3 of
    /// `wire::credit`).
    pub(in crate::engine) fn may_hold(&self) -> bool {
        self.held < (self.slots.count() - usize::from(CONTROL_CREDITS)) / 2
    }

    /// Takes the oldest parked message with this tag.
    pub(in crate::engine) fn unpark(&mut self, tag: Tag) -> Option<Parked> {
        let parked = self.parked.pop(tag)?;
        self.unparked(&parked);
        Some(parked)
    }

    /// Parks a message. If the parked messages leave the peer no credit for one more of full
    /// length, warns the program, once until all were taken.
    pub(in crate::engine) fn park(&mut self, tag: Tag, parked: Parked) {
        self.parked_bytes += parked.bytes();
        self.parked.push(tag, parked);
        if !self.warned_of_parked && self.account.is_used_up_by(self.parked_bytes) {
            self.warned_of_parked = true;
            let (addr, messages, bytes) = (&self.addr, self.parked.len(), self.parked_bytes);
            tracing::warn!(%addr, messages, bytes, tag, "messages without a receive use up the credits of the peer: receive or discard them");
        }
    }

    /// Takes back the bytes of a message that is no longer parked.
    pub(in crate::engine) fn unparked(&mut self, parked: &Parked) {
        self.parked_bytes -= parked.bytes();
        self.warned_of_parked &= !self.parked.is_empty();
    }

    // ---- the connection -------------------------------------------------------------------------

    /// Returns true if a turn of [`crate::engine::poll`] would find something to do for the peer:
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
    pub(in crate::engine) fn is_idle_for_sends(&self) -> bool {
        self.queue.is_empty() && self.notices.is_empty() && self.is_up()
    }

    /// Returns true if a message of this length could go into a slot of the peer right now.
    pub(in crate::engine) fn has_fast_slot(&self, len: usize) -> bool {
        let credit = self.credit.as_ref().filter(|_| self.is_up() && len <= self.limits.fast);
        credit.is_some_and(|credit| credit.has_slot() && credit.has_message())
    }

    /// Returns true if messages can be sent to the peer now.
    #[inline]
    pub(in crate::engine) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up | Link::Closing(_)) && self.credit.is_some()
    }
}
