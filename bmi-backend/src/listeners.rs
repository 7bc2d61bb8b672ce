//! Sockets at which connections come in.

use std::io;
use std::time::Duration;

use bmi_core::Time;

/// Connections taken from one listener in one poll, so that a flood of them does not stop
/// everything else.
const BATCH: u32 = 64;
/// When the system has no descriptors left, how long until the next try.
const RETRY: Duration = Duration::from_millis(100);

struct Listener<S> {
    socket: S,
    ready: bool,
    retry_at: Option<Time>,
}

/// The listening sockets of a transport, in the order in which they were added, and which of them
/// may have a connection.
///
/// **Why.** Readiness is told once (by edges), so it is noted until the socket says that there is
/// no more; and when the system has no descriptor for a connection that waits, no edge comes when
/// it has one again, so the socket is tried again after 100 ms.
///
/// **Protocol** of one poll:
///
/// ```text
///   expire(now)                      those whose second try is due are ready
///   set_ready(index), ...            what the kernel told
///   while let Some(new) = accept(&mut round, now, ...) { take it }
///   deadlines.add(deadline())        if one is to be tried again
/// ```
pub struct Listeners<S>(Vec<Listener<S>>);

/// One walk over all listeners, see [`Listeners::accept`].
#[derive(Debug, Default)]
pub struct Round {
    index: usize,
    taken: u32,
}

impl<S> Default for Listeners<S> {
    fn default() -> Listeners<S> {
        Listeners(Vec::new())
    }
}

impl<S> Listeners<S> {
    /// The index that the next one gets: its token, for registering it before it is added.
    pub fn next_index(&self) -> usize {
        self.0.len()
    }

    /// One more. It counts as ready, for a connection may have come before it was watched.
    pub fn add(&mut self, socket: S) {
        self.0.push(Listener { socket, ready: true, retry_at: None });
    }

    /// The kernel says that connections wait. An index that there is not is ignored.
    pub fn set_ready(&mut self, index: usize) {
        if let Some(listener) = self.0.get_mut(index) {
            listener.ready = true;
        }
    }

    /// Whether connections may wait.
    pub fn any_ready(&self) -> bool {
        self.0.iter().any(|listener| listener.ready)
    }

    /// When one is to be tried again, if one is.
    pub fn deadline(&self) -> Option<Time> {
        self.0.iter().filter_map(|listener| listener.retry_at).min()
    }

    /// Those whose second try is due by `now` are ready again.
    pub fn expire(&mut self, now: Time) {
        for listener in &mut self.0 {
            if listener.retry_at.is_some_and(|at| at <= now) {
                (listener.retry_at, listener.ready) = (None, true);
            }
        }
    }

    /// The next connection of a walk that takes at most 64 from each listener; `None` at its end.
    /// `accept` takes one from a socket, without blocking. What fails for want of descriptors or
    /// memory is logged and tried again later: then [`Listeners::deadline`] says when.
    pub fn accept<T>(
        &mut self,
        round: &mut Round,
        now: Time,
        mut accept: impl FnMut(&S) -> io::Result<T>,
    ) -> Option<T> {
        while let Some(listener) = self.0.get_mut(round.index) {
            if !listener.ready || round.taken == BATCH {
                *round = Round { index: round.index + 1, taken: 0 };
                continue;
            }
            round.taken += 1;
            match accept(&listener.socket) {
                Ok(accepted) => return Some(accepted),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => listener.ready = false,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => {
                        tracing::warn!(%error, "cannot accept connections; trying again in {RETRY:?}");
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

    use super::*;

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
