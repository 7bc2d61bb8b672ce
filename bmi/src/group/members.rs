//! The members of a group as one of them sees them: connections, what they have said, and whether
//! the group has failed.
//!
//! | state of a connection | what it needs |
//! |---|---|
//! | none | the member of lower rank connects; at the meeting, all connect to rank 0 |
//! | dialing | an operation of this side connects |
//! | up | a receive for notices is posted |
//! | gone | an operation that needs the member fails |
//!
//! **Invariants**
//! 1. A connection belongs to one group. So tags are numbers of operations, and nothing of another
//!    group comes on it.
//! 2. The lock is held for posts and polls of the endpoint, whose own lock is taken inside. No code
//!    of the endpoint takes this lock.
//! 3. A group that has failed stays so, with the first error. All members that are connected are
//!    told once, and those that connect later are told then.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::error::GroupError;
use super::options::GroupOptions;
use super::wakers::Wakers;
use super::wire::{LONGEST_NOTICE, NOTICE, Notice};
use crate::polled::Completion;
use crate::threading::Threading;
use crate::{Addr, Endpoint, Error, ErrorKind, Memory, Operation, Options, Peer, PeerId, Tag};

/// Number of operations that a member is remembered to wait in. One that waits in more at a time
/// may be blamed for those that are forgotten.
const MOST_HELD: usize = 64;

/// The members of a group.
pub(super) struct Members<S: Threading> {
    pub(super) endpoint: Endpoint<S>,
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) options: GroupOptions,
    pub(super) wakers: Arc<Wakers>,
    state: Mutex<State<S>>,
}

struct State<S: Threading> {
    /// 0 before the meeting.
    id: u64,
    /// In the order of ranks.
    links: Vec<Link<S>>,
    /// The receives for notices.
    notices: FuturesUnordered<Arriving<S>>,
    /// Notices that are not sent yet.
    sends: FuturesUnordered<Operation<S>>,
    failed: Option<GroupError>,
    /// The newcomer that was refused last.
    refused: Option<String>,
    limit: Duration,
}

struct Link<S: Threading> {
    addr: Option<Addr>,
    line: Line<S>,
    /// The last operations in which the member waited for long, and for whom; the newest is last,
    /// and none is there twice.
    held: VecDeque<(u64, u32)>,
}

enum Line<S: Threading> {
    None,
    Dialing,
    Up(Peer<S>),
    Gone(Error),
}

/// How a member can be reached.
pub(super) enum Reach<S: Threading> {
    Up(Peer<S>),
    Gone(Error),
    /// The caller connects.
    Dial(Addr),
    /// Another one connects.
    Wait,
}

/// A receive of a message that has a bound. Ends with the rank of the member, its connection and
/// the bytes.
pub(super) struct Arriving<S: Threading> {
    rank: u32,
    peer: PeerId,
    buffer: Memory,
    operation: Operation<S>,
}

/// An operation, with the rank of the member that it concerns.
pub(super) struct Of<S: Threading>(pub(super) u32, pub(super) Operation<S>);

impl<S: Threading> Arriving<S> {
    /// Posts the receive.
    pub(super) fn post(rank: u32, peer: &Peer<S>, tag: Tag, longest: usize) -> Arriving<S> {
        let buffer = Memory::from(vec![0; longest]);
        let operation = peer.recv(tag, &buffer, Options::default());
        Arriving { rank, peer: peer.id(), buffer, operation }
    }
}

impl<S: Threading> Future for Arriving<S> {
    type Output = (u32, PeerId, Result<Bytes, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = std::task::ready!(Pin::new(&mut self.operation).poll(cx));
        let bytes = ended.map(|completion| {
            let buffer = std::mem::replace(&mut self.buffer, Memory::from(Bytes::new()));
            buffer.into_bytes().split_to(completion.len as usize)
        });
        Poll::Ready((self.rank, self.peer, bytes))
    }
}

impl<S: Threading> Future for Of<S> {
    type Output = (u32, Result<Completion, Error>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.1).poll(cx).map(|ended| (self.0, ended))
    }
}

