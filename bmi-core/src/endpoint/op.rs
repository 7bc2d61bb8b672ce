//! The record of an operation, and the states that it goes through.
//!
//! **Protocol**
//!
//! ```text
//!  send        Queued ──credit, eager──> Posted ──adapter done──────────────────────────> Done
//!                 └────credit, long────> Announced ──Finish from the peer───────────────> Done
//!                                          └──ClearToWrite──> Moving ──last write done──> Done
//!  receive     Matching ──Eager─────────────────────────────────────────────────────────> Done
//!                 ├───────Announce─────> Moving ──last read done, Finish sent───────────> Done
//!                 └──without RDMA read─> AwaitingWrite ──Written────────────────────────> Done
//!  discard     Matching ──Eager, or Announce, which is answered with Finish──────────────> Done
//!  pull, push  Queued ──connected──────> Moving ──last read or write done───────────────> Done
//!  grant                                 Granted ──immediate data───────────────────────> Done
//!  connect, disconnect, timer, probe     Waiting ───────────────────────────────────────> Done
//!
//!  cancel or deadline:  Queued, timer, probe     Done at once
//!                       Matching                 Done at once; if offered, as AwaitingWrite
//!                       Granted                  revoked, then Done at once
//!                       Posted                   waits for the adapter
//!                       Announced                Cancel to the peer, waits for its Finish
//!                       AwaitingWrite            Withdraw to the peer, waits for its answer
//!                       Moving                   posts nothing more, waits for the adapter
//!                       connect, disconnect      ends the connection, which ends them
//!                       after the grace period the connection is cut, which ends them all
//! ```
//!
//! So memory is never given back while an adapter on either side may access it. An access of the
//! peer that cannot be ended does not hold up the operation. The backend then holds the memory
//! ([`Transport::retired_memory`](crate::Transport::retired_memory)).

use std::task::Waker;

use super::fallback_buffer::FallbackBuffer;
use super::unit::Transfer;
use crate::error::ErrorKind;
use crate::mem::{MemList, RemoteSlice};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Tag};
use crate::proto::matching::Place;
use crate::proto::one_or_many::OneOrMany;
use crate::time::Time;

/// The state of an operation.
#[derive(Debug)]
pub(super) enum State {
    /// A send, pull or push that waits for its turn, the connection, or credits.
    Queued,
    /// An eager send that is with the adapter.
    Posted,
    /// A rendezvous send. The peer was told, and may read.
    Announced(OneOrMany<RemoteSlice>),
    /// A receive without a message.
    Matching(Place),
    /// A receive by rendezvous, a pull, a push, or a send that the peer has cleared to write.
    Moving(Box<Transfer>),
    /// A receive by rendezvous without RDMA read: the sender's name for its operation, and the
    /// memory that the sender was told to write.
    AwaitingWrite { named: u64, remote: OneOrMany<RemoteSlice> },
    /// A grant. The peer may write.
    Granted(OneOrMany<RemoteSlice>),
    /// A connect, disconnect, timer or probe.
    Waiting,
    /// There is no operation. The place is free.
    Vacant,
    /// The operation has ended, and its completion was not collected yet.
    Done { status: Result<(), ErrorKind>, len: u64 },
}

impl State {
    /// Replaces the state by `next`. To drop the old state, the compiler would check every variant
    /// for what it holds. The usual states hold nothing.
    #[inline(always)]
    pub(super) fn put(&mut self, next: State) {
        let before = std::mem::replace(self, next);
        match before {
            State::Queued | State::Posted | State::Matching(_) | State::Done { .. } | State::Vacant => {
                std::mem::forget(before);
            }
            _ => drop(before),
        }
    }
}

/// The state of the offer of a receive to the sender, which may then write a message straight into
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// There is no offer.
    None,
    /// The offer is sent as soon as there is a credit.
    Intended,
    /// The offer was sent.
    Made(RemoteSlice),
    /// The sender has written a message into the receive.
    Used(RemoteSlice),
}

/// A position in a list: a piece, and an offset in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub(super) piece: usize,
    pub(super) offset: u64,
}

/// The record of an operation. It is written and vacated once for each message, so the state that
/// few operations have is stored elsewhere.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    pub(super) peer: Option<PeerId>,
    pub(super) tag: Tag,
    pub(super) list: Option<MemList>,
    /// For a pull or push whose peer is not connected yet: the remote memory.
    pub(super) remote: Option<Box<(OneOrMany<RemoteSlice>, Cursor)>>,
    /// For a push: the immediate data of its last write.
    pub(super) immediate: Option<u32>,
    pub(super) options: Options,
    pub(super) state: State,
    /// For a send: the staging buffer that part of it was copied to.
    pub(super) staged: Option<u32>,
    /// The buffer that replaces memory that could not be registered (see
    /// [`super::fallback_buffer`]).
    pub(super) fallback: Option<Box<FallbackBuffer>>,
    /// For a receive: the memory that the sender may write, if any (see
    /// [`super::offered_receive`]).
    pub(super) offer: Offer,
    /// The status that the operation will end with, set once it was asked to end early.
    pub(super) ending: Option<ErrorKind>,
    /// The next time at which [`super::timing`] looks at the operation.
    pub(super) timer: Option<Time>,
    /// The completion is no longer wanted.
    pub(super) abandoned: bool,
    pub(super) waker: Option<Waker>,
}

/// Returns true if a transfer of this kind writes to the peer's memory, and false if it reads.
pub(super) fn writes(kind: OpKind) -> bool {
    matches!(kind, OpKind::Push | OpKind::Send)
}

impl Op {
    /// Returns a record without an operation.
    pub(super) fn vacant() -> Op {
        Op {
            kind: OpKind::Timer,
            peer: None,
            tag: 0,
            list: None,
            remote: None,
            immediate: None,
            staged: None,
            fallback: None,
            offer: Offer::None,
            options: Options::default(),
            state: State::Vacant,
            ending: None,
            timer: None,
            abandoned: false,
            waker: None,
        }
    }

    /// Drops everything that the record holds, in place. Afterwards it has no operation.
    #[inline]
    pub(super) fn vacate(&mut self) {
        if self.list.is_some() {
            self.list = None;
        }
        self.state.put(State::Vacant);
        (self.offer, self.immediate, self.staged) = (Offer::None, None, None);
        (self.ending, self.timer, self.abandoned) = (None, None, false);
        if self.waker.is_some() || self.remote.is_some() || self.fallback.is_some() {
            (self.waker, self.remote, self.fallback) = (None, None, None);
        }
    }

    #[inline]
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done { .. })
    }

    /// Returns the completion of the operation, whose name is `id`, if it has ended.
    #[inline]
    pub(super) fn completion(&self, id: OpId) -> Option<Completion> {
        let State::Done { status, len } = self.state else { return None };
        let (kind, peer, tag, user) = (self.kind, self.peer, self.tag, self.options.user);
        Some(Completion { op: id, kind, peer, tag, len, status, user })
    }

    pub(super) fn len(&self) -> usize {
        self.list.as_ref().map_or(0, MemList::len)
    }
}
