//! An operation that is going on: it sends, it waits, and it ends in time.
//!
//! **Protocol.** All messages between two members in one operation have its number for a tag, so
//! they match in order. Each begins with a head that says what the sender does. So whoever does
//! something else is found out by the first message between two that differ.
//!
//! **Who is to blame.** A member often waits for one that waits for another. So a member that has
//! waited for half of the limit says for whom, to all that are connected ([`Notice::Held`]). At the
//! limit, an operation blames the one at the end of the chain ([`Members::culprit`]). That is right
//! if the others began within half of the limit. Whoever fails tells the others
//! ([`Notice::Failed`]), and they end with the same error.
//!
//! [`Notice::Held`]: super::wire::Notice::Held
//! [`Notice::Failed`]: super::wire::Notice::Failed

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::act::Act;
use super::door::Door;
use super::error::{Collective, GroupError, Numbered};
use super::members::{Arriving, Members, Of, Reach};
use super::wire::{ATTACHED, GREETING, Greeting, HEAD, Head};
use crate::threading::Threading;
use crate::{ErrorKind, MemList, Memory, Options, Peer, Time};

/// Number of connections that an operation makes at a time.
const DIALS: usize = 16;

/// An operation.
pub(super) struct Running<S: Threading> {
    pub(super) door: Arc<Door<S>>,
    pub(super) members: Arc<Members<S>>,
    pub(super) act: Act,
    ticket: u64,
    limit: Duration,
    half: Time,
    deadline: Time,
    waits: Waits<S>,
    /// For whom it waits in the end, as the others were told.
    told: Option<u32>,
    ended: bool,
}

/// What an operation waits for.
pub(super) struct Waits<S: Threading> {
    /// What it sends, with the rank of the receiver.
    pub(super) sends: FuturesUnordered<Of<S>>,
    /// The ranks of those whose messages it waits for.
    pub(super) awaited: Vec<u32>,
}

impl<S: Threading> Waits<S> {
    /// Sends the first message on a connection.
    fn greet(&mut self, (rank, peer): (u32, &Peer<S>), greeting: &Greeting) {
        self.sends.push(Of(rank, peer.send_unexpected(GREETING, greeting.encode(), Options::default())));
    }

    /// Sends a message of an operation.
    pub(super) fn send(&mut self, (rank, peer): (u32, &Peer<S>), act: Act, round: u8, payload: &MemList) {
        let front = Memory::from(Head { call: act.call, round, len: payload.len() as u64 }.encode());
        let post = |list: MemList| self.sends.push(Of(rank, peer.send(act.number, list, Options::default())));
        if payload.len() <= ATTACHED {
            let bytes = Memory::from(payload.to_vec());
            return post([front.all(), bytes.all()].into_iter().collect());
        }
        post(front.into());
        post(payload.clone());
    }
}

impl<S: Threading> Running<S> {
    /// Begins an operation. Its time runs from `begun` on.
    pub(super) fn begin(
        door: &Arc<Door<S>>,
        members: &Arc<Members<S>>,
        (number, call): (u64, Collective),
        begun: Time,
    ) -> Running<S> {
        let limit = members.limit();
        Running {
            door: Arc::clone(door),
            members: Arc::clone(members),
            act: Act { rank: members.rank, number, call },
            ticket: door.wakers.ticket(),
            limit,
            half: begun + limit / 2,
            deadline: begun + limit,
            waits: Waits { sends: FuturesUnordered::new(), awaited: Vec::new() },
            told: None,
            ended: false,
        }
    }

