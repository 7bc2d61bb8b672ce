//! The record of an operation, and the states that it goes through.
//!
//! **Protocol**
//!
//! ```text
//!  send        Queued ──eager, into an offer or a slot──> Posted ──adapter done─────────> Done
//!                 ├──copied while posted───────────────────────────────────────────────> Done
//!                 └──announced──> Announced ──Finish from the peer─────────────────────> Done
//!                                     └──ClearToWrite──> Moving ──last write done──────> Done
//!  receive     Matching ──Eager─────────────────────────────────────────────────────────> Done
//!                 ├───────Announce─────> Moving ──last read done, Finish sent───────────> Done
//!                 └──without RDMA read─> AwaitingWrite ──Written────────────────────────> Done
//!  discard     Matching ──Eager, or Announce, which is answered with Finish──────────────> Done
//!  pull, push  Queued ──connected──────> Moving ──last read or write done───────────────> Done
//!  grant                                 Granted ──immediate data───────────────────────> Done
//!  lent memory, left                     Left ──immediate data, or dropped_call later───> Done
//!  connect, disconnect, timer, probe     Waiting ───────────────────────────────────────> Done
//!
//!  cancel or deadline:  Queued, timer, probe     Done at once
//!                       Matching                 Done at once; if offered, as AwaitingWrite
//!                       Granted                  Done at once, the memory is left to the peer
//!                       Left                     revoked, then Done at once
//!                       Posted                   waits for the adapter
//!                       Announced                Cancel to the peer, waits for its Finish
//!                       AwaitingWrite            Withdraw to the peer, waits for its answer
//!                       Moving                   posts nothing more, waits for the adapter
//!                       connect, disconnect      ends the connection, which ends them
//!                       after the grace period the connection is cut, which ends them all
//! ```
//!
//! [`NEXT`] and [`phases_of`] say the same as a table, which debug builds check.
//!
//! **What a send holds.** Its list is in the record until the end, whatever the state.
//!
//! | state | besides, it holds | given back on success | given back if the peer is lost |
//! |---|---|---|---|
//! | `Queued` | a place in `Peer::queue` | when it is sent | with the peer |
//! | `Posted` | a work request, perhaps a staging or fallback buffer, a count in `Peer::busy` | `events::on_operation_work` | the adapter flushes the request, then `connection::lose` |
//! | `Announced` | an exposure, perhaps a fallback buffer, a count in `Peer::busy` | `rendezvous::on_finish` | the transport ends exposures with the connection; `connection::lose` |
//! | `Moving` | registrations, units with the adapter, a count in `Peer::busy` | `transfer::end` | `connection::lose` and `pacing::settle` |
//!
//! The credits of a message that was sent belong to the peer until it returns them. Those of a lost
//! peer go with its record.
//!
//! So memory is never given back while an adapter on either side may access it. An access of the
//! peer that cannot be ended does not hold up the operation. The backend then holds the memory
//! ([`Transport::retired_memory`](crate::Transport::retired_memory)).

use std::task::Waker;

use super::lent::Lent;
use super::unit::{Plan, Transfer};
use crate::engine::buffers::FallbackBuffer;
use crate::error::ErrorKind;
use crate::mem::{MemList, OneOrMany, RemoteSlice};
use crate::op::{Completion, OpId, OpKind, Options, PeerId, Tag};
use crate::time::Time;
use crate::wire::matching::Place;

/// The state of an operation.
#[derive(Debug)]
pub(in crate::engine) enum State {
    /// A send, pull or push that waits for its turn, the connection, or credits.
    Queued,
    /// A message that is with the adapter: eager, or written into an offered receive or a slot.
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
    Granted(Box<Lent>),
    /// Memory that the peer may still access, after the operation that lent it has ended.
    Left(Box<Lent>),
    /// A connect, disconnect, timer or probe.
    Waiting,
    /// There is no operation. The place is free.
    Vacant,
    /// The operation has ended, and its completion was not collected yet.
    Done { status: Result<(), ErrorKind>, len: u64 },
}

/// The kind of a state, without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Vacant,
    Queued,
    Posted,
    Announced,
    Matching,
    Moving,
    AwaitingWrite,
    Granted,
    Left,
    Waiting,
    Done,
}

use Phase::{Announced, AwaitingWrite, Done, Granted, Left, Matching, Moving, Posted, Queued, Vacant, Waiting};

/// The phases that may follow each phase.
const NEXT: [(Phase, &[Phase]); 11] = [
    (Vacant, &[Queued, Posted, Matching, Granted, Left, Waiting]),
    (Queued, &[Posted, Announced, Moving, Done]),
    (Posted, &[Done]),
    (Announced, &[Moving, Done]),
    (Matching, &[Moving, AwaitingWrite, Done]),
    (Moving, &[Done]),
    (AwaitingWrite, &[Done]),
    (Granted, &[Done]),
    (Left, &[Done]),
    // A receive or discard that found its message parked, or a probe that could not be asked.
    (Waiting, &[Moving, AwaitingWrite, Done, Vacant]),
    (Done, &[Vacant]),
];

