//! A host that takes part in a run which another host leads: `pvfs bench join`.
//!
//! **Invariants**
//! 1. It does nothing before the leader has said that it has the same version, and that the token
//!    is right.
//! 2. If the connection ends during a phase, the phase is ended and the follower fails. So it needs
//!    no signal from whatever has started it.
//! 3. It waits without a limit only for the job, which comes when all hosts have joined, and for
//!    the phases.

use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, Receiver};
use std::thread::Builder;
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;

use super::crew::{Crew, Stopper};
use super::job::{Job, Order};
use super::token::Token;
use super::wire::{self, FromFollower, FromLeader, Hello, Lines};

/// How long the leader may take to accept a connection, and then to answer the hello.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who joins.
#[derive(Debug)]
pub(crate) struct Joiner {
    /// The name of the host in the report.
    pub(crate) name: String,
    pub(crate) token: Option<Token>,
    /// Is used instead of the leader's address of the manager, if there is one cluster.
    pub(crate) manager: Option<String>,
}

/// Takes part in the run that is led from `address`. Returns the number of phases.
///
/// # Errors
/// If the leader cannot be reached or refuses, or goes away during a phase.
pub(crate) fn join(address: &str, joiner: Joiner) -> Result<u64, String> {
    let Joiner { name, token, manager } = joiner;
    let failed = |error: io::Error| format!("{address}: {error}");
    let stream = connect(address).map_err(|error| format!("cannot reach the leader at {address}: {error}"))?;
    wire::prepare(&stream).map_err(failed)?;
    let token = token.map(|token| token.reveal().to_owned());
    wire::send(&stream, &Hello::new(name.clone(), token)).map_err(failed)?;
    let mut lines = Lines::new(stream.try_clone().map_err(failed)?);
    welcome(&mut lines, address)?;
    let mut job = match lines.message(wire::LEADER_LINE).map_err(failed)? {
        Some(FromLeader::Job(job)) => *job,
        Some(other) => return Err(format!("{address}: {other:?} instead of a job")),
        None => return Err(format!("{address}: the run ended before it began")),
    };
    if let (Some(manager), [only]) = (manager, &mut job.clusters[..]) {
        only.manager = manager;
    }
    let stopper = Stopper::new();
    let crew = match Crew::start(job, name, stopper.clone()) {
        Ok(crew) => crew,
        Err(error) => {
            // The leader may be gone too. The error is returned in any case.
            let _ = wire::send(&stream, &FromFollower::Failed(error.clone()));
            return Err(error);
        }
    };
    wire::send(&stream, &FromFollower::Ready(crew.ready().clone())).map_err(failed)?;
    let orders = listen(lines, stopper).map_err(failed)?;
    work(&crew, &orders, &stream).map_err(|error| format!("{address}: {error}"))
}

/// Connects to the first of the address's addresses that answers.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut result = Err(io::Error::new(ErrorKind::NotFound, "the name has no address"));
    for addr in address.to_socket_addrs()? {
        result = TcpStream::connect_timeout(&addr, PATIENCE);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Waits for the answer to the hello.
fn welcome(lines: &mut Lines, address: &str) -> Result<(), String> {
    let clock = MonotonicClock::new();
    let line = lines.next_by(clock.now() + PATIENCE, clock, wire::HELLO_LINE);
    let line = line.map_err(|error| format!("{address}: {error}; no 'pvfs bench' leads there"))?;
    let line = line.ok_or_else(|| format!("{address}: the connection was closed: no 'pvfs bench' leads there"))?;
    match serde_json::from_str(&line) {
        Ok(FromLeader::Welcome) => Ok(()),
        Ok(FromLeader::Refused(why)) => Err(format!("{address} refuses this host: {why}")),
        _ => Err(format!("{address}: no 'pvfs bench' leads there")),
    }
}

/// What the thread that reads has seen.
enum Event {
    Do(Order),
    /// The connection has ended.
    End(Result<(), String>),
}

/// Starts to read what the leader says. The phase that is running is stopped here, so that the
/// order of `Do` and `Stop` is kept.
fn listen(mut lines: Lines, stopper: Stopper) -> io::Result<Receiver<Event>> {
    let (sender, receiver) = mpsc::channel();
    let body = move || {
        loop {
            let event = match lines.message(wire::LEADER_LINE) {
                Ok(Some(FromLeader::Do(order))) => {
                    stopper.set(false);
                    Event::Do(order)
                }
                Ok(Some(FromLeader::Stop)) => {
                    stopper.set(true);
                    continue;
                }
                Ok(Some(other)) => Event::End(Err(format!("{other:?} is not expected now"))),
                Ok(None) => Event::End(Ok(())),
                Err(error) => Event::End(Err(error.to_string())),
            };
            let is_end = matches!(event, Event::End(_));
            if is_end {
                stopper.set(true);
            }
            if sender.send(event).is_err() || is_end {
                return;
            }
        }
    };
    Builder::new().name("leader".into()).spawn(body)?;
    Ok(receiver)
}

/// Does the phases. Returns their number.
fn work(crew: &Crew, orders: &Receiver<Event>, stream: &TcpStream) -> Result<u64, String> {
    let mut phases = 0;
    loop {
        match orders.recv() {
            Ok(Event::Do(order)) => {
                let answer = match crew.run(order) {
                    Ok(part) => FromFollower::Done(Box::new(part)),
                    Err(error) => FromFollower::Failed(error),
                };
                let gone = |error: io::Error| format!("the leader went away during a phase: {error}");
                wire::send(stream, &answer).map_err(gone)?;
                phases += 1;
            }
            Ok(Event::End(Ok(()))) | Err(_) => return Ok(phases),
            Ok(Event::End(Err(error))) => return Err(error),
        }
    }
}

/// Returns the part of a job that a follower does.
pub(super) fn share(job: &Job, number: u32) -> Job {
    Job { first: job.tasks * number, ..job.clone() }
}
