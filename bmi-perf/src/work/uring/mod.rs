//! Plain sockets over io_uring, beside those of `sockets`: what a program could gain that hands its
//! calls to the kernel by a ring. It has the tests of exchanges and of streams in one direction. It
//! polls or sleeps.
//!
//! Both sides have the memory that `sockets` has, and do the same with it. A stream leaves in
//! chains of as many messages as the depth, 64 at most, where `sockets` makes a call for each.
//!
//! `ring` has the calls.

mod ring;

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::TcpStream;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use bmi::Error;

use self::ring::{CHAIN, Ring};
use super::sockets::READ;
use crate::case::{Case, Test, Waiting};
use crate::measured::{Measured, Stopwatch};
use crate::stop::Stop;

/// Returns why this process cannot have a ring.
pub(super) fn check() -> Result<(), String> {
    let why = |error| format!("io_uring of Linux 6.0 cannot be used: {error}");
    ring::open().map(drop).map_err(why)
}

/// The connections of a thread.
pub(super) struct Uring(RefCell<Ring>);

impl Uring {
    pub(super) fn new(streams: Vec<TcpStream>) -> Result<Uring, Error> {
        Ok(Uring(RefCell::new(Ring::new(streams)?)))
    }

    /// Runs the client's part: `count` messages on each connection.
    pub(super) fn measure(&self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let measured = self.run(case, stop, |number| Part { ring: &self.0, number, case, count }.measure())?;
        Ok(measured.into_iter().fold(Measured::default(), Measured::beside))
    }

    /// Runs the server's part.
    pub(super) fn serve(&self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        self.run(case, stop, |number| Part { ring: &self.0, number, case, count }.serve()).map(drop)
    }

    /// Runs a part on each connection at the same time.
    fn run<T, F>(&self, case: &Case, stop: &Stop, part: impl FnMut(usize) -> F) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.0.borrow_mut().prepare(case)?;
        let number = self.0.borrow().connections();
        let mut parts: Vec<_> = (0..number).map(part).map(Box::pin).map(Some).collect();
        let mut results = Vec::with_capacity(number);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            for place in &mut parts {
                if let Some(Poll::Ready(result)) = place.as_mut().map(|part| part.as_mut().poll(&mut context)) {
                    results.push(result?);
                    *place = None;
                }
            }
            if results.len() == number {
                self.0.borrow_mut().settle()?;
                return Ok(results);
            }
            if stop.is_set() {
                return Err(stop.error());
            }
            self.0.borrow_mut().enter(case.waiting == Waiting::Sleeping)?;
        }
    }
}

/// A connection in a round.
struct Part<'a> {
    ring: &'a RefCell<Ring>,
    number: usize,
    case: &'a Case,
    count: u64,
}

impl Part<'_> {
    /// Receives bytes, those of a long message in its turn.
    async fn receive(&self, message: u64, len: usize) -> Result<(), Error> {
        poll_fn(|_| self.ring.borrow_mut().take(self.number, message, len)).await
    }

    async fn send(&self, messages: Range<u64>, len: usize, is_answered: bool) -> Result<(), Error> {
        poll_fn(|_| self.ring.borrow_mut().send(self.number, messages.clone(), len, is_answered)).await
    }

    async fn send_stream(&self) -> Result<(), Error> {
        let chain = CHAIN.min(self.case.buffers() as u64);
        for first in (0..self.count).step_by(chain as usize) {
            self.send(first..self.count.min(first + chain), self.case.len(), false).await?;
        }
        Ok(())
    }

    async fn receive_stream(&self) -> Result<(), Error> {
        if self.case.len() < READ {
            // It comes as it comes.
            return self.receive(0, self.case.len() * self.count as usize).await;
        }
        for message in 0..self.count {
            self.receive(message, self.case.len()).await?;
        }
        Ok(())
    }

    /// The client's part.
    async fn measure(self) -> Result<Measured, Error> {
        self.receive(0, 1).await?;
        let watch = Stopwatch::start();
        if let Some((out, back)) = self.case.test.exchange(self.case.len()) {
            let (mut measured, mut last) = (Measured::of_each(), watch.begin);
            for _ in 0..self.count {
                self.send(0..1, out, true).await?;
                self.receive(0, back).await?;
                last = measured.lap(last);
            }
            return Ok(measured.ended(watch, self.count));
        }
        if self.case.test == Test::ReadBandwidth {
            self.receive_stream().await?;
        } else {
            self.send_stream().await?;
            self.receive(0, 1).await?;
        }
        Ok(Measured::in_all().ended(watch, self.count))
    }

    /// The server's part.
    async fn serve(self) -> Result<(), Error> {
        self.send(0..1, 1, false).await?;
        if let Some((out, back)) = self.case.test.exchange(self.case.len()) {
            for message in 0..self.count {
                self.receive(0, out).await?;
                self.send(0..1, back, message + 1 < self.count).await?;
            }
        } else if self.case.test == Test::ReadBandwidth {
            self.send_stream().await?;
        } else {
            self.receive_stream().await?;
            self.send(0..1, 1, false).await?;
        }
        let has_left = || if self.ring.borrow().is_sending(self.number) { Poll::Pending } else { Poll::Ready(()) };
        poll_fn(|_| has_left()).await;
        Ok(())
    }
}