/// Returns the phases that an operation of a kind goes through, besides `Vacant` and `Done`.
const fn phases_of(kind: OpKind) -> &'static [Phase] {
    match kind {
        OpKind::Send => &[Queued, Posted, Announced, Moving],
        OpKind::SendUnexpected => &[Queued, Posted],
        OpKind::Recv => &[Matching, Waiting, Moving, AwaitingWrite],
        OpKind::Discard => &[Matching, Waiting],
        OpKind::Pull | OpKind::Push => &[Queued, Moving],
        OpKind::Grant => &[Granted, Left],
        OpKind::Connect | OpKind::Disconnect | OpKind::Timer | OpKind::Probe => &[Waiting],
    }
}

/// Returns true if an operation of this kind may go from one phase to the next.
pub(in crate::engine) fn may_follow(kind: OpKind, from: Phase, to: Phase) -> bool {
    let follows = NEXT.iter().any(|(phase, next)| *phase == from && next.contains(&to));
    follows && (matches!(to, Vacant | Done) || phases_of(kind).contains(&to))
}

impl State {
    pub(super) fn phase(&self) -> Phase {
        match self {
            State::Queued => Queued,
            State::Posted => Posted,
            State::Announced(_) => Announced,
            State::Matching(_) => Matching,
            State::Moving(_) => Moving,
            State::AwaitingWrite { .. } => AwaitingWrite,
            State::Granted(_) => Granted,
            State::Left(_) => Left,
            State::Waiting => Waiting,
            State::Vacant => Vacant,
            State::Done { .. } => Done,
        }
    }

    /// Replaces the state by `next`. To drop the old state, the compiler would check every variant
    /// for what it holds. The usual states hold nothing.
    #[inline(always)]
    fn put(&mut self, next: State) {
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
pub(in crate::engine) enum Offer {
    /// There is no offer.
    None,
    /// The offer is sent as soon as there is a credit.
    Intended,
    /// The offer was sent.
    Made(RemoteSlice),
    /// The sender has written a message into the receive.
    Used(RemoteSlice),
}

/// The record of an operation. It is written and vacated once for each message, so the state that
/// few operations have is stored elsewhere.
#[derive(Debug)]
pub(in crate::engine) struct Op {
    pub(in crate::engine) kind: OpKind,
    pub(in crate::engine) peer: Option<PeerId>,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) list: Option<MemList>,
    /// For a pull or push whose peer is not connected yet: what it will move.
    pub(in crate::engine) plan: Option<Box<Plan>>,
    pub(in crate::engine) options: Options,
    state: State,
    /// For a send: the staging buffer that part of it was copied to.
    pub(in crate::engine) staged: Option<u32>,
    /// The buffer that replaces memory that could not be registered (see
    /// [`crate::engine::buffers::fallback`]).
    pub(in crate::engine) fallback: Option<Box<FallbackBuffer>>,
    /// For a receive: the memory that the sender may write, if any (see
    /// [`crate::engine::message::offered_receive`]).
    pub(in crate::engine) offer: Offer,
    /// The status that the operation will end with, set once it was asked to end early.
    pub(in crate::engine) ending: Option<ErrorKind>,
    /// The next time at which [`crate::engine::ending::deadlines`] looks at the operation.
    pub(in crate::engine) timer: Option<Time>,
    /// The completion is no longer wanted.
    pub(in crate::engine) abandoned: bool,
    pub(in crate::engine) waker: Option<Waker>,
}

/// The record of an operation, and its id.
pub(in crate::engine) struct Record<'a> {
    pub(in crate::engine) id: OpId,
    pub(in crate::engine) op: &'a mut Op,
}