impl<S: Threading> Members<S> {
    pub(super) fn new(
        endpoint: Endpoint<S>,
        (rank, size): (u32, u32),
        options: GroupOptions,
        wakers: Arc<Wakers>,
    ) -> Arc<Members<S>> {
        let links = (0..size).map(|_| Link { addr: None, line: Line::None, held: VecDeque::new() }).collect();
        let state = State {
            id: 0,
            links,
            notices: FuturesUnordered::new(),
            sends: FuturesUnordered::new(),
            failed: None,
            refused: None,
            limit: options.limit,
        };
        Arc::new(Members { endpoint, rank, size, options, wakers, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- getters --------------------------------------------------------------------------------

    pub(super) fn id(&self) -> u64 {
        self.lock().id
    }

    pub(super) fn failed(&self) -> Option<GroupError> {
        self.lock().failed.clone()
    }

    pub(super) fn refused(&self) -> Option<String> {
        self.lock().refused.clone()
    }

    /// Returns the ranks from which no connection is up.
    pub(super) fn missing(&self) -> Vec<u32> {
        let state = self.lock();
        let is_up = |rank: &u32| matches!(state.links[*rank as usize].line, Line::Up(_));
        (0..self.size).filter(|rank| *rank != self.rank && !is_up(rank)).collect()
    }

    /// Returns the addresses of all members that have said one.
    pub(super) fn addrs(&self) -> Vec<Addr> {
        self.lock().links.iter().filter_map(|link| link.addr.clone()).collect()
    }

    /// Returns the rank for which an operation waits in the end that waits for these. A member that
    /// waits says for whom, so this is the one that says nothing.
    pub(super) fn culprit(&self, number: u64, awaited: &[u32]) -> u32 {
        let state = self.lock();
        let next = |rank: u32| {
            let held = &state.links[rank as usize].held;
            held.iter().find(|held| held.0 == number).map(|held| held.1)
        };
        let follow = |mut rank: u32| {
            for _ in 0..self.size {
                match next(rank) {
                    Some(by) if by != self.rank => rank = by,
                    _ => break,
                }
            }
            rank
        };
        let silent = awaited.iter().find(|rank| next(**rank).is_none());
        silent.or(awaited.first()).map_or(self.rank, |rank| follow(*rank))
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Returns how a member can be reached. After [`Reach::Dial`], which is for a caller that may
    /// connect, it does so, and others wait.
    pub(super) fn reach(&self, rank: u32, may_dial: bool) -> Reach<S> {
        let link = &mut self.lock().links[rank as usize];
        match (&link.line, &link.addr) {
            (Line::Up(peer), _) => Reach::Up(peer.clone()),
            (Line::Gone(reason), _) => Reach::Gone(reason.clone()),
            (Line::None, Some(addr)) if may_dial && rank > self.rank => {
                link.line = Line::Dialing;
                Reach::Dial(addr.clone())
            }
            (Line::None | Line::Dialing, _) => Reach::Wait,
        }
    }

    /// Takes the connection of a member, and receives its notices. If the group has failed, the
    /// member is told. Returns false if there is one.
    pub(super) fn connected(&self, rank: u32, peer: &Peer<S>, addr: Option<Addr>) -> bool {
        let mut state = self.lock();
        let meets = state.id == 0;
        let Some(link) = state.links.get_mut(rank as usize) else { return false };
        match link.line {
            Line::None | Line::Dialing => {}
            // One that was restarted may come again.
            Line::Gone(_) if meets => {}
            Line::Gone(_) | Line::Up(_) => return false,
        }
        link.line = Line::Up(peer.clone());
        link.addr = addr.or(link.addr.take());
        state.notices.push(Arriving::post(rank, peer, NOTICE, LONGEST_NOTICE));
        if let Some(error) = state.failed.clone() {
            state.sends.push(peer.send(NOTICE, Notice::Failed(error).encode(), Options::default()));
        }
        true
    }

    /// Takes a member that comes to the meeting, and refuses one that cannot be.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn join(&self, rank: u32, size: u64, addr: Addr, peer: &Peer<S>) -> Result<(), GroupError> {
        let why = match () {
            () if size != u64::from(self.size) => {
                format!("it says that the group has {size} members, not {}", self.size)
            }
            () if rank == 0 || rank >= self.size => format!("there is no such rank among {} to come", self.size),
            () if self.connected(rank, peer, Some(addr)) => return Ok(()),
            () => "another one has come with this rank".to_owned(),
        };
        self.lock().refused =
            Some(format!("rank {rank} of {}: {why}", peer.addr().map_or_else(String::new, |addr| addr.to_string())));
        Err(GroupError::member(rank, ErrorKind::Refused, why))
    }

    /// Notes what the meeting has agreed on.
    pub(super) fn met(&self, id: u64, addrs: Vec<Addr>) {
        let mut state = self.lock();
        state.id = id;
        for (link, addr) in state.links.iter_mut().zip(addrs) {
            link.addr = Some(addr);
        }
    }

    /// Takes all connections, to end them.
    pub(super) fn take_peers(&self) -> Vec<Peer<S>> {
        let mut state = self.lock();
        state.notices.clear();
        let lines = state.links.iter_mut().map(|link| std::mem::replace(&mut link.line, Line::Dialing));
        lines.filter_map(|line| if let Line::Up(peer) = line { Some(peer) } else { None }).collect()
    }

    /// Ends all connections after what was sent on them. Nobody waits for that.
    pub(super) fn disconnect(&self) {
        for peer in self.take_peers() {
            self.endpoint.with(|engine| {
                if let Ok(ending) = engine.disconnect(peer.id(), Options::default()) {
                    engine.abandon(ending);
                }
            });
        }
    }

    // ---- operations and notices -----------------------------------------------------------------

    /// Returns the time that the next operation has.
    pub(super) fn limit(&self) -> Duration {
        self.lock().limit
    }

    /// Sets it.
    pub(super) fn set_limit(&self, limit: Duration) {
        self.lock().limit = limit;
    }

    /// Takes notices. Returns true if there were any.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> bool {
        let mut state = self.lock();
        let mut any = false;
        while let Poll::Ready(Some(_)) = state.sends.poll_next_unpin(cx) {}
        while let Poll::Ready(Some((rank, peer, bytes))) = state.notices.poll_next_unpin(cx) {
            any = true;
            let link = &mut state.links[rank as usize];
            let Line::Up(known) = &link.line else { continue };
            if known.id() != peer {
                continue;
            }
            let failed = match bytes.map(|bytes| Notice::decode(&bytes)) {
                Err(reason) => {
                    link.line = Line::Gone(reason);
                    continue;
                }
                Ok(Some(Notice::Held { number, by })) if by < self.size => {
                    link.held.retain(|held| held.0 != number);
                    if link.held.len() == MOST_HELD {
                        link.held.pop_front();
                    }
                    link.held.push_back((number, by));
                    None
                }
                Ok(Some(Notice::Failed(error))) => Some(error),
                Ok(_) => Some(GroupError::member(rank, ErrorKind::Protocol, "a notice that no member sends")),
            };
            let again = Arriving::post(rank, known, NOTICE, LONGEST_NOTICE);
            state.notices.push(again);
            if let Some(error) = failed {
                state.fail(error);
            }
        }
        any
    }

    /// Takes notices, also those whose waker is yet to be woken by the thread that drives the
    /// endpoint.
    pub(super) fn poll_all(&self, cx: &mut Context<'_>) {
        let mut state = self.lock();
        state.notices = std::mem::take(&mut state.notices).into_iter().collect();
        drop(state);
        self.poll(cx);
    }

    /// Tells all members that are connected for whom an operation waits.
    pub(super) fn tell_held(&self, number: u64, by: u32) {
        self.lock().tell(&Notice::Held { number, by });
    }

    /// Ends the group. Returns the error that it has failed with, which may be an earlier one.
    pub(super) fn fail(&self, error: GroupError) -> GroupError {
        self.lock().fail(error)
    }
}

impl<S: Threading> Drop for Members<S> {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl<S: Threading> State<S> {
    fn fail(&mut self, error: GroupError) -> GroupError {
        if let Some(failed) = &self.failed {
            return failed.clone();
        }
        self.failed = Some(error.clone());
        self.tell(&Notice::Failed(error.clone()));
        error
    }

    fn tell(&mut self, notice: &Notice) {
        let wire = Bytes::from(notice.encode());
        for link in &self.links {
            if let Line::Up(peer) = &link.line {
                self.sends.push(peer.send(NOTICE, wire.clone(), Options::default()));
            }
        }
    }
}
