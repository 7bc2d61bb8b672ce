//! Sockets that accept connections.

use std::io;
use std::time::Duration;

use bmi_core::{LogLimit, Time};

use super::{Place, Shard};

/// Number of connections accepted from one listener in one poll, so that a flood of them does not
/// stop everything else.
const BATCH: u32 = 64;
/// Time until the next try when the system has no descriptors left.
const RETRY: Duration = Duration::from_millis(100);

struct Listener<S> {
    socket: S,
    ready: bool,
    retry_at: Option<Time>,
}

/// The listening sockets of a transport, in the order in which they were added. Records which of
/// them may have a connection waiting.
///
/// **Why.** Readiness is edge-triggered, so it is recorded until the socket reports that no
/// connection is left. If the system has no descriptor for a waiting connection, no new edge comes
/// when descriptors are free again. So the socket is tried again after 100 ms.
///
/// **Protocol** of one poll:
///
/// ```text
///   expire(now)                      marks listeners ready whose retry is due
///   set_ready(index), ...            for the kernel's reports
///   while let Some(new) = round.next(&shard, &mut listeners, now, ...) { take it }
///   deadlines.add(deadline())        the time of the next retry, if any
/// ```
pub struct Listeners<S> {
    listeners: Vec<Listener<S>>,
    /// A shortage that lasts fails each retry.
    log: LogLimit,
}

/// One pass over all listeners, and over the sockets that other members of the group have accepted
/// for this transport.
#[derive(Debug, Default)]
pub struct Round {
    index: usize,
    taken: u32,
    /// Sockets that waited when the pass began, and are still to take.
    waiting: usize,
    any: bool,
}

impl Round {
    /// Begins a pass of a member of a group.
    pub fn new<S>(shard: &Shard<S>) -> Round {
        Round { waiting: shard.waiting(), ..Round::default() }
    }

    /// Returns the next connection that this member serves, or `None` at the end of the pass. The
    /// sockets that waited for it come first, then its share of those that it accepts. `accept`
    /// takes one connection from a socket, without blocking, and may refuse it (`None`). A failure
    /// for lack of descriptors or memory is logged and retried later, at [`Listeners::deadline`].
    pub fn next<L, S>(
        &mut self,
        shard: &Shard<S>,
        listeners: &mut Listeners<L>,
        now: Time,
        mut accept: impl FnMut(&L) -> io::Result<Option<S>>,
    ) -> Option<(S, Place)> {
        while self.waiting > 0 {
            self.waiting -= 1;
            if let Some(next) = shard.next() {
                self.any = true;
                return Some(next);
            }
        }
        while let Some(accepted) = listeners.accept(self, now, &mut accept) {
            self.any = true;
            if let Some(own) = accepted.and_then(|socket| shard.assign(socket)) {
                return Some(own);
            }
        }
        None
    }

    /// Returns whether any connection came, whoever serves it.
    pub fn any(&self) -> bool {
        self.any
    }
}

impl<S> Default for Listeners<S> {
    fn default() -> Listeners<S> {
        Listeners { listeners: Vec::new(), log: LogLimit::default() }
    }
}

impl<S> Listeners<S> {
    /// Returns the index of the next listener. It serves as a token to register it before it is
    /// added.
    pub fn next_index(&self) -> usize {
        self.listeners.len()
    }

    /// Adds a listener. It counts as ready, because a connection may have come before it was
    /// watched.
    pub fn add(&mut self, socket: S) {
        self.listeners.push(Listener { socket, ready: true, retry_at: None });
    }

    /// Records the kernel's report that connections are waiting. An unknown index is ignored.
    pub fn set_ready(&mut self, index: usize) {
        if let Some(listener) = self.listeners.get_mut(index) {
            listener.ready = true;
        }
    }

    /// Returns true if connections may be waiting.
    #[inline]
    pub fn any_ready(&self) -> bool {
        self.listeners.iter().any(|listener| listener.ready)
    }

    /// Returns the time of the next retry, or of a line that reports on earlier ones, if any.
    pub fn deadline(&self) -> Option<Time> {
        self.listeners.iter().filter_map(|listener| listener.retry_at).chain(self.log.next_deadline()).min()
    }

