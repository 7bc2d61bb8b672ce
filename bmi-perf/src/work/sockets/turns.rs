//! The loop of a thread that has several connections.
//!
//! **Invariant.** The loop sleeps only if every part waits for its socket. It never misses a socket
//! that is ready: `epoll` is level-triggered, so it looks at the state, not at changes.
//!
//! **Turns.** One `epoll_wait` finds the sockets that are ready, and only their parts run. It looks
//! if the thread polls, and sleeps if not. A thread that polls one socket tries that socket
//! instead.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, Waker};

use bmi::Error;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::line::Line;
use super::spin::Spin;
use crate::case::Waiting;
use crate::measured::now;
use crate::stop::Stop;

/// How often a side that waits looks whether the run has ended.
pub(in crate::work) const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// A look that does not wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

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
    let is_one = lines.len() == 1;
    lines.iter().for_each(|line| line.is_alone.set(is_one && waiting == Waiting::Polling));
    let mut poll = Sockets::new(lines)?;
    let mut spin = (waiting == Waiting::Hybrid).then(Spin::default);
    let mut parts: Vec<_> = parts.map(|part| Some(Box::pin(part))).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut results = Vec::with_capacity(lines.len());
    let mut turn: Vec<usize> = (0..lines.len()).collect();
    loop {
        for &index in &turn {
            let Some(part) = &mut parts[index] else { continue };
            if let Poll::Ready(result) = part.as_mut().poll(&mut context) {
                results.push(result?);
                parts[index] = None;
                poll.forget(index)?;
            }
        }
        if results.len() == lines.len() {
            return Ok(results);
        }
        if stop.is_set() {
            return Err(stop.error());
        }
        let polls = match &mut spin {
            // Every line is looked at, so that none remembers what moved long ago.
            Some(spin) => spin.goes_on(lines.iter().filter(|line| line.moved.replace(false)).count() > 0, now()),
            None => waiting == Waiting::Polling,
        };
        if is_one && polls {
            continue;
        }
        let wants_turn = |index: &usize| parts[*index].is_some() && lines[*index].waits.get().is_empty();
        turn.clear();
        turn.extend((0..lines.len()).filter(wants_turn));
        let open = (0..lines.len()).filter(|index| parts[*index].is_some());
        if turn.len() < open.clone().count() {
            poll.wait(open, &mut turn, polls)?;
        }
    }
}

/// The sockets of a thread, as `epoll` knows them.
struct Sockets<'a> {
    epoll: OwnedFd,
    lines: &'a [Line],
    /// What each is asked for.
    asked: Vec<EventFlags>,
    events: Vec<Event>,
}

impl<'a> Sockets<'a> {
    fn new(lines: &'a [Line]) -> std::io::Result<Sockets<'a>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (index, line) in lines.iter().enumerate() {
            epoll::add(&epoll, &line.stream, EventData::new_u64(index as u64), EventFlags::IN)?;
        }
        let (asked, events) = (vec![EventFlags::IN; lines.len()], Vec::with_capacity(lines.len()));
        Ok(Sockets { epoll, lines, asked, events })
    }

    fn forget(&self, index: usize) -> std::io::Result<()> {
        Ok(epoll::delete(&self.epoll, &self.lines[index].stream)?)
    }

    /// Adds the sockets that are ready to `turn`. Sleeps until one is, unless the thread polls or a
    /// part wants its turn.
    fn wait(&mut self, open: impl Iterator<Item = usize>, turn: &mut Vec<usize>, polls: bool) -> std::io::Result<()> {
        for index in open {
            let waits = self.lines[index].waits.get();
            if waits != self.asked[index] && !waits.is_empty() {
                let data = EventData::new_u64(index as u64);
                epoll::modify(&self.epoll, &self.lines[index].stream, data, waits)?;
                self.asked[index] = waits;
            }
        }
        let timeout = if polls || !turn.is_empty() { AT_ONCE } else { LOOK };
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &self.events {
            let index = event.data.u64() as usize;
            if !turn.contains(&index) {
                turn.push(index);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{TcpListener, TcpStream};

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
                        lines[0].read_answer(&mut came[..1]).await?;
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

    /// All sockets were tried in each turn, so that many connections looked expensive.
    #[test]
    fn only_parts_whose_sockets_are_ready_get_a_turn() {
        for waiting in [Waiting::Polling, Waiting::Sleeping] {
            let ((a, b), (quiet, _other), stop) = (pair(), pair(), Stop::default());
            let (lines, turns) = ([a, b, quiet], Cell::new(0));
            let part = |line: usize| {
                let (lines, turns, stop) = (&lines, &turns, &stop);
                async move {
                    if line == 2 {
                        loop {
                            turns.set(turns.get() + 1);
                            lines[2].wait(EventFlags::IN).await;
                        }
                    }
                    for _ in 0..100 {
                        if line == 0 {
                            lines[0].write_all(&[1]).await?;
                        }
                        lines[line].read_answer(&mut [0]).await?;
                        if line == 1 {
                            lines[1].write_all(&[1]).await?;
                        }
                    }
                    if line == 0 {
                        stop.now("done");
                    }
                    Ok(())
                }
            };
            let ended = run(&lines, (0..3).map(part), waiting, &stop);
            assert!(ended.is_err_and(|why| why.to_string().contains("done")));
            assert_eq!(turns.get(), 1, "{waiting:?}: the quiet one begins, and waits");
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
