//! The host that leads a run: it gathers the others, lets all begin a phase together, and merges
//! what they did.
//!
//! **Invariants**
//! 1. A phase begins when every host has answered the one before. Its time is from the first order
//!    to the last answer, on the leader's clock.
//! 2. A host that is lost, or fails, ends the phase for all others. It is never waited for again.
//! 3. What connects and does not belong to the run is dealt with in [`door`].

use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use bmi::Clock;
use bmi::driver::MonotonicClock;

use super::crew::{Crew, Stopper};
use super::door::{self, Key, refuse};
use super::event::{Event, Newcomer};
use super::follower::share;
use super::job::{Job, Order, Part, Ready};
use super::wire::{self, FromFollower, FromLeader, Lines};

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Interrupted,
    Failed(String),
}

/// A host that takes part. The first is this one.
struct Seat {
    name: String,
    line: Line,
    present: bool,
}

enum Line {
    Here(Sender<Order>, Stopper, JoinHandle<()>),
    There(TcpStream),
}

/// The leader.
pub(crate) struct Leader {
    seats: Vec<Seat>,
    events: Receiver<Event>,
    sender: Sender<Event>,
    clock: MonotonicClock,
    /// Nothing ends the run early any more.
    closing: bool,
}

impl Leader {
    /// Creates the leader of a run with no hosts so far.
    pub(crate) fn new() -> Leader {
        let (sender, events) = mpsc::channel();
        Leader { seats: Vec::new(), events, sender, clock: MonotonicClock::new(), closing: false }
    }

    /// Returns where to tell the leader something.
    pub(crate) fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Waits until `count` followers have joined.
    ///
    /// # Errors
    /// If there is no thread to accept them, or the user interrupts.
    pub(crate) fn gather(&self, listener: TcpListener, key: Key, count: usize) -> Result<Vec<Newcomer>, Ended> {
        let failed = |error: io::Error| Ended::Failed(error.to_string());
        door::open(listener, key, count, self.sender()).map_err(failed)?;
        let mut newcomers = Vec::new();
        while newcomers.len() < count {
            match self.next()? {
                Event::Joined(newcomer) => newcomers.push(newcomer),
                Event::Interrupted => return Err(Ended::Interrupted),
                // Those are of hosts in a run.
                Event::Ready(..) | Event::Done(..) | Event::Lost(..) => {}
            }
        }
        Ok(newcomers)
    }

    /// Gives every host the job, and waits until all are connected to the servers. Returns what
    /// they are, this host first.
    ///
    /// # Errors
    /// The first that fails.
    pub(crate) fn begin(&mut self, job: &Job, name: &str, newcomers: Vec<Newcomer>) -> Result<Vec<Ready>, Ended> {
        let failed = |error: io::Error| Ended::Failed(error.to_string());
        let count = newcomers.len() + 1;
        let here = start_here(share(job, 0), name.to_owned(), self.sender()).map_err(failed)?;
        self.seats.push(Seat { name: name.to_owned(), line: here, present: true });
        for (number, newcomer) in (1..).zip(newcomers) {
            let Newcomer { name, stream, lines } = newcomer;
            // If it is gone, its reader says so.
            let _ = wire::send(&stream, &FromLeader::Job(Box::new(share(job, number as u32))));
            listen(number, lines, self.sender()).map_err(failed)?;
            self.seats.push(Seat { name, line: Line::There(stream), present: true });
        }
        let mut ready: Vec<Option<Ready>> = vec![None; count];
        while ready.iter().any(Option::is_none) {
            match self.next()? {
                Event::Ready(seat, Ok(answer)) if answer.labels.len() != job.lanes() => {
                    return Err(Ended::Failed(self.of(seat, "it answers for other transports")));
                }
                Event::Ready(seat, Ok(answer)) => ready[seat] = Some(answer),
                Event::Ready(seat, Err(error)) | Event::Lost(seat, error) | Event::Done(seat, Err(error)) => {
                    return Err(Ended::Failed(self.of(seat, &error)));
                }
                Event::Interrupted => return Err(Ended::Interrupted),
                Event::Joined(late) => refuse(&late.stream, "the run has begun"),
                Event::Done(..) => {}
            }
        }
        Ok(ready.into_iter().flatten().collect())
    }

    fn next(&self) -> Result<Event, Ended> {
        // The leader has a sender too, so the channel never ends.
        self.events.recv().map_err(|error| Ended::Failed(error.to_string()))
    }

    /// Returns an error of a host, with the name of the host if it is another one.
    fn of(&self, seat: usize, error: &str) -> String {
        if seat == 0 { error.to_owned() } else { format!("host {}: {error}", self.seats[seat].name) }
    }

    /// Returns the time since some moment.
    pub(crate) fn now(&self) -> bmi::Time {
        self.clock.now()
    }

