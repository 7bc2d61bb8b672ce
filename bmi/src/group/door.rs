//! What comes to an endpoint for its groups: newcomers to a meeting, and members that connect.
//!
//! **Why.** The unexpected messages of an endpoint are one queue. Operations of several groups wait
//! at the same time, and each takes what is there for all of them.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use super::error::GroupError;
use super::members::Members;
use super::wakers::Wakers;
use super::wire::{GREETING, Greeting, NOTICE, Notice};
use crate::threading::Threading;
use crate::{Addr, Endpoint, Error, ErrorKind, Message, Peer, Scheme};

/// Number of members that may connect before this side has the table of their group.
const MOST_EARLY: usize = 4096;
/// The time for the answer to a newcomer that is refused.
const GRACE: Duration = Duration::from_secs(1);

/// An endpoint with groups.
pub(super) struct Door<S: Threading> {
    pub(super) endpoint: Endpoint<S>,
    pub(super) wakers: Arc<Wakers>,
    state: Mutex<State<S>>,
}

struct State<S: Threading> {
    listening: Vec<Addr>,
    /// By name: this side is rank 0.
    meetings: BTreeMap<String, Weak<Members<S>>>,
    /// By id.
    groups: BTreeMap<u64, Weak<Members<S>>>,
    /// Members of groups that are not known yet, with the group and their rank.
    early: VecDeque<(u64, u32, Peer<S>)>,
}

impl<S: Threading> Door<S> {
    pub(super) fn new(endpoint: Endpoint<S>) -> Arc<Door<S>> {
        let state =
            State { listening: Vec::new(), meetings: BTreeMap::new(), groups: BTreeMap::new(), early: VecDeque::new() };
        Arc::new(Door { endpoint, wakers: Arc::default(), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts connections at an address, unless this was done before.
    pub(super) fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        let mut state = self.lock();
        if !state.listening.contains(addr) {
            let taken = self.endpoint.listen(addr)?;
            state.listening.push(taken.clone());
            return Ok(taken);
        }
        Ok(addr.clone())
    }

    /// Returns the address at which members can connect, with any port unless it listens already.
    pub(super) fn own_addr(&self, at: &Addr, rank: u32) -> Result<Addr, Error> {
        if let Some(addr) = self.lock().listening.first() {
            return Ok(addr.clone());
        }
        let ip = at.host().parse::<IpAddr>();
        let host = match ip {
            _ if at.host() == "localhost" => "localhost",
            Ok(ip) if ip.is_loopback() => at.host(),
            Ok(IpAddr::V6(_)) => "::",
            _ => "0.0.0.0",
        };
        match at.scheme() {
            Scheme::Tcp => self.listen(&Addr::tcp(host, 0)),
            Scheme::Ib => self.listen(&Addr::ib(at.device().cloned(), host, 0)),
            Scheme::Shm => self.listen(&Addr::shm(format!("{}.{rank}", at.host()))),
            Scheme::Sim | Scheme::Custom(_) => {
                let text = format!("no address to be found at for a group at {at}: call Groups::listen before");
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }

    /// Opens a meeting.
    pub(super) fn open(&self, members: &Arc<Members<S>>) -> Result<(), Error> {
        let mut state = self.lock();
        state.meetings.retain(|_, meeting| meeting.strong_count() > 0);
        let name = &members.options.name;
        if state.meetings.contains_key(name) {
            let text = format!("a group called {name:?} is meeting at this endpoint");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        state.meetings.insert(name.clone(), Arc::downgrade(members));
        Ok(())
    }

    /// Ends the meeting of a group that has an id now, and lets its members in.
    pub(super) fn admit(&self, members: &Arc<Members<S>>) {
        let mut state = self.lock();
        if members.rank == 0 {
            state.meetings.remove(&members.options.name);
        }
        state.groups.retain(|_, group| group.strong_count() > 0);
        let id = members.id();
        state.groups.insert(id, Arc::downgrade(members));
        state.early.retain(|(group, rank, peer)| {
            if *group == id {
                enter(members, *rank, peer);
            }
            *group != id
        });
    }

    /// Takes what has come. Returns true if there was anything.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(message) = pin!(self.endpoint.next_unexpected()).poll(cx) {
            any = true;
            self.greet(&message);
        }
        any
    }

    fn greet(&self, message: &Message<S>) {
        let peer = message.peer();
        let greeting = Greeting::decode(message.bytes()).filter(|_| message.tag() == GREETING);
        let Some(greeting) = greeting else {
            return peer.cut(Error::new(ErrorKind::Protocol, "the message is not that of a member of a group"));
        };
        let mut state = self.lock();
        match greeting {
            Greeting::Join { rank, size, name, addr } => {
                let joined = match state.meetings.get(&name).and_then(Weak::upgrade) {
                    Some(meeting) => meeting.join(rank, size, seen(addr, peer), peer),
                    None => {
                        let text = format!("no group called {name:?} meets here, or it has met already");
                        Err(GroupError::member(rank, ErrorKind::Busy, text))
                    }
                };
                if let Err(error) = joined {
                    // A short message leaves when it is posted.
                    drop(peer.send(NOTICE, Notice::Failed(error).encode(), peer.within(GRACE)));
                }
            }
            Greeting::Hello { rank, group } => match state.groups.get(&group).and_then(Weak::upgrade) {
                Some(members) => enter(&members, rank, peer),
                None => {
                    if state.early.len() == MOST_EARLY
                        && let Some((_, _, oldest)) = state.early.pop_front()
                    {
                        oldest.cut(Error::new(ErrorKind::Refused, "a member of a group that is not known here"));
                    }
                    state.early.push_back((group, rank, peer.clone()));
                }
            },
        }
    }
}

/// Lets a member in that has connected. Only members of lower rank do.
fn enter<S: Threading>(members: &Members<S>, rank: u32, peer: &Peer<S>) {
    if rank >= members.rank || !members.connected(rank, peer, None) {
        peer.cut(Error::new(ErrorKind::Protocol, format!("no member of rank {rank} is to connect")));
    }
}

/// Returns an address with the host that is seen, if it has none.
fn seen<S: Threading>(addr: Addr, peer: &Peer<S>) -> Addr {
    let host = match peer.addr() {
        Some(seen) if addr.host().parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) => seen.host().to_owned(),
        _ => return addr,
    };
    match addr.scheme() {
        Scheme::Ib => Addr::ib(addr.device().cloned(), host, addr.port()),
        _ => Addr::tcp(host, addr.port()),
    }
}
