//! The queue of changes: they wait for the next commit, and are answered when it is done.
//!
//! **Why one commit for many changes.** A commit waits for the disk, and meanwhile more changes
//! arrive. They wait in a queue, and the next commit takes all of them, up to a limit. So changes
//! are durable before they are acknowledged, and many are possible per second.
//!
//! **Invariants**
//! 1. A change is answered when its commit is done, with the state of the manager that follows.
//! 2. A change whose time limit passes before its commit has begun is not made. One whose commit
//!    has begun is answered with `Timeout`: it may be made. If its request comes again under the
//!    same number, it gets the answer of the change.
//! 3. A commit that fails answers exactly its changes with the error.
//! 4. While the disk is stalled, the changes of all event loops that wait are at most three
//!    quarters of the requests that one loop may have in progress. The others end with `Busy` at
//!    once, and are not made. So every loop has room for requests that do not need the disk. While
//!    the disk works, the queue is bounded by the number of requests in progress (`service`).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{step, steps};
use fs_proto::{ErrorCode, FsError, ManagerReply, ManagerRequest, Reply, codec};
use tokio::sync::oneshot;

use super::database::slow;
use super::group::{Effect, Group, Made, Requested, Situation};
use super::lookups::View;
use super::truncate::Preparing;
use crate::manager::tables::{CLIENTS, Candidate, dedup, names};
use crate::manager::{Fault, Manager};
use crate::service::Answer;

/// Most changes that share one commit.
pub(super) const GROUP: usize = 128;

/// A client is not forgotten for this long after its last change: longer than it sends a change
/// again, with the usual time limits. It may connect after thousands of others, for instance when
/// the manager was restarted.
const LATELY: Duration = Duration::from_secs(60);
/// How exactly that is known.
const PRECISION: Duration = Duration::from_secs(1);

/// How far a change has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    /// It waits for datafiles.
    Deferred,
    /// Its commit has begun.
    Begun,
}

/// A change that waits for the next commit.
struct Waiting {
    change: Requested,
    ticket: Ticket,
}

/// What stays on the loop while a change is made.
struct Ticket {
    stage: Rc<Cell<Stage>>,
    answer: oneshot::Sender<Vec<u8>>,
    /// Held until it is known whether the change was made.
    held: Option<Preparing>,
}

/// The changes that wait.
#[derive(Default)]
pub(in crate::manager) struct Queue {
    waiting: RefCell<VecDeque<Waiting>>,
    /// Changes that need datafiles which are not ready.
    deferred: RefCell<Vec<Waiting>>,
    /// How often the deferred changes were to be tried again.
    retries: Cell<u64>,
    /// Number of changes that are being made.
    begun: Cell<usize>,
    /// Most changes that wait while the disk is stalled.
    most: Cell<usize>,
    stalled: Cell<bool>,
    /// Number of clients whose answers are remembered, if it is known.
    clients: Cell<Option<u64>>,
    /// The last turn at some moments of this start, from the last one on that was long ago.
    turns: RefCell<VecDeque<(Time, u64)>>,
}

impl Queue {
    /// Returns the last turn that was long ago, 0 if it is not known.
    pub(in crate::manager) fn turn_before(&self, now: Time) -> u64 {
        let mut turns = self.turns.borrow_mut();
        let is_long_ago = |at: Time| at + LATELY <= now;
        while turns.get(1).is_some_and(|(at, _)| is_long_ago(*at)) {
            turns.pop_front();
        }
        turns.front().filter(|(at, _)| is_long_ago(*at)).map_or(0, |(_, turn)| *turn)
    }

    pub(in crate::manager) fn note_turn(&self, now: Time, turn: u64) {
        let mut turns = self.turns.borrow_mut();
        if turns.back().is_none_or(|(at, _)| *at + PRECISION <= now) {
            turns.push_back((now, turn));
        }
    }
}