    /// Lets all hosts do a phase. Returns how long it took, and what all did together.
    ///
    /// # Errors
    /// If a host fails or is lost, or the user interrupts.
    pub(crate) fn phase(&mut self, order: Order) -> Result<(Duration, Part), Ended> {
        let begun = self.clock.now();
        let all = 0..self.seats.len();
        let mut waiting: BTreeSet<usize> = all.filter(|seat| self.seats[*seat].present).collect();
        waiting.iter().for_each(|seat| self.seats[*seat].order(order));
        let (mut sum, mut end, mut ended) = (Part::default(), begun, None);
        while !waiting.is_empty() {
            let why = match self.next()? {
                Event::Done(seat, answer) => {
                    waiting.remove(&seat);
                    end = self.clock.now();
                    match answer {
                        Ok(part) => {
                            sum.add(part);
                            continue;
                        }
                        Err(error) => Ended::Failed(self.of(seat, &error)),
                    }
                }
                // It was dismissed.
                Event::Lost(seat, _) if !self.seats[seat].present => continue,
                Event::Lost(seat, why) => {
                    self.seats[seat].present = false;
                    waiting.remove(&seat);
                    Ended::Failed(self.of(seat, &why))
                }
                Event::Interrupted if !self.closing => Ended::Interrupted,
                Event::Joined(late) => {
                    refuse(&late.stream, "the run has begun");
                    continue;
                }
                Event::Interrupted | Event::Ready(..) => continue,
            };
            if ended.is_none() {
                waiting.iter().for_each(|seat| self.seats[*seat].stop());
                ended = Some(why);
            }
        }
        match ended {
            Some(why) => Err(why),
            None if sum.stopped => Err(Ended::Failed("a host stopped by itself".to_owned())),
            None => Ok((end.since(begun), sum)),
        }
    }

    /// Lets this host do the last phases. The others are dismissed.
    ///
    /// # Errors
    /// The first that fails. The others are done all the same.
    pub(crate) fn close(&mut self, orders: Vec<Order>) -> Result<(), Ended> {
        self.closing = true;
        for seat in self.seats.iter_mut().skip(1) {
            seat.present = false;
            seat.dismiss();
        }
        let done: Vec<Result<(), Ended>> = orders.into_iter().map(|order| self.phase(order).map(drop)).collect();
        done.into_iter().collect()
    }
}

impl Drop for Leader {
    /// Ends the crew of this host, so that its connections end in order, and dismisses the others.
    fn drop(&mut self) {
        self.seats.iter().for_each(Seat::dismiss);
        for seat in self.seats.drain(..) {
            if let Line::Here(orders, _, thread) = seat.line {
                drop(orders);
                // A thread that panicked has said so on standard error.
                let _ = thread.join();
            }
        }
    }
}

impl Seat {
    /// Tells the host to do a phase. If it is gone, its reader says so.
    fn order(&self, order: Order) {
        match &self.line {
            Line::Here(orders, stopper, _) => {
                stopper.set(false);
                let _ = orders.send(order);
            }
            Line::There(stream) => drop(wire::send(stream, &FromLeader::Do(order))),
        }
    }

    fn stop(&self) {
        match &self.line {
            Line::Here(_, stopper, _) => stopper.set(true),
            Line::There(stream) => drop(wire::send(stream, &FromLeader::Stop)),
        }
    }

    fn dismiss(&self) {
        if let Line::There(stream) = &self.line {
            // It may be gone.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Starts the crew of this host.
fn start_here(job: Job, name: String, events: Sender<Event>) -> io::Result<Line> {
    let (orders, receiver) = mpsc::channel();
    let stopper = Stopper::new();
    let of_crew = stopper.clone();
    let body = move || {
        let crew = match Crew::start(job, name, of_crew) {
            Ok(crew) => crew,
            Err(error) => return drop(events.send(Event::Ready(0, Err(error)))),
        };
        let _ = events.send(Event::Ready(0, Ok(crew.ready().clone())));
        for order in receiver {
            if events.send(Event::Done(0, crew.run(order))).is_err() {
                return;
            }
        }
    };
    let thread = Builder::new().name("crew".into()).spawn(body)?;
    Ok(Line::Here(orders, stopper, thread))
}

/// Starts to read what a follower says.
fn listen(seat: usize, mut lines: Lines, events: Sender<Event>) -> io::Result<()> {
    let body = move || {
        loop {
            let event = match lines.message(wire::FOLLOWER_LINE) {
                Ok(Some(FromFollower::Ready(ready))) => Event::Ready(seat, Ok(ready)),
                Ok(Some(FromFollower::Done(part))) => Event::Done(seat, Ok(*part)),
                Ok(Some(FromFollower::Failed(error))) => Event::Done(seat, Err(error)),
                Ok(None) => Event::Lost(seat, "it went away".to_owned()),
                Err(error) => Event::Lost(seat, format!("it went away: {error}")),
            };
            let is_end = matches!(event, Event::Lost(..));
            if events.send(event).is_err() || is_end {
                return;
            }
        }
    };
    Builder::new().name(format!("host-{seat}")).spawn(body).map(drop)
}
