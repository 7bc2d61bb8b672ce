//! A connection whose calls do not block, and the loop of a thread that has several of them.
//!
//! **Invariants**
//! 1. A part of a round is a future that is pending only after a call that would have blocked. It
//!    has noted in its line for what it waits. A socket that a thread polls alone is tried again at
//!    once, but for every [`TRIES`]th time, when the loop looks whether the run was stopped.
//! 2. The loop sleeps only if every part waits for its socket. It never misses a socket that is
//!    ready: `poll(2)` looks at the state, not at changes.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bmi::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::case::Waiting;
use crate::measured::now;
use crate::stop::Stop;

/// How often a side that waits looks whether the run has ended.
pub(in crate::work) const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often a thread that polls one socket tries in vain before the loop gets its turn.
const TRIES: u32 = 1024;
/// How long a hybrid side polls before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// A connection.
pub(super) struct Line {
    stream: TcpStream,
    /// What its part waits for. Nothing: it wants to be polled again.
    waits: Cell<PollFlags>,
    /// Whether bytes have moved since the loop looked.
    moved: Cell<bool>,
    /// Whether the thread polls this socket alone, so that nothing else needs a turn.
    is_alone: Cell<bool>,
    /// How often the part has tried in vain.
    tries: Cell<u32>,
}

impl Line {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Line> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let waits = Cell::new(PollFlags::empty());
        Ok(Line { stream, waits, moved: Cell::default(), is_alone: Cell::default(), tries: Cell::default() })
    }

    /// Ends a turn of the part, which waits for its socket, or for another turn if `flags` are
    /// empty.
    #[inline]
    pub(super) async fn wait(&self, flags: PollFlags) {
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

    pub(super) async fn read_some(&self, into: &mut [u8]) -> Result<usize, Error> {
        loop {
            match self.try_read(into)? {
                0 => self.wait(PollFlags::IN).await,
                len => return Ok(len),
            }
        }
    }

    pub(super) async fn read_exact(&self, into: &mut [u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < into.len() {
            done += self.read_some(&mut into[done..]).await?;
        }
        Ok(())
    }

    pub(super) async fn write_all(&self, from: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < from.len() {
            match self.try_write(&from[done..])? {
                0 => self.wait(PollFlags::OUT).await,
                len => done += len,
            }
        }
        Ok(())
    }
}

/// Runs one part on each line at the same time. Returns what they return.
///
/// # Errors
/// That of the first part which fails, and why the run was stopped.
pub(super) fn run<T>(
    lines: &[Line],
    parts: impl Iterator<Item = impl Future<Output = Result<T, Error>>>,
    waiting: Waiting,
    stop: &Stop,
) -> Result<Vec<T>, Error> {
    let is_alone = lines.len() == 1 && waiting == Waiting::Polling;
    lines.iter().for_each(|line| line.is_alone.set(is_alone));
    let mut parts: Vec<_> = lines.iter().zip(parts).map(|(line, part)| Some((line, Box::pin(part)))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut results = Vec::with_capacity(lines.len());
    let mut idle: Option<Instant> = None;
    loop {
        for place in &mut parts {
            let Some((_, part)) = place else { continue };
            if let Poll::Ready(result) = part.as_mut().poll(&mut context) {
                results.push(result?);
                *place = None;
            }
        }
        if results.len() == lines.len() {
            return Ok(results);
        }
        if stop.is_set() {
            return Err(stop.error());
        }
        let sleeps = match waiting {
            Waiting::Polling => false,
            Waiting::Sleeping => true,
            Waiting::Hybrid => {
                // Every line is looked at, so that none remembers what moved long ago.
                if lines.iter().filter(|line| line.moved.replace(false)).count() > 0 {
                    idle = None;
                }
                now() - *idle.get_or_insert_with(now) > SPIN
            }
        };
        let open = parts.iter().flatten().map(|(line, _)| *line);
        if sleeps && open.clone().all(|line| !line.waits.get().is_empty()) {
            let mut fds: Vec<PollFd<'_>> = open.map(|line| PollFd::new(&line.stream, line.waits.get())).collect();
            poll(&mut fds, Some(&LOOK)).map_err(std::io::Error::from)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Line, Line) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Line::new(one).unwrap(), Line::new(listener.accept().unwrap().0).unwrap())
    }

    /// A part may need bytes that another part of the same thread has to write.
    #[test]
    fn parts_of_a_thread_run_at_the_same_time_however_it_waits() {
        for waiting in [Waiting::Polling, Waiting::Sleeping, Waiting::Hybrid] {
            let (a, b) = pair();
            let (lines, bytes) = ([a, b], vec![7; 4 << 20]);
            let part = |line: usize| {
                let (lines, bytes) = (&lines, &bytes);
                async move {
                    let mut came = vec![0; bytes.len()];
                    if line == 0 {
                        lines[0].write_all(bytes).await?;
                        lines[0].read_exact(&mut came[..1]).await?;
                    } else {
                        lines[1].read_exact(&mut came).await?;
                        lines[1].write_all(&came[..1]).await?;
                    }
                    Ok(came[0])
                }
            };
            let done = run(&lines, (0..2).map(part), waiting, &Stop::default());
            assert_eq!(done.unwrap(), [7, 7]);
        }
    }

    #[test]
    fn a_part_without_an_answer_is_stopped_and_one_without_a_peer_fails() {
        let (a, b) = pair();
        let stop = Stop::default();
        stop.now("enough");
        let lines = [a];
        let read = || lines.iter().map(|line| async { line.read_exact(&mut [0]).await });
        assert!(run(&lines, read(), Waiting::Sleeping, &stop).is_err_and(|error| error.to_string().contains("enough")));
        drop(b);
        let lost = run(&lines, read(), Waiting::Sleeping, &Stop::default()).unwrap_err();
        assert_eq!(lost.kind(), bmi::ErrorKind::PeerLost);
    }
}
