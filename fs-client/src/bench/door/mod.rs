//! Accepts the hosts of a run, and turns away all else that connects to the leader's port.
//!
//! **Why.** The port is open while the run lasts. What a stranger does there must neither hold up
//! the run, nor take memory, nor fill the user's terminal.
//!
//! **Invariants**
//! 1. A newcomer joins only with the token of the run, or as a process of the same user on this
//!    host ([`neighbour`]). If the user has chosen the token, each needs it.
//! 2. Each newcomer has a thread of its own, [`PATIENCE`] for its hello as a whole, and
//!    [`wire::HELLO_LINE`] bytes of memory. So none waits for another.
//! 3. There is a limit to those that have not said hello. At the limit, the oldest makes room: a
//!    real follower sends its hello at once, so it is seldom the oldest. The limit is beyond the
//!    hosts that the run waits for, because all of these may come at once.
//! 4. The first [`MOST_COMPLAINTS`] that are turned away are reported to the user, and the last of
//!    these lines says that there are no more of them.

mod neighbour;

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, park_timeout};
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;

use super::event::{Event, Newcomer};
use super::token::{Token, VARIABLE};
use super::wire::{self, FromLeader, Hello, Lines};
use crate::program::complain;

/// How long a newcomer may take for its hello.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most newcomers that have not said their hello, beyond the hosts that are waited for.
const MOST_STRANGERS: usize = 64;
/// The most lines about newcomers that were turned away.
const MOST_COMPLAINTS: usize = 8;
/// The pause after a newcomer that could not be accepted: the process has no descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// What a newcomer has to know.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) token: Token,
    /// The user has chosen the token: nobody joins without it.
    pub(crate) is_chosen: bool,
}

/// What the threads of the newcomers share.
struct Door {
    key: Key,
    clock: MonotonicClock,
    /// The most that have not said hello.
    room: usize,
    /// Those that have not said hello, the oldest first.
    silent: Mutex<VecDeque<(usize, TcpStream)>>,
    complaints: AtomicUsize,
}

/// Starts to accept newcomers, in a run that waits for `count` of them.
///
/// # Errors
/// If there is no thread for it.
pub(super) fn open(listener: TcpListener, key: Key, count: usize, events: Sender<Event>) -> io::Result<()> {
    let room = MOST_STRANGERS + count;
    let clock = MonotonicClock::new();
    let door = Arc::new(Door { key, clock, room, silent: Mutex::default(), complaints: AtomicUsize::new(0) });
    let body = move || {
        for (number, stream) in listener.incoming().enumerate() {
            let begun = stream.and_then(|stream| door.let_in(number, stream, &events));
            if let Err(error) = begun {
                door.report(&format!("a host cannot join: {error}"));
                park_timeout(PAUSE);
            }
        }
    };
    Builder::new().name("newcomers".into()).spawn(body).map(drop)
}

/// Tells a newcomer why it cannot join. It may be gone already.
pub(super) fn refuse(stream: &TcpStream, why: &str) {
    let _ = wire::send(stream, &FromLeader::Refused(why.to_owned()));
}

impl Door {
    /// Starts the thread of a newcomer.
    fn let_in(self: &Arc<Door>, number: usize, stream: TcpStream, events: &Sender<Event>) -> io::Result<()> {
        self.note(number, stream.try_clone()?);
        let (door, events) = (self.clone(), events.clone());
        let body = move || {
            let from = stream.peer_addr().map_or_else(|_| "a host".to_owned(), |addr| addr.to_string());
            let greeted = door.greet(number, stream);
            door.forget(number);
            match greeted {
                Ok(newcomer) => drop(events.send(Event::Joined(newcomer))),
                Err(why) => door.report(&format!("{from} did not join: {why}")),
            }
        };
        let started = Builder::new().name("newcomer".into()).spawn(body);
        if started.is_err() {
            self.forget(number);
        }
        started.map(drop)
    }

    fn greet(&self, number: usize, stream: TcpStream) -> Result<Newcomer, String> {
        let failed = |error: io::Error| error.to_string();
        wire::prepare(&stream).map_err(failed)?;
        let mut lines = Lines::new(stream.try_clone().map_err(failed)?);
        let line = lines.next_by(self.clock.now() + PATIENCE, self.clock, wire::HELLO_LINE);
        if !self.forget(number) {
            return Err(format!("it said nothing while {} others connected", self.room));
        }
        let line = line.map_err(|error| {
            refuse(&stream, &error.to_string());
            failed(error)
        })?;
        let admitted = Hello::parse(&line.unwrap_or_default()).and_then(|hello| self.admit(hello, &stream));
        let name = admitted.inspect_err(|why| refuse(&stream, why))?;
        wire::send(&stream, &FromLeader::Welcome).map_err(failed)?;
        Ok(Newcomer { name, stream, lines })
    }

    /// Checks the token. Returns the name of the host.
    fn admit(&self, hello: Hello, stream: &TcpStream) -> Result<String, String> {
        match &hello.token {
            Some(token) if self.key.token.is(token) => Ok(hello.name),
            Some(_) => Err("its token is not that of this run".to_owned()),
            None if !self.key.is_chosen && neighbour::is_own(stream) => Ok(hello.name),
            None => Err(format!("it has no token; set {VARIABLE} or say --token-file FILE")),
        }
    }

    /// Notes a newcomer that has not said hello. The oldest of these may have to go, which ends
    /// what its thread waits for.
    fn note(&self, number: usize, stream: TcpStream) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.push_back((number, stream));
        if silent.len() > self.room
            && let Some((_, oldest)) = silent.pop_front()
        {
            // It may be gone already.
            let _ = oldest.shutdown(Shutdown::Both);
        }
    }

    /// Returns false if the newcomer had to go.
    fn forget(&self, number: usize) -> bool {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let place = silent.iter().position(|(one, _)| *one == number);
        place.and_then(|place| silent.remove(place)).is_some()
    }

    /// Reports a newcomer that did not join, unless there were too many of them.
    fn report(&self, line: &str) {
        match self.complaints.fetch_add(1, Ordering::Relaxed) + 1 {
            MOST_COMPLAINTS => complain(&format!("{line}; further ones are not reported")),
            number if number < MOST_COMPLAINTS => complain(line),
            _ => {}
        }
    }
}