impl Manager {
    /// Carries out a change, and answers. The reply has `room` bytes. `most` is the number of
    /// changes that may wait for a stalled disk.
    pub(in crate::manager) async fn carry_out(
        &self,
        change: Requested,
        deadline: Time,
        room: usize,
        most: usize,
    ) -> Answer {
        self.changes.most.set(most);
        let ManagerRequest::Truncate { file, size } = change.request else {
            return self.queue(change, deadline, None).await;
        };
        let id = change.id;
        // If it was decided before, no server needs to prepare it again.
        let decided = match self.read(|read| dedup::answer(read, id)).await {
            Ok(Some(answer)) => Answer::Encoded(answer),
            Ok(None) => {
                let (holds, caller) = (&self.lookups.holds, &change.caller);
                let may = self.read(|read| names::view(read)?.by(caller, id.client).may_write(file, id.client, holds));
                if let Err(error) = may.await {
                    return Answer::error(error);
                }
                let decide = |held| self.queue(change, deadline, Some(held));
                self.truncate(file, size, deadline, decide).await.unwrap_or_else(Answer::error)
            }
            Err(error) => return Answer::error(error),
        };
        match &decided {
            Answer::Encoded(bytes) if codec::decode_reply(bytes).is_ok_and(|reply| reply.result.is_ok()) => {
                let pending = self.await_truncated(file, deadline, room).await;
                Answer::from(pending.map(|pending| ManagerReply::Truncation(pending).into()))
            }
            _ => decided,
        }
    }

    /// Lets a change be made with the next commit, and returns its answer.
    async fn queue(&self, change: Requested, deadline: Time, held: Option<Preparing>) -> Answer {
        let (answer, done) = oneshot::channel();
        let stage = Rc::new(Cell::new(Stage::Queued));
        let ticket = Ticket { stage: stage.clone(), answer, held };
        self.changes.waiting.borrow_mut().push_back(Waiting { change, ticket });
        if self.changes.stalled.get() {
            self.shed();
        }
        self.database.work.notify_one();
        tokio::select! {
            biased;
            reply = done => match reply {
                Ok(reply) => Answer::Encoded(reply),
                Err(_) => Answer::error(FsError::new(ErrorCode::Unreachable, "the manager is stopping")),
            },
            // A change that has not begun is not made any more: its receiver is gone.
            () = self.endpoint.sleep_until(deadline) => Answer::error(match stage.get() {
                Stage::Queued => slow(),
                Stage::Deferred => Fault::Later.into_error(),
                Stage::Begun => {
                    FsError::new(ErrorCode::Timeout, "the manager waits for its disk; the change may still be made")
                }
            }),
        }
    }

    /// Tries the deferred changes again, except those whose requests have ended.
    pub(in crate::manager) fn retry_deferred(&self) {
        self.changes.retries.set(self.changes.retries.get() + 1);
        let mut deferred = std::mem::take(&mut *self.changes.deferred.borrow_mut());
        steps(deferred.len());
        deferred.retain(|waiting| !waiting.ticket.answer.is_closed());
        if !deferred.is_empty() {
            deferred.iter().for_each(|waiting| waiting.ticket.stage.set(Stage::Queued));
            self.changes.waiting.borrow_mut().extend(deferred);
            self.database.work.notify_one();
        }
    }

    /// Commits the changes that wait, up to a limit. Returns whether there were any.
    pub(super) async fn commit_group(&self) -> bool {
        let (mut changes, mut tickets) = (Vec::new(), Vec::new());
        {
            let mut waiting = self.changes.waiting.borrow_mut();
            let count = waiting.len().min(GROUP).min(self.changes.most.get().max(1));
            for Waiting { change, ticket } in waiting.drain(..count) {
                step();
                // Otherwise its client was told that it was not made.
                if !ticket.answer.is_closed() {
                    changes.push(change);
                    tickets.push(ticket);
                }
            }
        }
        if changes.is_empty() {
            return false;
        }
        tickets.iter().for_each(|ticket| ticket.stage.set(Stage::Begun));
        self.changes.begun.set(tickets.len());
        let retries = self.changes.retries.get();
        let (changes, result, view) = self.make(changes).await;
        self.changes.begun.set(0);
        self.lookups.publish(view, result.as_ref().map_or(&[], |made| &made.effects));
        match result {
            Ok(made) => {
                self.note(&made);
                for ((change, ticket), answer) in changes.into_iter().zip(tickets).zip(made.answers) {
                    let Ticket { stage, answer: receiver, held } = ticket;
                    match answer {
                        Some(answer) => {
                            drop(held);
                            // The receiver is gone if the time limit has passed.
                            drop(receiver.send(answer));
                        }
                        None => {
                            stage.set(Stage::Deferred);
                            let ticket = Ticket { stage, answer: receiver, held };
                            self.changes.deferred.borrow_mut().push(Waiting { change, ticket });
                        }
                    }
                }
                if self.changes.retries.get() != retries {
                    self.retry_deferred();
                }
            }
            Err(error) => {
                tracing::error!(%error, changes = tickets.len(), "a commit failed; its changes were not made");
                let reply = codec::encode_reply(&Reply { result: Err(error) });
                tickets.into_iter().for_each(|ticket| drop(ticket.answer.send(reply.clone())));
            }
        }
        self.lookups.group_ended();
        self.maintenance.notify_waiters();
        true
    }

