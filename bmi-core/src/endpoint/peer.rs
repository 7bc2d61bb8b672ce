//! The record of a peer: one connection and all of its state.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PeerLimits;
use super::calls::Calls;
use super::fast_rdma::{FastSlots, TheirSlots};
use super::idle_memory::SlotUse;
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

/// A message that has no receive yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) cost: u32,
    pub(super) content: Content,
}

impl Parked {
    /// Returns the number of bytes that the message keeps: its credits, or those in its fast-RDMA
    /// slot.
    fn bytes(&self) -> u64 {
        match self.content {
            Content::Fast(_, len) => len as u64,
            _ => self.cost.into(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Content {
    /// An eager message that is still in its receive slot: slot and payload length.
    Slot(usize, usize),
    /// An eager message that was copied out of its slot.
    Copied(Box<[u8]>),
    /// A message in a fast-RDMA slot: slot and payload length.
    Fast(u8, usize),
    /// A rendezvous: the sender's operation, and the length and pieces of the message.
    Announced { op: u64, len: u64, remote: OneOrMany<RemoteSlice> },
}

impl Content {
    /// Returns the length of the message in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Content::Slot(_, len) | Content::Fast(_, len) => *len as u64,
            Content::Copied(bytes) => bytes.len() as u64,
            Content::Announced { len, .. } => *len,
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

/// A receive of the peer that this side may write into.
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
    /// Set if a receive of this tag was set off against the message, because the peer offered it
    /// too late.
    pub(super) matched: bool,
}

/// The record of a peer.
pub(super) struct Peer {
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
    pub(super) grant: CreditAccount,
    pub(super) slots: ReceiveSlots,
    /// Slots that could not be posted again because the adapter's queue was full.
    pub(super) unposted: Vec<(usize, Repost)>,
    /// Slots that hold a message for the program.
    pub(super) held: usize,
    /// Whether pages of slots may be resident that could go back.
    pub(super) slot_use: SlotUse,
    /// Set if the peer understands fast-RDMA slots, and may be told of ours.
    pub(super) takes_slots: bool,
    /// Set if the peer writes announced messages where it is told to.
    pub(super) understands_write_rendezvous: bool,
    pub(super) areas: super::probe::Areas,
    /// Our fast-RDMA slots, once the peer was told of them.
    pub(super) fast: Option<FastSlots>,
    /// The peer's fast-RDMA slots.
    pub(super) their_fast: Option<TheirSlots>,
    pub(super) notices: VecDeque<Notice>,
    /// How many of the notices answer a Withdraw, a Cancel or a probe, and cost this side nothing
    /// else. They are counted because a peer that takes no answers could go on asking without end.
    pub(super) answers: usize,
    /// Sends, pulls and pushes, in the order in which they were posted.
    pub(super) queue: VecDeque<OpId>,
    pub(super) offers: super::offered_receive::Offers,
    /// Receives of the peer that this side may write into.
    pub(super) ready: Matching<ReadyReceive>,
    /// Expected messages that were sent and that the peer may not have seen, in order.
    pub(super) unseen: Vec<Unseen>,
    /// Number of expected messages sent and received on this connection.
    pub(super) sent: u64,
    pub(super) seen: u64,
    /// Our receives that have no message.
    pub(super) posted: Matching<OpId>,
    /// Messages that have no receive.
    pub(super) parked: Matching<Parked>,
    /// The bytes that these messages keep.
    pub(super) parked_bytes: u64,
    /// The program was warned of parked messages that use up the peer's credits.
    pub(super) warned_of_parked: bool,
    /// Number of operations that `Closing` waits for: sends that are announced or with the adapter,
    /// pulls and pushes that are moving, and receives that are read or await a write.
    pub(super) busy: usize,
    pub(super) exposures: usize,
    /// The transfers of the peer.
    pub(super) moving: Moving,
    /// Number of messages, units and sends that the peer or the adapter has done with (see
    /// [`super::waiting`]).
    pub(super) steps: u64,
    /// Set while the peer is on the list of those with something to send.
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
        if !self.warned_of_parked && self.grant.is_used_up_by(self.parked_bytes) {
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

    /// Returns true if a turn of [`super::progress`] would find something to do for the peer:
    /// something to send, credits that must go back, slots to post, or a connection to close.
    #[inline]
    pub(super) fn wants_turn(&self) -> bool {
        !self.notices.is_empty()
            || !self.queue.is_empty()
            || self.grant.is_pressing()
            || !self.unposted.is_empty()
            || matches!(self.link, Link::Closing(_))
    }

    /// Returns true if operations can still be posted to the peer.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        matches!(self.link, Link::Connecting(_) | Link::Accepting | Link::Up)
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