    /// Marks listeners ready whose retry is due by `now`.
    pub fn expire(&mut self, now: Time) {
        self.log.poll(now);
        for listener in &mut self.listeners {
            if listener.retry_at.is_some_and(|at| at <= now) {
                (listener.retry_at, listener.ready) = (None, true);
            }
        }
    }

    /// Returns the next connection of a pass that takes at most 64 from each listener, or `None` at
    /// its end; see [`Round::next`].
    pub(super) fn accept<T>(
        &mut self,
        round: &mut Round,
        now: Time,
        mut accept: impl FnMut(&S) -> io::Result<T>,
    ) -> Option<T> {
        while let Some(listener) = self.listeners.get_mut(round.index) {
            if !listener.ready || round.taken == BATCH {
                (round.index, round.taken) = (round.index + 1, 0);
                continue;
            }
            round.taken += 1;
            match accept(&listener.socket) {
                Ok(accepted) => return Some(accepted),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => listener.ready = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        if self.log.admits("cannot accept connections", "this host", now) {
                            tracing::warn!(%error, "cannot accept connections; trying again in {RETRY:?}");
                        }
                        (listener.ready, listener.retry_at) = (false, Some(now + RETRY));
                    }
                },
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::Waker;

    use super::*;
    use crate::Limits;

    #[test]
    fn a_round_takes_what_waits_for_a_member_and_then_its_share() {
        let shards = Shard::group(vec![Waker::noop().clone(); 2], Limits::default());
        // The numbers from 5 to 1. The listener refuses 5.
        let accept = |socket: &Cell<u32>| match socket.replace(socket.get().saturating_sub(1)) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            number => Ok(Some(number).filter(|number| *number < 5)),
        };
        let take = |shard: &Shard<u32>, listeners: &mut Listeners<Cell<u32>>| {
            let mut round = Round::new(shard);
            let next = || round.next(shard, listeners, Time::ZERO, accept);
            let taken: Vec<_> = std::iter::from_fn(next).collect();
            (taken.iter().map(|(number, _)| *number).collect::<Vec<_>>(), round.any(), taken)
        };
        let (mut listeners, mut none) = (Listeners::default(), Listeners::default());
        listeners.add(Cell::new(5));
        let first = take(&shards[0], &mut listeners);
        assert_eq!((&first.0[..], first.1), (&[4, 2][..], true));
        let second = take(&shards[1], &mut none);
        assert_eq!((&second.0[..], second.1), (&[3, 1][..], true));
        assert!(!take(&shards[1], &mut none).1);
        listeners.set_ready(0);
        assert!(!take(&shards[0], &mut listeners).1, "the listener has none left");
    }

    #[test]
    fn a_flood_takes_turns_and_a_want_of_descriptors_is_tried_again() {
        let mut listeners: Listeners<Cell<u32>> = Listeners::default();
        listeners.add(Cell::new(100));
        listeners.add(Cell::new(3));
        let accept = |socket: &Cell<u32>| match socket.get() {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            left => {
                socket.set(left - 1);
                Ok(())
            }
        };
        let count = |listeners: &mut Listeners<Cell<u32>>| {
            let mut round = Round::default();
            std::iter::from_fn(|| listeners.accept(&mut round, Time::ZERO, accept)).count()
        };
        assert_eq!(count(&mut listeners), 64 + 3);
        assert!(listeners.any_ready(), "the first has more");
        assert_eq!(count(&mut listeners), 36);
        assert!(!listeners.any_ready() && listeners.deadline().is_none());

        listeners.set_ready(1);
        listeners.set_ready(7);
        let none: Option<()> =
            listeners.accept(&mut Round::default(), Time::ZERO, |_| Err(io::Error::from_raw_os_error(24)));
        assert!(none.is_none() && !listeners.any_ready());
        let again = listeners.deadline().unwrap();
        assert_eq!(again, Time::ZERO + RETRY);
        listeners.expire(Time::ZERO);
        assert!(!listeners.any_ready());
        listeners.expire(again);
        assert!(listeners.any_ready() && listeners.deadline().is_none());
    }
}
