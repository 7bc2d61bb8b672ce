//! Connecting, accepting and rejecting: from the first hello to the link.
//!
//! **Invariant.** Queues exist from `connect` on, or from the arrival of the complete, valid hello
//! on. The link exists from the moment on when both areas do.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use bmi_backend::{Place, check_private, check_scheme, request_gone};
use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Error, ErrorKind, Scheme, Time};

use super::connection::{Connection, Phase};
use super::packet::{Greeting, Hello, Packet, encode_hello, hello};
use crate::error::{Fault, Violation, no_memory, unconnected};
use crate::os::socket::{self, Passed};
use crate::os::sys::{self, Credentials, Process};
use crate::passed::Mapped;
use crate::records::Link;
use crate::shared::Area;
use crate::work::{Completions, QueuePair};
use crate::{ShmConfig, ShmTransport, token_of};

/// Time until the next try when a listener's queue is full.
const DIAL_RETRY: Duration = Duration::from_millis(1);

impl ShmTransport {
    pub(crate) fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
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
    pub(super) fn insert(&mut self, peer: Addr, phase: Phase, place: Place) -> Result<ConnId, Error> {
        let id = self.slots.insert(|id| Connection::new(id, peer, phase, place))?;
        let deadline = self.slots.find_mut(id).and_then(|connection| connection.deadline());
        self.deadlines.add(deadline);
        Ok(id)
    }

    pub(super) fn dial(&mut self, slot: u32) {
        let now = self.now;
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let id = connection.id;
        let Phase::Dialing { private, deadline, .. } = &mut connection.phase else { return };
        let deadline = *deadline;
        let path = Path::new(connection.peer.host());
        let connected = socket::connect(path).map_err(unconnected).and_then(|socket| {
            // The check comes before anything is sent. So another user's process that listens there
            // gets no descriptor and learns no address.
            let process = sys::credentials(&socket).map_err(Fault::Socket)?;
            let crosses = check_user(&self.config, process)?;
            let hello = hello(&self.config, &self.cookie, Greeting::Connect, crosses);
            let fd = connection.own_fd.as_ref().map(AsFd::as_fd);
            socket::send(&socket, encode_hello(&hello, private).bytes(), fd).map_err(Fault::Unreachable)?;
            Ok((socket, process, crosses))
        });
        match connected {
            Ok((socket, process, crosses)) => {
                let watched = self.watch(socket.as_fd(), token_of(slot));
                let Some(connection) = self.slots.at_mut(slot) else { return };
                (connection.socket, connection.own_fd) = (Some(socket), None);
                (connection.process, connection.crosses) = (Some(process), crosses);
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

    pub(super) fn handle_connect(
        &mut self,
        slot: u32,
        hello: Hello,
        private: Box<[u8]>,
        passed: Passed,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let area = map_area(&hello, passed)?;
        let (fd, mapping) = sys::new_area(self.config.geometry().len()).map_err(no_memory)?;
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
        let (from, identity) = (Box::new(connection.peer.clone()), connection.identity());
        events.push(Event::ConnectRequest { conn: id, from, identity, private });
        Ok(())
    }

    pub(crate) fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        check_private(private)?;
        let requested = |connection: &&mut Connection| matches!(connection.phase, Phase::Requested);
        let Some(connection) = self.slots.find_mut(conn).filter(requested) else {
            return Err(request_gone());
        };
        let hello = hello(&self.config, &self.cookie, Greeting::Accept, connection.crosses);
        let (fd, identity) = (connection.own_fd.take(), connection.identity());
        if let Some(socket) = &connection.socket
            && let Err(error) =
                socket::send(socket, encode_hello(&hello, private).bytes(), fd.as_ref().map(AsFd::as_fd))
        {
            // The peer is gone; its end will be read soon.
            tracing::debug!(%error, "cannot tell the peer that it was accepted");
        }
        self.establish(conn.slot);
        self.pending.report(Event::Established { conn, identity, private: Box::default() });
        Ok(())
    }

    /// Makes the link, once both areas are there.
    pub(super) fn establish(&mut self, slot: u32) {
        let Some(connection) = self.slots.at_mut(slot) else { return };
        let (Some(own), Some((peer, hello))) = (&connection.own, connection.theirs.take()) else { return };
        let crossed = connection.process.filter(|_| connection.crosses);
        let process = crossed.and_then(|process| Process::probe(process.pid, hello.address, hello.cookie));
        let (process, secret) = process.unzip();
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

    pub(crate) fn reject(&mut self, conn: ConnId, private: &[u8]) {
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
}

/// Checks that the user of a peer's process may talk to this process. Returns whether the kernel
/// may copy between the two.
pub(super) fn check_user(config: &ShmConfig, process: Credentials) -> Result<bool, Fault> {
    let (user, own) = (process.user, rustix::process::geteuid().as_raw());
    if config.admits(user, own) { Ok(config.crosses(user, own)) } else { Err(user_refused(user)) }
}

fn user_refused(user: u32) -> Fault {
    let why = format!("the peer runs under user {user}, which ShmConfig::allowed_users does not name");
    Fault::other(ErrorKind::Denied, why)
}

/// Maps the area that came with a hello.
pub(super) fn map_area(hello: &Hello, passed: Passed) -> Result<Area, Fault> {
    let fd = passed.only()?;
    let mapping = sys::map_peer(&fd, hello.geometry.len() as u64, false).map_err(Violation::Other)?;
    Ok(Area::new(mapping.map_err(no_memory)?, hello.geometry))
}
