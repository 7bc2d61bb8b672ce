//! How connections are made and how they end.
//!
//! **Protocol** of a connection's phases; `!` marks the end.
//!
//! ```text
//!   connect() -> Dialing --connected--> Greeting --ACCEPT--> Established --disconnect()--> Closing --> !
//!                   |                      '--REJECT--> !        |  '--violation: REFUSAL, !
//!                   '--no listener, deadline--> !                '--peer's end: its ring is read to the end, then !
//!
//!   listener  -> HalfOpen --CONNECT--> Requested --accept()--> Established
//!                   |                      '--reject(), peer gone--> !
//!                   '--another user, garbage, other version, handshake_timeout, newcomer--> !
//!                                                                             (reported to no upper layer)
//! ```
//!
//! A peer's end is the end of its socket. The kernel reports it however the peer died. The records
//! that the peer had put into its ring before are still there, because the mapping outlives the
//! process.
//!
//! **Memory at the end.** If the peer claims an exposure at the moment when it ends, the memory is
//! *retired* (see `retired`). A copy that has begun cannot be stopped from here, and it must not
//! reach memory that is used for something else by then.
//!
//! **Invariants**
//! 1. A half-open socket owns no memory. There are at most `max_half_open` of them. A newcomer
//!    always gets a place among them. If they are all taken, another one goes
//!    ([`bmi_backend::HalfOpen`]), but only after its packets were read.
//! 2. Queues exist from `connect` on, or from the arrival of the complete, valid hello on. The link
//!    exists from the moment on when both areas do.
//!
//! **Tests**: `tests/it/connection.rs`, `hostile_tests`, `tests/it/process_death.rs`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use bmi_backend::software::slot_of;
use bmi_backend::{Place, Round, check_private, check_scheme, connection_ended, listen_failed, request_gone};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Access, Addr, Error, ErrorKind, RemoteSlice, Scheme, Segment, Time};

use crate::area::Area;
use crate::completions::Completions;
use crate::connection::{Activity, Connection, Draining, Phase};
use crate::error::{Fault, Refusal, Violation};
use crate::inbound::Inbound;
use crate::link::Link;
use crate::packet::{Greeting, Hello, MAX_PACKET, Packet, encode_hello};
use crate::pages::Mapped;
use crate::queue_pair::QueuePair;
use crate::retired::{Holder, Retired};
use crate::socket::{self, ListenError, Listening, NotOne, Passed};
use crate::sys::{self, Life, Process};
use crate::{ShmConfig, ShmTransport};

/// Most packets taken from one socket in one poll.
const PACKETS: usize = 64;
/// Time until the next try when a listener's queue is full.
const DIAL_RETRY: Duration = Duration::from_millis(1);
/// Looks at the peer's claims before a revocation ends the connection. They take longer than
/// copying a unit.
const CLAIM_LOOKS: usize = 2_000;

