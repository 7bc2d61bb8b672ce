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
//! 4. While the disk is stalled, at most three quarters of the requests that may be in progress are
//!    changes that wait. The others end with `Busy` at once, and are not made. So there is always
//!    room for requests that do not need the disk. While the disk works, the queue is bounded by
//!    the number of requests in progress (`service`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use bmi_core::{Time, Transport};
use fs_proto::{Entry, ErrorCode, FsError, Handle, ManagerRequest, Reply, RequestId, codec};
use tokio::sync::{Notify, oneshot};

use super::database::slow;
use super::dedup::CLIENTS;
use super::group::{Effect, Group, Made, Requested, Situation};
use super::placement::Candidate;
use super::truncate::Preparing;
use super::{Fault, Manager, dedup, is_open};
use crate::service::{Answer, Session};

/// Most changes that share one commit.
pub(super) const GROUP: usize = 128;

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
pub(super) struct Queue {
    waiting: RefCell<VecDeque<Waiting>>,
    /// Changes that need datafiles which are not ready.
    deferred: RefCell<Vec<Waiting>>,
    /// How often the deferred changes were to be tried again.
    retries: Cell<u64>,
    /// The files whose sizes the current commit records.
    recording: RefCell<BTreeSet<u64>>,
    committed: Notify,
    /// Number of changes that are being made.
    begun: Cell<usize>,
    /// Most changes that wait while the disk is stalled.
    most: Cell<usize>,
    stalled: Cell<bool>,
    /// Number of clients whose answers are remembered, if it is known.
    clients: Cell<Option<u64>>,
}

impl<T: Transport> Manager<T> {
    /// Carries out a change, and answers.
    /// `most` is the number of changes that may wait for a stalled disk.
    pub(super) async fn carry_out(
        &self,
        id: RequestId,
        unanswered: u64,
        request: ManagerRequest,
        deadline: Time,
        most: usize,
    ) -> Answer {
        self.changes.most.set(most);
        let change = |request| Requested { id, unanswered, request };
        let ManagerRequest::Truncate { file, size } = request else {
            return self.queue(change(request), deadline, None).await;
        };
        // If it was decided before, no server needs to prepare it again.
        match self.read(|read| dedup::answer(read, id)).await {
            Ok(Some(answer)) => return Answer::Encoded(answer),
            Ok(None) => {}
            Err(error) => return Answer::error(error),
        }
        let decide = |held| self.queue(change(request), deadline, Some(held));
        self.truncate(file, size, deadline, decide).await.unwrap_or_else(Answer::error)
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
    pub(super) fn retry_deferred(&self) {
        self.changes.retries.set(self.changes.retries.get() + 1);
        let mut deferred = std::mem::take(&mut *self.changes.deferred.borrow_mut());
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
        let (changes, result) = self.make(changes).await;
        self.changes.begun.set(0);
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
        self.changes.committed.notify_waiters();
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
        waiting.drain(rest..).for_each(|waiting| drop(waiting.ticket.answer.send(reply.clone())));
    }

    /// Makes changes in one transaction, and waits until it is durable. Returns the changes with
    /// what became of them.
    async fn make(&self, changes: Vec<Requested>) -> (Vec<Requested>, Result<Made, FsError>) {
        let recorded = |change: &Requested| match change.request {
            ManagerRequest::RecordSize { file, size: Some(_) } => Some(file.0),
            _ => None,
        };
        let recording: BTreeSet<u64> = changes.iter().filter_map(recorded).collect();
        let mut group = Group::new(changes, self.situation(&recording));
        *self.changes.recording.borrow_mut() = recording;
        let made = self.beside(move |store| {
            let made = group.make(store);
            let failed = matches!(made, Err(Fault::Store(_)));
            ((group.into_changes(), made), failed)
        });
        let made = made.await;
        self.changes.recording.borrow_mut().clear();
        match made {
            Ok((changes, made)) => (changes, made.map_err(|fault| self.settle(fault))),
            Err(error) => (Vec::new(), Err(error)),
        }
    }

    /// Returns what a group has to know.
    fn situation(&self, recording: &BTreeSet<u64>) -> Situation {
        let (members, now) = (self.members.borrow(), self.endpoint.now());
        let failing = self.failing.borrow();
        let server = |iod| Candidate {
            up: members.is_up(iod, now),
            awaited: members.is_awaited(iod, now),
            failing: failing.contains_key(&iod),
            prepared: false,
            avoided: false,
        };
        let creators = self.creators.borrow();
        let creator = |file: &u64| creators.creator(*file).map(|client| (*file, client));
        // As long as there is room for all changes' clients, nobody asks.
        let room = self.changes.clients.get().is_some_and(|clients| clients + GROUP as u64 <= CLIENTS);
        let connected = || {
            let connected = self.connected.borrow();
            connected.iter().filter(|(_, session)| is_open(session)).map(|(client, _)| *client).collect()
        };
        Situation {
            now_ns: (self.wall)(),
            default_strip: self.settings.strip_size,
            servers: (0..self.iods()).map(server).collect(),
            failing: failing.clone(),
            pools: self.pools.borrow().clone(),
            creators: recording.iter().filter_map(creator).collect(),
            connected: (!room).then(connected),
        }
    }

    /// Notes what a group has changed.
    fn note(&self, made: &Made) {
        self.pools.borrow_mut().clone_from(&made.pools);
        self.changes.clients.set(Some(made.clients));
        for effect in &made.effects {
            match *effect {
                Effect::Created(file, client) => self.creators.borrow_mut().created(file, client),
                Effect::Seen(file, client) => self.creators.borrow_mut().seen(file, client),
                Effect::DraftBegun(client) => {
                    self.owners.borrow_mut().note(client, self.endpoint.now());
                    self.session_of(client).inspect(|session| session.draft_begun());
                }
                Effect::DraftEnded(client) => drop(self.session_of(client).inspect(|session| session.draft_ended())),
            }
        }
    }

    /// Records that a client makes changes over a connection.
    pub(super) fn note_client(&self, client: u128, session: &Rc<Session>) {
        let mut connected = self.connected.borrow_mut();
        // Sweep each time the table has doubled.
        let full = connected.len() >= 64 && connected.len().is_power_of_two();
        if full && !connected.contains_key(&client) {
            connected.retain(|_, session| is_open(session));
        }
        connected.insert(client, Rc::downgrade(session));
    }

    /// Returns the connection over which a client makes changes.
    fn session_of(&self, client: u128) -> Option<Rc<Session>> {
        self.connected.borrow().get(&client).and_then(Weak::upgrade)
    }

    /// Records that a client learns where a file is. `commits` is the number of commits when the
    /// entry was read.
    ///
    /// Returns false if the entry must be read again: the file's creator records its size
    /// meanwhile, and may only do so as long as nobody else knows the file. Waits for the commit
    /// that does.
    pub(super) async fn seen(&self, entry: &Entry, client: u128, commits: u64) -> bool {
        let Handle::File(file) = entry.handle else { return true };
        if self.creators.borrow().is_known_to_other(file.0, client) {
            let committed = self.changes.committed.notified();
            if self.changes.recording.borrow().contains(&file.0) {
                committed.await;
                return false;
            }
            if self.database.ended() != commits {
                return false;
            }
            self.creators.borrow_mut().seen(file.0, client);
        }
        true
    }
}
