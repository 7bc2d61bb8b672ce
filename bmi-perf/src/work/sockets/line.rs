//! A connection whose calls do not block.
//!
//! **Invariant.** A part of a round is a future that is pending only after it has noted in its line
//! for what it waits. A socket that a thread polls alone is tried again at once, but for every
//! [`TRIES`]th time, when the loop looks whether the run was stopped.
//!
//! **Calls that are not made.** A read that brought less than it asked for, and a write that left
//! something, have shown the state of the socket. So the part waits, and does not try in vain.

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::task::Poll;

use bmi::Error;
use rustix::event::epoll::EventFlags;

/// How often a thread that polls one socket tries in vain before the loop gets its turn.
const TRIES: u32 = 1024;

/// A connection.
pub(super) struct Line {
    pub(super) stream: TcpStream,
    /// What its part waits for. Nothing: it wants to be polled again.
    pub(super) waits: Cell<EventFlags>,
    /// Whether bytes have moved since the loop looked.
    pub(super) moved: Cell<bool>,
    /// Whether the thread polls this socket alone, so that nothing else needs a turn.
    pub(super) is_alone: Cell<bool>,
    /// How often the part has tried in vain.
    tries: Cell<u32>,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Line> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let waits = Cell::new(EventFlags::empty());
        Ok(Line { stream, waits, moved: Cell::default(), is_alone: Cell::default(), tries: Cell::default() })
    }

    /// Ends a turn of the part, which waits for its socket, or for another turn if `flags` are
    /// empty.
    #[inline]
    pub(super) async fn wait(&self, flags: EventFlags) {
        // The way through the loop takes some time, which a plain program would not need.
        self.tries.set(self.tries.get().wrapping_add(1));
        if self.is_alone.get() && !self.tries.get().is_multiple_of(TRIES) {
            return;
        }
        self.waits.set(flags);
        let mut was_polled = false;
        poll_fn(|_| match std::mem::replace(&mut was_polled, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Reads what is there. Returns 0 if that is nothing.
    pub(super) fn try_read(&self, into: &mut [u8]) -> Result<usize, Error> {
        match (&self.stream).read(into) {
            Ok(0) => Err(Error::new(bmi::ErrorKind::PeerLost, "the other side has closed the socket")),
            other => self.moved(other),
        }
    }

    /// Writes what there is room for. Returns 0 if that is nothing.
    pub(super) fn try_write(&self, from: &[u8]) -> Result<usize, Error> {
        self.moved((&self.stream).write(from))
    }

    fn moved(&self, result: std::io::Result<usize>) -> Result<usize, Error> {
        match result {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Ok(len) => {
                self.moved.set(true);
                Ok(len)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the answer to what was just written. It cannot be there, so the part waits first.
    pub(super) async fn read_answer(&self, into: &mut [u8]) -> Result<(), Error> {
        self.wait(EventFlags::IN).await;
        self.read_exact(into).await
    }

    /// Reads as much as there is room for.
    pub(super) async fn read_exact(&self, into: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        loop {
            done += self.try_read(&mut into[done..])?;
            if done == into.len() {
                return Ok(());
            }
            self.wait(EventFlags::IN).await;
        }
    }

    pub(super) async fn write_all(&self, from: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        loop {
            done += self.try_write(&from[done..])?;
            if done == from.len() {
                return Ok(());
            }
            self.wait(EventFlags::OUT).await;
        }
    }
}
