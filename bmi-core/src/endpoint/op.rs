//! An operation's record.
//!
//! **Protocol**
//!
//! ```text
//!  send        Queued ──credit, eager──> Posted ──adapter done──────────────────────────> Done
//!                 └────credit, long────> Announced ──Finish from the peer───────────────> Done
//!                                          └──Want──> Moving ──last write done───────────> Done
//!  receive     Matching ──Eager─────────────────────────────────────────────────────────> Done
//!                 ├───────Announce─────> Moving ──last read done, Finish sent───────────> Done
//!                 └──without RDMA read─> Wanted ──Written────────────────────────────────> Done
//!  pull, push  Queued ──connected──────> Moving ──last read or write done───────────────> Done
//!  grant                                 Granted ──immediate data─────────────────────> Done
//!  connect, disconnect, timer            Waiting ───────────────────────────────────────> Done
//!
//!  cancel or deadline:  Queued, Matching, timer  -> Done at once
//!                       Granted                  revoked, then Done at once
//!                       Posted                   waits for the adapter
//!                       Announced                Cancel to the peer, waits for its Finish
//!                       Wanted                   Withdraw to the peer, waits for its answer
//!                       Moving                   posts nothing more, waits for the adapter
//!                       …and after the grace the connection is cut, which ends them all
//! ```
//!
//! So memory is never given back while an adapter, here or there, may touch it.

use std::task::Waker;

use super::fallback_buffer::FallbackBuffer;
use super::unit::Transfer;
use crate::error::ErrorKind;
use crate::mem::{MemList, RemoteSlice};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Tag};
use crate::proto::matching::Place;
use crate::proto::one_or_many::OneOrMany;
use crate::time::Time;

/// Where an operation is on its way.
#[derive(Debug)]
pub(super) enum State {
    /// Send, pull, push: for its turn, the connection, or credits.
    Queued,
    /// Eager send: with the adapter.
    Posted,
    /// Rendezvous send: the peer was told and may read.
    Announced(OneOrMany<RemoteSlice>),
    /// Receive: no message yet.
    Matching(Place),
    /// Receive by rendezvous, pull, push; a send that the peer wants to be written.
    Moving(Box<Transfer>),
    /// Receive by rendezvous, without RDMA read: the sender's name for its operation, and where it
    /// was told to write.
    AwaitingWrite { named: u64, remote: OneOrMany<RemoteSlice> },
    /// Grant: the peer may write.
    Granted(OneOrMany<RemoteSlice>),
    /// Connect, disconnect, timer.
    Waiting,
    /// There is no operation: its place is free.
    Vacant,
    /// Ended; kept until the completion is collected.
    Done { status: Result<(), ErrorKind>, len: u64 },
}

impl State {
    /// Puts `next` in its place. The compiler asks of every state that is replaced what it holds;
    /// the usual ones hold nothing.
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

/// Whether the sender may write a message straight into a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    /// No.
    None,
    /// It will be told so, when a credit is there.
    Intended,
    /// It was told.
    Made(RemoteSlice),
    /// It has.
    Used(RemoteSlice),
}

/// A place in a list: a piece, and how far into it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cursor {
    pub(super) piece: usize,
    pub(super) offset: u64,
}

/// The record. It is written and vacated once for each message, so what few operations have stands
/// elsewhere.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    pub(super) peer: Option<PeerId>,
    pub(super) tag: Tag,
    pub(super) list: Option<MemList>,
    /// For a pull or push whose peer is not connected yet: what it will move to or from.
    pub(super) remote: Option<Box<(OneOrMany<RemoteSlice>, Cursor)>>,
    /// For a push: what its last write hands the peer.
    pub(super) immediate: Option<u32>,
    pub(super) options: Options,
    pub(super) state: State,
    /// For a send: the staging buffer that part of it was copied to.
    pub(super) staged: Option<u32>,
    /// What it has in place of memory that could not be registered (see
    /// [`super::fallback_buffer`]).
    pub(super) fallback: Option<Box<FallbackBuffer>>,
    /// For a receive: its memory, if the sender may write into it (see [`super::offered_receive`]).
    pub(super) offer: Offer,
    /// Set once it has been asked to end early: how it will end.
    pub(super) ending: Option<ErrorKind>,
    /// The time at which [`super::timing`] looks at it next.
    pub(super) timer: Option<Time>,
    /// Nobody waits for the completion any more.
    pub(super) abandoned: bool,
    pub(super) waker: Option<Waker>,
}

/// Whether a transfer of this kind writes to the peer's memory; else it reads.
pub(super) fn writes(kind: OpKind) -> bool {
    matches!(kind, OpKind::Push | OpKind::Send)
}

impl Op {
    /// A record of nothing.
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

    /// Lets go of all that the record holds, where it stands: it is of nothing then.
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

    /// What became of the operation, whose name is `id`, if it has ended.
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