    /// The disk has stalled.
    pub(super) fn begin_stall(&self) {
        tracing::warn!(changes = self.changes.begun.get(), "the disk of the metadata is slow");
        self.changes.stalled.set(true);
        self.shed();
    }

    /// The disk goes on.
    pub(super) fn end_stall(&self) {
        self.changes.stalled.set(false);
    }

    /// Ends the changes that came last, until few enough wait.
    fn shed(&self) {
        let mut waiting = self.changes.waiting.borrow_mut();
        let deferred = self.changes.deferred.borrow().len();
        let room = self.changes.most.get().saturating_sub(self.changes.begun.get() + deferred);
        let rest = waiting.len().min(room);
        let reply = codec::encode_reply(&Reply { result: Err(slow()) });
        steps(waiting.len() - rest);
        waiting.drain(rest..).for_each(|waiting| drop(waiting.ticket.answer.send(reply.clone())));
    }

    /// Makes changes in one transaction, and waits until it is durable. Returns the changes with
    /// what became of them, and the metadata after it.
    async fn make(&self, changes: Vec<Requested>) -> (Vec<Requested>, Result<Made, FsError>, Option<View>) {
        let mut group = Group::new(changes, self.situation());
        let made = self.beside(move |store| {
            let made = group.make(store);
            let failed = matches!(made, Err(Fault::Store(_)));
            ((group.into_changes(), made), failed)
        });
        match made.await {
            Ok(((changes, made), view)) => (changes, made.map_err(|fault| self.settle(fault)), view),
            Err(error) => (Vec::new(), Err(error), None),
        }
    }

    /// Returns what a group has to know.
    fn situation(&self) -> Situation {
        let (members, now) = (self.members.borrow(), self.endpoint.now());
        let failing = self.failing.borrow();
        steps(self.iods() as usize);
        let server = |iod| Candidate {
            up: members.is_up(iod, now),
            awaited: members.is_awaited(iod, now),
            failing: failing.contains_key(&iod),
            prepared: false,
            avoided: false,
        };
        // As long as there is room for all changes' clients, nobody asks.
        let room = self.changes.clients.get().is_some_and(|clients| clients + GROUP as u64 <= CLIENTS);
        Situation {
            now_ns: (self.wall)(),
            default_strip: self.settings.strip_size,
            servers: (0..self.iods()).map(server).collect(),
            failing: failing.clone(),
            pools: self.pools.borrow().clone(),
            holds: self.lookups.holds.clone(),
            connected: (!room).then(|| self.clients.with_connection()),
            before: self.changes.turn_before(now),
        }
    }

    /// Notes what a group has changed.
    fn note(&self, made: &Made) {
        self.pools.borrow_mut().clone_from(&made.pools);
        self.changes.clients.set(Some(made.clients));
        self.changes.note_turn(self.endpoint.now(), made.turn);
        for effect in &made.effects {
            match *effect {
                // The hold itself is noted with the metadata (`Lookups::publish`).
                Effect::Revoked => {}
                Effect::Held(_, client) => self.clients.owns_nameless(client, self.endpoint.now()),
                Effect::DraftBegun(client) => {
                    self.clients.owns_nameless(client, self.endpoint.now());
                    self.clients.session_of(client).inspect(|session| session.draft_begun());
                }
                Effect::DraftEnded(client) => {
                    self.clients.session_of(client).inspect(|session| session.draft_ended());
                }
            }
        }
    }
}