/// Returns true if a transfer of this kind writes to the peer's memory, and false if it reads.
pub(in crate::engine) fn writes(kind: OpKind) -> bool {
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
            plan: None,
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

    /// Returns the state of the operation.
    #[inline]
    pub(in crate::engine) fn state(&self) -> &State {
        &self.state
    }

    /// Goes to the next state. A debug build checks the change against the table. Only
    /// [`Op::end`] changes a state too.
    #[inline(always)]
    pub(in crate::engine) fn enter(&mut self, next: State) {
        debug_assert!(
            may_follow(self.kind, self.state.phase(), next.phase()),
            "a {} goes from {:?} to {:?}",
            self.kind.as_str(),
            self.state.phase(),
            next.phase()
        );
        self.state.put(next);
    }

    /// Goes to `Done`. Returns the transfer of the operation, if it had one.
    #[inline(always)]
    pub(in crate::engine) fn end(&mut self, status: Result<(), ErrorKind>, len: u64) -> Option<Box<Transfer>> {
        debug_assert!(
            may_follow(self.kind, self.state.phase(), Done),
            "a {} ends from {:?}",
            self.kind.as_str(),
            self.state.phase()
        );
        match std::mem::replace(&mut self.state, State::Done { status, len }) {
            State::Moving(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Returns the transfer of the operation, if it is moving.
    pub(in crate::engine) fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        match &mut self.state {
            State::Moving(transfer) => Some(transfer),
            _ => None,
        }
    }

    /// Takes what a grant has lent to its peer. The grant must then end.
    pub(in crate::engine) fn take_lent(&mut self) -> Option<Lent> {
        match &mut self.state {
            State::Granted(lent) => Some(std::mem::take(lent)),
            _ => None,
        }
    }

    /// Returns the list and the transfer of an operation that is moving.
    pub(in crate::engine) fn moving(&mut self) -> Option<(&MemList, &mut Transfer)> {
        match (&self.list, &mut self.state) {
            (Some(list), State::Moving(transfer)) => Some((list, transfer)),
            _ => None,
        }
    }

    /// Drops everything that the record holds, in place. Afterwards it has no operation.
    #[inline]
    pub(super) fn vacate(&mut self) {
        if self.list.is_some() {
            self.list = None;
        }
        self.enter(State::Vacant);
        (self.offer, self.staged) = (Offer::None, None);
        (self.ending, self.timer, self.abandoned) = (None, None, false);
        if self.waker.is_some() || self.plan.is_some() || self.fallback.is_some() {
            (self.waker, self.plan, self.fallback) = (None, None, None);
        }
    }

    #[inline]
    pub(in crate::engine) fn is_done(&self) -> bool {
        matches!(self.state, State::Done { .. })
    }

    /// Returns the completion of the operation, whose name is `id`, if it has ended.
    #[inline]
    pub(in crate::engine) fn completion(&self, id: OpId) -> Option<Completion> {
        let State::Done { status, len } = self.state else { return None };
        let (kind, peer, tag, user) = (self.kind, self.peer, self.tag, self.options.user);
        Some(Completion { op: id, kind, peer, tag, len, status, user })
    }

    pub(in crate::engine) fn len(&self) -> usize {
        self.list.as_ref().map_or(0, MemList::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Op {
        /// Names each field, so that a new field does not compile until it is handled in
        /// [`Op::vacate`].
        pub(in crate::engine) fn assert_is_new_timer(&self) {
            let Op {
                kind,
                peer,
                tag,
                list,
                plan,
                options,
                state,
                staged,
                fallback,
                offer,
                ending,
                timer,
                abandoned,
                waker,
            } = self;
            assert!(matches!(state, State::Waiting), "{self:?}");
            assert_eq!((*kind, *peer, *tag, *options), (OpKind::Timer, None, 0, Options::default()));
            assert_eq!((*staged, *offer), (None, Offer::None));
            assert_eq!((*ending, *timer, *abandoned), (None, None, false));
            assert!(list.is_none() && plan.is_none() && fallback.is_none() && waker.is_none(), "{self:?}");
        }
    }

    const KINDS: [OpKind; 11] = [
        OpKind::Send,
        OpKind::SendUnexpected,
        OpKind::Recv,
        OpKind::Discard,
        OpKind::Pull,
        OpKind::Push,
        OpKind::Grant,
        OpKind::Connect,
        OpKind::Disconnect,
        OpKind::Timer,
        OpKind::Probe,
    ];

    #[test]
    fn every_phase_of_every_kind_is_reached_and_leads_to_the_end() {
        for kind in KINDS {
            let mut reached = vec![Vacant];
            while let Some(next) = NEXT
                .iter()
                .map(|(phase, _)| *phase)
                .find(|to| !reached.contains(to) && reached.iter().any(|from| may_follow(kind, *from, *to)))
            {
                reached.push(next);
            }
            for phase in phases_of(kind) {
                assert!(reached.contains(phase) && may_follow(kind, *phase, Done), "{kind:?} {phase:?}");
            }
            assert_eq!(reached.len(), phases_of(kind).len() + 2, "{kind:?}");
        }
    }

    #[test]
    fn nothing_follows_the_end_but_a_vacant_place() {
        for kind in KINDS {
            let after: Vec<Phase> =
                NEXT.iter().map(|(phase, _)| *phase).filter(|to| may_follow(kind, Done, *to)).collect();
            assert_eq!(after, [Vacant]);
            assert!(!may_follow(kind, Moving, Queued) && !may_follow(kind, Posted, Announced));
        }
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "goes from Vacant to Announced")]
    fn a_debug_build_refuses_a_change_that_the_table_does_not_have() {
        Op::vacant().enter(State::Announced(OneOrMany::None));
    }
}