/// Returns whether the peer claims this key for longer than a copy takes.
fn stays_claimed(peer: &Area, key: u64) -> bool {
    let mut looks = CLAIM_LOOKS;
    while peer.is_claimed(key) {
        looks -= 1;
        if looks == 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// An accepted socket of an admitted user that no transport has a connection for yet.
pub(crate) struct Newcomer {
    socket: OwnedFd,
    /// The number of its process.
    origin: i32,
    /// Set if the kernel may copy between the two processes.
    crosses: bool,
    arrived: Time,
}

impl ShmTransport {
    pub(crate) fn start_listening(&mut self, addr: &Addr) -> Result<Addr, Error> {
        check_scheme(addr, Scheme::Shm, "shared-memory")?;
        let socket = socket::listen(Path::new(addr.host())).map_err(|error| match error {
            ListenError::Invalid(why) => {
                Error::new(ErrorKind::Invalid, format!("cannot listen at {addr}: {why}")).during("listen")
            }
            ListenError::Io(error) => listen_failed(addr, error),
        })?;
        let token = self.listeners.next_index() << crate::TOKEN_BITS | crate::TOKEN_LISTENER;
        self.watch(socket.socket.as_fd(), token).map_err(|error| Error::from(error).during("listen"))?;
        self.listeners.add(socket);
        Ok(addr.clone())
    }

    pub(crate) fn start_connecting(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        check_scheme(addr, Scheme::Shm, "shared-memory")?;
        check_private(private)?;
        socket::check_name(Path::new(addr.host())).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("{addr} cannot be a socket's name"))
                .caused_by(error)
                .during("connect")
        })?;
        let exhausted = |error: io::Error| {
            Error::new(ErrorKind::Exhausted, "no memory for the connection's ring").caused_by(error).during("connect")
        };
        let (fd, mapping) = sys::new_area(self.config.geometry().len()).map_err(exhausted)?;
        let area = Area::new(mapping, self.config.geometry());
        let phase = Phase::Dialing { private: private.into(), deadline, retry_at: self.now };
        let id = self.insert(addr.clone(), phase, self.shard.place())?;
        if let Some(connection) = self.slots.find_mut(id) {
            connection.queues = Some(Box::new(QueuePair::new(id, &self.config)));
            (connection.own, connection.own_fd) = (Some(area), Some(fd));
        }
        self.dial(id.slot);
        Ok(id)
    }

    /// Takes a slot for a new connection.
    fn insert(&mut self, peer: Addr, phase: Phase, place: Place) -> Result<ConnId, Error> {
        let id = self.slots.insert(|id| Connection::new(id, peer, phase, place))?;
        let deadline = self.slots.find_mut(id).and_then(|connection| connection.deadline());
        self.deadlines.add(deadline);
        Ok(id)
    }

    fn dial(&mut self, slot: u32) {
        let now = self.now;
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        let Phase::Dialing { private, deadline, .. } = &mut connection.phase else { return };
        let deadline = *deadline;
        let path = Path::new(connection.peer.host());
        let connected = socket::connect(path).map_err(Fault::of_connect).and_then(|socket| {
            // The check comes before anything is sent. So another user's process that listens there
            // gets no descriptor and learns no address.
            let crosses = check_user(&self.config, &socket)?;
            let hello = hello(&self.config, &self.cookie, Greeting::Connect, crosses);
            let fd = connection.own_fd.as_ref().map(AsFd::as_fd);
            socket::send(&socket, encode_hello(&hello, private).bytes(), fd).map_err(Fault::Unreachable)?;
            Ok((socket, crosses))
        });
        match connected {
            Ok((socket, crosses)) => {
                let watched = self.watch(socket.as_fd(), token_of(slot));
                let Some(connection) = self.slots.at_mut(slot) else { return };
                (connection.socket, connection.own_fd, connection.crosses) = (Some(socket), None, crosses);
                connection.phase = Phase::Greeting { deadline };
                match watched {
                    Ok(()) => self.mark_ready(slot),
                    Err(error) => self.end(slot, id, Fault::Socket(error)),
                }
            }
            Err(Fault::Unreachable(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Phase::Dialing { retry_at, .. } = &mut connection.phase {
                    *retry_at = now + DIAL_RETRY;
                }
            }
            Err(fault) => self.end(slot, id, fault),
        }
        self.deadlines.refresh();
    }

    // ---- accepting ------------------------------------------------------------------------------

    /// Takes the sockets that other members of the group have accepted for this transport, and
    /// accepts those that wait at the listeners.
    pub(crate) fn accept_sockets(&mut self) -> bool {
        let (mut round, mut any) = (Round::default(), false);
        for _ in 0..self.shard.waiting() {
            let Some((newcomer, place)) = self.shard.next() else { break };
            any = true;
            self.handle_newcomer(newcomer, place);
        }
        let accept = |listening: &Listening| socket::accept(listening.socket.as_fd());
        while let Some(socket) = self.listeners.accept(&mut round, self.now, accept) {
            any = true;
            let own = self.admit(socket).and_then(|newcomer| self.shard.assign(newcomer));
            if let Some((newcomer, place)) = own {
                self.handle_newcomer(newcomer, place);
            }
        }
        self.deadlines.add(self.listeners.deadline());
        any
    }

    /// Checks the user of an accepted socket.
    fn admit(&mut self, socket: OwnedFd) -> Option<Newcomer> {
        let origin = sys::credentials(&socket).map_or(0, |peer| peer.pid);
        match check_user(&self.config, &socket) {
            Ok(crosses) => Some(Newcomer { socket, origin, crosses, arrived: self.now }),
            Err(fault) => {
                self.warn_closed(&name_of(origin), &fault);
                None
            }
        }
    }

    fn handle_newcomer(&mut self, newcomer: Newcomer, place: Place) {
        let Newcomer { socket, origin, crosses, arrived } = newcomer;
        let peer = name_of(origin);
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin }, place) {
            Ok(id) => id,
            Err(error) => return self.warn_closed(&peer, &error),
        };
        if let Err(error) = self.watch(socket.as_fd(), token_of(id.slot)) {
            self.slots.remove(id.slot);
            return self.warn_closed(&peer, &error);
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            (connection.socket, connection.crosses) = (Some(socket), crosses);
        }
        self.mark_ready(id.slot);
    }

    /// Returns whether to write a log line of this kind about a host ([`LogLimit`]).
    ///
    /// [`LogLimit`]: bmi_core::LogLimit
    fn admits_line(&mut self, kind: &'static str, host: &str) -> bool {
        let admitted = self.log.admits(kind, host, self.now);
        self.deadlines.add(self.log.next_deadline());
        admitted
    }

    /// Reports that an accepted socket was closed at once.
    fn warn_closed(&mut self, peer: &Addr, error: &dyn std::fmt::Display) {
        if self.admits_line("socket closed", peer.host()) {
            tracing::warn!(%peer, %error, "socket closed");
        }
    }

    // ---- packets --------------------------------------------------------------------------------

    /// Reads from the sockets that reported something.
    pub(crate) fn read_sockets(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        let mut turn = self.ready.turn();
        while let Some(slot) = self.ready.next(&mut turn) {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            connection.activity = Activity::Busy; // pages may arrive that something waits for
            any |= self.read_packets(slot, events);
        }
        any
    }

    fn read_packets(&mut self, slot: u32, events: &mut Vec<Event>) -> bool {
        let mut bytes = [0; MAX_PACKET];
        for taken in 0..PACKETS {
            let Some(connection) = self.slots.at_mut(slot) else { return true };
            let id = connection.id;
            let Some(socket) = connection.socket.as_ref().filter(|_| connection.draining.is_none()) else {
                return taken > 0;
            };
            let result = match socket::receive(socket, &mut bytes) {
                Ok((0, _)) => Err(Fault::Eof),
                Ok((len, passed)) => bytes
                    .get(..len)
                    .ok_or(Violation::Packet)
                    .and_then(Packet::decode)
                    .map_err(Fault::from)
                    .and_then(|packet| self.handle_packet(slot, packet, passed, events)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken > 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Fault::Eof),
                Err(error) => Err(Fault::Socket(error)),
            };
            match result {
                Ok(()) => {}
                Err(Fault::Violation(violation)) => self.cut(slot, violation),
                Err(fault) => self.peer_ended(slot, id, fault),
            }
        }
        self.mark_ready(slot);
        true
    }

    fn handle_packet(
        &mut self,
        slot: u32,
        packet: Packet,
        passed: Passed,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        if !passed.is_empty() && !matches!(packet, Packet::Hello(..) | Packet::Pages { .. }) {
            return Err(Violation::Order.into());
        }
        match (&connection.phase, packet) {
            (Phase::HalfOpen { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Connect => {
                self.handle_connect(slot, hello, private, passed, events)
            }
            (Phase::Greeting { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Accept => {
                connection.theirs = Some((map_area(&hello, passed)?, hello));
                self.establish(slot);
                if let Some(connection) = self.slots.at_mut(slot) {
                    events.push(Event::Established { conn: connection.id, private });
                }
                Ok(())
            }
            (Phase::Greeting { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Reject => {
                if let Some(mut connection) = self.remove(slot) {
                    if let Some(queues) = &mut connection.queues {
                        queues.flush_all(None, |event| events.push(event));
                    }
                    events.push(Event::Rejected { conn: connection.id, private });
                }
                Ok(())
            }
            (Phase::Established | Phase::Closing { .. }, packet) => self.handle_late_packet(slot, packet, passed),
            _ => Err(Violation::Order.into()),
        }
    }

    fn handle_connect(
        &mut self,
        slot: u32,
        hello: Hello,
        private: Box<[u8]>,
        passed: Passed,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let area = map_area(&hello, passed)?;
        let (fd, mapping) = sys::new_area(self.config.geometry().len()).map_err(Fault::Memory)?;
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        let id = connection.id;
        connection.theirs = Some((area, hello));
        (connection.own, connection.own_fd) = (Some(Area::new(mapping, self.config.geometry())), Some(fd));
        if let Phase::HalfOpen { origin, .. } = connection.phase {
            self.half_open.remove(origin, id);
        }
        connection.phase = Phase::Requested;
        connection.queues = Some(Box::new(QueuePair::new(id, &self.config)));
        self.deadlines.refresh();
        events.push(Event::ConnectRequest { conn: id, from: connection.peer.clone(), private });
        Ok(())
    }

    fn handle_late_packet(&mut self, slot: u32, packet: Packet, passed: Passed) -> Result<(), Fault> {
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        let (id, Some(link)) = (connection.id, &mut connection.link) else { return Ok(()) };
        match packet {
            Packet::Wake => Ok(()),
            Packet::Pages { id: number, len } => {
                let why = match passed.only() {
                    Err(NotOne::Ours) => {
                        io::Error::new(io::ErrorKind::OutOfMemory, "no descriptor is left to take it by")
                    }
                    only => {
                        let mapping = sys::map_peer(&only?, len, true).map_err(Violation::Memory)?;
                        let Err(why) = mapping.and_then(|mapping| link.mapped.insert(number, mapping)) else {
                            // If the socket is too full for this packet, the peer sends such
                            // messages through the ring.
                            connection.say(&Packet::Have { id: number });
                            return Ok(());
                        };
                        why
                    }
                };
                if connection.inbound.waits_for(number) {
                    return Err(Fault::Memory(why)); // it was mapped before; there is no other way to this message
                }
                let peer = connection.peer.clone();
                if self.admits_line("memory not mapped", peer.host()) {
                    tracing::warn!(%peer, error = %why, len, "memory cannot be mapped; going another way");
                }
                Ok(())
            }
            Packet::Have { id } => {
                link.passed.confirm(id);
                Ok(())
            }
            Packet::Proof { secret } if secret == self.cookie[1] => {
                link.trusted = true;
                Ok(())
            }
            Packet::Drop { id } => {
                link.mapped.drop_number(id);
                Ok(())
            }
            Packet::Ask { id } => {
                link.passed.owe(id); // the next poll passes it
                Ok(())
            }
            Packet::Refusal(refusal) => {
                self.peer_ended(slot, id, Fault::Refused(refusal));
                Ok(())
            }
            Packet::Hello(..) | Packet::Proof { .. } => Err(Violation::Order.into()),
        }
    }

    pub(crate) fn accept_request(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        check_private(private)?;
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested);
        let Some(connection) = self.slots.find_mut(conn).filter(requested) else {
            return Err(request_gone());
        };
        let hello = hello(&self.config, &self.cookie, Greeting::Accept, connection.crosses);
        let fd = connection.own_fd.take();
        if let Some(socket) = &connection.socket
            && let Err(error) =
                socket::send(socket, encode_hello(&hello, private).bytes(), fd.as_ref().map(AsFd::as_fd))
        {
            // The peer is gone; its end will be read soon.
            tracing::debug!(%error, "cannot tell the peer that it was accepted");
        }
        self.establish(conn.slot);
        self.pending.report(Event::Established { conn, private: Box::default() });
        Ok(())
    }

    /// Makes the link, once both areas are there.
    fn establish(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let (Some(own), Some((peer, hello)), Some(socket)) =
            (&connection.own, connection.theirs.take(), &connection.socket)
        else {
            return;
        };
        let process = connection.crosses.then(|| {
            let pid = sys::credentials(socket).map_or(0, |credentials| credentials.pid);
            Process::probe(pid, hello.address, hello.cookie)
        });
        let (process, secret) = process.flatten().unzip();
        if let Some(secret) = secret {
            connection.say(&Packet::Proof { secret });
        }
        let mapped = Mapped::new(self.config.tuning.max_mapped, self.room.clone());
        let link = Link::new(own.clone(), peer, process, mapped);
        connection.link = Some(Box::new(link));
        connection.phase = Phase::Established;
        // Memory that was exposed earlier can be passed now.
        let early: Vec<_> =
            connection.exposures.iter().map(|(key, segment, access)| (key, segment.clone(), access)).collect();
        for (key, segment, access) in early {
            if self.retired.may_lend(segment.region().memory()) {
                connection.advertise(key, &segment, access, self.config.share_pages);
            }
        }
        self.schedule.add(slot);
        self.deadlines.refresh();
        self.mark_ready(slot);
    }

    pub(crate) fn reject_request(&mut self, conn: ConnId, private: &[u8]) {
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested);
        if check_private(private).is_err() || self.slots.find_mut(conn).filter(requested).is_none() {
            return;
        }
        let hello = hello(&self.config, &self.cookie, Greeting::Reject, false);
        let Some(mut connection) = self.remove(conn.slot) else { return };
        if let Some(queues) = &mut connection.queues {
            queues.flush_all(None, |event| self.pending.report(event));
        }
        if let Some(socket) = connection.socket.take()
            && let Err(error) = socket::send(&socket, encode_hello(&hello, private).bytes(), None)
        {
            tracing::debug!(%error, "the peer could not be told that it was rejected");
        }
    }

    // ---- exposures ------------------------------------------------------------------------------

    pub(crate) fn expose_segment(
        &mut self,
        conn: ConnId,
        segment: &Segment,
        access: Access,
    ) -> Result<RemoteSlice, Error> {
        let takes = |connection: &&mut Connection| crate::takes_receives(&connection.phase);
        let Some(connection) = self.slots.find_mut(conn).filter(takes) else {
            return Err(connection_ended());
        };
        let slice = connection.exposures.add(&mut self.keys, segment, access)?;
        let key = slice.key.0;
        if self.retired.may_lend(segment.region().memory()) {
            connection.advertise(key, segment, access, self.config.share_pages);
        }
        Ok(slice)
    }

    pub(crate) fn revoke_key(&mut self, conn: ConnId, key: u64) {
        let Some(connection) = self.slots.find_mut(conn) else { return };
        if !connection.exposures.contains(key) {
            return;
        }
        if let Some(own) = &connection.own {
            own.withdraw(slot_of(key));
        }
        let under_way = connection.inbound.writes_with(key)
            || connection.queues.as_ref().is_some_and(|queues| queues.replies_with(key))
            || connection.link.as_ref().is_some_and(|link| stays_claimed(&link.peer, key));
        if under_way {
            self.end(conn.slot, conn, Fault::Revoked); // retires the memory if it is claimed
        } else {
            connection.exposures.remove(key);
        }
    }

    // ---- the end --------------------------------------------------------------------------------

    /// Takes a connection out of the tables.
    fn remove(&mut self, slot: u32) -> Option<Connection> {
        let connection = self.slots.remove(slot)?;
        self.vacated = true;
        self.schedule.remove(slot);
        if let Phase::HalfOpen { origin, .. } = connection.phase {
            self.half_open.remove(origin, connection.id);
        }
        self.deadlines.refresh();
        Some(connection)
    }

    /// Handles the end of the peer or of its side of the connection. Records that it has sent
    /// before are still received.
    fn peer_ended(&mut self, slot: u32, id: ConnId, fault: Fault) {
        let Some(connection) = self.slots.find_mut(id) else { return };
        if !matches!(connection.phase, Phase::Established) {
            return self.end(slot, id, fault);
        }
        let ring = self.config.tuning.ring_len.max(1 << 20);
        // A record takes at least one line, and a poll takes hundreds of records.
        connection.draining.get_or_insert(Draining { fault, polls: (ring / 64) as u32 });
        connection.more = true;
        if connection.wake() {
            self.schedule.wake(slot);
        }
    }

    /// Ends a connection at once: flushes outstanding work, then reports the end.
    pub(crate) fn end(&mut self, slot: u32, id: ConnId, fault: Fault) {
        if self.slots.find_mut(id).is_none() {
            return;
        }
        let Some(mut connection) = self.remove(slot) else { return };
        let peer = connection.peer.clone();
        let half_open = matches!(connection.phase, Phase::HalfOpen { .. });
        let warns = matches!(fault, Fault::Violation(_) | Fault::MadeRoom)
            || (half_open && matches!(fault, Fault::ConnectTimeout));
        if !warns {
            tracing::debug!(%peer, %fault, "connection ended");
        } else if self.admits_line("connection closed", peer.host()) {
            tracing::warn!(%peer, %fault, "connection closed");
        }
        if half_open {
            // No upper layer knows of it. A peer of another version learns this side's version.
            if let (Fault::Violation(Violation::Version { .. }), Some(socket)) = (&fault, &connection.socket) {
                let hello = hello(&self.config, &self.cookie, Greeting::Reject, false);
                let _ = socket::send(socket, encode_hello(&hello, &[]).bytes(), None);
            }
            return;
        }
        Self::retire_claimed(&mut self.retired, &connection, self.now);
        self.settle(&mut connection);
        let culprit = if let Fault::Refused(refusal) = fault { Some(refusal) } else { None };
        let reason = match std::mem::replace(&mut connection.phase, Phase::Requested) {
            Phase::Closing { reason, .. } => reason,
            _ => fault.into_error(&peer),
        };
        self.report_end(&mut connection, culprit, reason);
    }

    /// Withdraws all exposures of a connection that ends, and retires the memory that the peer
    /// still reaches.
    fn retire_claimed(retired: &mut Retired, connection: &Connection, now: Time) {
        let (Some(own), Some(link)) = (&connection.own, &connection.link) else { return }; // nothing was advertised
        connection.exposures.iter().for_each(|(key, ..)| own.withdraw(slot_of(key)));
        let claims = link.peer.claims();
        let claimed = || connection.exposures.iter().filter(|(key, ..)| claims.contains(key));
        if claimed().next().is_none() {
            return;
        }
        let mut life = connection.socket.as_ref().map_or(Life::Number(0), Life::of_peer);
        if life.is_over() {
            return;
        }
        let holder = Holder::new(&link.peer, life, claimed().map(|(key, segment, _)| (key, segment)));
        retired.add(holder, now);
        tracing::warn!(peer = %connection.peer, held = ?retired.usage(), "the peer may still write to memory");
    }

    /// Retires the memory that peers still reach when the transport is dropped.
    pub(crate) fn retire_all(&mut self) {
        for slot in 0..self.slots.len() {
            if let Some(connection) = self.slots.at_mut(slot) {
                Self::retire_claimed(&mut self.retired, connection, self.now);
            }
        }
    }

    /// Completes the in-place messages that the peer copied before the end.
    fn settle(&mut self, connection: &mut Connection) {
        if let (Some(link), Some(queues)) = (&mut connection.link, &mut connection.queues)
            && queues.has_gone()
            && link.refresh_taken().is_ok()
        {
            queues.complete_gone(link.in_place_copied, &mut self.pending);
        }
    }

    /// Gives back the retired memory that no peer reaches any more.
    pub(crate) fn look_at_retired(&mut self) {
        if self.retired.look(self.now) {
            self.deadlines.refresh();
        }
    }

    fn report_end(&mut self, connection: &mut Connection, culprit: Option<Refusal>, reason: Error) {
        let pending = &mut self.pending;
        if let Some(queues) = &mut connection.queues {
            queues.flush_all(culprit, |event| pending.report(event));
        }
        pending.report(Event::Disconnected { conn: connection.id, reason });
    }

    /// Ends an established connection in order: posted work goes into the ring as far as the
    /// deadline allows.
    pub(crate) fn close(&mut self, conn: ConnId, deadline: Time) {
        let now = self.now;
        let Some(connection) = self.slots.find_mut(conn) else { return };
        match &mut connection.phase {
            Phase::HalfOpen { .. } => return,
            Phase::Established if deadline > now && connection.draining.is_none() => {
                let reason = Fault::Cancelled.into_error(&connection.peer);
                connection.phase = Phase::Closing { reason, deadline };
                connection.more = true;
                if connection.wake() {
                    self.schedule.wake(conn.slot);
                }
                connection.inbound = Inbound::default();
                if let Some(queues) = &mut connection.queues {
                    queues.flush_waiting(None, |event| self.pending.report(event));
                    queues.replies.clear();
                }
            }
            Phase::Closing { deadline: known, .. } if deadline > now => *known = deadline.min(*known),
            Phase::Closing { .. } => return self.end(conn.slot, conn, Fault::Cancelled),
            _ => {
                connection.phase = Phase::Closing { reason: Fault::Cancelled.into_error(&connection.peer), deadline };
                return self.end(conn.slot, conn, Fault::Cancelled);
            }
        }
        self.deadlines.add(Some(deadline));
    }

    /// Cuts off a peer that broke the rules, and tells it why.
    pub(crate) fn cut(&mut self, slot: u32, violation: Violation) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        if let Some(link) = &mut connection.link {
            link.say_taken(); // the peer treats unacknowledged messages as refused
            connection.say(&Packet::Refusal(violation.refusal()));
        }
        self.end(slot, id, violation.into());
    }

    /// Ends or retries the connections whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) {
        if !self.deadlines.due(now) {
            return;
        }
        for slot in 0..self.slots.len() {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if connection.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            let id = connection.id;
            match connection.phase {
                Phase::Dialing { deadline, .. } if deadline > now => self.dial(slot),
                _ => self.end(slot, id, Fault::ConnectTimeout),
            }
        }
        self.listeners.expire(now);
        self.log.poll(now);
        self.deadlines.refresh();
    }
}

/// Returns what a peer is called until it has said more: its process.
fn name_of(origin: i32) -> Addr {
    Addr::shm(format!("/proc/{origin}"))
}

/// Returns the epoll token of a connection.
fn token_of(slot: u32) -> usize {
    (slot as usize) << crate::TOKEN_BITS | crate::TOKEN_CONNECTION
}

/// Returns this side's hello. It contains the address of this side's memory only for a peer that
/// may reach the memory through the kernel.
fn hello(config: &ShmConfig, cookie: &[u64; 2], greeting: Greeting, crosses: bool) -> Hello {
    let (cookie, address) = if crosses { (cookie[0], std::ptr::from_ref(cookie) as u64) } else { (0, 0) };
    Hello { greeting, geometry: config.geometry(), cookie, address }
}

/// Checks that a peer's user may talk to this process. Returns whether the kernel may copy between
/// the two.
fn check_user(config: &ShmConfig, socket: &OwnedFd) -> Result<bool, Fault> {
    let user = sys::credentials(socket).map_err(Fault::Socket)?.user;
    let own = rustix::process::geteuid().as_raw();
    if config.admits(user, own) { Ok(config.crosses(user, own)) } else { Err(Fault::User(user)) }
}

/// Maps the area that came with a hello.
fn map_area(hello: &Hello, passed: Passed) -> Result<Area, Fault> {
    let fd = passed.only()?;
    let mapping = sys::map_peer(&fd, hello.geometry.len() as u64, false).map_err(Violation::Memory)?;
    Ok(Area::new(mapping.map_err(Fault::Memory)?, hello.geometry))
}
