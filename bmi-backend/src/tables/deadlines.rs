//! The earliest deadline of a transport (C12), and the log about its peers, which has deadlines
//! too.

use std::fmt::Display;

use bmi_core::{Addr, LogLimit, Time};

/// The earliest of all deadlines. Adding one is cheap. When one may have been removed, the
/// transport recomputes the earliest at the end of its poll. It does so once, however many were
/// removed.
///
/// Lines of the log that peers can cause are limited ([`LogLimit`]). A line that reports how many
/// were left out has a deadline, so the limit is here.
///
/// ```
/// use bmi_backend::Deadlines;
/// use bmi_core::Time;
///
/// let (soon, late) = (Time::from_nanos(1), Time::from_nanos(2));
/// let mut deadlines = Deadlines::default();
/// deadlines.add(Some(late));
/// deadlines.add(Some(soon));
/// assert!(deadlines.due(soon));
/// deadlines.refresh(); // what was due at `soon` has ended
/// deadlines.renew(|| [late].into_iter());
/// assert_eq!(deadlines.earliest(), Some(late));
/// ```
#[derive(Debug, Default)]
pub struct Deadlines {
    earliest: Option<Time>,
    stale: bool,
    log: LogLimit,
}

impl Deadlines {
    /// Returns the answer for `next_deadline`. It is never too late. It may be too early until the
    /// end of the next poll.
    #[inline]
    pub fn earliest(&self) -> Option<Time> {
        self.earliest
    }

    /// Returns true if the earliest deadline has been reached. The caller then handles all that is
    /// due, and calls [`Deadlines::expire`].
    #[inline]
    pub fn due(&self, now: Time) -> bool {
        self.earliest.is_some_and(|earliest| earliest <= now)
    }

    /// Adds a deadline, if there is one.
    #[inline]
    pub fn add(&mut self, deadline: Option<Time>) {
        self.earliest = self.earliest.into_iter().chain(deadline).min();
    }

    /// Notes that a deadline may have been removed.
    #[inline]
    pub fn refresh(&mut self) {
        self.stale = true;
    }

    /// Returns true if a deadline may have been removed since the last [`Deadlines::renew`].
    #[inline]
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Recomputes the earliest from `all`, if any may have been removed since the last call.
    #[inline]
    pub fn renew<I: Iterator<Item = Time>>(&mut self, all: impl FnOnce() -> I) {
        if std::mem::take(&mut self.stale) {
            self.earliest = all().chain(self.log.next_deadline()).min();
        }
    }

    /// Notes that all that is due by `now` was handled. Reports log lines that were left out.
    pub fn expire(&mut self, now: Time) {
        self.log.poll(now);
        self.refresh();
    }

    /// Returns whether to write a log line of this kind about a host or process.
    pub fn admits_line(&mut self, kind: &'static str, host: &str, now: Time) -> bool {
        let admitted = self.log.admits(kind, host, now);
        self.add(self.log.next_deadline());
        admitted
    }

    /// Warns that this side closed the connection to a peer, within the limit.
    pub fn warn_closed(&mut self, peer: &Addr, why: &dyn Display, now: Time) {
        if self.admits_line("connection closed", peer.host(), now) {
            tracing::warn!(%peer, fault = %why, "connection closed");
        }
    }
}
