//! Who may connect: listening, and the sockets that are accepted before anything is heard from
//! them.
//!
//! **Invariant.** A half-open socket owns no memory. There are at most `max_half_open` of them. A
//! newcomer always gets a place among them. If they are all taken, another one goes
//! ([`bmi_backend::HalfOpen`]), but only after its packets were read.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bmi_backend::{Deadlines, Place, Round, check_scheme, listen_failed};
use bmi_core::{Addr, Error, ErrorKind, Scheme, Time};

use super::connection::Phase;
use super::handshake::check_user;
use crate::error::Fault;
use crate::os::socket::{self, ListenError};
use crate::os::sys::{self, Credentials};
use crate::{ShmConfig, ShmTransport, token_of};

/// An accepted socket of an admitted user that no transport has a connection for yet.
pub(crate) struct Newcomer {
    socket: OwnedFd,
    process: Credentials,
    /// Set if the kernel may copy between the two processes.
    crosses: bool,
    arrived: Time,
}

impl ShmTransport {
    pub(crate) fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
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

    /// Takes the sockets that other members of the group have accepted for this transport, and
    /// accepts those that wait at the listeners.
    pub(crate) fn accept_sockets(&mut self) -> bool {
        let mut round = Round::new(&self.shard);
        while let Some((newcomer, place)) = round.next(&self.shard, &mut self.listeners, self.now, |listening| {
            let socket = socket::accept(listening.socket.as_fd())?;
            Ok(admit(socket, &self.config, &mut self.deadlines, self.now))
        }) {
            self.handle_newcomer(newcomer, place);
        }
        self.deadlines.add(self.listeners.deadline());
        round.any()
    }

    fn handle_newcomer(&mut self, newcomer: Newcomer, place: Place) {
        let Newcomer { socket, process, crosses, arrived } = newcomer;
        let origin = process.pid;
        let peer = name_of(origin);
        let deadline = arrived + self.config.limits.handshake_timeout;
        while let Some(id) = self.half_open.first_to_go(self.slots.is_full()) {
            self.end(id.slot, id, Fault::MadeRoom);
        }
        let heard_at = self.offenders.heard_at(origin, self.now);
        let id = match self.insert(peer.clone(), Phase::HalfOpen { deadline, origin, heard_at }, place) {
            Ok(id) => id,
            Err(error) => return self.deadlines.warn_closed(&peer, &error, self.now),
        };
        if let Err(error) = self.watch(socket.as_fd(), token_of(id.slot)) {
            self.slots.remove(id.slot);
            return self.deadlines.warn_closed(&peer, &error, self.now);
        }
        self.half_open.add(origin, id);
        if let Some(connection) = self.slots.find_mut(id) {
            (connection.socket, connection.process, connection.crosses) = (Some(socket), Some(process), crosses);
        }
        self.mark_ready(id.slot);
    }
}

/// Checks the user of an accepted socket.
fn admit(socket: OwnedFd, config: &ShmConfig, deadlines: &mut Deadlines, now: Time) -> Option<Newcomer> {
    let process = sys::credentials(&socket);
    let name = name_of(process.as_ref().map_or(0, |process| process.pid));
    let checked = process.map_err(Fault::Socket).and_then(|process| Ok((process, check_user(config, process)?)));
    match checked {
        Ok((process, crosses)) => Some(Newcomer { socket, process, crosses, arrived: now }),
        Err(fault) => {
            deadlines.warn_closed(&name, &fault, now);
            None
        }
    }
}

/// Returns what a peer is called until it has said more: its process.
fn name_of(origin: i32) -> Addr {
    Addr::shm(format!("/proc/{origin}"))
}
