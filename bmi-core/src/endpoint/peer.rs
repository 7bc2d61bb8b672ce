//! A peer's record: one connection and everything that is kept for it.

use std::collections::VecDeque;

use super::PeerLimits;
use super::fast_rdma::{FastSlots, TheirSlots};
use super::pacing::Moving;
use crate::addr::Addr;
use crate::error::Error;
use crate::mem::RemoteSlice;
use crate::op::{OpId, Tag};
use crate::proto::credit::{Credit, CreditAccount};
use crate::proto::header::FinishStatus;
use crate::proto::matching::Matching;
use crate::proto::one_or_many::OneOrMany;
use crate::proto::receive_slots::ReceiveSlots;
use crate::transport::ConnId;

/// Where a connection is on its way.
#[derive(Debug)]
pub(super) enum Link {
    /// We asked; the operation to complete when it stands.
    Connecting(OpId),
    /// We said yes.
    Accepting,
    /// It stands.
    Up,
    /// It stands, and ends when what was posted before is sent; the operation to complete then.
    Closing(OpId),
    /// We told the adapter to end it; nothing that still comes counts.
    Cut,
}

/// A message that nobody has received yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) cost: u32,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// An eager message, still in its slot: slot and payload length.
    Slot(usize, usize),
    /// An eager message, copied out of the way.
    Copied(Box<[u8]>),
    /// A message in a fast-RDMA slot: slot and payload length.
    Fast(u8, usize),
    /// A rendezvous: the sender's operation, the message's length and pieces.
    Announced { op: u64, len: u64, remote: OneOrMany<RemoteSlice> },
}

/// What posting a receive gives back to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repost {
    /// Nothing: the hello has granted it.
    First,
    /// A message credit.
    Message,
    /// A control credit.
    Control,
}

/// A message of ours that spends no bytes and goes before all others.
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
    /// Where a receive wants the message that was announced for it.
    ClearToWrite {
        op: OpId,
    },
    /// Where our fast-RDMA slots are.
    FastSlots,
    /// To a probe.
    Answer {
        name: u64,
        area: Option<RemoteSlice>,
    },
}

/// A receive of the peer that we may write into.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyReceive {
    pub(super) op: u64,
    pub(super) memory: RemoteSlice,
}

/// An expected message that the peer may not have seen yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unseen {
    pub(super) number: u64,
    pub(super) tag: Tag,
    /// A receive of this tag that the peer offered too late has been set off against it.
    pub(super) matched: bool,
}

/// The record.
pub(super) struct Peer {
    pub(super) conn: ConnId,
    pub(super) addr: Addr,
    pub(super) outgoing: bool,
    pub(super) link: Link,
    pub(super) limits: PeerLimits,
    /// What we may send; `None` until the peer's hello is here.
    pub(super) credit: Option<Credit>,
    /// What it may send.
    pub(super) grant: CreditAccount,
    pub(super) slots: ReceiveSlots,
    /// Slots that the adapter had no room for.
    pub(super) unposted: Vec<(usize, Repost)>,
    /// Slots that hold a message for the program.
    pub(super) held: usize,
    /// It knows fast-RDMA slots and may be told of ours.
    pub(super) takes_slots: bool,
    /// It writes what it announced where it is told to.
    pub(super) understands_write_rendezvous: bool,
    pub(super) areas: super::probe::Areas,
    /// Our fast-RDMA slots, once it was told of them.
    pub(super) fast: Option<FastSlots>,
    /// Its fast-RDMA slots.
    pub(super) their_fast: Option<TheirSlots>,
    pub(super) notices: VecDeque<Notice>,
    /// How many of them answer a Withdraw or a Cancel and cost this side nothing else: a peer that
    /// takes none could ask for ever more.
    pub(super) answers: usize,
    /// Sends, pulls and pushes in the order in which they were posted.
    pub(super) queue: VecDeque<OpId>,
    pub(super) offers: super::offered_receive::Offers,
    /// Receives of the peer that we may write into.
    pub(super) ready: Matching<ReadyReceive>,
    /// Expected messages sent that the peer may not have seen, in order.
    pub(super) unseen: Vec<Unseen>,
    /// Expected messages sent and received on this connection.
    pub(super) sent: u64,
    pub(super) seen: u64,
    /// Our receives without a message.
    pub(super) posted: Matching<OpId>,
    /// Messages without a receive.
    pub(super) parked: Matching<Parked>,
    /// Sends announced or with the adapter, pulls and pushes moving, receives that are read or
    /// wanted: what `Closing` waits for.
    pub(super) busy: usize,
    pub(super) exposures: usize,
    /// Its transfers.
    pub(super) moving: Moving,
    /// On the list of peers with something to send.
    pub(super) dirty: bool,
    /// Why we cut it, if we did.
    pub(super) cut_reason: Option<Error>,
}

impl Peer {
    /// Takes the oldest message with this tag.
    pub(super) fn unpark(&mut self, tag: Tag) -> Option<Parked> {
        self.parked.pop(tag)
    }

    /// Whether a turn of [`super::progress`] would find something to do for it: something to send,
    /// credits that press, slots to post, a connection to close.
    #[inline]
    pub(super) fn wants_turn(&self) -> bool {
        !self.notices.is_empty()
            || !self.queue.is_empty()
            || self.grant.is_pressing()
            || !self.unposted.is_empty()
            || matches!(self.link, Link::Closing(_))
    }

    /// Whether operations can still be posted to it.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.link, Link::Connecting(_) | Link::Accepting | Link::Up)
    }

    /// Whether messages can be sent to it now.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up | Link::Closing(_)) && self.credit.is_some()
    }
}