    /// Waits until what it sends has left, and ends.
    pub(super) async fn end<T>(mut self, done: Result<T, GroupError>) -> Result<T, GroupError> {
        let ended = match done {
            Ok(done) => self
                .wait(|_, waits| if waits.sends.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending })
                .await
                .map(|()| done),
            Err(error) => {
                // If a member is gone, it may have said why before.
                poll_fn(|cx| {
                    self.members.poll_all(cx);
                    Poll::Ready(())
                })
                .await;
                Err(error)
            }
        };
        self.ended = true;
        ended.map_err(|error| self.members.fail(error))
    }

    /// Ends without a result, and without harm to the group.
    pub(super) fn give_up(mut self) {
        self.ended = true;
    }

    /// Waits until `poll` is ready. It says in [`Waits::awaited`] for whom it waits.
    pub(super) async fn wait<T>(
        &mut self,
        mut poll: impl FnMut(&mut Context<'_>, &mut Waits<S>) -> Poll<Result<T, GroupError>>,
    ) -> Result<T, GroupError> {
        let endpoint = self.members.endpoint.clone();
        let until = if endpoint.now() < self.half { self.half } else { self.deadline };
        let (mut timer, mut until) = (pin!(endpoint.sleep_until(until)), until);
        poll_fn(|cx| {
            self.door.wakers.set(self.ticket, cx.waker());
            if self.door.poll(cx) | self.members.poll(cx) {
                self.door.wakers.wake_others(self.ticket);
            }
            if let Some(failed) = self.members.failed() {
                return Poll::Ready(Err(failed));
            }
            loop {
                while let Poll::Ready(Some((rank, sent))) = self.waits.sends.poll_next_unpin(cx) {
                    if let Err(error) = sent {
                        return Poll::Ready(Err(self.act.blamed(rank, error)));
                    }
                }
                let sends = self.waits.sends.len();
                self.waits.awaited.clear();
                if let Poll::Ready(result) = poll(cx, &mut self.waits) {
                    return Poll::Ready(result);
                }
                // What it sends now must be polled once.
                if self.waits.sends.len() == sends {
                    break;
                }
            }
            if self.waits.awaited.is_empty() {
                self.waits.awaited.extend(self.waits.sends.iter().map(|sent| sent.0));
            }
            while timer.as_mut().poll(cx).is_ready() {
                // A timer ends early when the endpoint is closed.
                if until == self.deadline || endpoint.now() < until {
                    return Poll::Ready(Err(self.late()));
                }
                until = self.deadline;
                timer.set(endpoint.sleep_until(until));
            }
            if until == self.deadline {
                let by = self.members.culprit(self.act.number, &self.waits.awaited);
                if self.told != Some(by) {
                    self.told = Some(by);
                    self.members.tell_held(self.act.number, by);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the error for a limit that has passed.
    fn late(&self) -> GroupError {
        let rank = self.members.culprit(self.act.number, &self.waits.awaited);
        let awaited = &self.waits.awaited[..self.waits.awaited.len().min(8)];
        let (call, number) = (self.act.call, Numbered(self.act.number));
        let mut text = format!("no answer within {:?} to {call} ({number}) from {awaited:?}", self.limit);
        if let Some(refused) = self.members.refused().filter(|_| self.act.call == Collective::Meet) {
            text.push_str("; refused was ");
            text.push_str(&refused);
        }
        GroupError::member(rank, ErrorKind::TimedOut, text)
    }

    // ---- connections ----------------------------------------------------------------------------

    /// Connects to members, unless they are connected. Returns them in the order of `ranks`.
    pub(super) async fn connect(&mut self, ranks: &[u32]) -> Result<Vec<(u32, Peer<S>)>, GroupError> {
        let members = Arc::clone(&self.members);
        let hello = Greeting::Hello { rank: members.rank, group: members.id() };
        let (ticket, options, mut dials) = (self.ticket, Options::by(self.deadline), FuturesUnordered::new());
        self.wait(|cx, waits| {
            let mut peers = Vec::with_capacity(ranks.len());
            loop {
                while let Poll::Ready(Some((rank, dialed))) = dials.poll_next_unpin(cx) {
                    match dialed {
                        Ok(peer) => {
                            members.connected(rank, &peer, None);
                            waits.greet((rank, &peer), &hello);
                        }
                        Err(error) => return Poll::Ready(Err(GroupError::Member { rank, error })),
                    }
                }
                peers.clear();
                waits.awaited.clear();
                let dialing = dials.len();
                for &rank in ranks {
                    match members.reach(rank, dials.len() < DIALS) {
                        Reach::Up(peer) => peers.push((rank, peer)),
                        Reach::Gone(error) => return Poll::Ready(Err(GroupError::Member { rank, error })),
                        Reach::Wait => waits.awaited.push(rank),
                        Reach::Dial(addr) => {
                            let endpoint = members.endpoint.clone();
                            dials.push(async move { (rank, endpoint.connect(&addr, options).await) });
                            waits.awaited.push(rank);
                        }
                    }
                }
                if peers.len() == ranks.len() {
                    // Others may wait for the same connections.
                    members.wakers.wake_others(ticket);
                    return Poll::Ready(Ok(std::mem::take(&mut peers)));
                }
                // What it starts now must be polled once.
                if dials.len() == dialing {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    // ---- messages -------------------------------------------------------------------------------

    /// Greets the host of a meeting.
    pub(super) fn greet(&mut self, host: (u32, &Peer<S>), greeting: &Greeting) {
        self.waits.greet(host, greeting);
    }

    /// Sends a message of a round.
    pub(super) fn send(&mut self, to: (u32, &Peer<S>), round: u8, payload: &MemList) {
        self.waits.send(to, self.act, round, payload);
    }

    /// Receives the first message that a member sends. The receive of its head must be posted
    /// before the member can send more.
    pub(super) fn receive(&self, (rank, peer): (u32, &Peer<S>)) -> Arriving<S> {
        Arriving::post(rank, peer, self.act.number, HEAD + ATTACHED)
    }

    /// Waits for a message of at most `longest` bytes.
    pub(super) async fn payload(
        &mut self,
        (rank, peer): (u32, &Peer<S>),
        mut arriving: Arriving<S>,
        round: u8,
        longest: u64,
    ) -> Result<Bytes, GroupError> {
        let arrived = self
            .wait(|cx, waits| {
                waits.awaited.push(rank);
                let (.., arrived) = ready!(Pin::new(&mut arriving).poll(cx));
                Poll::Ready(Ok(arrived))
            })
            .await?;
        let (len, attached) = self.act.opened(rank, arrived, round)?;
        if let Some(attached) = attached {
            return Ok(attached);
        }
        if len > longest {
            let text = format!("a message of {len} bytes, where {longest} is the limit");
            return Err(GroupError::member(rank, ErrorKind::TooLarge, text));
        }
        let memory = self.act.room(len)?;
        let mut body = Of(rank, peer.recv(self.act.number, &memory, Options::default()));
        let (_, ended) = self
            .wait(|cx, waits| {
                waits.awaited.push(rank);
                Pin::new(&mut body).poll(cx).map(Ok)
            })
            .await?;
        self.act.filled(rank, ended.map(|done| done.len), len)?;
        Ok(memory.into_bytes())
    }
}

impl<S: Threading> Drop for Running<S> {
    fn drop(&mut self) {
        if !self.ended {
            let text = format!("{} ({}) was dropped before its end", self.act.call, Numbered(self.act.number));
            self.members.fail(GroupError::member(self.members.rank, ErrorKind::Cancelled, text));
        }
        self.door.wakers.remove(self.ticket);
    }
}
